"""The reward lab: rewards tried by hand on completions, in a widget whose every view is a plain function.

Not here: the checks that the machine makes (`checks`), and the viewer of a run (`runs`).
"""

from grpo_nb.lab.by_hand import ByHand
from grpo_nb.lab.numbers import prompt_text, sample_group
