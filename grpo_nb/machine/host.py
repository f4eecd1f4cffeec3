"""Report the cores, free memory and free disk of this computer, and choose a folder for runs."""

import os
import re
import shutil
from pathlib import Path

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.core.processes import LineReporter

# Folder in which the files of Google Drive appear in Colab.
_DRIVE = Path("/content/drive")
#: Folder in which Linux reports the limits of the container that this process runs in.
CGROUP = Path("/sys/fs/cgroup")


def is_colab() -> bool:
    """Return True in a notebook of Google Colab."""
    return "COLAB_RELEASE_TAG" in os.environ


def usable_cores() -> int:
    """Return the number of cores that this process may use.

    A process can be bound to some of the machine's cores. A container can also limit the processor
    time to that of fewer cores (Linux, Documentation/admin-guide/cgroup-v2.rst, `cpu.max`).
    """
    bound_cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        bound_cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
        limit = round(int(quota) / int(period))
    except (OSError, ValueError):
        # No such file, or the quota is "max": there is no limit.
        return bound_cores
    return max(1, min(bound_cores, limit))


def free_memory_bytes() -> int:
    """Return the memory in bytes that this process can still take without swapping.

    A container can be allowed less memory than the machine has free. A process that exceeds the
    limit is killed (Linux, Documentation/admin-guide/cgroup-v2.rst, `memory.max`).
    """
    # The Setup cell imports this file before psutil is installed.
    import psutil

    free = psutil.virtual_memory().available
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        memory_stat = (CGROUP / "memory.stat").read_text()
    except (OSError, ValueError):
        # No such file, or the limit is "max": there is no limit.
        return free
    # The memory in use includes the cache of files, which Linux gives up when a process needs it.
    cached = sum(map(int, re.findall(r"^(?:in)?active_file (\d+)$", memory_stat, re.MULTILINE)))
    return min(free, limit - used + cached)


def require_disk(path: Path, needed_bytes: int, purpose: str) -> None:
    """Raise `EnvironmentProblem` if the disk of `path` has fewer than `needed_bytes` free.

    Args:
        path: Existing file or folder on the disk.
        needed_bytes: Size of what is going to be written.
        purpose: Start of the message: what needs the space, such as `The merged model`.
    """
    free_bytes = shutil.disk_usage(path).free
    if free_bytes < needed_bytes:
        raise EnvironmentProblem(
            f"{purpose} needs {needed_bytes / 1e9:.2f} GB on the disk of {path}, but "
            f"{free_bytes / 1e9:.2f} GB are free. Free some space or choose a folder on another "
            "disk."
        )


def choose_run_folder(drive_folder: str = "", *, report: LineReporter | None = None) -> str:
    """Return the folder for `run_root`: `runs`, or in Colab a folder on your Google Drive.

    Colab deletes the files on its own disk at the end of a session. Runs on the Drive stay: run the
    notebook again from the top, and training with `resume="auto"` continues where it stopped.
    Outside Colab there is no Drive, so the folder is always `runs`.

    Args:
        drive_folder: Folder on your Drive, such as `grpo_nb/quickstart`; empty for `runs`. Use a
            different folder for each notebook. Colab asks you for access to your Drive.
        report: Function called with a line about the folder on the Drive; for example `print`.

    >>> choose_run_folder()
    'runs'
    """
    folder = drive_folder.strip("/")
    if not folder or not is_colab():
        return "runs"
    # Only Colab has this package.
    from google.colab import drive

    drive.mount(str(_DRIVE))
    mounted_folder = _DRIVE / "MyDrive" / folder
    mounted_folder.mkdir(parents=True, exist_ok=True)
    if report is not None:
        report(f"The runs are on your Drive, in {folder}.")
    return str(mounted_folder)
