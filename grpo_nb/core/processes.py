"""Programs run as children of this process: ended with it, limited in time, and what they said when they failed.

Not here: the sandbox's workers, which are written by enemies and have their own walls.
"""

from __future__ import annotations

import contextlib
import io
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


class NoLine(TimeoutError):
    """A child said nothing in time."""


class LineProcess:
    """A child that is written to and read from line by line; it and its own children are killed when the block is left.

    Lines are read by a thread, because waiting for a pipe with a limit is done differently on every system. A fork of this
    process shares the pipes, and answers would go to either: only the process that started it may use or end it.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        stdin: int = subprocess.PIPE,
        errors: int = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=errors, env=environment,
            bufsize=0,  # a fork while another thread holds the lock of a buffer would leave it held in the child
            start_new_session=True,
        )  # fmt: skip
        self.pid = self._process.pid
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="child", daemon=True).start()

    def __enter__(self) -> LineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def is_alive(self) -> bool:
        """Whether it runs, and belongs to this process."""
        return self._owner == os.getpid() and self._process.poll() is None

    def send(self, line: str) -> None:
        """Write it a line.

        Raises:
            OSError: It has ended.
        """
        data = line.encode() + b"\n"
        while data:
            data = data[self._process.stdin.write(data) :]

    def line(self, seconds: float | None = None) -> str | None:
        """Return the next line of its output without its end; None, once, when there will be no more.

        Raises:
            NoLine: None came in `seconds`.
        """
        try:
            return self._lines.get(timeout=None if seconds is None else max(seconds, 0.0))
        except queue.Empty:
            raise NoLine(f"no line in {seconds:g} s") from None

    def wait(self) -> int:
        """Return its exit status, once its output has ended."""
        return self._process.wait()

    def end(self) -> None:
        """Kill it and what it started."""
        if self._owner != os.getpid():
            return
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        # The other pipe is closed by the thread that reads it, which the end of the child has woken.
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _read(self) -> None:
        with io.BufferedReader(self._process.stdout) as output:
            for line in output:
                self._lines.put(line.decode(errors="replace").rstrip("\r\n"))
        self._lines.put(None)


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
    # Unbuffered, or the lines of a Python program would come out of order, and its last ones not at all when it is ended.
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
    end = None if seconds is None else time.monotonic() + seconds
    with LineProcess(command, stdin=subprocess.DEVNULL, errors=subprocess.STDOUT, environment=variables) as child:
        try:
            while (line := child.line(patience if end is None else end - time.monotonic())) is not None:
                lines.append(line)
                if on_line is not None:
                    on_line(line)
        except NoLine:
            how = f"took longer than {seconds:g} s" if seconds else f"gave no sign of life for {patience:g} s"
            raise ChildError(f"{how} and was ended", None, lines) from None
        status = child.wait()
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
