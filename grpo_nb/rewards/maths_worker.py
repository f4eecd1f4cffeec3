"""The process in which math-verify runs: started by `maths` as a script, never imported.

It loads math-verify once (a second or so) and stays clean; a fork of it reads `[gold, given, seconds]`, one a line, and
answers each with `true` or `false`. The kernel ends the fork where a pair takes more processor time than its seconds, even
inside a long multiplication; then `late` is said for it, and the next fork goes on, a few milliseconds later. When the parent
goes, the pipe ends, and so does all of this.
"""

import contextlib
import json
import os
import resource
import signal
import sys

_MEMORY = 2 << 30


def judge(gold: str, given: str) -> bool:
    """Whether two LaTeX expressions are equal for math-verify, and their difference is small beside the gold value too."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Basic, Float, I

    # The settings of TRL's accuracy_reward. No limits of math-verify's own: they are signal handlers, which a long
    # multiplication never reaches.
    config = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True), boxed_match_priority=0, try_extract_without_anchor=False
    )
    left, right = (
        parse(f"$\\boxed{{{text}}}$", extraction_config=[config], extraction_mode="first_match", parsing_timeout=None)
        for text in (gold, given)
    )
    if not left or not right:
        return False
    a, b = left[0], right[0]
    are_expressions = isinstance(a, Basic) and isinstance(b, Basic)
    if are_expressions and any(symbol.name == "i" for symbol in a.free_symbols):
        a, b = (side.subs([(symbol, I) for symbol in side.free_symbols if symbol.name == "i"]) for side in (a, b))
    is_same = verify([a], [b], timeout_seconds=None)
    if is_same and are_expressions and a.is_number and b.is_number and (a - b).has(Float):
        # math-verify rounds both to six decimals, for which 0 and 10^{-8}\pi are equal.
        return abs(complex(a) - complex(b)) <= 1e-5 * max(abs(complex(a)), abs(complex(b)))
    return is_same


def _serve(answers: int) -> None:
    """Judge pairs until the pipe ends; processor time is limited per pair by the kernel, memory once for all."""
    with contextlib.suppress(ValueError, OSError):  # macOS refuses a limit below what is mapped already
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    sys.setrecursionlimit(3000)
    with open(0, "rb", buffering=0, closefd=False) as requests:  # what a buffer holds would end with the fork
        while line := requests.readline():
            gold, given, seconds = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process
            try:
                verdict = judge(gold, given)
            except Exception:  # what sympy cannot read or compare is not equal
                verdict = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            os.write(answers, b"true\n" if verdict else b"false\n")


if __name__ == "__main__":
    answers = os.dup(1)
    for stream in (1, 2):  # whatever sympy prints must not end up among the answers
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook's stop button is for the kernel
    # What is loaded lazily is loaded before the fork.
    judge("x^{2}+\\frac{1}{2}\\sqrt{3}", "\\frac{\\sqrt{3}}{2}+x^{2}")
    os.write(answers, b"ready\n")
    while True:
        if (child := os.fork()) == 0:
            _serve(answers)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break
        os.write(answers, b"late\n")
