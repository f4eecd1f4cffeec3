"""Programs run as children of this process: ended with it, limited in time, and what they said when they failed.

Not here: the sandbox's workers, which are written by enemies and have their own walls.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# How long torch's threads spin while they wait for each other (libgomp), and the other variable with
# which a user chooses how they wait. grpo_nb.machine.spinning has the reason, and
# benchmarks/results/busy_step.md what was measured beside libgomp's own 300,000.
SPIN_VARIABLE = "GOMP_SPINCOUNT"
SPIN_COUNT = "20000"
WAIT_POLICY = "OMP_WAIT_POLICY"


class ChildError(RuntimeError):
    """A child ended without success; the message says how, and has its last lines.

    Attributes:
        status: Its exit status, negative for a signal; None if it was ended because it took too long.
        lines: What it said, errors among it.
    """

    def __init__(self, how: str, status: int | None, lines: Sequence[str]) -> None:
        self.status = status
        self.lines = [line.rstrip() for line in lines if line.strip()]
        super().__init__(f"{how}. It said last:\n{self.last(12)}")

    def last(self, count: int) -> str:
        """Its last lines."""
        return "\n".join(self.lines[-count:]) or "(nothing)"


def run_command(
    command: Sequence[str | Path],
    *,
    on_line: Callable[[str], object] | None = None,
    seconds: float = threading.TIMEOUT_MAX,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Run a program to its end, without input, and return the lines that it said, errors among them.

    Args:
        command: The program and its arguments.
        on_line: Called with each line.
        seconds: How long it may take.
        environment: Variables besides those of this process. How torch's threads wait is set, unless
            one of both says it.

    Raises:
        ChildError: It failed, or took too long and was ended.
        OSError: There is no such program.
    """
    lines: list[str] = []
    begun = time.monotonic()
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        # Or the lines of a Python program would come out of order, and its last ones not at all when it is ended.
        env={**spin_default(), **os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
    )  # fmt: skip
    clock = threading.Timer(seconds, _end, [child])
    clock.start()
    try:
        with child.stdout as said:
            for line in said:
                lines.append(line.decode(errors="replace").rstrip("\r\n"))
                if on_line is not None:
                    on_line(lines[-1])
        status = child.wait()
    finally:  # whatever ends the waiting ends the child
        clock.cancel()
        _end(child)
    if status != 0 and time.monotonic() - begun >= seconds:
        raise ChildError(f"took longer than {seconds:g} s and was ended", None, lines)
    if status != 0:
        raise ChildError(f"ended with {status}", status, lines)
    return lines


def spin_default() -> dict[str, str]:
    """Return the variable that sets how torch's threads wait, unless the user has set it."""
    return {} if WAIT_POLICY in os.environ else {SPIN_VARIABLE: SPIN_COUNT}


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child that still runs, with what it started."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def run_script(
    script: Path, request: Any, *, on_line: Callable[[str], object] | None = None
) -> Any:
    """Return a script's `answer(request)`, from a process of its own that does not see the kit.

    Args:
        script: Its path.
        request: Fit for JSON, as what it answers.
        on_line: Called with each line that it says.

    Raises:
        ChildError: It failed.
    """
    with tempfile.TemporaryDirectory(prefix="grpo_nb-") as folder:
        asked, answered = Path(folder, "request.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(request))
        # -I: neither the kit's folder nor the working directory is on the path of a process that must not see the kit.
        child = Path(__file__).with_name("child.py")
        run_command([sys.executable, "-I", "-u", child, script, asked, answered], on_line=on_line)
        return json.loads(answered.read_text())
