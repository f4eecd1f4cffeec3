"""The reward lab: rewards tried by hand on completions, in a widget whose every view is a plain function.

Not here: the checks that the machine makes (`checks`), and the viewer of a run (`runs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_nb.core import open_door
from grpo_nb.lab.numbers import probe_row, prompt_text, sample_group
from grpo_nb.lab.views import push

if TYPE_CHECKING:
    from grpo_nb.lab.widget import RewardLab

__getattr__, __dir__, __all__ = open_door(globals(), {"widget": ("RewardLab",)})
