"""Private symbols of TRL that the kit relies on."""

from __future__ import annotations

from typing import Any

from grpo_nb.upstream.symbols import require_symbol

WRITTEN_FOR = "trl 1.15.0"


def fused_head_namespace() -> dict[str, Any]:
    """Return the namespace in which TRL's fused output layer looks up `_ChunkedLogProbFunction`.

    The CPU engine replaces that function by one that works in tiles (trl/trainer/utils.py,
    `add_fused_lm_head`).
    """
    from trl.trainer import utils

    require_symbol(utils, "add_fused_lm_head", written_for=WRITTEN_FOR)
    # None where Triton is missing, and then there is nothing to fall back to; the name must exist.
    if "_ChunkedLogProbFunction" not in vars(utils):
        require_symbol(utils, "_ChunkedLogProbFunction", written_for=WRITTEN_FOR)
    return vars(utils)
