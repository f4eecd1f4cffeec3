"""Settings of a run, and a plan of the memory that it needs.

Nothing here loads a model or reads data. `machine` reports what the computer has. `training` builds
the trainer's configuration and shows what will really run.
"""

# Not `plan` and `preset`, which import `machine` and would make `gn.Settings` load slower.
from grpo_nb.config.arguments import LOSS_TYPES
from grpo_nb.config.settings import EMBEDDED_MODEL, Settings
