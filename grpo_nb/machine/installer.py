"""Install the kit's packages into the environment of this kernel.

The Setup cell of each notebook calls `install`, which never replaces numpy or the packages of the
kernel itself. `install` replaces torch only to install vLLM, or if the kit cannot use the installed
torch. It removes torchvision and torchao if their versions would break transformers or peft.
scripts/bootstrap.py uses the same functions to make the repository's own environment.

This file runs before anything is installed, so it imports only the standard library and the parts
of the kit that need nothing else. It therefore parses requirements itself, in the few forms that
the kit's files have: `name`, a pin `name==1.0`, and bounds such as `name>=1.0,<2`. After a pin
there may be a marker, such as `; sys_platform == "linux"`.
"""

import importlib
import re
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.core.processes import ChildError, LineReporter, run_command
from grpo_nb.machine import packages
from grpo_nb.machine.gpu import is_gpu_hidden, read_newest_cuda

_ROOT = Path(__file__).resolve().parents[2]
# The kit needs 3.11, and unsloth 2026.10.9 does not support 3.15.
OLDEST_PYTHON = (3, 11)
TOO_NEW_PYTHON = (3, 15)
# Name of the folder into which the Setup cell clones the repository.
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
# torch and the packages that are built for one version of torch. If torch stays, they stay too.
_TORCH_FAMILY = ("torch", "torchvision", "torchaudio", "triton")
# unsloth 2026.10.9 needs torch<2.15.
_TOO_NEW_TORCH = (2, 15)
# The torch and vLLM on the package index are built for this CUDA version.
_INDEX_CUDA = 13
_LINES_IN_ERROR = 6


def install(*, vllm: bool = True, report: LineReporter | None = None) -> None:
    """Install missing packages. `check_environment` then shows if the kernel must restart.

    A second call finds nothing to do.

    Args:
        vllm: True to install vLLM too, on a machine with a GPU and a driver for CUDA 13. vLLM makes
            sampling several times faster and the installation several GB larger. In Colab it also
            replaces torch.
        report: Function called with a line before each step, and with the reason if the driver is
            too old for vLLM; for example `print`.

    Raises:
        EnvironmentProblem: The Python of this kernel is not supported, or pip failed.
    """
    report = report or (lambda line: None)
    if not OLDEST_PYTHON <= sys.version_info[:2] < TOO_NEW_PYTHON:
        raise EnvironmentProblem(
            f"This kernel runs Python {sys.version.split()[0]}, which is not supported. Choose a "
            "kernel with Python 3.11 to 3.14 (Jupyter: Kernel > Change Kernel)."
        )
    requirements = choose_requirements(report, vllm=vllm)
    without_dependencies = _read_requirements("requirements-no-deps.txt")
    is_complete = all(map(is_met, [*requirements, *without_dependencies]))
    if not is_complete or packages.incompatible_packages():
        # pip also gets the pins that are already met, so that it keeps these versions.
        for_pip = [line for line in requirements if _pin(line) or not is_met(line)]
        kept_pins = _pins_of_installed(_NEVER_REPLACED)
        if "torch" not in map(_name, requirements):
            # Pip cannot keep torch and a torchvision that was built for another torch.
            incompatible = packages.incompatible_packages()
            family = [name for name in _TORCH_FAMILY if name not in incompatible]
            kept_pins += _pins_of_installed(family)
        run_step(
            [*PIP, "install", *for_pip, *kept_pins],
            "Installing torch, transformers and trl, which takes some minutes",
            report,
        )
        finish_installation(_ROOT, report)
    # Only the clone of the Setup cell gets its path file here. A development checkout gets one from
    # scripts/bootstrap.py, and a kit on PYTHONPATH needs none.
    if _ROOT.name == CLONE_FOLDER:
        make_importable(_ROOT)
    importlib.invalidate_caches()


def choose_requirements(report: LineReporter, *, vllm: bool = True) -> list[str]:
    """Return the requirements of this machine, met or not, without the `--no-deps` requirements.

    With vLLM, the pinned torch is among them. Otherwise an installed torch stays if unsloth can use
    its version.

    Args:
        report: Function called with the reason if the driver is too old for vLLM.
        vllm: If False, vLLM is left out.
    """
    requirements = _read_requirements("requirements.txt")
    torch_build = packages.read_torch_build()
    newest_cuda = None if is_gpu_hidden() else read_newest_cuda()

    # First choice on a GPU: vLLM, together with the pinned torch.
    if vllm and newest_cuda is not None:
        if newest_cuda[0] >= _INDEX_CUDA:
            return requirements + _read_requirements("requirements-gpu.txt")
        report(
            "vLLM is not installed: it needs an NVIDIA driver for CUDA 13 (version 580 or newer), "
            f"and this driver only supports CUDA {packages.dotted(newest_cuda)}. "
            "Training works without vLLM, with Unsloth's own generation, which is slower."
        )

    # Second choice: keep the installed torch if its version is supported, even if it was built for
    # a newer CUDA than the driver can run. The pinned torch would not run with this driver either.
    if torch_build is not None and packages.major_minor(torch_build.version) < _TOO_NEW_TORCH:
        return [line for line in requirements if _name(line) != "torch"]

    # Last choice: install the pinned torch. `check_environment` reports a driver that is too old.
    return requirements


def is_met(requirement: str) -> bool:
    """Return True if a package is installed, and has the pinned version if there is a pin.

    A bound such as `pillow>=13` is not enforced: an older installed package is kept, unless a
    pinned package needs a newer version.
    """
    version = packages.installed_version(_name(requirement))
    pin = _pin(requirement)
    return version is not None and (not pin or packages.is_same_release(pin, version))


def run_step(command: Sequence[str], step: str, report: LineReporter) -> None:
    """Run a program that takes some time.

    Args:
        command: The program and its arguments.
        step: Description of the step, such as `Installing trl`.
        report: Function called with the description.

    Raises:
        EnvironmentProblem: The program failed. The message gives its last lines of output and
            what to do.
    """
    report(step)
    try:
        # Some hosted machines set PIP_USER, which would install for another Python as well.
        run_command(command, environment={"PIP_USER": "0"})
    except ChildError as error:
        raise EnvironmentProblem(
            f"This step failed: {step}.\n{error.last(_LINES_IN_ERROR)}\n"
            "If the network failed: on Kaggle, switch on Settings > Internet; elsewhere, "
            "`pip config list` shows whether pip uses a proxy or mirror. If versions conflict: "
            "restart the kernel and run the Setup cell before any other cell. If they still "
            "conflict, write `install(report=print, vllm=False)` in the Setup cell."
        ) from None


def finish_installation(folder: Path, report: LineReporter) -> None:
    """Install the `--no-deps` requirements, and uninstall what would break transformers or peft.

    Call this function after installing the other requirements.

    Args:
        folder: Folder of the repository.
        report: Function called with a line before each step.
    """
    run_step(
        [*PIP, "install", "--no-deps", "-r", f"{folder}/requirements-no-deps.txt"],
        "Installing unsloth and the small model",
        report,
    )
    incompatible = packages.incompatible_packages()
    if incompatible:
        run_step(
            [*PIP, "uninstall", "--yes", *incompatible],
            f"Removing {' and '.join(incompatible)}, which would break transformers or peft",
            report,
        )


def make_importable(folder: Path) -> None:
    """Make `import grpo_nb` work in every process of this environment, and after a restart.

    This function writes a path file, which makes Python import the kit from the repository's
    folder, as `pip install --editable` would. That needs a build backend, which a new environment
    does not have from Python 3.12 on.
    """
    Path(sysconfig.get_path("purelib"), "grpo_nb.pth").write_text(f"{folder}\n", "utf-8")


def _read_requirements(name: str) -> list[str]:
    """Return the requirements in a file of the repository, without its comments."""
    text = (_ROOT / name).read_text("utf-8")
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


def _pins_of_installed(names: Sequence[str]) -> list[str]:
    """Return a pin such as `numpy==2.3.5` for each package that is installed."""
    versions = {name: packages.installed_version(name) for name in names}
    return [f"{name}=={version}" for name, version in versions.items() if version is not None]


def _pin(requirement: str) -> str:
    """Return the version that a requirement pins exactly; empty if it has no pin.

    A marker after `;` is ignored. Only requirements-gpu.txt has markers. They select Linux, the
    only system on which the kit finds an NVIDIA GPU.
    """
    return requirement.partition(";")[0].partition("==")[2].strip()


def _name(requirement: str) -> str:
    """Return the name of the required package."""
    return re.match(r"[\w.-]+", requirement)[0]
