r"""The reward for mathematical answers: equal expressions through math-verify, behind a gate that lets one answer through.

math-verify is made to find and forgive; a reward must not. By itself it takes `41 = 42`, `42 \text{ is wrong}`, `x + 1 = 42`
and, after "What is 23 + 19?", `23 + 19` for 42, and `1 2 3 4` for 10. So here an answer first has to be one answer: of the
form of the gold answer, without words, relations, lists or commands that the gold answer has none of. Plain numbers never
reach math-verify; what does is judged in another process (`algebra`).
"""

import functools
import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpo_nb.rewards.algebra import Budget, is_equal
from grpo_nb.rewards.answers import SlotReward, is_copied
from grpo_nb.rewards.maths_shapes import UNION, Shape, bare, boxed_answers, spelled, split_name
from grpo_nb.tasks.answers import folded, is_same_answer
from grpo_nb.tasks.numbers import INSIDE, is_same_number, read_number, unit_name

BATCH_SECONDS = 10.0
"""Processor time for all expressions of one call: it bounds what a batch of attacks can cost."""
_LONGEST, _MOST_PARTS = 400, 16  # characters; each part given is compared with each part wanted
Ask = Callable[[str, str], bool]
"""Computer algebra: whether a gold answer and what was given are equal expressions."""

# What an answer may have that the gold answer has not: operators, brackets, functions, Greek letters.
_FREE = re.compile(
    r"[- +*/^_(){}\[\].'=<>]|\\(?:[{}]|le|ge|frac|sqrt|pi|cdot|times|div|infty|circ|binom|overline|(?:arc)?(?:sin|cos|tan)"
    r"|cot|sec|csc|sinh|cosh|tanh|log|ln|lg|exp|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|rho|sigma|tau|phi|psi|omega)"
)
_TOKEN = re.compile(r"\\text\s*\{[^{}]*\}|\\[a-z]+|\\.|[a-z]{2,}|[0-9]+\s+[0-9.]|\n|\S", re.DOTALL)
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|ne|approx|sim|simeq|cong|equiv|in|to)(?![A-Za-z])")
_TOWER = re.compile(r"[0-9)}]\s*\^\s*[({]*\s*(?:[0-9]{5}|[0-9]+[)}\s]*\^)")
_BASE = re.compile(r"[0-9]_\{")
_JOINED = re.compile(r"\b(?:and|or)\b")
# JSON, 007, a date, and a measure of several units: 2025-06-03, 2 h 20 min.
_NO_EXPRESSION = re.compile(
    r".*[\"'].*|0\d+|\d{1,4}([-/.])\d{1,2}\1\d{1,4}|(?:[\d.]+ ?[A-Za-z]+,? ?){2,}", re.DOTALL
)
_MEASURED = re.compile(
    r"(.*[0-9})\]A-Za-z]) *(\\text\s*\{[^{}]*\}(?:\^\{[23]\})?|\^\{\\circ\}| [A-Za-z/]{2,})"
)


@dataclass(frozen=True, kw_only=True)
class maths(SlotReward):
    r"""1.0 if the answer slot holds an expression equal to the gold answer, else 0.0; None where there is no gold answer.

    `1+x` is `x+1`, `\frac{1}{2}` is `0.5`, `2\sqrt{3}` is `\sqrt{12}`, `\{2, 1\}` is `1, 2`. Gives the numbers of TRL's
    `accuracy_reward` on its documented examples, and differs where that one pays for nonsense or is not safe:

    * Only the slot counts, and it must be the last word; TRL takes the first box, whatever follows.
    * One answer: `41 = 42` and `42 \text{ is wrong}` are refused. TRL pays for both.
    * Where the gold answer is a number, the answer is one too, compared as `correctness` does: arithmetic left undone
      (`23 + 19`, `2^{10}`) is refused. TRL pays for it.
    * Where the gold answer has parts, each must be given and no other: those of a list in any order, those of a tuple or an
      interval in theirs. A gold answer of several boxes is such a list. `x < 5` and `(-\infty, 5)` are one interval,
      `x < 1 or x > 5` is a union.
    * An expression copied from the question is no answer to it, unless it is the gold answer to the letter.
    * A gold answer of words, a date or JSON is compared as `correctness` does; TRL skips such rows.
    * Works in any thread. An expression has two seconds of processor time, a batch ten: a busy machine changes no score. An
      expression that takes longer is not scored (None). In a batch that uses up its time, the longest expressions are not
      scored either, and a warning says so; until then no score depends on the rest of the batch.

    Args:
        weight: Of the total reward.
        format: Where the answer stands; `xml()` if not given, `boxed()` for MATH and for what TRL reads.
        column: The data column with the gold answer, or the worked solution with it in a `\boxed{}`. A list holds several.
        name: Under which TRL logs it.

    >>> maths()(completions=["<answer>1 + x</answer>", "<answer>x = 1 + x</answer>"], answer=["x + 1", "x + 2"])
    [1.0, 0.0]
    """

    def golds(self, row: dict[str, Any]) -> list[str]:
        return [boxed_answers(gold) for gold in super().golds(row)]

    def score_batch(self, texts: list[str], rows: list[dict[str, Any]]) -> list[float | None]:
        given, scores = [self.format.extract_last(text) for text in texts], [None] * len(texts)
        budget = Budget(BATCH_SECONDS)
        # Short answers first: only the longest are left when slow ones have used up the time.
        for place in sorted(range(len(texts)), key=lambda place: len(given[place] or "")):
            if golds := self.golds(rows[place]):
                scores[place] = _score(given[place], golds, rows[place], budget)
        if budget.seconds_left <= 0:
            message = (
                f"{self.__name__}: a batch used up its {BATCH_SECONDS:g} s of processor time, so its "
                "longest expressions are not scored (None)"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=3)
        return scores

    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        return self.score_batch([text], [row])[0]


def _score(
    given: str | None, golds: list[str], row: dict[str, Any], budget: Budget
) -> float | None:
    """Return 1.0 for one of the gold answers, else 0.0; None if an undecided pair could have changed that to 1.0."""
    if given is None:
        return 0.0
    ask = functools.partial(is_equal, budget=budget)
    budget.has_undecided = False
    for gold in golds:
        if is_answer(given, gold, ask) and not is_copied(given, gold, row):
            return 1.0
    return None if budget.has_undecided else 0.0


def is_answer(given: str, gold: str, ask: Ask) -> bool:
    r"""Whether a text is the gold answer; what needs computer algebra is asked.

    >>> is_answer(r"\{2, 1\}", "1, 2", None), is_answer("42.0", "42", None)
    (True, True)
    >>> is_answer("1+x", "x+1", lambda gold, given: (gold, given) == ("x+1", "1+x"))
    True
    """
    if is_same_answer(given, gold):
        return True
    if len(given) > _LONGEST or _NO_EXPRESSION.fullmatch(gold):
        return False
    return _compare(spelled(given), spelled(gold), ask)


def _compare(given: str, gold: str, ask: Ask) -> bool:
    if split_name(gold)[0]:
        given = re.sub(r"^([^=<>]+)=\s*([a-z])$", r"\2 = \1", given)  # 2 = x is x = 2
    if bare(given) == bare(gold):
        return True
    if (wanted := read_number(gold)) is not None:
        number = read_number(given)
        return number is not None and is_same_number(number, wanted)
    if not re.search(r"[0-9\\^_+*/=<>(|,;-]", gold) and not re.fullmatch("[a-z]", gold):
        # Words. math-verify reads them as a product of letters, for which "on" is "no".
        return folded(given) == folded(gold)
    theirs = Shape.of(gold)
    mine = Shape.of(given, len(theirs.parts))
    if mine.name and theirs.name and bare(mine.name) != bare(theirs.name):
        return False
    if (
        "" in (mine.kind, theirs.kind)
        and not (mine.name and theirs.name)
        and all(map(_RELATION.search, (given, gold)))
    ):
        mine, theirs = (
            Shape("", "", [given]),
            Shape("", "", [gold]),
        )  # an equation or inequality, as a whole
    kinds = {mine.kind, theirs.kind}
    is_of_one_kind = len(kinds) == 1 or (
        kinds == {",", "()"} and (mine.has_own_names or theirs.has_own_names)
    )
    if not is_of_one_kind or len(mine.parts) != len(theirs.parts) or len(mine.parts) > _MOST_PARTS:
        return False
    if (
        theirs.kind == ","
        and re.search(r"[<>]|\\[lg]e", gold)
        and len({*_JOINED.findall(f"{given} {gold}")}) > 1
    ):
        return False  # one or both of two inequalities
    if theirs.kind == "":
        return _compare_expressions(mine, theirs, ask)
    if theirs.kind not in (",", UNION) or mine.has_own_names != theirs.has_own_names:
        return all(_compare(a, b, ask) for a, b in zip(mine.parts, theirs.parts, strict=True))
    left = [*theirs.parts]
    for part in mine.parts:  # to be equal is transitive, so the first that fits will do
        fitting = next((wanted for wanted in left if _compare(part, wanted, ask)), None)
        if fitting is None:
            return False
        left.remove(fitting)
    return True


def _compare_expressions(mine: Shape, theirs: Shape, ask: Ask) -> bool:
    given, gold = mine.parts[0], theirs.parts[0]
    if mine.name and not theirs.name and mine.name in re.findall(r"\\[A-Za-z]+|[A-Za-z]", gold):
        return False  # `x = x + 1` defines nothing
    (given, unit), (gold, wanted) = _without_unit(given), _without_unit(gold)
    if unit or wanted:
        return (not (unit and wanted) or unit == wanted) and _compare(given, gold, ask)
    if _BASE.search(gold) or not is_one_answer(given, gold):
        return False
    return ask(gold.replace("*", r" \cdot "), given.replace("*", r" \cdot "))


def _without_unit(text: str) -> tuple[str, str]:
    r"""`5\sqrt{3} \text{ cm}` as `5\sqrt{3}` and `cm`; the unit is empty if there is none."""
    found = _MEASURED.fullmatch(text)
    unit = unit_name(found[2]) if found else None
    return (found[1].strip(), unit) if unit else (text, "")


def is_one_answer(given: str, gold: str) -> bool:
    r"""Whether the text has the form of one answer to what the gold answer answers.

    It has no relation, comma, word, text or command more than the gold answer has, no digits apart, and no tower of powers.

    >>> is_one_answer("1+x", "x+1"), is_one_answer(r"42x \text{ is wrong}", "42x"), is_one_answer("x or y", "x")
    (True, False, False)
    """
    is_longer = len(_RELATION.findall(given)) > len(_RELATION.findall(gold))
    if (
        is_longer
        or not re.fullmatch(INSIDE, given)
        or (_TOWER.search(given) and not _TOWER.search(gold))
    ):
        return False
    mine, known = (Counter(_TOKEN.findall(text.casefold())) for text in (given, gold))
    variables = {letter for token in known if token.isalpha() for letter in token}
    more = [
        token
        for token, count in mine.items()
        if count > known[token] and not _FREE.fullmatch(token)
    ]
    words = [
        token
        for token in more
        if len(token) > 1 and not {*token} <= variables and not _FREE.fullmatch(f"\\{token}")
    ]
    return not words and all(token.isalnum() and token.isascii() for token in more)
