"""The other end of `maths_worker`: one worker for each process that asks, started at the first question.

Works in any thread, because nothing here needs a signal: limits are kept by the worker and, should it fail, by the wait for
its answer. It is a fresh interpreter, not a fork of this one, which may hold a GPU.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from grpo_nb.environment import EnvironmentProblem

Pair = tuple[str, str]

PAIR_SECONDS = 1.0
"""Processor time for one pair. Most honest expressions take 5 to 100 ms, an identity of trigonometry up to 300."""
BATCH_SECONDS = 10.0
"""Wall time for all pairs of one call together. It bounds what a batch of attacks can cost."""

_START_SECONDS = 60.0
_GRACE_SECONDS = 2.0
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
        EnvironmentProblem: math-verify is missing, or this system cannot fork.
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


class _Worker:
    def __init__(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise EnvironmentProblem(
                "the package math-verify is not installed, and it is what compares expressions. "
                "Run `pip install -r requirements.txt`."
            )
        if not hasattr(os, "fork"):
            raise EnvironmentProblem(
                f"comparing expressions needs a system that can fork, and {sys.platform} cannot: only there a hostile "
                "expression can be stopped in time. Use Linux, macOS or WSL, or rewards.number() for plain numbers."
            )
        self.owner = os.getpid()
        # -P: else the folder of the script would come first on sys.path, and its modules before the standard library's.
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("maths_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,
        )
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
        request = {"pairs": pairs, "seconds": seconds, "batch_seconds": batch_seconds}
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            line = None
        else:
            line = self._line(batch_seconds + _GRACE_SECONDS)
        if line is None:  # killed from outside, or hanging against all limits
            self.end()
            return []
        return json.loads(line)

    def _line(self, seconds: float) -> bytes | None:
        """One line of the worker's output without its end; None if it does not come in time or at all."""
        end = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self.process.stdout, select.POLLIN)
        received = b""
        while not received.endswith(b"\n"):
            # Not select.select, which fails in a process with more than 1024 open files.
            ready = poll.poll(1000 * max(end - time.monotonic(), 0))
            chunk = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                return None
            received += chunk
        return received.rstrip(b"\n")

    def end(self) -> None:
        if self.owner != os.getpid():
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


atexit.register(stop_worker)
if hasattr(os, "register_at_fork"):
    # A fork while another thread holds the lock would leave it held for ever in the child.
    def _reset_after_fork() -> None:
        global _lock, _worker
        _lock, _worker = threading.RLock(), None

    os.register_at_fork(after_in_child=_reset_after_fork)
