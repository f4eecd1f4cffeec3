"""What all rewards for the answer share: the slot must be the completion's last word, and hold one answer.

Everything a model can do to be paid without committing itself ends here: two slots, text after the slot that takes the answer
back, several answers in one slot, and the question copied into it. So does what an answer may cost to judge.
"""

from __future__ import annotations

import abc
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from grpo_nb.rewards.base import BatchReward, Span, checked, completion_text, slot_span
from grpo_nb.tasks.notation import bare, plain

BATCH_SECONDS = 10.0
"""Wall time for judging all answers of one call together. It bounds what a batch of attacks can cost."""

Question = tuple[str, str]
"""A gold answer and what was given, in the form in which they are judged."""
Verdicts = Mapping[Question, bool]


@dataclass(frozen=True, kw_only=True, repr=False)
class SlotReward(BatchReward):
    """1.0 if the answer slot holds a right answer and nothing else, else 0.0; None where the data has no gold answer."""

    weight: float = 2.0
    column: str = "answer"
    is_last: bool = True
    arguments: ClassVar[Mapping[str, str]] = {
        **BatchReward.arguments,
        "column": "The data column with the gold answer. A list in it holds several.",
        "is_last": "Nothing but white space and closing marks may follow the slot.",
    }

    def score_batch(self, texts: list[str], rows: list[dict[str, Any]]) -> list[float | None]:
        answers = [(self.given(text), self.golds(row), row) for text, row in zip(texts, rows, strict=True)]
        verdicts = self.verdicts([(given, golds) for given, golds, _ in answers if given is not None])
        return [
            float(given is not None and self.is_right(given, golds, row, verdicts)) if golds else None
            for given, golds, row in answers
        ]

    def verdicts(self, answers: list[tuple[str, list[Any]]]) -> Verdicts:
        """How the answers of a call, each with its gold answers, were judged, where that is asked for all at once."""
        return {}

    def golds(self, row: dict[str, Any]) -> list[Any]:
        """The gold answers of a row; none where the column is empty."""
        return gold_answers(self.column_of(row, self.column))

    def given(self, text: str) -> str | None:
        """What the completion gives as its answer, if it gives one."""
        return self.format.extract_last(text) if self.is_last else self.format.extract(text)

    def looks_at(self, text: str) -> tuple[Span, ...]:
        return slot_span(self.format, self.given(text), text)

    def is_right(self, given: str, golds: list[Any], row: dict[str, Any], verdicts: Verdicts) -> bool:
        """Whether any gold answer is given."""
        return any(self.is_same(given, gold, row, verdicts) for gold in golds)

    @abc.abstractmethod
    def is_same(self, given: str, gold: Any, row: dict[str, Any], verdicts: Verdicts) -> bool:
        """Whether one given answer is one gold answer."""


def seconds(default: float) -> Any:
    """A field that holds a limit of time."""
    return checked("a positive number of seconds below 3600", lambda value: 0 < value < 3600, default)


@dataclass(frozen=True, kw_only=True, repr=False)
class TimedReward(SlotReward):
    """A slot reward whose answers can take for ever to judge: all of a call are judged together, in limited time."""

    batch_seconds: float = seconds(BATCH_SECONDS)
    judged: ClassVar[str] = "answers"
    advice: ClassVar[str] = "Look at the completions."

    def verdicts(self, answers: list[tuple[str, list[Any]]]) -> Verdicts:
        asked = {question for given, golds in answers for gold in golds for question in self.questions(given, gold)}
        # Short answers first: only the longest are left when slow ones have used up the time.
        verdicts = self.judge(sorted(asked, key=lambda question: (len(question[1]), question))) if asked else {}
        if len(verdicts) < len(asked):
            warnings.warn(
                f"{self.__name__}: {len(asked) - len(verdicts)} of {len(asked)} {self.judged} of this batch were left unjudged "
                f"and score 0.0, because the others used up the batch's {self.batch_seconds:g} s. {self.advice}",
                RuntimeWarning,
                stacklevel=4,
            )
        return verdicts

    @abc.abstractmethod
    def questions(self, given: str, gold: str) -> Iterable[Question]:
        """What has to be judged; nothing where that takes no time."""

    @abc.abstractmethod
    def judge(self, asked: list[Question]) -> Verdicts:
        """Judge in this order; what the batch's time is not enough for is missing in the answer."""


def gold_answers(value: Any) -> list[str]:
    """Return the gold answers in a cell: one, several in a list, or none where it is empty (None, NaN, "").

    >>> gold_answers(["1/2", 0.5]), gold_answers(None)
    (['1/2', '0.5'], [])
    """
    values = value if isinstance(value, (list, tuple)) else [value]
    is_there = lambda v: v is not None and not (isinstance(v, float) and math.isnan(v)) and str(v).strip()  # noqa: E731
    return [str(v).strip() for v in values if is_there(v)]


def is_copied(given: str, gold: str, row: Mapping[str, Any]) -> bool:
    """Whether an answer with something left to compute stands word for word in the question, and is not the gold answer.

    `84/2` is a form of 42, but as the answer to "What is 84 / 2?" it is the question. A number without any sign in it may
    stand in both, and so may what the gold answer is, in any writing: `3/4.` of "Which is larger, 3/4 or 2/3?".

    >>> is_copied("84/2", "42", {"prompts": "What is 84 / 2?"}), is_copied("42", "42.0", {"prompts": "Is it 41 or 42?"})
    (True, False)
    """
    given = _bare(plain(given))
    if not re.search(r"[/^*%\\(+]|\w-|\d[eE]|\d\s\d", given) or "prompts" not in row:
        return False
    if bare(given) == bare(_bare(plain(gold))):
        return False
    asked = completion_text(row["prompts"])
    # Not as a part of another number: 3/4 does not stand in 13/4, 2 3/4 or 3/40.
    found = rf"(?<!\d)(?<!\d[. ]){re.escape(given)}(?!\d|\.\d)"
    return any(re.search(found, _bare(text)) for text in (asked, plain(asked)))


def _bare(text: str) -> str:
    text = re.sub(r"\\(?:left|right|[,!;: ])|\$", "", text)
    text = re.sub(r"\\[dt]?frac{(\w+)}{(\w+)}", r"\1/\2", text)
    return re.sub(r"\s*([-+*/^=%(){}])\s*", r"\1", " ".join(text.split())).casefold()
