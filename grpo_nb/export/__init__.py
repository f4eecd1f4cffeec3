"""Export a run as files that work elsewhere, each verified against the run; push them to the Hub.

`verify_child.py` runs in a process of its own, which does not import grpo_nb. `scaleout` writes a
folder that trains a run again on other machines.
"""

from grpo_nb.export.adapter import export_adapter
from grpo_nb.export.gguf import export_gguf
from grpo_nb.export.hub import PushError, push_problems, push_to_hub
from grpo_nb.export.merged import export_merged
from grpo_nb.export.saved_export import Export, ExportError
from grpo_nb.export.saved_export import open_export as open
