"""Whether two expressions are equal for math-verify, asked of a process of its own: this file, run as a script.

There is one for each process that asks, started at the first question: a fresh interpreter, not a fork of this one, which may
hold a GPU. It sets itself a timer, by which the kernel ends it where a pair takes too much processor time, in any thread and
even inside a long multiplication; the next question starts another, a second or two later. When the asker goes, its pipe ends,
and it too.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

PAIR_SECONDS = 2.0
"""Processor time, so that a busy machine changes no verdict. Honest expressions take 5 to 100 ms, an identity of trigonometry
up to 300."""
# On the clock, for a worker that waits instead of computing, as under memory pressure. It leaves room for a busy machine.
_CLOCK_PER_PROCESSOR_TIME = 30
_MEMORY = 2 << 30
# Pairs that were decided. With the longest answers that are compared, 800 characters a pair, they take about 15 MB.
_MOST_REMEMBERED = 16_384

_cache: dict[tuple[str, str], bool] = {}
_lock = threading.Lock()
_worker: subprocess.Popen[bytes] | None = None


class Budget:
    """Processor time that the pairs of one batch may take together, starts of the worker included."""

    def __init__(self, seconds: float) -> None:
        self.seconds_left = seconds
        self.has_undecided = False
        """Whether a pair was left undecided since this was last set to false."""


def is_equal(gold: str, given: str, budget: Budget) -> bool:
    """Return whether two LaTeX expressions are equal. Of an undecided pair, return false and note it in the budget.

    A pair is undecided if it takes more than `PAIR_SECONDS`, if its worker breaks down, or if the budget is used up. Such a
    pair is not remembered, because the next attempt may succeed.
    """
    global _worker
    with _lock:
        verdict = _cache.get((gold, given))
        if verdict is None and budget.seconds_left > 0:
            if _worker is None or _worker.poll() is not None:
                _worker = _started(budget)
            verdict = _ask(_worker, gold, given, budget)
        if verdict is None:
            budget.has_undecided = True
            return False
        # The pair moves to the end, so that the first one is the one that was not asked for the longest time.
        _cache.pop((gold, given), None)
        _cache[gold, given] = verdict
        if len(_cache) > _MOST_REMEMBERED:
            del _cache[next(iter(_cache))]
        return verdict


def _ask(worker: subprocess.Popen[bytes], gold: str, given: str, budget: Budget) -> bool | None:
    """Return the worker's verdict on a pair; None if it ended without one."""
    line = _answer(worker, json.dumps([gold, given, PAIR_SECONDS]))
    if not line:
        budget.seconds_left -= PAIR_SECONDS
        return None
    verdict, seconds = json.loads(line)
    budget.seconds_left -= seconds
    return verdict


def _started(budget: Budget) -> subprocess.Popen[bytes]:
    # -P: else the folder of the script would come first on sys.path, and its modules before the standard library's.
    # No buffers: a fork of this process would write what stands in one a second time.
    worker = subprocess.Popen(
        [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # the notebook's stop button is for the kernel
    )  # fmt: skip
    if line := _answer(worker, ""):
        budget.seconds_left -= json.loads(line)
        return worker
    from grpo_nb.core.words import (
        EnvironmentProblem,  # not at the top: the script needs nothing of the package
    )

    raise EnvironmentProblem(
        "what compares expressions does not start: `python -c 'import math_verify'` says why."
    )


def _answer(worker: subprocess.Popen[bytes], question: str) -> bytes:
    line = b""
    try:
        with contextlib.suppress(OSError):  # it has ended
            worker.stdin.write(f"{question}\n".encode())
            line = worker.stdout.readline()
    finally:  # an interrupt, too, leaves an answer in the pipe that the next question must not read
        if not line:
            with worker:  # which waits for its end and closes the pipes
                worker.kill()
    return line


def _reset_after_fork() -> None:
    # A fork while another thread holds the lock would leave it held for ever in the child.
    global _lock, _worker
    _lock, _worker = threading.Lock(), None


os.register_at_fork(after_in_child=_reset_after_fork)


def _judge(gold: str, given: str) -> bool:
    """Whether they are equal for math-verify, and their difference is small beside the gold value too."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Basic, Float, I

    # The settings of TRL's accuracy_reward. No limits of math-verify's own: they are signal handlers, which a long
    # multiplication never reaches.
    units = NormalizationConfig(units=True)
    config = LatexExtractionConfig(
        normalization_config=units, boxed_match_priority=0, try_extract_without_anchor=False
    )
    how = {"extraction_config": [config], "extraction_mode": "first_match", "parsing_timeout": None}
    left, right = (parse(f"$\\boxed{{{text}}}$", **how) for text in (gold, given))
    if not left or not right:
        return False
    a, b = left[0], right[0]
    are_expressions = isinstance(a, Basic) and isinstance(b, Basic)
    if are_expressions and any(symbol.name == "i" for symbol in a.free_symbols):
        a, b = (
            side.subs([(symbol, I) for symbol in side.free_symbols if symbol.name == "i"])
            for side in (a, b)
        )
    is_same = verify([a], [b], timeout_seconds=None)
    if is_same and are_expressions and a.is_number and b.is_number and (a - b).has(Float):
        # math-verify rounds both to six decimals, for which 0 and 10^{-8}\pi are equal.
        return abs(complex(a) - complex(b)) <= 1e-5 * max(abs(complex(a)), abs(complex(b)))
    return is_same


def _serve() -> None:
    """Answer each line `[gold, given, seconds]` with `[verdict, seconds taken]` until the pipe ends.

    The first line is empty. Its answer is the processor time that the start took.
    """
    import resource  # not at the top: the package is imported on Windows too

    answers, sys.stdout = (
        sys.stdout,
        sys.stderr,
    )  # whatever sympy prints must not end up among the answers
    with contextlib.suppress(
        ValueError, OSError
    ):  # macOS refuses a limit below what is mapped already
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    _judge(
        "x^{2}+\\frac{1}{2}\\sqrt{3}", "\\frac{\\sqrt{3}}{2}+x^{2}"
    )  # loads what is loaded lazily
    sys.stdin.readline()
    print(json.dumps(time.process_time()), file=answers, flush=True)
    for line in sys.stdin:
        gold, given, seconds = json.loads(line)
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, _CLOCK_PER_PROCESSOR_TIME * seconds)
        try:
            verdict = _judge(gold, given)
        except Exception:  # what sympy cannot read or compare is not equal
            verdict = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([bool(verdict), time.process_time() - begun]), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
