"""How many answers `correctness` and `maths` judge in a second, here and in another checkout.

    python benchmarks/judging_rate.py --against ../other-checkout [--rounds 3]

Seconds are those of the processor in this process. The answers to 500 questions are new, in groups
of eight: numbers in eight spellings, one of them wrong.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from _measure import ROOT, ask, print_header, print_row, tell

QUESTIONS = 500


def answers_to(gold: int) -> list[str]:
    """Return eight answers to a question, the fourth of them wrong."""
    fraction = f"\\frac{{{2 * gold}}}{{2}}"
    plain = [f"{gold:,}", f"${gold}", f"{gold}.0", f"{gold + 1}"]
    return [*plain, f"{gold} apples", f"x = {gold}", fraction, f"{gold} km"]


def batch(first: int) -> dict[str, list[str]]:
    """Return the arguments of a reward for `QUESTIONS` questions, counted from `first`."""
    arguments = {"prompts": [], "completions": [], "answer": []}
    for number in range(first, first + QUESTIONS):
        gold = 7 * number + 1003
        for answer in answers_to(gold):
            arguments["prompts"].append(f"Question {number}: how many are {number} and {gold}?")
            arguments["completions"].append(f"<reasoning>x</reasoning><answer>{answer}</answer>")
            arguments["answer"].append(str(gold))
    return arguments


def rates() -> dict[str, float]:
    """Return the judged answers per second of each reward."""
    from grpo_nb import rewards

    rate_of = {}
    for place, name in enumerate(("correctness", "maths")):
        reward = getattr(rewards, name)()
        # The first batch also pays for what a process does once. No batch has an answer of another.
        reward(**batch(10_000 * place))
        counted = batch(10_000 * place + 5_000)
        started = time.process_time()
        reward(**counted)
        rate_of[name] = len(counted["answer"]) / (time.process_time() - started)
    return rate_of


def main() -> None:
    """Print a table with the medians of both checkouts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    checkouts = (chosen.against.resolve(), ROOT)
    rounds = [
        [ask(__file__, "rates", checkout) for checkout in checkouts] for _ in range(chosen.rounds)
    ]
    print_header("answers per second", "other checkout", "this one", "ratio")
    for name in rounds[0][0]:
        other, own = (
            statistics.median(pair[side][name] for pair in rounds) for side in range(len(checkouts))
        )
        print_row(name, f"{other:,.0f}", f"{own:,.0f}", f"{own / other:.2f}")


if __name__ == "__main__":
    if sys.argv[1] == "rates":
        sys.path.insert(0, sys.argv[2])
        tell(rates())
    else:
        main()
