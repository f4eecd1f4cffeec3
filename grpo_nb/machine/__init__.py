"""This computer: what it can do, and how to prepare it for a training.

It checks the environment, finds the GPU and the installed packages, installs what is missing, and
explains errors of the GPU. Only the standard library is imported, so that all of it works before
anything is installed. The settings of a run are in `grpo_nb.config`.
"""

from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine.checks import check_environment
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.machine.host import run_folder
from grpo_nb.machine.installer import install
