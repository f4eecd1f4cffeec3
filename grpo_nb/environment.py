"""Where am I, what is installed, what fits. Reads package metadata and the driver; imports neither torch nor unsloth.

The parts: `environment_gpu` asks the driver, `environment_packages` reads what is installed and loaded, `environment_vllm`
tries vLLM elsewhere, `environment_machine` takes one picture of all that, `environment_checks` judges it row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grpo_nb.environment_checks import ROWS, torchvision_row
from grpo_nb.environment_gpu import Gpu, find_gpu
from grpo_nb.environment_machine import Machine, free_disk_bytes, read_machine, total_memory_gib
from grpo_nb.environment_packages import NEEDED, early_imports
from grpo_nb.environment_packages import installed_version as _version
from grpo_nb.environment_report import Check, EnvironmentProblem, EnvironmentReport

__all__ = [
    "Check",
    "EnvironmentProblem",
    "EnvironmentReport",
    "Gpu",
    "check_environment",
    "check_machine",
    "check_torchvision",
    "find_gpu",
    "free_disk_bytes",
    "import_order_problem",
    "package_versions",
    "require_disk",
    "total_memory_gib",
]


def check_environment(run_root: str | Path = ".") -> EnvironmentReport:
    """Check machine, packages and this kernel, and say what to do about each finding.

    Takes well under a second; on a GPU with vLLM the first call takes some seconds more, because vLLM is imported in a process
    of its own. Nothing heavy is imported into the kernel.

    Args:
        run_root: Where runs will be written; its disk is checked.
    """
    return check_machine(read_machine(Path(run_root)))


def check_machine(machine: Machine) -> EnvironmentReport:
    """Judge the picture of a machine, row by row; `check_environment` does it with the picture of this one."""
    return EnvironmentReport([check for row in ROWS if (check := row(machine)) is not None])


def package_versions() -> dict[str, str]:
    """The installed versions of the packages a run depends on; a run records them."""
    return {name: version for name in (*NEEDED, "vllm") if (version := _version(name)) is not None}


def check_torchvision() -> Check:
    """The row about torchvision, which must be absent or built for the torch beside it."""
    found = {name: version for name in ("torch", "torchvision") if (version := _version(name)) is not None}
    return torchvision_row(Machine(python=(3, 11, 0), installed=found))


def import_order_problem(loaded: Sequence[str] | None = None) -> str | None:
    """Say which packages were imported before unsloth, or None if the order is right."""
    early = early_imports(loaded)
    if not early:
        return None
    return f"{' and '.join(early)} {'was' if len(early) == 1 else 'were'} imported before unsloth"


def require_disk(path: Path, needed: int, purpose: str) -> None:
    """Raise `EnvironmentProblem` if the disk that will hold `path` has less than `needed` bytes free."""
    free = free_disk_bytes(path)
    if free < needed:
        raise EnvironmentProblem(
            f"{purpose} needs {needed / 1e9:.2f} GB on the disk of {path}, but {free / 1e9:.2f} GB are free. "
            "Free some space or choose a folder on another disk."
        )
