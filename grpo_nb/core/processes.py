"""Programs run as children of this process: ended with it, limited in time, and what they said when they failed.

Not here: the sandbox's workers, which are written by enemies and have their own walls.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


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
    seconds: float | None = None,
    patience: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Run a program to its end, without input, and return the lines that it said, errors among them.

    Args:
        command: The program and its arguments.
        on_line: Called with each line.
        seconds: How long it may take.
        patience: In place of `seconds`, how long it may say nothing.
        environment: Variables besides those of this process.

    Raises:
        ChildError: It failed, or took too long and was ended.
        OSError: There is no such program.
    """
    lines: list[str] = []
    said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    end = None if seconds is None else time.monotonic() + seconds
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        # Or the lines of a Python program would come out of order, and its last ones not at all when it is ended.
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
    )  # fmt: skip

    def read() -> None:  # in a thread, because waiting for a pipe with a limit is done differently on every system
        with child.stdout as output:
            for line in output:
                said.put(line.decode(errors="replace").rstrip("\r\n"))
        said.put(None)

    threading.Thread(target=read, name="child", daemon=True).start()
    try:
        while (line := said.get(timeout=patience if end is None else max(end - time.monotonic(), 0))) is not None:
            lines.append(line)
            if on_line is not None:
                on_line(line)
        status = child.wait()
    except BaseException as error:  # whatever ends the waiting ends the child, with what it started
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if not isinstance(error, queue.Empty):
            raise
        how = f"took longer than {seconds:g} s" if seconds else f"gave no sign of life for {patience:g} s"
        raise ChildError(f"{how} and was ended", None, lines) from None
    if status != 0:
        raise ChildError(f"ended with {status}", status, lines)
    return lines


def run_script(
    script: Path,
    request: Mapping[str, Any],
    *,
    on_line: Callable[[str], object] | None = None,
    patience: float | None = None,
) -> Any:
    """Return a script's `answer(request)`, from a process of its own that does not see the kit and ends with this one.

    Args:
        script: Its path.
        request: Fit for JSON, as what it answers.
        on_line: Called with each line that it says.
        patience: Seconds without a line after which it is ended; None waits for ever.

    Raises:
        ChildError: It failed, or said nothing for too long.
    """
    with tempfile.TemporaryDirectory(prefix="grpo_nb-") as folder:
        asked, answered = Path(folder, "request.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(request))
        # -I: neither the kit's folder nor the working directory is on the path of a process that must not see the kit.
        child = [sys.executable, "-I", "-u", Path(__file__).with_name("child.py"), str(os.getpid())]
        run_command([*child, script, asked, answered], on_line=on_line, patience=patience)
        return json.loads(answered.read_text())
