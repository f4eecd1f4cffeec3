"""A run, or a merged export, as a GGUF file with an Ollama Modelfile, compared with the merged model through llama.cpp."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require
from grpo_nb.core.files import staged_folder, target_of
from grpo_nb.export.conversion import QUANTIZATIONS, convert, find_converter, find_quantizer
from grpo_nb.export.merged import (
    make_export,
    make_merged,
    run_check,
    verified_texts,
    weights_folder,
)
from grpo_nb.export.modelfile import modelfile
from grpo_nb.export.result import RECORD, Export, ExportError, Report, open_export
from grpo_nb.generation.llama_cpp import LlamaCppError, require_llama_cpp
from grpo_nb.generation.llama_cpp import answer as llama_cpp_answer
from grpo_nb.runs.run_folder import Run, open_run

# What rounding to it may cost: the least and the most of the training's effect, nats from the merged model, and share of places
# with the same likeliest word. From classic failures and sound exports: docs/evidence/export.md.
LIMITS = {
    **dict.fromkeys(("f16", "bf16", "f32"), (0.85, 1.15, 0.05, 0.97)), "q8_0": (0.7, 1.3, 0.05, 0.95),
    "q4_k_m": (0.5, 1.5, 0.3, 0.9),
}  # fmt: skip


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

    llama.cpp renders held-out prompts with the template inside the file and answers them. Compared with the merged model in
    transformers are the tokens of the prompts, and how likely llama.cpp's words are to it. How far a format may be off is
    stated for each; `.table` has what was measured.

    Args:
        run_or_export: A run, which is merged for this, or what `export_merged` returned; also as its folder, and a run by its
            name in `runs`.
        path: The folder to make; the file in it is named after the folder and the quantization.
        quantization: `q8_0`, `f16`, `bf16` or `f32` by llama.cpp's converter; `q4_k_m` where its program `llama-quantize` is on
            the PATH.
        overwrite: Replace an existing folder, once the new one is verified.
        converter: A `convert_hf_to_gguf.py`; by default the one on the PATH, else the registry's package in the kit's cache.
        report: Called with one line per stage.

    Raises:
        FileExistsError: The folder exists and `overwrite` is false.
        FileNotFoundError: There is neither a run nor an export of this name.
        EnvironmentProblem: xllamacpp, the converter or the quantizer is missing, or disk or memory is short.
        ExportError: The file is not the merged model. Nothing is left at `path`.
        ValueError: The run was trained with tools.

    >>> gn.export_gguf(gn.open_run("runs/first"), "exports/first-gguf")  # doctest: +SKIP
    """
    require(
        'gn.export_gguf(run, "exports/name")',
        roles={"run_or_export": "exported"},
        run_or_export=run_or_export,
    )
    check_quantization(quantization)
    target, report = target_of(path), report or (lambda line: None)
    source = find_run_or_export(run_or_export)
    export = source if isinstance(source, Export) else None
    run = source if export is None else export.run
    if export is not None and (run is None or export.kind != "merged"):
        raise ValueError(
            f"a GGUF file is made from a run, or from a merged export whose run is known, and {str(export.path)!r} is "
            f"{export.kind} of {export.verification['run']!r}: gn.export.open(path, run='runs/<name>')."
        )
    if run.info["task"].get("tools"):
        raise ValueError(
            f"the run {run.name!r} was trained with tools, and llama.cpp, which would verify the file, runs none here: "
            "gn.export_merged(run, path)."
        )
    require_llama_cpp()
    quantizer = find_quantizer(quantization)

    def make(staged: Path) -> dict[str, Any]:
        from transformers import AutoTokenizer

        context = run.settings.max_prompt_length + run.settings.max_completion_length
        chats = [row["prompt"] for row in run.holdout]
        command = find_converter(converter, report)
        file = staged / f"{target.name}-{quantization}.gguf"
        # A merged model that is made for this only is gone afterwards.
        with (
            contextlib.nullcontext(export.path)
            if export is not None
            else staged_folder(target) as merged
        ):
            of_merged = (
                make_merged(run, merged, report=report) if export is None else export.verification
            )
            report(f"converting to {quantization}")
            convert(merged, of_merged["dtype"], file, quantization, command, quantizer)
            verification = verify_gguf(run, merged, file, quantization, report)
            text = modelfile(
                file.name, AutoTokenizer.from_pretrained(merged), chats, context=context
            )
        (staged / "Modelfile").write_text(text, encoding="utf-8")
        size = f"{quantization}, {file.stat().st_size / 1e6:.0f} MB, through llama.cpp"
        said = {
            "sentence": f"{size}: {verification['words']}",
            "quantization": quantization,
            "file": file.name,
        }
        return (
            verification
            | said
            | {name: of_merged[name] for name in ("trained_in_4bit",) if name in of_merged}
        )

    return make_export(run, "gguf", target, make, overwrite=overwrite)


def check_quantization(quantization: Any) -> None:
    """Refuse what is not the name of one quantization.

    Raises:
        ValueError: Another value, or several names.
    """
    if isinstance(quantization, str) and quantization in QUANTIZATIONS:
        return
    known = ", ".join(map(repr, QUANTIZATIONS))
    message = f"quantization = {quantization!r} is not one of {known}."
    if not isinstance(quantization, str):
        message += (
            " An export holds one GGUF file, so call export_gguf once for each quantization, with a folder of its own:"
            " gn.export_gguf(run, 'exports/name-q8_0', quantization='q8_0')."
        )
    raise ValueError(message)


def find_run_or_export(source: Run | Export | str | Path) -> Run | Export:
    """Return the run or the export that is meant: an object as it is, else by its folder, or a run by its name in `runs`.

    Raises:
        FileNotFoundError: There is neither.
        ExportError: The folder is a damaged export.
    """
    if isinstance(source, (Run, Export)):
        return source
    folder = Path(source).expanduser()
    if (folder / RECORD).is_file() and not (folder / "run.json").is_file():
        return open_export(folder)
    try:
        return open_run(folder)
    except FileNotFoundError as error:
        if folder.is_dir():
            return open_export(folder)  # whose error says what the folder lacks
        raise FileNotFoundError(
            f"{str(source)!r} is neither the folder of a merged export nor a run, by its folder or by its name in "
            f"{Settings().run_root!r} (looked in {Path.cwd()}). gn.runs.list() has the runs."
        ) from error


def verify_gguf(
    run: Run, merged: Path, file: Path, quantization: str, report: Report
) -> dict[str, Any]:
    """Compare a GGUF file with the merged model that it was made of.

    Raises:
        ExportError: It is not that model, or llama.cpp cannot read it.
    """
    asked = verified_texts(run)
    how = {
        "max_completion_length": asked["max_new_tokens"],
        "chat_template_kwargs": asked["chat_template_kwargs"],
    }
    try:
        answers = llama_cpp_answer(file, asked["prompts"], report=report, **how)
    except LlamaCppError as error:
        raise ExportError(
            f"the GGUF file could not be verified, so it was not kept: {error}"
        ) from error
    report("comparing it with the merged model")
    request = {
        "check": "gguf",
        "file": str(file),
        "merged": str(merged),
        "base": str(weights_folder(run)),
    }
    request |= {
        "answers": [dataclasses.asdict(answer) for answer in answers],
        "limits": LIMITS[quantization],
        **asked,
    }
    return run_check(request, "the GGUF file")
