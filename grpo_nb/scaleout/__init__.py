"""Write a run as a folder that trains it again on other machines, and open the result as a run.

Elsewhere, the folder trains with TRL. grpo_nb does not have to be installed there: the folder has a
copy for the rewards. Models made from a run are written by `export`.
"""

from grpo_nb.scaleout.project import Project
from grpo_nb.scaleout.project import open_project as open
from grpo_nb.scaleout.project_writing import write_project
