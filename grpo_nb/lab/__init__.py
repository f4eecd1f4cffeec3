"""Try rewards by hand: on completions in a widget, or on an episode that you run with tools.

Not here: automatic checks (`checks`), and the viewer of a run (`runs`).
"""

from grpo_nb.lab.manual_episode import ManualEpisode
