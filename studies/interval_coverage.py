"""Measure how often an interval holds the true difference, and how often one is detected.

    python studies/interval_coverage.py [--studies 4000]

Two questions, from ten held-out questions to a thousand, with one answer to each and with four:
does the 95 % interval of a comparison contain the true difference in 95 of 100 studies? And does
the exact test find the difference that `detectable_difference` returns four times in five? The
answers are drawn from made-up accuracies; no model is asked. Prints the tables of
docs/evidence/evaluate.md.
"""

from __future__ import annotations

import argparse
import functools

import numpy
from scipy.stats import binomtest

from grpo_nb.core.statistics import detectable_difference, paired_interval

# (questions, share gained, share lost)
_ONE_EACH = (
    (12, 0.3, 0.1),
    (24, 0.2, 0.1),
    (48, 0.05, 0.05),
    (48, 0.3, 0.02),
    (96, 0.1, 0.0),
    (96, 0.25, 0.1),
    (400, 0.1, 0.05),
    (1000, 0.02, 0.01),
)
_FOUR_EACH = (12, 24, 48, 96, 400)
_POWER = ((12, 1 / 3), (24, 1 / 3), (48, 1 / 3), (96, 1 / 3), (480, 1 / 3), (1000, 0.1))


def main() -> None:
    """Draw the answers, count, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=4000)
    studies = parser.parse_args().studies
    draw = numpy.random.default_rng(1)

    print("| questions | gained, lost | interval holds the difference |\n| ---: | --- | ---: |")
    for count, gained, lost in _ONE_EACH:
        changes = draw.choice(
            [1.0, -1.0, 0.0], p=[gained, lost, 1 - gained - lost], size=(studies, count)
        )
        covered = _covered(changes, gained - lost, 1)
        print(f"| {count} | {gained:.0%}, {lost:.0%} | {covered:.1%} |")
    for count in _FOUR_EACH:
        # Each question has a difficulty of its own; the second model is right more often on each.
        rates = draw.beta(0.7, 1.0, size=(studies, count))
        better = numpy.minimum(rates + 0.1, 1.0)
        changes = (draw.binomial(4, better) - draw.binomial(4, rates)) / 4
        many = draw.beta(0.7, 1.0, size=2_000_000)
        truth = float((numpy.minimum(many + 0.1, 1.0) - many).mean())
        print(f"| {count}, 4 samples each | | {_covered(changes, truth, 4):.1%} |")

    print("\n| questions | answers that change | minimum detectable difference | detected |")
    print("| ---: | ---: | ---: | ---: |")
    for count, share in _POWER:
        each = round(count * share / 2)
        changes = [1.0, -1.0] * each + [0.0] * (count - 2 * each)
        smallest = detectable_difference(changes)
        moved = draw.binomial(count, max(share, smallest), size=studies)
        gained = draw.binomial(moved, (1 + smallest / max(share, smallest)) / 2)
        found = numpy.mean(
            [_p_value(int(g), int(m)) < 0.05 for g, m in zip(gained, moved, strict=True)]
        )
        print(
            f"| {count} | {max(share, smallest):.0%} | {100 * smallest:.1f} points | {found:.1%} |"
        )


def _covered(changes: numpy.ndarray, truth: float, samples: int) -> float:
    ends = [paired_interval(change.tolist(), samples) for change in changes]
    return float(numpy.mean([low <= truth <= high for low, high in ends]))


@functools.cache
def _p_value(gained: int, moved: int) -> float:
    return float(binomtest(gained, moved).pvalue) if moved else 1.0


if __name__ == "__main__":
    main()
