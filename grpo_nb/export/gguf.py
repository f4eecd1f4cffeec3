"""A run, or a merged export, as a GGUF file with an Ollama Modelfile, compared with the merged model through llama.cpp."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

from grpo_nb.core.files import staged_folder, target_of
from grpo_nb.export.conversion import QUANTIZATIONS, convert, find_converter, require_quantizer
from grpo_nb.export.merged import add_score, make_export, make_merged, run_check, verified_texts, weights_folder
from grpo_nb.export.modelfile import modelfile
from grpo_nb.export.result import Export, ExportError, Report, export_of, require_passed, told
from grpo_nb.generation.llama_cpp import LlamaCppError, require_llama_cpp
from grpo_nb.generation.llama_cpp import answer as llama_cpp_answer
from grpo_nb.runs.run import Run, open_run
from grpo_nb.settings.settings import Settings


def export_gguf(
    run_or_export: Run | Export | str | Path,
    path: str | Path,
    *,
    quantization: str = "q8_0",
    overwrite: bool = False,
    converter: str | Path | None = None,
    report: Report | None = None,
) -> Export:
    """Make a GGUF file for llama.cpp, Ollama and LM Studio, with a Modelfile, and verify it through llama.cpp.

    llama.cpp renders held-out prompts with the template inside the file and answers them; the merged model does the same in
    transformers. Compared are the rendered text and its tokens, the answers, how likely llama.cpp's words are to the merged
    model, whether answers end, and the held-out score. How far a format may be off is stated for each; `.table` has what was
    measured.

    Args:
        run_or_export: A run, which is merged for this, or what `export_merged` returned; also as its folder.
        path: The folder to make; the file in it is named after the folder, or the run where that is called as the quantization,
            and the quantization.
        quantization: `f32`, `f16`, `bf16` or `q8_0` by llama.cpp's converter; `q4_k_m` where its program `llama-quantize` is on
            the PATH.
        overwrite: Replace an existing folder, once the new one is verified.
        converter: A `convert_hf_to_gguf.py`; by default the one on the PATH, else the registry's package in the kit's cache.
        report: Called with one line per stage.

    Raises:
        FileExistsError: The folder exists and `overwrite` is false.
        EnvironmentProblem: xllamacpp, the converter or the quantizer is missing, or disk or memory is short.
        ExportError: The file is not the merged model. Nothing is left at `path`.

    >>> gn.export_gguf(gn.open_run("runs/first"), "exports/first-gguf")  # doctest: +SKIP
    """
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization = {quantization!r} is not one of {', '.join(map(repr, QUANTIZATIONS))}.")
    target, report = target_of(path), told(report)
    if target.suffix == ".gguf":
        raise ValueError(
            f"path = {str(path)!r} is the folder to make, with the file in it: write {str(target.stem)!r}."
        )
    export = None if _is_run(run_or_export) else export_of(run_or_export)
    if export is not None and export.kind != "merged":
        raise ValueError(f"a GGUF file is made from a run or a merged export, not from {export.kind!r}.")
    run = open_run(run_or_export) if export is None else export.run
    if run is None:
        raise ValueError(
            f"no run in {Settings().run_root!r} says that it was exported to {str(export.path)!r}, and its questions verify "
            f"the file. Say which it was: gn.export.open({str(export.path)!r}, run='runs/<name>')."
        )
    require_llama_cpp()
    program = require_quantizer(quantization)

    def make(staged: Path) -> dict[str, Any]:
        from transformers import AutoTokenizer

        context = run.settings.max_prompt_length + run.settings.max_completion_length
        script = find_converter(converter, report=report)
        # A folder for each format is often named after it alone: then the run says whose file it is.
        stem = run.name if target.name == quantization else target.name
        file = staged / f"{stem}-{quantization}.gguf"
        # A merged model that is made for this only is gone afterwards.
        made_before = contextlib.nullcontext(export.path) if export is not None else None
        with made_before or staged_folder(target) as merged:
            if made_before is None:
                of_merged = make_merged(run, merged, dtype="auto", low_memory="auto", report=report)
            else:
                of_merged = export.verification
            report(f"converting to {quantization} with {' and '.join(t.source for t in (script, program) if t)}")
            convert(merged, file, quantization, script, program)
            verification = _verify(run, merged, file, quantization, report)
            verification |= {key: of_merged[key] for key in ("trained_in_4bit",) if key in of_merged}
            chats = [row["prompt"] for row in run.holdout]
            text = modelfile(file.name, AutoTokenizer.from_pretrained(merged), chats, context=context)
        (staged / "Modelfile").write_text(text, encoding="utf-8")
        # Without the folders of this machine: the file goes to the Hub with the rest.
        tools = {"converter": script, "quantizer": program}
        return verification | {name: tool and Path(tool.source).name for name, tool in tools.items()}

    return make_export(run, "gguf", target, make, overwrite=overwrite)


def _is_run(what: Any) -> bool:
    return isinstance(what, Run) or (isinstance(what, (str, Path)) and (Path(what) / "run.json").is_file())


def _verify(run: Run, merged: Path, file: Path, quantization: str, report: Report) -> dict[str, Any]:
    asked = verified_texts(run)
    prompts, limit, chat = asked["prompts"], asked["max_new_tokens"], asked["chat_template_kwargs"]
    try:
        answers = llama_cpp_answer(file, prompts, max_completion_length=limit, chat_template_kwargs=chat, report=report)
    except LlamaCppError as error:
        raise ExportError(f"the GGUF file could not be verified, so it was not kept: {error}") from error
    _, tolerance, least = QUANTIZATIONS[quantization]
    request = {
        "check": "gguf",
        "merged": str(merged),
        "base": str(weights_folder(run)),
        "answers": [dataclasses.asdict(answer) for answer in answers],
        **asked,
        "tolerance": tolerance,
        "least_equal": least,
    }
    report("comparing it with the merged model")
    verification = run_check(request, "the GGUF file")
    _add_file_checks(verification, file, merged, quantization)
    add_score(verification, run, "merged model", "merged")
    verification |= {"quantization": quantization, "file": file.name, "bytes": file.stat().st_size}
    require_passed(verification, "the GGUF file")
    return verification


def _add_file_checks(verification: dict[str, Any], file: Path, merged: Path, quantization: str) -> None:
    """Add what the file itself says: llama.cpp has a template and end tokens of its own in reserve, other programs have not.

    A matrix whose rows are no multiple of 256 gets another type than its mixture has for it; the table says what there is.
    """
    from gguf import GGUFReader, LlamaFileType
    from transformers import AutoTokenizer

    tokenizer, reader = AutoTokenizer.from_pretrained(merged), GGUFReader(str(file))
    fields = reader.fields

    def held(name: str) -> Any:
        return fields[name].contents() if name in fields else None

    template, end = held("tokenizer.chat_template"), held("tokenizer.ggml.eos_token_id")
    stored = Counter(tensor.tensor_type.name for tensor in reader.tensors).most_common()
    named = LlamaFileType(held("general.file_type")).name.partition("_")[2].lower()
    is_same = template is not None and template.strip() == str(tokenizer.chat_template).strip()
    said = "" if is_same else "none" if template is None else "another"
    counted = ", ".join(f"{count} tensors {kind}" for kind, count in stored)
    right_end = tokenizer.eos_token_id
    for name, passed, measured in (
        ("the file holds the chat template", is_same, said),
        ("the file names the end token", end == right_end, f"{end}, the tokenizer's {right_end}"),
        ("the file is of this quantization", named == quantization, f"{named}: {counted}"),
    ):
        verification["checks"][name], verification["measured"][name] = passed, measured
