"""Where this code runs: the host and what it offers, its memory, its disks, and where runs outlive it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from grpo_nb.core.arguments import require_kind
from grpo_nb.core.errors import EnvironmentProblem

_DRIVE = Path("/content/drive")
# Control groups, version 2 and 1; and beside each what is used of it.
_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_MEMORY_USED = {"memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"}


def find_host() -> str:
    """Where this code runs: `colab`, `kaggle`, `jupyter` (any other kernel) or `script`."""
    if "COLAB_RELEASE_TAG" in os.environ or "google.colab" in sys.modules:
        return "colab"
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
        return "kaggle"
    return "jupyter" if "ipykernel" in sys.modules else "script"


def how_to_restart(host: str) -> str:
    """What to click for a fresh kernel."""
    clicks = {"colab": "Runtime > Restart session", "kaggle": "Run > Restart kernel"}
    return clicks.get(host, "Restart the kernel")


def usable_memory_gib() -> float:
    """Memory of the machine in GiB, or of the container if that has a lower limit."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([whole, *_memory_limits().values()]) / 2**30


def free_memory_bytes() -> int:
    """Memory that can be had without swapping, of the machine or, where that is less, of the container."""
    available = re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    left = [int(available[1]) * 1024]
    for file, limit in _memory_limits().items():
        used = int(file.with_name(_MEMORY_USED[file.name]).read_text())
        # Pages of files count as used, and are given back where memory is short.
        pages = re.findall(r"^(?:in)?active_file (\d+)$", file.with_name("memory.stat").read_text(), re.MULTILINE)
        left.append(max(0, limit - used + sum(map(int, pages))))
    return min(left)


def _memory_limits() -> dict[Path, int]:
    """In bytes, by the file that says so."""
    found = {file: file.read_text().strip() for file in _MEMORY_LIMITS if file.is_file()}
    return {file: int(text) for file, text in found.items() if text.isdigit()}


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


def find_hub_token() -> str:
    """Say where a Hugging Face token was found (never the token), with a remark if it cannot be one; empty if none.

    huggingface_hub's `get_token` would also ask for Colab's secret, which makes Colab ask the user.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        return ""
    from huggingface_hub import constants

    file = Path(constants.HF_TOKEN_PATH)
    places = {f"in {name}": os.environ.get(name, "") for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")}
    places["saved by a login"] = file.read_text(encoding="utf-8") if file.is_file() else ""
    for place, token in places.items():
        if token := token.strip():
            return place if re.fullmatch(r"hf_\w{20,}", token) else f"{place}, but it does not look like a token"
    return ""


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
    require_kind("drive", drive, str, "a folder on your Drive, such as 'grpo_nb/quickstart'")
    wanted = PurePosixPath(drive.strip())
    if wanted.is_absolute() or ".." in wanted.parts:
        raise ValueError(f"drive = {drive!r} must be a folder inside your Drive, such as 'grpo_nb/quickstart'.")
    if not drive.strip():
        return "runs"
    if find_host() != "colab":
        say(f"There is no Google Drive here, which is Colab's: the runs are in {Path('runs').absolute()}.")
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
