"""The process in which math-verify runs: it stays clean and forks a child that does the work and may be killed for it.

Started by `expressions` as a script, never imported. It loads math-verify once (a second or so). The child that answers has a
limit on its memory, and for each pair one on its processor time, which the kernel enforces even inside a long
multiplication. A killed child costs a fork, a few milliseconds. When the parent goes, the pipe ends and so does all of this.

One request a line, `{"pairs": [[gold, given], ...], "seconds": s, "batch_seconds": b}`; one answer a line,
`[true | false | null, ...]`: null is a pair that reached its own limit; pairs that the batch's limit left no time for are
missing at the end.
"""

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from multiprocessing.connection import Connection

_MEMORY = 2 << 30


def judge(gold: str, given: str) -> bool:
    """Whether two LaTeX expressions are equal for math-verify, and their difference is small beside the gold value too."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Basic, Float

    # The settings of TRL's accuracy_reward. No limits of math-verify's own: they are signal handlers, which a long
    # multiplication never reaches.
    config = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True), boxed_match_priority=0, try_extract_without_anchor=False
    )
    left, right = (
        parse(f"$\\boxed{{{text}}}$", extraction_config=[config], extraction_mode="first_match", parsing_timeout=None)
        for text in (gold, given)
    )
    if not left or not right or not verify(left, right, timeout_seconds=None):
        return False
    a, b = left[0], right[0]
    if isinstance(a, Basic) and isinstance(b, Basic) and (a.has(Float) or b.has(Float)) and a.is_number and b.is_number:
        # math-verify rounds both to six decimals, for which 0 and 10^{-8}\pi are equal.
        scale = max(abs(complex(a)), abs(complex(b)))
        return abs(complex(a) - complex(b)) <= 1e-5 * scale
    return True


def _serve_child(pipe: Connection, other_end: Connection) -> None:
    """Judge pairs as they come; processor time is limited per pair by the kernel, memory once for all."""
    other_end.close()  # else the pipe would not end when the worker does
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS refuses a limit below what is mapped already
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    sys.setrecursionlimit(3000)
    while True:
        gold, given, seconds = json.loads(pipe.recv_bytes())
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process
        try:
            verdict = judge(gold, given)
        except Exception:  # what sympy cannot read or compare is not equal
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send_bytes(json.dumps(verdict).encode())


class _Child:
    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve_child, args=(theirs, self.pipe), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, gold: str, given: str, seconds: float, wall_seconds: float) -> bool | None:
        with contextlib.suppress(OSError, EOFError):  # it has ended
            self.pipe.send_bytes(json.dumps([gold, given, seconds]).encode())
            if self.pipe.poll(wall_seconds):
                return json.loads(self.pipe.recv_bytes())
        return None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def main() -> None:
    """Answer requests until the pipe from the parent ends."""
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb") as answers:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # whatever sympy prints must not end up among the answers
            os.dup2(null, stream)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook's stop button is for the kernel
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        # What is loaded lazily is loaded before the fork.
        judge("x^{2}+\\frac{1}{2}\\sqrt{3}", "\\frac{\\sqrt{3}}{2}+x^{2}")
        answers.write(b"ready\n")
        answers.flush()
        child = _Child()
        for line in requests:
            request = json.loads(line)
            end = time.monotonic() + request["batch_seconds"]
            verdicts: list[bool | None] = []
            for gold, given in request["pairs"]:
                left = end - time.monotonic()
                if left <= 0:
                    break
                # Wall time is there for what waits without computing, and for a machine that is very busy.
                verdict = child.ask(gold, given, request["seconds"], min(left, 10 * request["seconds"]))
                if verdict is None:
                    child.end()
                    child = _Child()
                    if time.monotonic() >= end:  # the batch's limit, not the pair's own
                        break
                verdicts.append(verdict)
            answers.write(json.dumps(verdicts).encode() + b"\n")
            answers.flush()
        child.end()


if __name__ == "__main__":
    main()
