"""Find held-out questions that were trained on. A score on such questions measures memory.

Two questions are the same if only their writing differs. A question in other words is not found,
nor are the questions that the base model saw before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OPERATORS = re.compile(r"\s*([-+*/=<>^])\s*")
# Other characters for the same operators: minus, dashes, times, dots, division.
_SIGNS = str.maketrans(
    dict.fromkeys("\u2212\u2010\u2011\u2012\u2013", "-")
    | dict.fromkeys("\u00d7\u2217\u22c5\u00b7", "*")
    | dict.fromkeys("\u00f7\u2215", "/")
)
_BRACKETS = re.compile(r"(?<=[(\[])\s+|\s+(?=[)\]])")
# 7.0 is 7 and 2.50 is 2.5, but 1.10.0 is a version.
_ZEROS = re.compile(r"(?<![\d.])(?:(\d+)\.0+|(\d+\.\d*[1-9])0+)(?![\d.]*\d)")
# Quotation marks and ends of sentences. "!" is not here: after a number it is a factorial. Nor is
# the point at the start of .5.
_STOPS = ".,;:?\"'\u201c\u201d\u2018\u2019"
_AROUND_NUMBERS = re.compile(rf"^(?:(?!\.\d)[{_STOPS}])+|[{_STOPS}]+$")
# Signs of mathematics between letters, where punctuation is removed. These patterns replace them
# by characters that are no punctuation. The signs are a factorial, a prime, and a minus: between
# single letters, with spaces around it, or next to a bracket or another operator. The hyphens in
# "x-axis" and "e-mail" are none of these.
_LETTER = r"[^\W\d_]"
_ONE_LETTER = rf"(?<!{_LETTER})({_LETTER})"
_SIGNS_BETWEEN_LETTERS = (
    (re.compile(rf"{_ONE_LETTER}-(?={_LETTER}(?!{_LETTER}))"), "\\1\u2212"),
    (re.compile(rf"(?<={_LETTER})\s+-\s+(?={_LETTER})"), "\u2212"),
    (re.compile(r"(?<=[=+*/<>^()\[\]{}])\s*-\s*|\s*-\s*(?=[(\[{\\])"), "\u2212"),
    (re.compile(rf"{_ONE_LETTER}!"), "\\1\u01c3"),
    (re.compile(rf"{_ONE_LETTER}'(?=\()"), "\\1\u02b9"),
)
# Punctuation, by its Unicode category, that changes the meaning of a word of letters.
_MEANINGFUL = frozenset("*/%\\#&@")
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def normalized_question(question: Any) -> str:
    """Return a question without white space and punctuation that do not change it.

    Numbers and the operators between them stay: 3.4 is not 34, and 3 - 4 is not 3 + 4. Capitals
    stay too, because a question may ask about them. In words of letters, punctuation goes, but
    signs of mathematics and the sign in "C#" stay.

    >>> normalized_question("What is  1,000 + 2?") == normalized_question("What is 1000+2")
    True
    >>> normalized_question("What is 3 - 4?") == normalized_question("What is 3 + 4?")
    False
    >>> normalized_question("Is x - y even?") == normalized_question("Is xy even?")
    False
    >>> normalized_question("What is $3.0 \u00d7 4$?") == normalized_question("What is 3 * 4?")
    True
    """
    text = unicodedata.normalize("NFKC", str(question)).translate(_SIGNS)
    # Category Cf: zero-width spaces, byte order marks and soft hyphens. "$" marks a formula.
    text = "".join(c for c in text if unicodedata.category(c) != "Cf" and c != "$")
    text = _GROUPED.sub("", _BRACKETS.sub("", text))
    text = _ZEROS.sub(lambda match: match[1] or match[2], text)
    for pattern, replacement in _SIGNS_BETWEEN_LETTERS:
        text = pattern.sub(replacement, text)
    words = []
    for word in _OPERATORS.sub(r"\1", text).split():
        has_digit = any(character.isdigit() for character in word)
        has_letter = any(character.isalpha() for character in word)
        if has_digit or not has_letter:
            words.append(_AROUND_NUMBERS.sub("", word) or word)
        else:
            words.append("".join(c for c in word if c in _MEANINGFUL or not _is_punctuation(c)))
    return " ".join(word for word in words if word not in {"", *"?!.,;:"})


def _is_punctuation(character: str) -> bool:
    # By category, because the combining marks of some scripts are part of the word.
    return unicodedata.category(character).startswith("P")


def question_key(question: str) -> str:
    """Return a text that is equal for questions which must be in the same part of a task.

    These are questions with the same `normalized_question`, and those that differ in capitals.
    """
    return normalized_question(question).casefold()


def _digest(question: Any) -> str:
    text = normalized_question(question)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class TrainedQuestions:
    """Hashes of the questions of a training, which find a question again without its text."""

    hashes: frozenset[str]
    source: str
    """Name in messages, such as "the training part"."""

    @classmethod
    def of(cls, questions: Iterable[Any], source: str) -> TrainedQuestions:
        """Hash questions."""
        return cls(frozenset(map(_digest, questions)), source)

    @classmethod
    def read(cls, file: Path, source: str) -> TrainedQuestions:
        """Read a file from `write_hashes`."""
        return cls(frozenset(file.read_text().split()), source)

    def __or__(self, other: TrainedQuestions) -> TrainedQuestions:
        source = self.source if self.source == other.source else f"{self.source} and {other.source}"
        return TrainedQuestions(self.hashes | other.hashes, source)


@dataclass(frozen=True, kw_only=True)
class Contamination:
    """The number of held-out questions that were trained on."""

    questions: int
    count: int
    """Number of questions that were trained on, in any writing."""
    example: str | None
    source: str
    """Name of the questions that they were compared with."""

    @property
    def sentence(self) -> str:
        """The finding in words."""
        if not self.count:
            return f"None of the {self.questions} held-out questions is among {self.source}."
        return (
            f"{self.count} of {self.questions} held-out questions are also in {self.source}: "
            "that is memory."
        )

    def require_none(self) -> None:
        """Raise `ValueError` if a question was trained on."""
        if self.count:
            questions = "question is" if self.count == 1 else "questions are"
            raise ValueError(
                f"{self.count} held-out {questions} also in {self.source}, "
                f"such as {self.example!r}. Say allow_contaminated=True, and the result carries "
                "this number."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return dataclasses.asdict(self)


def find_contamination(questions: Sequence[Any], trained: TrainedQuestions) -> Contamination:
    """Count which of the questions were trained on.

    >>> trained = TrainedQuestions.of(["What is 2+2?"], "the training part")
    >>> find_contamination(["What is 2+2?", "What is 2 + 2", "What is 2 - 2?"], trained).count
    2
    """
    known = [str(question) for question in questions if _digest(question) in trained.hashes]
    example = min(known, default=None)
    return Contamination(
        questions=len(questions), count=len(known), example=example, source=trained.source
    )


def write_hashes(file: Path, questions: Iterable[Any]) -> None:
    """Write the hashes of questions, each once, for `TrainedQuestions.read`."""
    file.write_text("".join(f"{digest}\n" for digest in dict.fromkeys(map(_digest, questions))))
