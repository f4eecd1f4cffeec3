"""Candidates a second in the sandbox, and what an endless loop in the batch costs.

Claim: at least 40 a second on 2 cores; one endless loop in a batch of 16 costs its time limit once.

python benchmarks/sandbox_rate.py > benchmarks/results/sandbox_rate.md
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from _measure import machine, print_header, print_row

from grpo_nb.sandbox.outcomes import Call, Candidate, Limits
from grpo_nb.sandbox.runner import isolation_failures, run_untrusted_batch

BATCH = 64
REPEATS = 9
LIMIT = 1.0
CODE = """
from collections import Counter
def most_common(words):
    return sorted(Counter(words).items(), key=lambda pair: (-pair[1], pair[0]))
"""
GOOD = Candidate(code=CODE, calls=[Call("most_common", (["b", "a", "b"],))] * 3)
LOOP = Candidate(code="while True: pass", calls=[Call("f")])


def seconds(what: Callable[[], object]) -> float:
    started = time.perf_counter()
    what()
    return time.perf_counter() - started


def run(candidates: list[Candidate]) -> None:
    outcomes = run_untrusted_batch(candidates, limits=Limits(cpu_seconds=LIMIT))
    wanted = ["limit" if candidate is LOOP else "ok" for candidate in candidates]
    assert [outcome.status for outcome in outcomes] == wanted, outcomes


def new_interpreter() -> None:
    """Run each candidate in a fresh interpreter without isolation, as people do without a sandbox."""
    program = CODE + "print([most_common(['b', 'a', 'b'])] * 3)"
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], check=True, stdout=subprocess.DEVNULL
    )


def main() -> None:
    self_test_seconds = seconds(isolation_failures)
    run([GOOD] * 8)
    # In turn, so that a busy moment of the machine meets all of them.
    batch = []
    single = []
    bare = []
    loop = []
    for _ in range(REPEATS):
        batch.append(seconds(lambda: run([GOOD] * BATCH)))
        single.append(seconds(lambda: run([GOOD])))
        bare.append(seconds(new_interpreter))
    for _ in range(3):
        loop.append(seconds(lambda: run([LOOP, *[GOOD] * 15])))
    rates = sorted(BATCH / taken for taken in batch)
    user = "root" if os.geteuid() == 0 else "an ordinary user"
    date = datetime.date.today()
    print("# Candidates a second in the sandbox\n")
    print(
        f"`python benchmarks/sandbox_rate.py`, started as {user}, {date.day} {date:%B %Y}; "
        f"{machine()}, Python {platform.python_version()}. Median of {REPEATS} batches (range), "
        f"each of {BATCH} candidates with three calls.\n"
    )
    print_header(
        "candidates a second",
        "one alone",
        "self-test, once",
        f"batch of 16 with one endless loop, limit {LIMIT:g} s",
    )
    print_row(
        f"{statistics.median(rates):.0f} ({rates[0]:.0f} to {rates[-1]:.0f})",
        f"{1000 * statistics.median(single):.1f} ms",
        f"{self_test_seconds:.2f} s",
        f"{statistics.median(loop):.2f} s",
    )
    print(
        "\nFor comparison, in the same run: a new interpreter for each candidate, one at a time "
        f"and without any isolation, takes {1000 * statistics.median(bare):.1f} ms."
    )


if __name__ == "__main__":
    main()
