"""Export a run as a GGUF file with an Ollama Modelfile, verified through llama.cpp."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_nb.core.argument_types import require_types
from grpo_nb.core.files import check_target, resolved_target
from grpo_nb.core.words import require_choice
from grpo_nb.export.conversion import convert
from grpo_nb.export.saved_export import Export, ExportError, Verification, open_export
from grpo_nb.export.staged_export import (
    RoundingLimits,
    fetch_base_folder,
    make_export,
    verification_request,
    verify_in_new_process,
)
from grpo_nb.generation.llama_cpp import LlamaCppError, complete_with_gguf, require_llama_cpp
from grpo_nb.runs.run_folder import Run

#: Ollama's default context, in tokens; a smaller one is useless for a chat.
SMALLEST_CONTEXT = 4096
#: Limits for a file of each quantization.
LIMITS_OF_QUANTIZATION = {
    "q8_0": RoundingLimits(min_effect=0.7, max_effect=1.3, max_nats=0.05),
    "q4_k_m": RoundingLimits(min_effect=0.5, max_effect=1.5, max_nats=0.3),
}


def export_gguf(
    merged: Export,
    path: str | Path,
    *,
    quantization: str = "q8_0",
    overwrite: bool = False,
) -> Export:
    """Make a GGUF file for llama.cpp, Ollama and LM Studio, with a Modelfile, and verify the file.

    llama.cpp renders held-out prompts with the chat template inside the file and answers them. The
    tokens of the prompts, and the log-probabilities of llama.cpp's answers, are compared with those
    of the merged model in transformers. Each quantization has limits, and the export shows what
    was measured.

    Args:
        merged: An export from `export_merged`, or from `gn.export.open(path, run=run)`.
        path: The folder to make. The file in it is named after the folder and the quantization.
        quantization: "q8_0", made by llama.cpp's converter; or "q4_k_m", if llama.cpp's program
            `llama-quantize` is on the PATH.
        overwrite: If True, replace an existing folder once the new one is verified.

    Raises:
        FileExistsError: The folder exists and `overwrite` is False.
        EnvironmentProblem: xllamacpp, the converter or the quantizer is missing.
        ExportError: The merged model is missing or has changed, or the file is not the merged
            model. `path` is as it was.
        ValueError: An unknown quantization, or `merged` is not a merged model, or was opened
            without its run, or the run no longer has the adapter that was merged.

    >>> merged = gn.export_merged(gn.open_run("runs/first"), "exports/first")  # doctest: +SKIP
    >>> gn.export_gguf(merged, "exports/first-gguf")  # doctest: +SKIP
    """
    require_types('gn.export_gguf(merged, "exports/name")', merged=merged)
    require_choice("quantization", quantization, LIMITS_OF_QUANTIZATION)
    target = resolved_target(path)
    # Opened again, because its files may have changed since.
    reopened = open_export(merged.path, run=merged.run)
    if reopened.kind != "merged":
        raise ValueError(
            f"a GGUF file is made from a merged model, but {str(reopened.path)!r} holds "
            f"{reopened.kind} files. Merge the run {reopened.verification['run']!r} first: "
            "gn.export_merged(run, path)."
        )
    run = reopened.run
    if run is None:
        run_path = f"runs/{reopened.verification['run']}"
        raise ValueError(
            f"the export {str(reopened.path)!r} was opened without its run, whose held-out "
            "questions verify the GGUF file. Write "
            f"merged = gn.export.open(path, run={run_path!r})."
        )
    # Checked before the conversion, which takes minutes. The merged model must not be replaced.
    check_target(target, overwrite, [reopened.path])
    require_llama_cpp()

    def fill(staged: Path) -> Verification:
        # Named after the target, because the staged folder has a temporary name. Without the dot of
        # a hidden folder, because hidden files are not part of an export.
        file = staged / f"{target.name.lstrip('.')}-{quantization}.gguf"
        convert(reopened.path, reopened.verification["dtype"], file, quantization)
        verification = verify_with_llama_cpp(run, reopened.path, file, quantization)
        text = modelfile(
            file.name,
            [row["prompt"] for row in run.holdout],
            context=run.settings.longest_sequence,
        )
        (staged / "Modelfile").write_text(text, encoding="utf-8")
        megabytes = file.stat().st_size / 1e6
        verification["sentence"] = (
            f"llama.cpp ran the {quantization} file ({megabytes:.0f} MB) on held-out prompts. "
            f"Compared with the merged model: {verification['tokens']}."
        )
        # If the check of tokens was not made (None), nothing has compared the weights in the file.
        if None in verification["checks"].values():
            verification["sentence"] += " So nothing has checked the weights in the file."
        verification["file"] = file.name
        return verification

    return make_export(run, "gguf", target, fill, overwrite=overwrite)


def verify_with_llama_cpp(
    run: Run, merged_folder: Path, file: Path, quantization: str
) -> Verification:
    """Compare a GGUF file with the merged model that it was made of.

    Raises:
        ExportError: The file is not that model, or llama.cpp cannot read it.
    """
    # llama.cpp answers in a process of its own, before the models in transformers are loaded.
    request = verification_request(run)
    try:
        answers = complete_with_gguf(
            file,
            request["prompts"],
            max_completion_length=request["max_new_tokens"],
            chat_template_kwargs=request["chat_template_kwargs"],
        )
    except LlamaCppError as error:
        raise ExportError(
            f"the GGUF file could not be verified, so it was not kept: {error}"
        ) from error
    request |= {
        "check": "gguf",
        "file": str(file),
        "merged_folder": str(merged_folder),
        "base_folder": str(fetch_base_folder(run)),
        "answers": [dataclasses.asdict(answer) for answer in answers],
        "limits": LIMITS_OF_QUANTIZATION[quantization],
    }
    return verify_in_new_process(request, "the GGUF file")


def modelfile(file_name: str, chats: Sequence[Sequence[Mapping[str, str]]], *, context: int) -> str:
    """Return an Ollama Modelfile for a GGUF file in the same folder.

    It has no TEMPLATE: Ollama 0.30 (May 2026) and later run the chat template inside the file, or
    their own version of one that is nearly the same. Older ones may run none.

    Args:
        file_name: Name of the GGUF file.
        chats: The task's prompts.
        context: Tokens of prompt and answer together.
    """
    lines = [f"FROM ./{file_name}"]
    # Ollama sends one system prompt with every question, so it must belong to all of them.
    first_message = chats[0][0]
    is_shared = all(chat[0] == first_message for chat in chats)
    text = first_message["content"]
    # A Modelfile has no way to write these quotes, and what follows them would be commands.
    if is_shared and first_message["role"] == "system" and '"""' not in text:
        lines.append(f'SYSTEM """{text}"""')
    lines.append(f"PARAMETER num_ctx {max(context, SMALLEST_CONTEXT)}")
    # Greedy, as the held-out questions are answered. Ollama before 0.32.10 penalised repetition.
    lines.append("PARAMETER temperature 0")
    lines.append("PARAMETER repeat_penalty 1")
    return "\n".join(lines) + "\n"
