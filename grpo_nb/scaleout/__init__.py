"""Write a run as a folder that trains it again on other machines, and open the result as a run.

The folder needs TRL, not grpo_nb. Models made from a run are written by `export`.
"""

from grpo_nb.scaleout.project import Project
from grpo_nb.scaleout.project import open_project as open
from grpo_nb.scaleout.project_writing import write_project
