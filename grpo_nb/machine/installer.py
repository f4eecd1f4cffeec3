"""Install the kit's packages into the environment of this kernel.

The Setup cell of each notebook calls `install`. It never replaces numpy or the packages of the
kernel itself. It replaces torch only to install vLLM, or if the kit cannot use the installed torch.
It removes torchvision and torchao if their versions would break transformers or peft.
scripts/bootstrap.py fills the repository's own environment with the functions of this file.

This file runs before anything is installed, so it imports only the standard library and the parts
of the kit that need nothing else. It therefore parses requirements itself, in the few forms of the
kit's files: `name`, `name==1.0` and bounds such as `name>=1.0,<2`. A marker may follow a pin.
"""

import importlib
import re
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.core.processes import ChildError, run_command
from grpo_nb.machine import packages
from grpo_nb.machine.gpu import driver_cuda, is_gpu_hidden

LineReporter = Callable[[str], object]
"""Function that is called with a line of text, such as `print`."""

_ROOT = Path(__file__).resolve().parents[2]
# The kit needs 3.11, and unsloth 2026.10.9 does not support 3.15.
OLDEST_PYTHON = (3, 11)
TOO_NEW_PYTHON = (3, 15)
# Folder into which the Setup cell clones the repository.
CLONE_FOLDER = "grpo_nb_clone"
# Command that runs pip in this kernel's environment.
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
# A kernel that has loaded one of these packages breaks if the files of the package change.
_NEVER_REPLACED = (
    "numpy",
    "ipython",
    "ipykernel",
    "ipywidgets",
    "jupyter-client",
    "jupyter-core",
    "comm",
    "pyzmq",
    "tornado",
    "traitlets",
)
# torch and packages that are built for one version of torch. They stay if torch stays.
_TORCH_FAMILY = ("torch", "torchvision", "torchaudio", "triton")
# unsloth 2026.10.9 needs torch<2.15.
_TOO_NEW_TORCH = (2, 15)
# The torch and vLLM on the package index are built for this CUDA version.
_INDEX_CUDA = 13
_LINES_IN_ERROR = 6


def install(*, vllm: bool = True, report: LineReporter | None = None) -> None:
    """Install missing packages; `check_environment` then shows if the kernel must restart.

    A second call finds nothing to do.

    Args:
        vllm: If True, vLLM is installed on a machine with a GPU. vLLM makes sampling several
            times faster and the installation several GB larger. In Colab it also replaces torch.
        report: Function called with one line per step, and with the reason if a driver is too old
            for vLLM; for example `print`.

    Raises:
        EnvironmentProblem: The user has to do something first, or pip failed.
    """
    report = report or (lambda line: None)
    if not OLDEST_PYTHON <= sys.version_info[:2] < TOO_NEW_PYTHON:
        raise EnvironmentProblem(
            f"Python {sys.version.split()[0]} is not supported: use a kernel with 3.11 to 3.14."
        )
    requirements = choose_requirements(report, vllm=vllm)
    without_dependencies = _read_requirements("requirements-no-deps.txt")
    is_complete = all(map(is_met, [*requirements, *without_dependencies]))
    if not is_complete or packages.incompatible_packages():
        # pip gets the pins that are met too, so that it keeps these versions.
        for_pip = [line for line in requirements if _pin(line) or not is_met(line)]
        kept_pins = _pins_of_installed(_NEVER_REPLACED)
        if "torch" not in map(_name, requirements):
            kept_pins += _pins_of_installed(_TORCH_FAMILY)
        step = "Installing torch, transformers and trl, which takes some minutes"
        run_step([*PIP, "install", *for_pip, *kept_pins], step, report)
        finish_installation(_ROOT, report)
    # A development checkout gets the path file from scripts/bootstrap.py, and a kit on PYTHONPATH
    # needs none.
    if _ROOT.name == CLONE_FOLDER:
        make_importable(_ROOT)
    importlib.invalidate_caches()


def choose_requirements(report: LineReporter, *, vllm: bool = True) -> list[str]:
    """Return the requirements that pip has to install on this machine.

    With vLLM, the pinned torch is among them. Otherwise the installed torch stays if transformers
    and unsloth can use it.

    Args:
        report: Function called with the reason if a driver is too old for vLLM.
        vllm: If False, vLLM is not installed.
    """
    requirements = _read_requirements("requirements.txt")
    torch_build = packages.read_torch_build()
    newest_cuda = None if is_gpu_hidden() else driver_cuda()

    # First choice on a GPU: vLLM, together with the pinned torch.
    if vllm and newest_cuda is not None:
        if newest_cuda[0] >= _INDEX_CUDA:
            return requirements + _read_requirements("requirements-gpu.txt")
        report(
            f"vLLM is not installed: it needs a driver for CUDA {_INDEX_CUDA} (580 or newer), and "
            f"this one runs {packages.dotted(newest_cuda)}. Unsloth's own generation is slower."
        )

    # Second choice: keep the installed torch if its version is supported. A build for a newer CUDA
    # than the driver's is kept too, because the pinned torch would need the same driver.
    if torch_build is not None and packages.minor_release(torch_build.version) < _TOO_NEW_TORCH:
        return [line for line in requirements if _name(line) != "torch"]

    # Last choice: install the pinned torch. `check_environment` reports a driver that is too old.
    return requirements


def is_met(requirement: str) -> bool:
    """Return True if a requirement is installed, and in the right version if it is a pin.

    A bound such as `pillow>=13` is not enforced: an older installed package is kept, unless a
    pinned package needs a newer version.
    """
    version = packages.installed_version(_name(requirement))
    pin = _pin(requirement)
    return version is not None and (not pin or packages.is_same_release(pin, version))


def run_step(command: Sequence[str], step: str, report: LineReporter) -> None:
    """Run a program that takes some time.

    Args:
        command: The program with its arguments.
        step: What the program does, such as `Installing trl`.
        report: Function called with the step.

    Raises:
        EnvironmentProblem: The program failed. The message gives its last lines and what to do.
    """
    report(step)
    try:
        # Some hosted machines set PIP_USER, which would install for another Python as well.
        run_command(command, environment={"PIP_USER": "0"})
    except ChildError as error:
        raise EnvironmentProblem(
            f"This step failed: {step}.\n{error.last(_LINES_IN_ERROR)}\n"
            "If there is no network: on Kaggle, Settings > Internet > On; elsewhere look for a "
            "proxy or mirror with `pip config list`. If versions conflict: restart the kernel and "
            "run the Setup cell before any other cell, or call install(report=print, vllm=False)."
        ) from None


def finish_installation(folder: Path, report: LineReporter) -> None:
    """Install the `--no-deps` requirements, and uninstall what breaks transformers or peft.

    Call this after installing the other requirements.
    """
    command = [*PIP, "install", "--no-deps", "-r", f"{folder}/requirements-no-deps.txt"]
    run_step(command, "Installing unsloth and the small model", report)
    incompatible = packages.incompatible_packages()
    if incompatible:
        step = f"Removing {' and '.join(incompatible)}, which would break transformers or peft"
        run_step([*PIP, "uninstall", "--yes", *incompatible], step, report)


def make_importable(folder: Path) -> None:
    """Make `import grpo_nb` work in every process and after a restart, with later edits included.

    A path file has the effect of `pip install --editable`, and needs no build backend. From Python
    3.12 on, a new environment has no build backend.
    """
    path_file = Path(sysconfig.get_path("purelib"), "grpo_nb.pth")
    path_file.write_text(f"{folder}\n", "utf-8")


def _read_requirements(name: str) -> list[str]:
    """Return the requirements in a file of the repository, without comments."""
    text = (_ROOT / name).read_text("utf-8")
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


def _pins_of_installed(names: Sequence[str]) -> list[str]:
    """Return a pin to the installed version of each package that is installed."""
    versions = {name: packages.installed_version(name) for name in names}
    return [f"{name}=={version}" for name, version in versions.items() if version is not None]


def _pin(requirement: str) -> str:
    """Return the version that a requirement pins exactly; empty for a bound.

    A marker after `;` is ignored. Only requirements-gpu.txt has markers, for Linux, on which the
    kit runs.
    """
    return requirement.partition(";")[0].partition("==")[2].strip()


def _name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0]
