"""What was asked for, and whether it fits; what will really run, `training` reads from the configuration that it builds.

Nothing here loads a model or reads data; what the machine has is asked of `machine`.
"""

from grpo_nb.settings.arguments import IMPORTANCE_SAMPLING_LEVELS, LOSS_TYPES
from grpo_nb.settings.planning import plan
from grpo_nb.settings.presets import preset
from grpo_nb.settings.settings import EMBEDDED_MODEL, Settings
