"""Base plus adapter, saved as one model: which way, in which number type, and how much of the training that holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_nb.core import progress_bar
from grpo_nb.export.in_memory import InMemoryMerge
from grpo_nb.export.merging import low_memory_merge
from grpo_nb.export.result import ExportError

# Share of the adapter's change that must survive the rounding of the merged weights.
LEAST_RETAINED = 0.95
WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4}
SHARD_SIZE = "5GB"
Report = Callable[[str], None]


def _is_quantized(base: Path) -> bool:
    return "quantization_config" in json.loads((base / "config.json").read_text())


def choose_dtype(retained: dict[str, float], adapter: Path) -> str:
    """The first number type that holds enough of the change.

    Raises:
        ExportError: None does.
    """
    chosen = next((name for name, share in retained.items() if share >= LEAST_RETAINED), None)
    if chosen is None:
        measured = ", ".join(f"{name} {share:.1%}" for name, share in retained.items())
        raise ExportError(
            f"rounding the merged weights would lose a part of the training (share kept: {measured}; "
            f"{LEAST_RETAINED:.0%} is asked for). Write dtype='float32', or use the adapter itself: {adapter}."
        )
    return chosen


def merge(
    base: Path, adapter: Path, target: Path, *, dtype: str, low_memory: bool | str, shard_size: str, report: Report
) -> dict[str, Any]:
    """Save base plus adapter to `target`; return the number type, the share of the change it holds, and the way taken.

    Raises:
        ExportError: The number type would lose too much, the base is quantized, or `low_memory=True` is not possible.
    """
    if _is_quantized(base):
        raise ExportError(
            f"the base {base.name!r} is stored quantized: its 16-bit weights, on which the adapter belongs, are not in it. "
            "Train on the 16-bit model's name with load_in_4bit=True (it is quantized while it loads), or use export_adapter."
        )
    plain, reason = low_memory_merge(base, adapter) if low_memory else (None, "low_memory=False")
    if plain is None and low_memory is True:
        raise ExportError(
            f"the merge cannot be done tensor by tensor: {reason}. Leave low_memory out; it is then done in memory."
        )
    way = plain or InMemoryMerge(base, adapter)
    candidates = list(WIDTHS) if dtype == "auto" else [dtype]
    report(f"merging {'tensor by tensor' if plain else 'in memory'}{'' if plain else f' ({reason})'}")
    with progress_bar(desc="measuring the change", unit=" weights", unit_scale=True) as bar:
        retained = way.retained(candidates, bar.update)
    chosen = choose_dtype(retained, adapter)
    report(f"writing {chosen}, which holds {retained[chosen]:.1%} of the training's change")
    with progress_bar(desc="writing the merged model", unit=" weights", unit_scale=True) as bar:
        way.write(target, chosen, shard_size, bar.update)
    return {
        "dtype": chosen,
        "retained_change": retained[chosen],
        "merged": "tensor by tensor" if plain else f"in memory: {reason}",
    }
