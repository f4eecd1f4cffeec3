"""Where this code runs: the host and what it offers, its cores, memory and disks, and where runs outlive it."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from grpo_nb.core.words import EnvironmentProblem

_DRIVE = Path("/content/drive")


def find_host() -> str:
    """Where this code runs: `colab`, `kaggle`, `jupyter` (any other kernel) or `script`."""
    if "COLAB_RELEASE_TAG" in os.environ or "google.colab" in sys.modules:
        return "colab"
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
        return "kaggle"
    return "jupyter" if "ipykernel" in sys.modules else "script"


def how_to_restart() -> str:
    """What to click for a fresh kernel on this host."""
    clicks = {"colab": "Runtime > Restart session", "kaggle": "Run > Restart kernel"}
    return clicks.get(find_host(), "Restart the kernel")


def usable_cores() -> int:
    """How many cores this process may use: those it is bound to, or what a container's limit leaves of them.

    From Linux, Documentation/admin-guide/cgroup-v2.rst, `cpu.max`.
    """
    bound = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(bound, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such limit
        return bound


def usable_memory_gib() -> float:
    """Memory of the machine in GiB."""
    import psutil  # here, because the Install cell imports this file before anything is installed

    return psutil.virtual_memory().total / 2**30


def free_memory_bytes() -> int:
    """Memory that can be had without swapping."""
    import psutil

    return psutil.virtual_memory().available


def free_disk_bytes(path: Path) -> int:
    """Free bytes on the disk that holds `path` or, if it does not exist yet, its nearest existing parent."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def require_disk(path: Path, needed: int, purpose: str) -> None:
    """Raise `EnvironmentProblem` if the disk that will hold `path` has less than `needed` bytes free."""
    free = free_disk_bytes(path)
    if free < needed:
        raise EnvironmentProblem(
            f"{purpose} needs {needed / 1e9:.2f} GB on the disk of {path}, but {free / 1e9:.2f} GB are free. "
            "Free some space or choose a folder on another disk."
        )


def run_folder(drive: str = "", *, report: Callable[[str], object] | None = None) -> str:
    """Return the folder for `run_root`: `runs` here or, if asked for in Colab, one on your Google Drive, mounted first.

    Colab's own disk is emptied when it takes the machine back. With the runs on the Drive, the same notebook run again from the
    top goes on where it stopped, if training is called with `resume="auto"`. Without Colab there is no Drive: then the
    folder is here, and that is said.

    Args:
        drive: A folder on your Drive, one for each notebook, such as `grpo_nb/quickstart`; empty for none. Colab asks for
            permission.
        report: Called with a line that says where the runs are, for example `print`.

    Raises:
        ValueError: The folder lies outside of the Drive.
        EnvironmentProblem: Colab did not mount the Drive.

    >>> run_folder()
    'runs'
    """
    say = report or (lambda line: None)
    wanted = PurePosixPath(drive.strip())
    if wanted.is_absolute() or ".." in wanted.parts:
        raise ValueError(
            f"drive = {drive!r} must be a folder inside your Drive, such as 'grpo_nb/quickstart'."
        )
    if not drive.strip():
        return "runs"
    if find_host() != "colab":
        say(
            f"There is no Google Drive here, which is Colab's: the runs are in {Path('runs').absolute()}."
        )
        return "runs"
    # There in Colab alone.
    from google.colab import drive as google_drive

    try:
        google_drive.mount(str(_DRIVE))
    except (ValueError, RuntimeError, OSError) as error:  # permission refused, or no answer in time
        raise EnvironmentProblem(
            f"Google Drive was not mounted ({error}). Run the cell again and allow it, or leave DRIVE empty: the runs are "
            "then lost when Colab takes the machine back."
        ) from error
    folder = _DRIVE / "MyDrive" / wanted
    folder.mkdir(parents=True, exist_ok=True)
    say(f"The runs are on your Drive, in {wanted}.")
    return str(folder)
