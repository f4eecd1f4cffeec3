"""What a run knows, on disk and shown: rows, completions, alerts, checkpoints, curves, the viewer and the card.

Nothing here trains or loads a model, and nothing judges: what is wrong with a run is said in `health`.
"""

from grpo_nb.runs.alert import Alert
from grpo_nb.runs.run_folder import Run, open_run
from grpo_nb.runs.several import list_runs as list
from grpo_nb.runs.several import side_by_side
