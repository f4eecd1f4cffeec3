"""Try rewards by hand on completions, in a widget whose every view is a plain function of data.

Not here: automatic checks (`checks`), and the viewer of a run (`runs`).
"""

from grpo_nb.lab.by_hand import ByHand
from grpo_nb.lab.examples import prompt_text, sample_group
