"""Read a run from disk and show it: rows, completions, alerts, checkpoints, curves, viewer, card.

Nothing here trains or loads a model. `runs.outcome` has the verdict on a run. The rules that raise
alerts are in `grpo_nb.health`.
"""

from grpo_nb.runs.alert import Alert
from grpo_nb.runs.run_folder import Run, open_run
from grpo_nb.runs.run_table import list_runs as list
from grpo_nb.runs.run_table import side_by_side
