"""Candidates a second in the sandbox, by level: warm, cold, and with an endless loop in the batch.

Claim: at least 40 a second, warm, on 2 cores at the strongest level that holds; one endless loop in a batch of 16 costs
its time limit once.

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

from _measure import machine

from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.sandbox.candidates import LEVELS, Sandbox
from grpo_nb.sandbox.jobs import Call, Candidate, Limits, Outcome

BATCH, REPEATS, LIMIT = 64, 9, 1.0
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


def run(sandbox: Sandbox, candidates: list[Candidate]) -> list[Outcome]:
    outcomes = sandbox.run(candidates, Limits(cpu_seconds=LIMIT))
    wanted = ["cpu" if candidate is LOOP else "ok" for candidate in candidates]
    assert [outcome.status for outcome in outcomes] == wanted, outcomes
    return outcomes


def new_interpreter() -> None:
    """What people write without a pool: a fresh interpreter for each candidate, with no isolation at all."""
    program = CODE + "print([most_common(['b', 'a', 'b'])] * 3)"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, stdout=subprocess.DEVNULL)


def measure(level: str) -> str:
    try:
        starts = [seconds(lambda: Sandbox(level=level).close()) for _ in range(3)]
        sandbox = Sandbox(level=level)
    except EnvironmentProblem as problem:
        return f"| {level} | not here: {str(problem).splitlines()[-1][:100]} | | | | |"
    with sandbox:
        run(sandbox, [GOOD] * 8)
        # In turn, so that a busy moment of the machine meets all of them.
        batch, single, loop = [], [], []
        for _ in range(REPEATS):
            batch.append(seconds(lambda: run(sandbox, [GOOD] * BATCH)))
            single.append(seconds(lambda: run(sandbox, [GOOD])))
        for _ in range(3):
            loop.append(seconds(lambda: run(sandbox, [LOOP, *[GOOD] * 15])))
    rates = sorted(BATCH / taken for taken in batch)
    return (
        f"| {level} | {statistics.median(rates):.0f} ({rates[0]:.0f} to {rates[-1]:.0f}) "
        f"| {1000 * statistics.median(single):.1f} ms | {statistics.median(starts):.2f} s "
        f"| {statistics.median(loop):.2f} s |"
    )


def main() -> None:
    lines = [measure(level.name) for level in LEVELS]
    bare = statistics.median(seconds(new_interpreter) for _ in range(REPEATS))
    user = "root" if os.geteuid() == 0 else "an ordinary user"
    date = datetime.date.today()
    print(
        f"# Candidates a second in the sandbox\n\n`python benchmarks/sandbox_rate.py`, started as {user}, {date.day} "
        f"{date:%B %Y}; {machine()}, Python {platform.python_version()}. Median of {REPEATS} batches (range), each of {BATCH} "
        "candidates with three calls.\n\n"
        "| level | candidates a second, warm | one alone, warm | cold start with self-test "
        f"| batch of 16 with one endless loop, limit {LIMIT:g} s |\n| --- | ---: | ---: | ---: | ---: |"
    )
    print("\n".join(lines))
    print(
        f"\nFor comparison, in the same run: a new interpreter for each candidate, one at a time and without any isolation, "
        f"takes {1000 * bare:.1f} ms ({1 / bare:.0f} a second)."
    )


if __name__ == "__main__":
    main()
