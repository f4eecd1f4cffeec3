"""The child that compares expressions, written to and read from line by line."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence


class LineProcess:
    """A child that is written to and read from line by line; it and its own children are killed when the block is left.

    Lines are read by a thread, because waiting for a pipe with a limit is done differently on every system. A fork of this
    process shares the pipes, and answers would go to either: only the process that started it may use or end it.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
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

    def line(self, seconds: float) -> str | None:
        """Return the next line of its output without its end; None, once, when there will be no more.

        Raises:
            TimeoutError: None came in `seconds`.
        """
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"no line in {seconds:g} s") from None

    def end(self) -> None:
        """Kill it and what it started."""
        if self._owner != os.getpid():
            return
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()  # the other pipe is closed by the thread that reads it, which the end has woken

    def _read(self) -> None:
        with io.BufferedReader(self._process.stdout) as output:
            for line in output:
                self._lines.put(line.decode(errors="replace").rstrip("\r\n"))
        self._lines.put(None)
