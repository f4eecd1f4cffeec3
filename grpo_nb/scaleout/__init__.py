"""A run as a folder that is trained again anywhere, on one process or many, and what was trained there brought back.

Not here: the models that a run made (`export`).
"""

from grpo_nb.scaleout.back import Project
from grpo_nb.scaleout.back import open_project as open
from grpo_nb.scaleout.project import write
