"""Export a run as a merged model: the 16-bit base plus the adapter, verified weight by weight."""

from pathlib import Path
from typing import Any

from grpo_nb.core.argument_types import require
from grpo_nb.export.export_folder import (
    Limits,
    make_export,
    run_check,
    verification_request,
    weights_folder,
)
from grpo_nb.export.merge import WIDTHS, merge
from grpo_nb.export.result import Export, ExportError
from grpo_nb.models.templates import template_of, tokenizer_for
from grpo_nb.runs.run_folder import Run, open_run

#: Limits of the check of tokens, which is made in float32.
LIMITS = Limits(min_effect=0.85, max_effect=1.15, max_nats=0.05, min_same_top=0.97)


def export_merged(
    run: Run | str | Path,
    path: str | Path,
    *,
    dtype: str = "auto",
    overwrite: bool = False,
) -> Export:
    """Merge the run's adapter into the 16-bit base, save it as safetensors, and verify the files.

    A short training changes many weights by less than bfloat16 can represent next to them, so that
    rounding loses a part of the training. "auto" measures this: it takes bfloat16 if at least 95 %
    of the change survives, otherwise float16, whose steps are eight times finer, otherwise float32
    at twice the size.

    The adapter is added to one tensor of the base after the other, so the model need not fit into
    memory. A separate process, which imports neither the kit nor Unsloth, then compares every
    weight with base plus adapter and, if the model fits into memory in float32, its answers. Only
    then the folder gets its name. After a training in 4 bit, whose base was rounded differently,
    the merged model can answer differently: measure it with `gn.compare(path, against=run)`.

    Args:
        run: A run with an adapter, from `train` or `open_run`, or its folder.
        path: The folder to make.
        dtype: "auto", "bfloat16", "float16" or "float32".
        overwrite: If True, replace an existing folder once the new one is verified.

    Raises:
        FileExistsError: The folder exists and `overwrite` is False.
        FileNotFoundError: The run has no adapter.
        ValueError: An unknown dtype.
        EnvironmentProblem: Too little disk.
        ExportError: The merged model is not the trained one, the adapter is no plain LoRA,
            or the run has no held-out questions to verify it with.
            `path` is as it was.

    >>> gn.export_merged(gn.open_run("runs/first"), "exports/first")  # doctest: +SKIP
    """
    if dtype not in ("auto", *WIDTHS):
        raise ValueError(f"dtype = {dtype!r} is not one of 'auto', {', '.join(map(repr, WIDTHS))}.")
    require('gn.export_merged(run, "exports/name")', run=run)
    run = open_run(run)

    def make(staged: Path) -> dict[str, Any]:
        if not run.holdout:
            raise ExportError(
                f"the run {run.name!r} has no held-out questions to verify the merged model with. "
                "Use gn.export.export_adapter."
            )
        base = weights_folder(run)
        verification = merge(base, run.adapter_path, staged, dtype=dtype)
        tokenizer_for(run.path, base).save_pretrained(staged)
        request = {
            "check": "merged",
            "base": str(base),
            "chat_template": template_of(run.path),
            "adapter": str(run.adapter_path),
            "merged": str(staged),
            "limits": LIMITS,
            **verification_request(run),
        }
        verification |= run_check(request, "the merged model")
        verification["sentence"] = (
            "Every weight was compared with base plus adapter; the files in "
            f"{verification['dtype']} hold {verification['retained_change']:.1%} of the training's "
            "change. On held-out prompts, the merged model compared with base plus adapter: "
            f"{verification['tokens']}."
        )
        return verification

    return make_export(run, "merged", path, make, overwrite=overwrite)
