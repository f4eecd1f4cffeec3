"""How many held-out sums of a quickstart run were trained with their numbers swapped?

    python benchmarks/quickstart_swapped.py runs/<name of the run>

It prints how many questions of the run's comparison occur in its training with the same two
numbers (7 + 3 for 3 + 7), and how many of the others have the right sum anywhere in the completion,
before and after. Numbers: docs/evidence/quickstart_seeds.md.
"""

from __future__ import annotations

import re
import sys

import pandas

import grpo_nb as gn


def numbers_of(question: str) -> tuple[str, ...]:
    """Return the numbers of a question in an order that does not depend on the question."""
    return tuple(sorted(re.findall(r"\d+", question)))


def main(folder: str) -> None:
    run = gn.open_run(folder)
    task = gn.load_task("arithmetic", run.settings)
    answers = pandas.read_parquet(run.path / "comparison" / "transcripts.parquet")
    numbers = answers["question"].map(numbers_of)
    of_prompts = {numbers_of(question) for question in task.train["question"]}
    groups = [group for step in run.steps for group in run.step(step).groups]
    of_groups = {numbers_of(group.question) for group in groups}
    is_swapped = numbers.isin(of_groups)
    others = answers[~is_swapped]
    print(f"{numbers.isin(of_prompts).sum()} of {len(answers)} are in the training prompts,")
    print(f"{is_swapped.sum()} in the groups that the run trained on.")
    for when in ("before", "after"):
        right = others[f"{when}_anywhere"].eq(True).sum()
        print(f"{when}: {right} of the other {len(others)} have the right sum")


if __name__ == "__main__":
    main(sys.argv[1])
