r"""The reward for mathematical answers: equal expressions through math-verify, behind a gate that lets one answer through.

math-verify is made to find and forgive; a reward must not. By itself it takes `41 = 42`, `42 \text{ is wrong}`, `x + 1 = 42`
and, after "What is 23 + 19?", `23 + 19` for 42, and `1 2 3 4` for 10. So here an answer first has to be one answer: of the
form of the gold answer, without words, relations, lists or commands that the gold answer has none of. Plain numbers never
reach math-verify; what does is judged in another process (`maths_worker`), one for each process that asks, started at the first
question: limits hold in any thread, and it is a fresh interpreter, not a fork of this one, which may hold a GPU.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from grpo_nb.core.errors import EnvironmentProblem
from grpo_nb.core.processes import LineProcess
from grpo_nb.rewards.answers import SlotReward, is_copied
from grpo_nb.rewards.shapes import UNION, Shape, bare, boxed_answers, spelled, split_name
from grpo_nb.tasks.answers import folded, is_same_answer
from grpo_nb.tasks.numbers import is_same_number, read_number, unit_name

PAIR_SECONDS = 1.0
"""Processor time for one pair. Most honest expressions take 5 to 100 ms, an identity of trigonometry up to 300."""
BATCH_SECONDS = 10.0
"""Wall time for judging all answers of one call together. It bounds what a batch of attacks can cost."""
_START_SECONDS, _LONGEST, _CACHE_SIZE = 60.0, 400, 50_000
_MOST_PARTS = 16  # each part given is compared with each part wanted

Question = tuple[str, str]
"""A gold answer and what was given, in the form in which they are judged."""
_cache: dict[Question, bool] = {}
_lock = threading.RLock()
_worker: LineProcess | None = None

_COMMANDS = {"%"}.union(
    (
        "frac sqrt pi cdot times div infty circ binom text mathbb overline "
        "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp alpha beta gamma delta epsilon varepsilon "
        "zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta "
        "Lambda Xi Pi Sigma Phi Psi Omega"
    ).split()
)
_FUNCTIONS = {*"sin cos tan cot sec csc arcsin arccos arctan log ln lg exp sqrt pi".split()}
_COUPLING = {*"or and is not but if no nor to".split()}
_CHARACTERS = frozenset(" +-*/^_(){}[].\\$'")
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|ne|approx|sim|simeq|cong|equiv|in|to)(?![A-Za-z])")
_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z]{2,}")
_SPLIT_DIGITS = re.compile(r"[0-9]\s+[0-9.]")
_TOWER = re.compile(r"[0-9)}]\s*\^\s*[({]*\s*(?:[0-9]{5}|[0-9]+[)}\s]*\^)")
_BASE = re.compile(r"[0-9]_\{")
_JOINED = re.compile(r"\b(?:and|or)\b")
# A date, and a measure of several units: 2025-06-03, 2 h 20 min.
_NO_EXPRESSION = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}|(?:[\d.]+ ?[A-Za-z]+,? ?){2,}")
_NO_SOLUTION = re.compile(
    r"(?i)\\emptyset|\\?\{\s*\\?\}|(?:there (?:is|are) )?no(?: real)? solutions?(?: exists?)?|(?:the )?empty set"
)
_MEASURED = re.compile(r"(.*(?:[0-9})\]]|\\[a-z]+|(?<![A-Za-z])[a-z])) *(\\text\s*\{[^{}]*\}(?:\^\{[23]\})?|\^\{\\circ\}| [A-Za-z/]{2,})")


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
        given = [self.format.extract_last(text) for text in texts]
        asked: set[Question] = set()
        for one, row in zip(given, rows, strict=True):
            for gold in self.golds(row) if one is not None else ():
                is_answer(one, gold, lambda question: asked.add(question) or False)
        # Short answers first: only the longest are left when slow ones have used up the time.
        verdicts = judge_pairs(sorted(asked, key=lambda question: (len(question[1]), question)))

        def is_right(one: str, row: dict[str, Any]) -> bool:
            found = (gold for gold in self.golds(row) if is_answer(one, gold, lambda question: verdicts.get(question, False)))
            return any(not is_copied(one, gold, row) for gold in found)

        return [
            float(one is not None and is_right(one, row)) if self.golds(row) else None
            for one, row in zip(given, rows, strict=True)
        ]


def is_answer(given: str, gold: str, ask: Callable[[Question], bool]) -> bool:
    r"""Whether a text is the gold answer; what needs computer algebra is asked, all of it, whatever is answered.

    >>> is_answer(r"\{2, 1\}", "1, 2", lambda question: False), is_answer("42.0", "42", lambda question: False)
    (True, True)
    >>> is_answer("1+x", "x+1", lambda question: print(question) or True)
    ('x+1', '1+x')
    True
    """
    if len(given) > _LONGEST:
        return folded(given) == folded(gold)
    if is_same_answer(given, gold):
        return True
    is_literal = re.search("[\"']", gold) or _NO_EXPRESSION.fullmatch(gold.strip())
    return not is_literal and _compare(spelled(given), spelled(gold), ask)


def _compare(given: str, gold: str, ask: Callable[[Question], bool]) -> bool:
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
        return all([_compare(a, b, ask) for a, b in zip(mine.parts, theirs.parts, strict=True)])
    table = [[_compare(a, b, ask) for b in theirs.parts] for a in mine.parts]
    left = set(range(len(table)))
    for row in table:  # to be equal is transitive, so the first that fits will do
        left.discard(next((i for i in left if row[i]), None))
    return not left


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
    return ask((_latex(gold), _latex(given)))


def _without_unit(text: str) -> tuple[str, str]:
    r"""`5\sqrt{3} \text{ cm}` as `5\sqrt{3}` and `cm`; the unit is empty if there is none."""
    found = _MEASURED.fullmatch(text)
    unit = unit_name(found[2]) if found else None
    return (found[1].strip(), unit) if unit else (text, "")


def is_one_answer(given: str, gold: str) -> bool:
    r"""Whether the text has the form of one answer to what the gold answer answers.

    It has no relation, comma, word, text or command that the gold answer has not as well, no digits apart, and no tower
    of powers.

    >>> is_one_answer("1+x", "x+1"), is_one_answer(r"42x \text{ is wrong}", "42x"), is_one_answer("x or y", "x")
    (True, False, False)
    """
    if len(_RELATION.findall(given)) > len(_RELATION.findall(gold)):
        return False
    if any(pattern.search(given) and not pattern.search(gold) for pattern in (_SPLIT_DIGITS, _TOWER, _BASE)):
        return False
    plain = _COMMAND.sub("", given)
    if plain.count("{") != plain.count("}") or "}" in plain.partition("{")[0]:
        return False
    commands = set(_COMMAND.findall(gold))
    commands |= {"le", "ge"} if commands & {"le", "ge"} else set()
    if not set(_COMMAND.findall(given)) <= _COMMANDS | commands or not _texts(given) <= _texts(gold):
        return False
    without_text = _COMMAND.sub(" ", _TEXT.sub(" ", given))
    known = {word.casefold() for word in _WORD.findall(gold)}
    letters = set(gold)
    for word in _WORD.findall(without_text):
        # Letters in a row may be a product, but then of variables that the gold answer has.
        if word.casefold() not in known | _FUNCTIONS and (word.casefold() in _COUPLING or not set(word) <= letters):
            return False
    others = Counter(c for c in without_text if not c.isascii() or not (c.isalnum() or c in _CHARACTERS))
    wanted = Counter(c for c in gold if not c.isalnum() or not c.isascii())
    return all(count <= wanted[c] or c in "=<>" or (c == "&" and wanted[c]) for c, count in others.items())


def _is_rounded(given: str, gold: Fraction) -> bool:
    """Whether a decimal of six places or more is a gold fraction that no decimal can be, rounded: 0.333333 for 1/3."""
    if not re.fullmatch(r"[-+]?[0-9]*\.[0-9]{6,30}", given):
        return False
    has_no_end = pow(10, 1000, gold.denominator) > 0
    return has_no_end and round(gold, len(given.partition(".")[2])) == Fraction(given) != 0


def _texts(text: str) -> set[str]:
    return set(map(folded, _TEXT.findall(text)))


def _latex(text: str) -> str:
    return text.replace("*", r" \cdot ").strip()


def judge_pairs(pairs: Iterable[Question], batch_seconds: float = BATCH_SECONDS) -> dict[Question, bool]:
    """Judge pairs of (gold, given) in this order; return the verdict of each that the batch's time was enough for.

    A pair over its own time is not equal; it is remembered, so that it costs its time once in a process. What the time of the
    batch leaves without a verdict is not remembered, and told in a warning.

    Raises:
        EnvironmentProblem: math-verify does not start.
    """
    found: dict[Question, bool] = {}
    unjudged, end = 0, time.monotonic() + batch_seconds
    with _lock:
        for pair in pairs:
            if pair not in _cache and time.monotonic() >= end:
                unjudged += 1
                continue
            if pair not in _cache:
                _cache[pair] = _ask(pair, min(10 * PAIR_SECONDS, end - time.monotonic()))
            found[pair] = _cache[pair]
        while len(_cache) > _CACHE_SIZE:
            del _cache[next(iter(_cache))]
    if unjudged:
        warnings.warn(
            f"maths: {unjudged} of {unjudged + len(found)} expressions of this batch were left unjudged and score 0.0, because "
            f"the others used up the batch's {batch_seconds:g} s. Look at the completions.",
            RuntimeWarning,
            stacklevel=4,
        )
    return found


def _ask(pair: Question, wall_seconds: float) -> bool:
    global _worker
    if _worker is None or not _worker.is_alive:
        _worker = _started()
    line = None
    try:
        with contextlib.suppress(OSError):  # late, or killed from outside
            _worker.send(json.dumps([*pair, PAIR_SECONDS]))
            line = _worker.line(wall_seconds)
    finally:  # an interrupt, too, leaves an answer in the pipe that the next question must not read
        if line is None:
            stop_worker()
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
        "the process for comparing expressions does not start (it needs math-verify, on Linux, macOS or WSL 2). "
        "Where the answers are numbers, use rewards.correctness. What is wrong: `python -c 'import math_verify'`."
    )


def stop_worker() -> None:
    """End the worker, if there is one. The next question starts another; at the interpreter's exit this happens by itself."""
    global _worker
    with _lock:
        if _worker is not None:
            _worker.end()
            _worker = None


def _reset_after_fork() -> None:
    # A fork while another thread holds the lock would leave it held for ever in the child.
    global _lock, _worker
    _lock, _worker = threading.RLock(), None


atexit.register(stop_worker)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
