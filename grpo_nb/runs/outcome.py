"""Decide whether a run worked, from its reward, its held-out comparison and the baseline."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.runs.rise import Rise

#: Notebooks break longer printed lines in the middle of a word.
COLUMNS = 88


@dataclass(frozen=True)
class MajorityBaseline:
    """The most frequent gold answer of the held-out questions, compared with the model's accuracy.

    Attributes:
        answer: The most frequent gold answer.
        share: Share of the questions that this answer alone would get right.
        is_cleared: True if the whole 95 % interval of the model's accuracy lies above `share`.
        sentence: The comparison in words.
    """

    answer: str
    share: float
    is_cleared: bool
    sentence: str


@dataclass(frozen=True)
class Outcome:
    """The verdict on a run, for the end of a notebook. `print` shows one paragraph per fact.

    Attributes:
        worked: True if the held-out comparison is of this run and better, none of its questions was
            trained on, the answers themselves did not get worse, the majority-class baseline, if
            there is one, is cleared, and the reward rose.
        facts: What happened. The first one starts with "It worked." or with what is missing.
    """

    worked: bool
    facts: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """All facts in one line."""
        return " ".join(self.facts)

    def __str__(self) -> str:
        return "\n".join(textwrap.fill(fact, COLUMNS) for fact in self.facts)


def judge_outcome(
    rise: Rise,
    comparison: Any,
    obstacles: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Outcome:
    """Decide if a run worked, and say what happened instead where it did not.

    Args:
        rise: The test of the reward over the steps, from `Run.rise`.
        comparison: The held-out comparison, of which `verdict`, `answers_verdict`, `majority` and
            `sentence` are read; None if there is none.
        obstacles: Reasons why this comparison cannot show that the run worked.
        notes: Further sentences, for the end.

    >>> from types import SimpleNamespace
    >>> better = SimpleNamespace(verdict="better", answers_verdict=None, majority=None, sentence="")
    >>> judge_outcome(Rise(first=0.2, last=0.9, p_value=0.001, steps=12), better).worked
    True
    """
    missing = list(obstacles)
    if comparison is None:
        missing.append("the held-out answers were not compared")
    elif comparison.verdict == "worse":
        missing.append("the held-out answers got worse")
    elif comparison.verdict != "better":
        missing.append("the held-out comparison shows no difference")
    elif comparison.answers_verdict == "worse":
        missing.append("the answers themselves got worse")
    baseline = comparison.majority if comparison is not None else None
    if baseline is not None and not baseline.is_cleared:
        missing.append("the majority-class baseline is not cleared")
    if not rise.is_clear:
        missing.append("the reward did not rise clearly")

    is_valid = comparison is not None and not obstacles
    is_better = is_valid and comparison.verdict == "better"
    head = "It worked."
    if missing:
        head = "A gain is shown, but " if is_better else "No gain is shown: "
        head += ", and ".join(missing) + "."
    facts = [f"{head} {rise.sentence}"]
    if comparison is not None:
        facts.append(f"Held-out: {comparison.sentence}")
    if baseline is not None:
        facts.append(baseline.sentence)
    return Outcome(worked=not missing, facts=(*facts, *notes))
