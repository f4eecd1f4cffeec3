"""Compare two expressions with math-verify, in a process of its own: this file, run as a script.

Each process that compares expressions has one worker, which is started for the first comparison.
The worker is a fresh interpreter and not a fork, because this process may hold a GPU. The
operating system ends a worker that takes too much processor time for a pair, in any thread and even
inside a long multiplication. The next pair starts another worker, which takes a second or two. If
the calling process ends, its pipe closes, and the worker ends too.
"""

import cmath
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

PAIR_SECONDS = 2.0
"""Processor time for one pair, so that a busy machine changes no verdict.

Ordinary expressions take 5 to 100 ms, and trigonometric identities up to 300 ms.
"""
# Elapsed seconds allowed for each second of processor time. This limit ends a worker that waits
# instead of computing, as under memory pressure, and leaves room for a busy machine.
_MAX_ELAPSED_PER_CPU_SECOND = 30
_MEMORY_BYTES = 2 << 30
# Verdicts in the cache. With the longest answers, 800 characters a pair, they take about 15 MB.
_CACHE_SIZE = 16_384

_lock = threading.Lock()
_worker: subprocess.Popen[bytes] | None = None


@functools.lru_cache(_CACHE_SIZE)
def are_equal_expressions(given: str, gold: str) -> bool:
    """Return True if two LaTeX expressions are equal.

    Args:
        given: The expression in an answer slot.
        gold: The expression of the gold answer.

    Raises:
        Undecided: The pair took more than `PAIR_SECONDS`, or its worker broke down.
        EnvironmentProblem: No worker starts on this machine.
    """
    global _worker
    with _lock:
        if _worker is None or _worker.poll() is not None:
            _worker = _start_worker()
        # The limit is sent with each pair: a test may change it while a worker is running.
        reply = _ask_worker(_worker, json.dumps([given, gold, PAIR_SECONDS]))
    # No reply if the worker has ended, and null if its memory was used up.
    verdict = json.loads(reply or "null")
    if verdict is None:
        # Imported here, because the worker itself needs nothing of the package. An exception is not
        # remembered by the cache, and the next attempt may succeed.
        from grpo_nb.rewards.answers import Undecided

        raise Undecided
    return verdict


def _start_worker() -> subprocess.Popen[bytes]:
    search_path = os.pathsep.join(filter(None, sys.path))
    worker = subprocess.Popen(
        # -P: otherwise the folder of this script would be first on sys.path, and its modules would
        # hide those of the standard library.
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # No buffers: a fork of this process would write a buffer's content a second time.
        bufsize=0,
        env={**os.environ, "PYTHONPATH": search_path},
        # The stop button of a notebook interrupts this process and not the worker.
        start_new_session=True,
    )
    if _ask_worker(worker, ""):
        return worker
    # Imported here, because the worker itself needs nothing of the package.
    from grpo_nb.core.problems import EnvironmentProblem

    raise EnvironmentProblem(
        "the process that compares expressions does not start; "
        "`python -c 'import math_verify, resource'` shows the reason (Windows has no resource: "
        "use WSL 2)."
    )


def _ask_worker(worker: subprocess.Popen[bytes], request: str) -> bytes:
    """Return the worker's reply to one line; an empty reply if the worker has ended."""
    reply = b""
    try:
        with contextlib.suppress(OSError):
            worker.stdin.write(f"{request}\n".encode())
            reply = worker.stdout.readline()
    finally:
        # Without a reply, the worker has ended or the call was interrupted. Then end it, because a
        # late reply would be read as that of the next pair.
        if not reply:
            # Leaving the block waits for the end of the process and closes its pipes.
            with worker:
                worker.kill()
    return reply


def _reset_after_fork() -> None:
    # If another thread holds the lock during a fork, nobody in the child would ever release it.
    global _lock, _worker
    _lock = threading.Lock()
    _worker = None


# Windows has no forks, and the package is imported there too.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


# Cached, because the completions of a group have the same gold answer.
@functools.lru_cache(20)
def _parse(text: str) -> Any:
    """Return the sympy object of a LaTeX text, such as an expression, a relation or a matrix."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy
    from sympy import I, Symbol

    # Without units=True, which would drop a variable at the end of an expression as a unit.
    normalization = NormalizationConfig(malformed_operators=True, nits=True)
    parsed = latex2sympy(text, is_real=True, normalization_config=normalization)
    # latex2sympy reads the imaginary unit as a variable.
    return parsed.subs(Symbol("i", real=True), I)


def _are_equal(given: str, gold: str) -> bool:
    """Return True if math-verify finds two expressions equal.

    Numbers with decimals must also be close to each other.
    """
    from math_verify import verify
    from sympy import Float

    given_parsed = _parse(given)
    gold_parsed = _parse(gold)
    # The time limits of math-verify are signal handlers, which never run inside a long
    # multiplication, so they are off.
    is_same = verify(gold_parsed, given_parsed, timeout_seconds=None)
    # Other objects have no attribute `is_number`.
    are_numbers = all(getattr(parsed, "is_number", False) for parsed in (given_parsed, gold_parsed))
    if is_same and are_numbers and (gold_parsed - given_parsed).has(Float):
        # math-verify rounds both to six decimals, so that 10^{-8}\pi would equal 0.0.
        return cmath.isclose(complex(gold_parsed), complex(given_parsed), rel_tol=1e-5)
    return is_same


def _serve() -> None:
    """Reply to each line `[given, gold, seconds]` with a verdict until the pipe closes.

    The verdict is null if the memory is used up. The first line is empty, and the reply `true`
    shows that the worker has started.
    """
    # Imported here, because Windows does not have it, and the package is imported there too.
    import resource

    replies = sys.stdout
    # Text that sympy prints must not be read as a reply.
    sys.stdout = sys.stderr
    # macOS refuses a limit below the memory that is mapped already.
    with contextlib.suppress(ValueError, OSError):
        hard_limit = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, hard_limit))
    # The first comparison imports the modules that sympy loads late.
    _are_equal("x^{2}+\\frac{1}{2}\\sqrt{3}", "\\frac{\\sqrt{3}}{2}+x^{2}")
    sys.stdin.readline()
    print("true", file=replies, flush=True)
    for line in sys.stdin:
        given, gold, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, _MAX_ELAPSED_PER_CPU_SECOND * seconds)
        try:
            verdict = bool(_are_equal(given, gold))
        except MemoryError:
            verdict = None
        except Exception:
            # Expressions that sympy cannot read or compare are not equal.
            verdict = False
        # No limit while the worker waits for the next pair. The other timer needs no reset, because
        # a waiting worker uses no processor time.
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(verdict), file=replies, flush=True)


if __name__ == "__main__":
    _serve()
