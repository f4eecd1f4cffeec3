"""Files that work elsewhere: merged models, GGUF, a push to the Hub, each verified against the run.

What checks them runs in `children/`, in a process that imports no kit. A run as a folder to go on with is `scaleout`'s.
"""

from grpo_nb.export.gguf import export_gguf
from grpo_nb.export.hub import NotPushable, push_problems, push_to_hub
from grpo_nb.export.merged import export_adapter, export_merged
from grpo_nb.export.result import Export, ExportError
from grpo_nb.export.result import open_export as open
