"""Where runs are written so that they outlive the machine: a folder here, or Google Drive in Colab."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from grpo_nb.environment_machine import find_host
from grpo_nb.environment_report import EnvironmentProblem

_MOUNT = Path("/content/drive")


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
        raise ValueError(f"drive = {drive!r} must be a folder inside your Drive, such as 'grpo_nb/quickstart'.")
    if not drive.strip():
        return "runs"
    if find_host() != "colab":
        say(f"There is no Google Drive here, which is Colab's: the runs are in {Path('runs').absolute()}.")
        return "runs"
    # There in Colab alone.
    from google.colab import drive as google_drive

    try:
        google_drive.mount(str(_MOUNT))
    except (ValueError, RuntimeError, OSError) as error:  # permission refused, or no answer in time
        raise EnvironmentProblem(
            f"Google Drive was not mounted ({error}). Run the cell again and allow it, or leave DRIVE empty: the runs are "
            "then lost when Colab takes the machine back."
        ) from error
    folder = _MOUNT / "MyDrive" / wanted
    folder.mkdir(parents=True, exist_ok=True)
    say(f"The runs are on your Drive, in {wanted}.")
    return str(folder)
