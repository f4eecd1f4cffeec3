"""Find held-out questions that were trained on. A score on such questions measures memory.

A task compares questions in three ways. Within one source, a row is left out only if it certainly
repeats another. Rows that may repeat each other are kept together in one part, so none is lost.
Training rows that may repeat the example, or a held-out row of the user, are left out.

| two questions                             | may differ in                                     |
| ----------------------------------------- | ------------------------------------------------- |
| are repeated (`cleaning`)                 | white space                                       |
| are the same here (`normalize_question`)  | also punctuation, spelling of signs and numbers   |
| must be in one part (`question_key`)      | also capitals                                     |

Questions in other words are not found, and neither are questions that only the base model was
trained on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.tasks.markup import normalize_signs, rewrite

# Pattern -> spelling that replaces its matches in a question.
_QUESTION_SPELLINGS = {
    r"\$": "",  # marks a formula
    "[\u061c\u202a-\u202e\u2066-\u2069]": "",  # marks of the direction of writing
    r"\\(?:times|cdot)(?![A-Za-z])|\u2217": "*",  # multiplication
    "[\u00f7\u2215]": "/",  # division
    r"\^\{(-?\d+|\w)\}(?!\w)": r"^\1",  # x^{2} is x^2, but x^{2}y is not x^{2y}
    r"_\{(\d+)\}(?!\d)": r"\1",  # CO_{2} is CO2, but log_{2}8 is not log_{28}
    r"(?<=[(\[])\s+|\s+(?=[)\]])": "",  # spaces inside brackets
    r"(?<=\d),(?=\d{3}(?!\d))": "",  # 1,000 is 1000
    # 7.0 is 7 and 2.50 is 2.5. The version 1.10.0 stays, but the version 3.10 becomes 3.1.
    r"(?<![\d.])(?:(\d+)\.0+|(\d+\.\d*[1-9])0+)(?![\d.]*\d)": r"\1\2",
    r"\s*([-+*/=<>^])\s*": r"\1",  # spaces around an operator
}
# Quotation marks and ends of sentences.
_PUNCTUATION = ".,;:?\"'\u3002\u3001\u00ab\u00bb"
_OUTER_PUNCTUATION = re.compile(
    rf"^[{_PUNCTUATION}!]+$"  # nothing but marks
    rf"|^(?:(?!\.\d)[{_PUNCTUATION}])+"  # before a word, except the point of .5
    rf"|(?<=[^\W\d_]{{2}})[{_PUNCTUATION}!]+$"  # after two letters, because n! is a factorial
    rf"|[{_PUNCTUATION}]+$"  # after a word
)


def normalize_question(question: Any) -> str:
    """Return a question in one spelling, without extra white space and punctuation.

    Punctuation is removed only where a word starts or ends. Inside a word it may be a sign of
    mathematics: 3.4 is not 34, and x - y is not xy. Capitals stay, because a question may ask about
    them.

    >>> normalize_question("What is  1,000 + 2?") == normalize_question("What is 1000+2")
    True
    >>> normalize_question("What is 3 - 4?") == normalize_question("What is 3 + 4?")
    False
    >>> normalize_question("What is $3.0 \u00d7 4$?") == normalize_question("What is 3 * 4?")
    True
    """
    text = rewrite(normalize_signs(str(question)), _QUESTION_SPELLINGS)
    words = [_OUTER_PUNCTUATION.sub("", word) for word in text.split()]
    return " ".join(filter(None, words))


def question_key(question: str) -> str:
    """Return the normalized question without capitals.

    Questions with the same key must be in the same part of a task, training or held-out.
    """
    return normalize_question(question).casefold()


def question_hashes(questions: Iterable[Any]) -> list[str]:
    """Return a hash of each question, to find it again without storing its text."""
    hashes = []
    for question in questions:
        # A lone surrogate, which data may contain, cannot be encoded strictly.
        text = normalize_question(question).encode(errors="surrogatepass")
        # Among a million questions, two share these 64 bits with a probability of 3 in 100 million.
        hashes.append(hashlib.sha256(text).hexdigest()[:16])
    return hashes


@dataclass(frozen=True, kw_only=True)
class Contamination:
    """The number of held-out questions that were trained on."""

    question_count: int
    trained_count: int
    source: str
    """Name of the training data."""

    @property
    def sentence(self) -> str:
        """The finding in words."""
        if not self.trained_count:
            return f"None of the {self.question_count} held-out questions is in {self.source}."
        return (
            f"{self.trained_count} of {self.question_count} held-out questions are also in "
            f"{self.source}: a score on them measures memory."
        )


def find_contamination(questions: Sequence[Any], trained: Mapping[str, str]) -> Contamination:
    """Count the questions that were trained on.

    Args:
        questions: The held-out questions.
        trained: Hash of each trained question -> name of its data, such as "the training part".

    >>> trained = dict.fromkeys(question_hashes(["What is 2+2?"]), "the training part")
    >>> found = find_contamination(["What is 2+2?", "What is 2 + 2", "What is 2 - 2?"], trained)
    >>> found.trained_count
    2
    """
    found_in = [trained[digest] for digest in question_hashes(questions) if digest in trained]
    # If none was trained on, the sentence names all data that were searched.
    named_data = found_in or trained.values()
    return Contamination(
        question_count=len(questions),
        trained_count=len(found_in),
        source=" and ".join(dict.fromkeys(named_data)) or "an empty set of training questions",
    )
