"""One verdict about a finished run: "It worked" only where three separate measurements agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.runs.rise import Rise


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


def baseline_of_task(info: Mapping[str, Any], after: Any) -> MajorityBaseline | None:
    """Return the baseline that run.json records for the task; None if no answer repeats.

    Args:
        info: The content of `run.json`.
        after: The stored numbers of the trained model, with `accuracy` and `interval`. The interval
            of an old comparison may be None.
    """
    floor = info["task"].get("floor")
    if floor is None:
        return None
    answer = str(floor[0])
    share = float(floor[1])
    is_cleared = after.interval is not None and after.interval[0] > share
    position = "is above" if is_cleared else "is not clearly above"
    if after.interval is None:
        position = "was stored without its interval, so it is not shown to be above"
    sentence = (
        f"Always answering {answer!r:.60} would get {share:.1%} right: the accuracy of "
        f"{after.accuracy:.1%} {position} this majority-class baseline."
    )
    return MajorityBaseline(answer=answer, share=share, is_cleared=is_cleared, sentence=sentence)


@dataclass(frozen=True)
class Outcome:
    """The verdict on a run, for the end of a notebook. Prints as its sentence.

    Attributes:
        worked: True if the held-out comparison is better, the majority-class baseline is cleared
            and the reward rose.
        sentence: What happened. It starts with "It worked." or with what is missing.
    """

    worked: bool
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def judge_outcome(
    rise: Rise,
    comparison: Any,
    baseline: MajorityBaseline | None,
    *,
    obstacles: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Outcome:
    """Decide if a run worked, and say what happened instead where it did not.

    Args:
        rise: The test of the reward over the steps, from `Run.rise`.
        comparison: The held-out comparison, of which `verdict` and `sentence` are read; None if
            there is none.
        baseline: The majority-class baseline; None if no answer repeats often enough.
        obstacles: Reasons why this comparison cannot show that the run worked.
        notes: Further sentences, for the end.

    >>> from types import SimpleNamespace
    >>> better = SimpleNamespace(verdict="better", sentence="Better: the answers.")
    >>> judge_outcome(Rise(first=0.2, last=0.9, p_value=0.001, steps=12), better, None).worked
    True
    """
    missing = list(obstacles)
    if comparison is None:
        missing.append("the held-out answers were not compared")
    elif comparison.verdict == "worse":
        missing.append("the held-out answers got worse")
    elif comparison.verdict != "better":
        missing.append("the held-out comparison shows no difference")
    elif _answers_verdict(comparison) == "worse":
        missing.append("the format improved, but the answers themselves got worse")
    if baseline is not None and not baseline.is_cleared:
        missing.append("the majority-class baseline is not cleared")
    if not rise.is_clear:
        missing.append("the reward did not rise clearly")

    details = [rise.sentence]
    if comparison is not None:
        details.append(f"Held-out: {comparison.sentence}")
    if baseline is not None:
        details.append(baseline.sentence)
    details += notes
    head = f"No gain is shown: {', and '.join(missing)}." if missing else "It worked."
    return Outcome(worked=not missing, sentence=" ".join([head, *details]))


def _answers_verdict(comparison: Any) -> str | None:
    """Return the verdict about correct answers anywhere in the text; None if not measured."""
    return getattr(comparison, "answers_verdict", None)
