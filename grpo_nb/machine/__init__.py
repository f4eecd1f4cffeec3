"""What this computer is and can do, and making it ready: preflight, GPU, packages, installation, faults in plain words.

Standard library only, so that it works before anything is installed. What is asked of the machine stands in `settings`.
"""

from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine.checks import check_environment
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.machine.host import run_folder
from grpo_nb.machine.installer import install
