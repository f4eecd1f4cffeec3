"""What was asked for, and whether it fits; what will really run, `training` reads from the configuration that it builds.

Nothing here loads a model or reads data; what the machine has is asked of `machine`.
"""

from grpo_nb.config.arguments import IMPORTANCE_SAMPLING_LEVELS, LOSS_TYPES
from grpo_nb.config.planning import plan
from grpo_nb.config.presets import preset
from grpo_nb.config.settings import EMBEDDED_MODEL, Settings
