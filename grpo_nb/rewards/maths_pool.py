"""The other end of `maths_worker`: one worker for each process that asks, started at the first question.

Works in any thread, because nothing here needs a signal: limits are kept by the worker and, should it fail, by the wait for
its answer. It is a fresh interpreter, not a fork of this one, which may hold a GPU. Where the system cannot fork (Windows), the
worker judges by itself and is killed for a pair that takes too long: the same limits on the clock, but none on memory, and
each such pair costs the start of a new worker, one or two seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from grpo_nb.environment import EnvironmentProblem

Pair = tuple[str, str]

PAIR_SECONDS = 1.0
"""Processor time for one pair. Most honest expressions take 5 to 100 ms, an identity of trigonometry up to 300."""
BATCH_SECONDS = 10.0
"""Wall time for all pairs of one call together. It bounds what a batch of attacks can cost."""

_START_SECONDS = 60.0
_GRACE_SECONDS = 2.0
# Without a fork only the clock can be watched, which runs faster than processor time on a busy machine.
_CLOCK_FACTOR = 3.0
_CACHE_SIZE = 50_000
_cache: dict[Pair, bool] = {}
_timeouts: dict[Pair, float] = {}
_lock = threading.RLock()
_worker: _Worker | None = None


def judge_pairs(
    pairs: Sequence[Pair], *, seconds: float = PAIR_SECONDS, batch_seconds: float = BATCH_SECONDS
) -> tuple[dict[Pair, bool], int]:
    """Judge pairs of (gold, given); return the verdict of each distinct one, and how many the call's limit left without.

    A pair over its own limit is not equal; it is remembered, so that it costs its time once in a process. Short pairs are
    judged first: only when many attacks use up the limit of the call, the longest pairs are left without a verdict, which
    counts as not equal in this call and is not remembered.

    Raises:
        EnvironmentProblem: math-verify is missing or does not start.
    """
    with _lock:
        distinct = set(pairs)
        todo = [pair for pair in distinct - _cache.keys() if _timeouts.get(pair, 0) < seconds]
        todo.sort(key=lambda pair: (len(pair[1]), pair))
        verdicts = _ask(todo, seconds, batch_seconds) if todo else []
        for kept in (_cache, _timeouts):
            while len(kept) > _CACHE_SIZE:
                del kept[next(iter(kept))]
        for pair, verdict in zip(todo, verdicts, strict=False):
            if verdict is None:
                _timeouts[pair] = seconds
            else:
                _cache[pair] = verdict
        return {pair: _cache.get(pair, False) for pair in distinct}, len(todo) - len(verdicts)


def _ask(pairs: list[Pair], seconds: float, batch_seconds: float) -> list[bool | None]:
    global _worker
    if _worker is None or not _worker.is_alive():
        _worker = _Worker()
    try:
        return _worker.ask(pairs, seconds, batch_seconds)
    except BaseException:  # an interrupt leaves an answer in the pipe that the next question must not read
        _worker.end()
        _worker = None
        raise


def stop_worker() -> None:
    """End the worker, if there is one. The next question starts another; at the interpreter's exit this happens by itself."""
    global _worker
    with _lock:
        if _worker is not None:
            _worker.end()
            _worker = None


def _can_fork() -> bool:
    return hasattr(os, "fork")


class _Worker:
    def __init__(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise EnvironmentProblem(
                "the package math-verify is not installed, and it is what compares expressions. "
                "Run `pip install -r requirements.txt`."
            )
        self.owner = os.getpid()
        self.forks = _can_fork()
        self._start()

    def _start(self) -> None:
        # -P: else the folder of the script would come first on sys.path, and its modules before the standard library's.
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("maths_worker.py")), "fork" if self.forks else "alone"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # a fork while the thread below holds the lock of a buffer would leave it held in the child
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # A thread that reads, because waiting for a pipe with a limit is done differently on every system.
        threading.Thread(target=_read_lines, args=(self.process.stdout, self._lines), daemon=True).start()
        if self._line(_START_SECONDS) != b"ready":
            self.end()
            raise EnvironmentProblem(
                f"the process for comparing expressions did not start within {_START_SECONDS:.0f} s. "
                "Run `python -c 'import math_verify'` to see whether math-verify works here."
            )

    def is_alive(self) -> bool:
        # After a fork of this process the pipes are shared with the parent, and answers would go to either.
        return self.owner == os.getpid() and self.process.poll() is None

    def ask(self, pairs: list[Pair], seconds: float, batch_seconds: float) -> list[bool | None]:
        if not self.forks:
            return self._ask_one_by_one(pairs, seconds, batch_seconds)
        line = self._exchange(
            {"pairs": pairs, "seconds": seconds, "batch_seconds": batch_seconds}, batch_seconds + _GRACE_SECONDS
        )
        return [] if line is None else json.loads(line)

    def _ask_one_by_one(self, pairs: list[Pair], seconds: float, batch_seconds: float) -> list[bool | None]:
        end = time.monotonic() + batch_seconds
        verdicts: list[bool | None] = []
        for pair in pairs:
            if self.process.poll() is not None:
                self._start()
            left = end - time.monotonic()
            if left <= 0:
                break
            line = self._exchange({"pairs": [pair]}, min(left, _CLOCK_FACTOR * seconds))
            if line is None and time.monotonic() >= end:  # the batch's limit, not the pair's own
                break
            verdicts.append(None if line is None else json.loads(line)[0])
        return verdicts

    def _exchange(self, request: dict[str, Any], seconds: float) -> bytes | None:
        """Return the worker's answer; None, and the worker ended, if it does not come in time or at all."""
        try:
            data = json.dumps(request).encode() + b"\n"
            while data:
                data = data[self.process.stdin.write(data) :]
            line = self._line(seconds)
        except OSError:  # killed from outside: a broken pipe, or an invalid argument on Windows
            line = None
        if line is None:
            self.end()
        return line

    def _line(self, seconds: float) -> bytes | None:
        """One line of the worker's output without its end; None if it does not come in time or at all."""
        try:
            return self._lines.get(timeout=max(seconds, 0.0))
        except queue.Empty:
            return None

    def end(self) -> None:
        if self.owner != os.getpid():
            return
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, 9)
        else:
            self.process.kill()
        self.process.wait()
        # The other pipe is closed by the thread that reads it, which the end of the worker has woken.
        with contextlib.suppress(OSError):
            self.process.stdin.close()


def _read_lines(pipe: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    """Hand over each line without its end, then None: the worker has ended."""
    with pipe:
        held = b""
        while chunk := os.read(pipe.fileno(), 1 << 16):
            *whole, held = (held + chunk).split(b"\n")
            for line in whole:
                lines.put(line.rstrip(b"\r"))
    lines.put(None)


atexit.register(stop_worker)
if hasattr(os, "register_at_fork"):
    # A fork while another thread holds the lock would leave it held for ever in the child.
    def _reset_after_fork() -> None:
        global _lock, _worker
        _lock, _worker = threading.RLock(), None

    os.register_at_fork(after_in_child=_reset_after_fork)
