"""Run programs and scripts as child processes. If one fails, the error shows its last lines.

A child that still runs when the call ends is killed. It survives only if this process is killed.
The child of `run_script` runs this file, so the file imports only the standard library.
`grpo_nb.sandbox` starts its workers, which run untrusted code, with more protection.
"""

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# torch computes with one OpenMP thread per core. At the end of each parallel part the threads wait
# for the slowest one. GNU's OpenMP (libgomp) lets them spin meanwhile, 300,000 times by default. If
# another program needs a core, the spinning threads slow down the one that they wait for. A smaller
# count changes no result, as the number of threads stays the same (docs/evidence/cpu_step.md).
SPIN_VARIABLES = {"GOMP_SPINCOUNT": "20000"}

_LINES_IN_ERROR = 12

LineReporter = Callable[[str], object]
"""Function that is called with a line of text, such as `print`."""


class ChildError(RuntimeError):
    """Failure or timeout of a child process. The message ends with its last lines of output.

    The message starts with a verb, as in "ended with 1". Callers put the program's name before it.
    """

    def __init__(self, reason: str, lines: Sequence[str]) -> None:
        self._lines = [line.rstrip() for line in lines if line.strip()]
        super().__init__(f"{reason}. Its last lines of output:\n{self.last(_LINES_IN_ERROR)}")

    def last(self, count: int) -> str:
        """Return the last lines of the output that are not empty, stderr included."""
        return "\n".join(self._lines[-count:]) or "(nothing)"


def run_command(
    command: Sequence[str | Path],
    *,
    on_line: LineReporter | None = None,
    seconds: float = threading.TIMEOUT_MAX,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Run a program without input until it ends, and return its lines, stderr included.

    Processes that the program started and left behind are killed at the end.

    Args:
        command: The program and its arguments.
        on_line: Function called with each line.
        seconds: Time limit.
        environment: Variables added to those of this process. The spin count of torch's threads is
            added as well, unless it is set already.

    Raises:
        ChildError: The program failed, or took too long and was killed.
        OSError: There is no such program.
    """
    lines = []
    start = time.monotonic()
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # The child leads its own process group, so that `_kill_group` can also end its children.
        start_new_session=True,
        # Without PYTHONUNBUFFERED, stdout and stderr of a Python program would be out of order, and
        # its last lines would be lost when it is ended.
        env={**SPIN_VARIABLES, **os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
    )
    threading.Thread(target=_kill_group_after, args=(child, seconds), daemon=True).start()
    try:
        with child.stdout as output:
            for raw_line in output:
                line = raw_line.decode(errors="replace").rstrip("\r\n")
                lines.append(line)
                if on_line is not None:
                    on_line(line)
        status = child.wait()
    finally:
        # Kill the group also after an interrupt of this process, or after an error in `on_line`.
        _kill_group(child)
    if status == 0:
        return lines
    if time.monotonic() - start >= seconds:
        raise ChildError(f"took longer than {seconds:g} s and was ended", lines)
    raise ChildError(f"ended with {status}", lines)


def _kill_group_after(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Kill a child's process group once the child has ended, or after the time limit."""
    # A process that the child left behind could keep stdout open, and `run_command` would wait.
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
    _kill_group(child)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill a child's process group: the child and the processes that it started, if any run."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        # On macOS, a group without living processes gives PermissionError.
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def run_script(script: Path, request: Any, *, on_line: LineReporter | None = None) -> Any:
    """Return the result of a script's `answer(request)`, run in a child process.

    The child imports nothing from `PYTHONPATH` or from the working directory, which could hold a
    module with the name of a package. The child imports from the environment of this kernel and
    from the user's own `pip install --user`. Relative paths still work.

    Args:
        script: Path of a Python file that defines `answer`.
        request: Any value that JSON can hold. The answer must be such a value too.
        on_line: Function called with each line that the script prints.

    Raises:
        ChildError: The script failed.
    """
    with tempfile.TemporaryDirectory(prefix="grpo_nb-") as folder:
        request_file = Path(folder, "request.json")
        answer_file = Path(folder, "answer.json")
        request_file.write_text(json.dumps(request), "utf-8")
        runner = [sys.executable, "-E", "-P", "-u", __file__]
        run_command([*runner, script, request_file, answer_file], on_line=on_line)
        return json.loads(answer_file.read_text("utf-8"))


if __name__ == "__main__":
    # The child process of `run_script`.
    script, request_file, answer_file = map(Path, sys.argv[1:])
    request = json.loads(request_file.read_text("utf-8"))
    answer = runpy.run_path(str(script))["answer"](request)
    answer_file.write_text(json.dumps(answer), "utf-8")
