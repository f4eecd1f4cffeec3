"""What was asked for, what will really run, and whether it fits.

Nothing here loads a model or reads data; what the machine has is asked of `machine`.
"""

from grpo_nb.core import open_door
from grpo_nb.settings.arguments import (
    check_choice,
    check_extra,
    check_value,
    importance_sampling_levels,
    loss_types,
)
from grpo_nb.settings.effective import SHARED_SCORING, effective_settings, requested_arguments
from grpo_nb.settings.number_types import VARIABLE, cpu_number_type, number_type, number_type_of
from grpo_nb.settings.out_of_memory import memory_advice
from grpo_nb.settings.planning import models_for, plan
from grpo_nb.settings.presets import preset
from grpo_nb.settings.settings import ALL_LINEAR, EMBEDDED_MODEL, Settings, check_loss, require_settings
from grpo_nb.settings.trackers import check_reporting, reports_to
from grpo_nb.settings.vllm import VllmObstacle, vllm_obstacle

__getattr__, __dir__, __all__ = open_door(globals())
