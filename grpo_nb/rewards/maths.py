r"""The reward for mathematical answers: equal expressions through math-verify, behind a gate that lets one answer through.

math-verify is made to find and forgive; a reward must not. By itself it takes `41 = 42`, `42 \text{ is wrong}`, `x + 1 = 42`
and, after "What is 23 + 19?", `23 + 19` for 42, and `1 2 3 4` for 10. So here an answer first has to be one answer: of the
form of the gold answer, without words, relations, lists or commands that the gold answer has none of. Plain numbers never
reach math-verify; what does is judged in another process (`maths_worker`), one for each process that asks, started at the first
question: limits hold in any thread, and it is a fresh interpreter, not a fork of this one, which may hold a GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.rewards.answers import SlotReward, is_copied
from grpo_nb.rewards.lines import LineProcess
from grpo_nb.rewards.shapes import UNION, Shape, bare, boxed_answers, spelled, split_name
from grpo_nb.tasks.answers import folded, is_same_answer
from grpo_nb.tasks.numbers import INSIDE, is_same_number, read_number, unit_name

PAIR_SECONDS, BATCH_SECONDS = 1.0, 10.0
"""Processor time for one pair: honest expressions take 5 to 100 ms, an identity of trigonometry up to 300. Time on the clock
for judging all answers of one call together, which bounds what a batch of attacks can cost."""
_START_SECONDS, _LONGEST = 60.0, 400
_MOST_PARTS = 16  # each part given is compared with each part wanted

Question = tuple[str, str]
"""A gold answer and what was given, in the form in which they are judged."""
_cache: dict[Question, bool] = {}
_lock = threading.RLock()
_worker: LineProcess | None = None

# What an answer may have that the gold answer has not: operators, brackets, functions, Greek letters.
_FREE = {
    *" +-*/^_(){}[].'=<>", r"\{", r"\}", r"\le", r"\ge", r"\frac", r"\sqrt", r"\pi", r"\cdot", r"\times", r"\div",
    r"\infty", r"\circ", r"\binom", r"\overline", r"\sin", r"\cos", r"\tan", r"\cot", r"\sec", r"\csc", r"\arcsin",
    r"\arccos", r"\arctan", r"\sinh", r"\cosh", r"\tanh", r"\log", r"\ln", r"\lg", r"\exp", r"\alpha", r"\beta",
    r"\gamma", r"\delta", r"\epsilon", r"\theta", r"\lambda", r"\mu", r"\rho", r"\sigma", r"\tau", r"\phi", r"\psi",
    r"\omega",
}  # fmt: skip
_TOKEN = re.compile(r"\\text\s*\{[^{}]*\}|\\[a-z]+|\\.|[a-z]{2,}|[0-9]+\s+[0-9.]|\n|\S", re.DOTALL)
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|ne|approx|sim|simeq|cong|equiv|in|to)(?![A-Za-z])")
_TOWER = re.compile(r"[0-9)}]\s*\^\s*[({]*\s*(?:[0-9]{5}|[0-9]+[)}\s]*\^)")
_BASE = re.compile(r"[0-9]_\{")
_JOINED = re.compile(r"\b(?:and|or)\b")
# JSON, 007, a date, and a measure of several units: 2025-06-03, 2 h 20 min.
_NO_EXPRESSION = re.compile(r".*[\"'].*|0\d+|\d{1,4}([-/.])\d{1,2}\1\d{1,4}|(?:[\d.]+ ?[A-Za-z]+,? ?){2,}", re.DOTALL)
_NO_SOLUTION = re.compile(
    r"(?i)\\emptyset|\\?\{\s*\\?\}|(?:there (?:is|are) )?no(?: real)? solutions?(?: exists?)?|(?:the )?empty set"
)
_MEASURED = re.compile(r"(.*[0-9})\]A-Za-z]) *(\\text\s*\{[^{}]*\}(?:\^\{[23]\})?|\^\{\\circ\}| [A-Za-z/]{2,})")


@dataclass(frozen=True, kw_only=True)
class maths(SlotReward):
    r"""1.0 if the answer slot holds an expression equal to the gold answer, else 0.0; None where there is no gold answer.

    `1+x` is `x+1`, `\frac{1}{2}` is `0.5`, `2\sqrt{3}` is `\sqrt{12}`, `\{2, 1\}` is `1, 2`. Gives the numbers of TRL's
    `accuracy_reward` on its documented examples, and differs where that one pays for nonsense or is not safe:

    * Only the slot counts, and it must be the last word; TRL takes the first box, whatever follows.
    * One answer: `41 = 42` and `42 \text{ is wrong}` are refused. TRL pays for both.
    * Where the gold answer is a number, the answer is one too, compared as `correctness` does: arithmetic left undone
      (`23 + 19`, `2^{10}`) is refused. TRL pays for it. Six decimals stand for a fraction that has no end.
    * Where the gold answer has parts, each must be given and no other: those of a list in any order, those of a tuple or an
      interval in theirs. A gold answer of several boxes is such a list. `x < 5` and `(-\infty, 5)` are one interval,
      `x < 1 or x > 5` is a union and `x > 1 and x < 5` is `1 < x < 5`. `x_1 = 2, x_2 = 3` may be `x = 3 or x = 2`.
    * An expression copied from the question is no answer to it, unless it is the gold answer to the letter.
    * A gold answer of words, a date or JSON is compared as `correctness` does; TRL skips such rows.
    * Works in any thread. An expression has a second of processor time, a batch ten on the clock, kept from outside the
      process that computes. In a batch that uses them up, the longest expressions go unjudged, score 0.0, and a warning
      says so; until then no score depends on the rest of the batch.

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
        given, scores, left = [self.format.extract_last(text) for text in texts], [None] * len(texts), set[Question]()
        end = time.monotonic() + BATCH_SECONDS

        def ask(question: Question) -> bool:
            with _lock:
                if question not in _cache and time.monotonic() >= end:
                    left.add(question)
                elif question not in _cache:
                    _cache[question] = _ask(question, end - time.monotonic())
                return _cache.get(question, False)

        # Short answers first: only the longest are left when slow ones have used up the time.
        for place in sorted(range(len(texts)), key=lambda place: len(given[place] or "")):
            one, row = given[place], rows[place]
            if golds := self.golds(row):
                found = (gold for gold in golds if one is not None and is_answer(one, gold, ask))
                scores[place] = float(any(not is_copied(one, gold, row) for gold in found))
        if left:
            warnings.warn(
                f"{self.__name__}: {len(left)} expressions of this batch were left unjudged and score 0.0, because the others "
                f"used up the batch's {BATCH_SECONDS:g} s. Look at the completions.",
                RuntimeWarning,
                stacklevel=3,
            )
        return scores


def is_answer(given: str, gold: str, ask: Callable[[Question], bool]) -> bool:
    r"""Whether a text is the gold answer; what needs computer algebra is asked.

    >>> is_answer(r"\{2, 1\}", "1, 2", lambda question: False), is_answer("42.0", "42", lambda question: False)
    (True, True)
    >>> is_answer("1+x", "x+1", lambda question: print(question) or True)
    ('x+1', '1+x')
    True
    """
    if is_same_answer(given, gold):
        return True
    if len(given) > _LONGEST or _NO_EXPRESSION.fullmatch(gold):
        return False
    return _compare(spelled(given), spelled(gold), ask)


def _compare(given: str, gold: str, ask: Callable[[Question], bool]) -> bool:
    if split_name(gold)[0]:
        given = re.sub(r"^([^=<>]+)=\s*([a-z])$", r"\2 = \1", given)  # 2 = x is x = 2
    if bare(given) == bare(gold):
        return True
    if (wanted := read_number(gold)) is not None:
        number = read_number(given)
        return (number is not None and is_same_number(number, wanted)) or _is_rounded(given, wanted.value)
    if _NO_SOLUTION.fullmatch(split_name(gold)[1]):
        return _NO_SOLUTION.fullmatch(split_name(given)[1]) is not None
    if not re.search(r"[0-9\\^_+*/=<>(|,;-]", gold) and not re.fullmatch("[a-z]", gold):
        # Words. math-verify reads them as a product of letters, for which "on" is "no".
        return folded(given) == folded(gold)
    theirs = Shape.of(gold)
    mine = Shape.of(given, len(theirs.parts))
    if mine.name and theirs.name and bare(mine.name) != bare(theirs.name):
        return False
    if "" in (mine.kind, theirs.kind) and not (mine.name and theirs.name) and all(map(_RELATION.search, (given, gold))):
        mine, theirs = Shape("", "", [given]), Shape("", "", [gold])  # an equation or inequality, as a whole
    kinds = {mine.kind, theirs.kind}
    is_of_one_kind = len(kinds) == 1 or (kinds == {",", "()"} and (mine.has_own_names or theirs.has_own_names))
    if not is_of_one_kind or len(mine.parts) != len(theirs.parts) or len(mine.parts) > _MOST_PARTS:
        return False
    if theirs.kind == "," and re.search(r"[<>]|\\[lg]e", gold) and len({*_JOINED.findall(f"{given} {gold}")}) > 1:
        return False  # one or both of two inequalities
    if not theirs.has_own_names:
        mine = mine.without_places
    elif all(split_name(part)[0] for part in mine.parts) and not mine.has_own_names:
        theirs = theirs.without_places
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


def _compare_expressions(mine: Shape, theirs: Shape, ask: Callable[[Question], bool]) -> bool:
    given, gold = mine.parts[0], theirs.parts[0]
    if mine.name and not theirs.name and mine.name in re.findall(r"\\[A-Za-z]+|[A-Za-z]", gold):
        return False  # `x = x + 1` defines nothing
    (given, unit), (gold, wanted) = _without_unit(given), _without_unit(gold)
    if unit and wanted and unit != wanted:
        return False
    if unit or wanted:
        return _compare(given, gold, ask)
    if bare(given) == bare(gold):
        return True
    if _BASE.search(gold) or not is_one_answer(given, gold):
        return False
    return ask((gold.replace("*", r" \cdot "), given.replace("*", r" \cdot ")))


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
    if is_longer or not re.fullmatch(INSIDE, given) or (_TOWER.search(given) and not _TOWER.search(gold)):
        return False
    mine, known = (Counter(_TOKEN.findall(text.casefold())) for text in (given, gold))
    variables = {letter for token in known if token.isalpha() for letter in token}
    return all(
        token in _FREE
        or (token.isalnum() and token.isascii() and (len(token) == 1 or {*token} <= variables or f"\\{token}" in _FREE))
        or count <= known[token]
        for token, count in mine.items()
    )


def _is_rounded(given: str, gold: Fraction) -> bool:
    """Whether a decimal of six places or more is a gold fraction that no decimal can be, rounded: 0.333333 for 1/3."""
    if not re.fullmatch(r"[-+]?[0-9]*\.[0-9]{6,30}", given):
        return False
    has_no_end = pow(10, 1000, gold.denominator) > 0
    return has_no_end and round(gold, len(given.partition(".")[2])) == Fraction(given) != 0


def _ask(question: Question, wall_seconds: float) -> bool:
    """What math-verify says; a pair that takes too long is not equal."""
    global _worker
    if _worker is None or not _worker.is_alive:
        _worker = _started()
    line = None
    try:
        with contextlib.suppress(OSError):  # late, or killed from outside
            _worker.send(json.dumps([*question, PAIR_SECONDS]))
            line = _worker.line(min(10 * PAIR_SECONDS, wall_seconds))
    finally:  # an interrupt, too, leaves an answer in the pipe that the next question must not read
        if line is None:
            _worker.end()
    return line == "true"


def _started() -> LineProcess:
    # -P: else the folder of the script would come first on sys.path, and its modules before the standard library's.
    command = [sys.executable, "-P", str(Path(__file__).with_name("maths_worker.py"))]
    worker = LineProcess(command, environment={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    with contextlib.suppress(TimeoutError):
        if worker.line(_START_SECONDS) == "ready":
            return worker
    worker.end()
    raise EnvironmentProblem(
        "the process that compares expressions does not start: `python -c 'import math_verify'` says why."
    )


def _reset_after_fork() -> None:
    # A fork while another thread holds the lock would leave it held for ever in the child.
    global _lock, _worker
    _lock, _worker = threading.RLock(), None


os.register_at_fork(after_in_child=_reset_after_fork)
