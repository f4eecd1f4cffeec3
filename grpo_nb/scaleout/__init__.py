"""A run as a folder that is run again anywhere.

Not here: the models that a run made (`export`).
"""

from grpo_nb.core import open_door
from grpo_nb.scaleout.bundle import open_bundle, write_bundle

__getattr__, __dir__, __all__ = open_door(globals())
