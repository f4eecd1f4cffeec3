"""Files that work elsewhere: merged models, GGUF, a push to the Hub, each verified against the run.

What checks them runs in `children/`, in processes that import no kit. A run as a folder to go on with is `scaleout`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_nb.core import open_door
from grpo_nb.export.hub import NotPushable, PushError, holds_secret, plan_push, push_to_hub
from grpo_nb.export.merged import export_adapter, export_merged
from grpo_nb.export.plan import needed_by, plan_export
from grpo_nb.export.result import Export, ExportError
from grpo_nb.export.result import open_export as open
from grpo_nb.export.use import inference_commands

if TYPE_CHECKING:
    from grpo_nb.export.gguf import export_gguf
    from grpo_nb.export.panel import ExportPanel

__getattr__, __dir__, __all__ = open_door(
    globals(),
    {
        "gguf": ("export_gguf",),
        "panel": ("ExportPanel",),
    },
)
