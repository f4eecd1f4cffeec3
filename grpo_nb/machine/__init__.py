"""What this computer is and can do, and making it ready: preflight, GPU, packages, installation, faults in plain words.

Standard library only, so that it works before anything is installed. What is asked of the machine stands in `settings`.
"""

from grpo_nb.core import EnvironmentProblem, open_door
from grpo_nb.machine.checks import Check, check_environment, check_torchvision
from grpo_nb.machine.cores import busy_sentence, ran_and_waited, usable_cores
from grpo_nb.machine.faults import VLLM_ALONE, error_chain, find_fault, gpu_problem, is_out_of_memory, place_of, summary
from grpo_nb.machine.gpu import Gpu, find_gpu, is_gpu_listed
from grpo_nb.machine.host import free_disk_bytes, free_memory_bytes, require_disk, run_folder, usable_memory_gib
from grpo_nb.machine.installer import install
from grpo_nb.machine.packages import asked_of, import_order_problem, installed_version, package_versions, vllm_problem

__getattr__, __dir__, __all__ = open_door(globals())
