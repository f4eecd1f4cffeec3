"""Prepare this computer for a training.

The functions check the environment, find the GPU, install missing packages, choose the folder for
runs, and explain known errors of the GPU and of vLLM. Importing this subpackage needs only the
standard library, so it works before anything is installed. The settings of a run are in
`grpo_nb.config`.
"""

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.machine.checks import check_environment
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.machine.host import choose_run_folder
from grpo_nb.machine.installer import install
