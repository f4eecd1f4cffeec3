"""What was asked for, what will really run, and whether it fits.

Nothing here loads a model or reads data; what the machine has is asked of `machine`.
"""

from grpo_nb.settings.arguments import importance_sampling_levels, loss_types
from grpo_nb.settings.effective import effective_settings
from grpo_nb.settings.planning import models_for, plan
from grpo_nb.settings.presets import preset
from grpo_nb.settings.settings import EMBEDDED_MODEL, Settings
