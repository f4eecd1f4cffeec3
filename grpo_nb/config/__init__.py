"""Settings of a run, and whether it fits a machine.

Nothing here loads a model or reads data. `machine` reports what the computer has, and `training`
shows what will really run, from the configuration that it builds.
"""

from grpo_nb.config.arguments import LOSS_TYPES
from grpo_nb.config.planning import plan
from grpo_nb.config.presets import preset
from grpo_nb.config.settings import EMBEDDED_MODEL, Settings
