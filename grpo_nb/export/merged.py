"""Export a run as a merged model: the 16-bit base plus the adapter, verified weight by weight."""

import functools
from pathlib import Path
from typing import Any

from grpo_nb.core.argument_types import require
from grpo_nb.core.user_warnings import warn_user
from grpo_nb.evaluation.asking import evaluate
from grpo_nb.export.export_folder import (
    BASE_CHECK,
    Limits,
    make_export,
    report_nothing,
    require_same_base,
    run_check,
    verification_request,
    weights_folder,
)
from grpo_nb.export.merge import BY_FILE, WIDTHS, merge, require_memory
from grpo_nb.export.result import Export, ExportError, Report
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.models.templates import template_of, tokenizer_for
from grpo_nb.runs.card import without_private_parts
from grpo_nb.runs.run_folder import Run, open_run

#: If a model fits into memory only in 16 bit, the limits of the effect are wider: 0.5 and 1.5.
LIMITS = Limits(min_effect=0.85, max_effect=1.15, max_nats=0.05, min_same_top=0.97)


def export_merged(
    run: Run | str | Path,
    path: str | Path,
    *,
    dtype: str = "auto",
    overwrite: bool = False,
    report: Report | None = None,
) -> Export:
    """Merge the run's adapter into the 16-bit base, save it as safetensors, and verify the files.

    A short training changes many weights by less than bfloat16 can represent next to them, so that
    rounding loses a part of the training. "auto" measures this: it takes bfloat16 if at least 95 %
    of the change survives, otherwise float16, whose steps are eight times finer, otherwise float32
    at twice the size.

    The adapter is added to the files of the base one after the other, so the model need not fit
    into memory. An adapter that is more than a plain LoRA is merged in memory, in float32. A
    separate process, which imports neither the kit nor Unsloth, then compares every weight with
    base plus adapter and, if the model fits into memory, its answers. Only then the folder gets its
    name. After a training in 4 bit, whose base was rounded differently, the merged model also
    answers the questions of the run's comparison, and a warning says if its score is outside of the
    run's interval.

    Args:
        run: A run with an adapter, from `train` or `open_run`, or its folder.
        path: The folder to make.
        dtype: "auto", "bfloat16", "float16" or "float32".
        overwrite: If True, replace an existing folder once the new one is verified.
        report: Called with one line for each stage.

    Raises:
        FileExistsError: The folder exists and `overwrite` is False.
        FileNotFoundError: The run has no adapter.
        ValueError: An unknown dtype.
        EnvironmentProblem: Too little disk or memory.
        ExportError: The merged model is not the trained one. `path` is as it was.

    >>> gn.export_merged(gn.open_run("runs/first"), "exports/first")  # doctest: +SKIP
    """
    if dtype not in ("auto", *WIDTHS):
        raise ValueError(f"dtype = {dtype!r} is not one of 'auto', {', '.join(map(repr, WIDTHS))}.")
    require('gn.export_merged(run, "exports/name")', run=run)
    run = open_run(run)
    make = functools.partial(make_merged, run, dtype=dtype, report=report or report_nothing)
    return make_export(run, "merged", path, make, overwrite=overwrite)


def make_merged(run: Run, staged: Path, *, report: Report, dtype: str = "auto") -> dict[str, Any]:
    """Write the merged model to an empty folder, verify it, and return the verification."""
    if not run.holdout:
        raise ExportError(
            f"the run {run.name!r} has no held-out questions to verify the merged model with. Use "
            "gn.export.export_adapter."
        )
    base = weights_folder(run)
    require_same_base(run, base)
    merge_report = merge(base, run.adapter_path, staged, dtype=dtype, report=report)
    tokenizer_for(run.path, base).save_pretrained(staged)
    report("verifying the merged model in a process of its own")
    request = {
        "check": "merged",
        "base": str(base),
        "chat_template": template_of(run.path),
        "adapter": str(run.adapter_path),
        "merged": str(staged),
        "is_plain": merge_report["merged"] == BY_FILE,
        "limits": LIMITS,
        **verification_request(run),
    }
    verification = merge_report | run_check(request, "the merged model")
    if run.info.get("base") is not None:
        verification["checks"] = {BASE_CHECK: True, **verification["checks"]}
    retained = ""
    if merge_report["retained_change"] is not None:
        retained = f", holds {merge_report['retained_change']:.1%} of the training's change"
    verification["sentence"] = (
        f"{merge_report['dtype']}{retained}; every weight is base plus adapter; "
        f"{verification['tokens']}"
    )
    if run.settings.load_in_4bit:
        report("asking the merged model the held-out questions of the run's comparison")
        verification["trained_in_4bit"] = compare_score_with_run(run, staged)
    return verification


def compare_score_with_run(run: Run, folder: Path) -> dict[str, Any]:
    """Ask a merged model the questions of the run's comparison; return both scores in words.

    This is for a run that was trained in 4 bit: its adapter learned with weights that are rounded
    differently from those it is merged into. It never raises, because the export is verified to be
    base plus adapter, whatever the score is.
    """
    if not (run.path / "comparison" / "comparison.json").is_file():
        return {
            "said": "not measured: the run has no comparison of its own, which gn.compare(run) "
            "makes"
        }
    try:
        recorded = run.comparison.after
        # On a GPU the weights pass through the machine's own memory, in the dtype of the files.
        weight_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        copies = 1 if find_gpu() else 2
        require_memory(weight_bytes * copies, "asking it")
        score = evaluate(folder, run=run, allow_contaminated=True)
        for part in ("decoding", "judged_by", "questions"):
            if getattr(score, part) != getattr(recorded, part):
                return {
                    "said": "not measured: the run's comparison asked or judged otherwise than "
                    "the run itself does"
                }
    except Exception as error:  # out of memory, a damaged comparison
        return {"said": without_private_parts(f"not measured: {type(error).__name__}: {error}")}
    low, high = recorded.interval
    sentence = (
        f"{score.accuracy:.1%} of {score.questions} held-out questions right, the run in 4 bit "
        f"{recorded.accuracy:.1%} ({low:.1%} to {high:.1%})"
    )
    if not low <= score.accuracy <= high:
        sentence += (
            ", which is OUTSIDE of that interval: what was measured of the run does not hold for "
            "the merged model"
        )
        warn_user(f"The merged model of {run.name!r}: {sentence}.")
    return {"said": sentence, "accuracy": score.accuracy, "interval": list(score.interval)}
