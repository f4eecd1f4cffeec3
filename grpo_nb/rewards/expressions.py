r"""The reward for mathematical answers: equal expressions through math-verify, behind a gate that lets one answer through.

What is written in many ways is put into one first (`notation.plain`), and taken apart where it has parts.
math-verify is made to find and forgive; a reward must not. By itself it takes `41 = 42`, `42 \text{ is wrong}`, `x + 1 = 42`
and, after "What is 23 + 19?", `23 + 19` for 42, and `1 2 3 4` for 10. So here an answer first has to be one answer: of the
form of the gold answer, without words, relations, lists or commands that the gold answer has none of. Plain numbers never
reach math-verify; what does is judged in another process under hard limits (`maths_worker`), one for each process that asks,
started at the first question. That works in any thread, because nothing here needs a signal: limits are kept by the worker
and, should it fail, by the wait for its answer. It is a fresh interpreter, not a fork of this one, which may hold a GPU.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from grpo_nb.core.errors import EnvironmentProblem
from grpo_nb.rewards.answers import folded, is_same_answer, is_same_number
from grpo_nb.rewards.lines import LineProcess
from grpo_nb.rewards.slot import BATCH_SECONDS, Question, TimedReward, Verdicts, is_copied, seconds
from grpo_nb.tasks.notation import (
    UNION,
    Shape,
    bare,
    boxed_answers,
    is_known_unit,
    is_literal,
    plain,
    read_number,
    split_variable,
    unit_of,
    words,
)

PAIR_SECONDS = 1.0
"""Processor time for one pair. Most honest expressions take 5 to 100 ms, an identity of trigonometry up to 300."""

_START_SECONDS = 60.0
_GRACE_SECONDS = 2.0
_CACHE_SIZE = 50_000
# A verdict, or the seconds that were not enough for one.
_cache: dict[Question, bool | float] = {}
_lock = threading.RLock()
_worker: LineProcess | None = None


_LONGEST = 400
_MOST_PARTS = 16  # each part given is compared with each part wanted
_COMMANDS = {"%"}.union(
    words(
        "frac sqrt pi cdot times div infty circ binom text mathbb overline "
        "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp alpha beta gamma delta epsilon varepsilon "
        "zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta "
        "Lambda Xi Pi Sigma Phi Psi Omega"
    )
)
_FUNCTIONS = {*words("sin cos tan cot sec csc arcsin arccos arctan log ln lg exp sqrt pi")}
_COUPLING = {*words("or and is not but if no nor to")}
_SHORT_UNITS = {*words("mm cm dm km mg kg ml cl dl hl kj kw ms hr ft lb oz mi yd hz kb mb gb pt qt in")}
_CHARACTERS = frozenset(" +-*/^_(){}[].\\$'")
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|ne|approx|sim|simeq|cong|equiv|in|to)(?![A-Za-z])")
_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z]{2,}")
_SPLIT_DIGITS = re.compile(r"[0-9]\s+[0-9.]")
_TOWER = re.compile(r"[0-9)}]\s*\^\s*[({]*\s*(?:[0-9]{5}|[0-9]+[)}\s]*\^)")
_BASE = re.compile(r"[0-9]_\{")
_JOINED = re.compile(r"\b(?:and|or)\b")
_NO_SOLUTION = re.compile(
    r"(?i)\\emptyset|\\?\{\s*\\?\}|(?:there (?:is|are) )?no(?: real)? solutions?(?: exists?)?|(?:the )?empty set"
)


@dataclass(frozen=True, kw_only=True, repr=False)
class maths(TimedReward):
    r"""1.0 if the answer slot holds an expression equal to the gold answer, else 0.0; None where there is no gold answer.

    `1+x` is `x+1`, `\frac{1}{2}` is `0.5`, `2\sqrt{3}` is `\sqrt{12}`, `\{2, 1\}` is `1, 2`. Gives the numbers of TRL's
    `accuracy_reward` on its documented examples, and differs where that one pays for nonsense or is not safe:

    * Only the slot counts, and it must be the last word; TRL takes the first box, whatever follows.
    * One answer: `41 = 42` and `42 \text{ is wrong}` are refused. TRL pays for both.
    * Where the gold answer is a number, the answer is one too, compared exactly: arithmetic left undone (`23 + 19`,
      `2^{10}`) is refused, and `42\%` is not 42. TRL pays for these. For a gold answer `42\%` the sign may be left out.
      Six decimals stand for a fraction that has no end.
    * Where the gold answer has parts, each must be given and no other: those of a list in any order, those of a tuple or an
      interval in theirs. A gold answer of several boxes is such a list. `x < 5` and `(-\infty, 5)` are one interval,
      `x < 1 or x > 5` is a union and `x > 1 and x < 5` is `1 < x < 5`. `x_1 = 2, x_2 = 3` may be `x = 3 or x = 2`.
    * A unit is a name: for `20 cm`, `20` and `20 centimeters` are right and `20 m` is not. `20 N` has one, `20N` is a product.
    * An expression copied from the question is no answer to it, unless it is the gold answer to the letter.
    * A gold answer of words, a date or JSON is compared as `correctness` does; TRL skips such rows.
    * Works in any thread. Each expression has `seconds` of processor time, the batch `batch_seconds` in all, kept from
      outside the process that computes. In a batch that uses them up, the longest expressions go unjudged, score 0.0, and
      a warning says so; until then no score depends on the rest of the batch.

    Args:
        weight: Of the total reward.
        format: Where the answer stands; `xml()` if not given, `boxed()` for MATH and for what TRL reads.
        column: The data column with the gold answer, or the worked solution with it in a `\boxed{}`. A list holds several.
        name: Under which TRL logs it.
        is_last: Nothing but white space and closing marks may follow the slot.
        seconds: Of processor time for one expression.
        batch_seconds: For all expressions of a call together.

    >>> maths()(completions=["<answer>1 + x</answer>", "<answer>x = 1 + x</answer>"], answer=["x + 1", "x + 2"])
    [1.0, 0.0]
    """

    seconds: float = seconds(PAIR_SECONDS)
    judged: ClassVar[str] = "expressions"
    source: ClassVar[str] = "TRL's accuracy_reward (math-verify 0.9); maths() says where it differs"

    def golds(self, row: dict[str, Any]) -> list[str]:
        return [boxed_answers(gold) for gold in super().golds(row)]

    def questions(self, given: str, gold: str) -> list[Question]:
        asked: list[Question] = []
        is_answer(given, gold, lambda question: asked.append(question) or False)
        return asked

    def judge(self, asked: list[Question]) -> Verdicts:
        return judge_pairs(asked, seconds=self.seconds, batch_seconds=self.batch_seconds)

    def is_same(self, given: str, gold: str, row: dict[str, Any], verdicts: Verdicts) -> bool:
        verdict = is_answer(given, gold, lambda question: verdicts.get(question, False))
        return verdict and not is_copied(given, gold, row)


def is_answer(given: str, gold: str, ask: Callable[[Question], bool]) -> bool:
    r"""Whether a text is the gold answer; what needs computer algebra is asked, all of it, whatever is answered.

    >>> is_answer(r"\{2, 1\}", "1, 2", lambda question: False), is_answer("42.0", "42", lambda question: False)
    (True, True)
    >>> is_answer("1+x", "x+1", lambda question: print(question) or True)
    ('x+1', '1+x')
    True
    """
    if is_literal(gold):
        return is_same_answer(given, gold)
    return len(given) <= _LONGEST and _compare(plain(given), plain(gold), ask)


def _compare(given: str, gold: str, ask: Callable[[Question], bool]) -> bool:
    is_equal = bare(given) == bare(gold) or _compare_numbers(given, gold)
    if is_equal is not None:
        return is_equal
    if _NO_SOLUTION.fullmatch(split_variable(gold)[1]):
        return _NO_SOLUTION.fullmatch(split_variable(given)[1]) is not None
    if not re.search(r"[0-9\\^_+*/=<>(|,;-]", gold):
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
    elif all(split_variable(part)[0] for part in mine.parts) and not mine.has_own_names:
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
    if bare(given) == bare(gold):
        return True
    if _BASE.search(gold) or not is_one_answer(given, gold):
        return False
    return ask((_latex(gold), _latex(given)))


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


def _compare_numbers(given: str, gold: str) -> bool | None:
    """None where the gold answer is no number, alone or with a unit; the unit may be given then, and no other."""
    unit = _unit_of(gold)
    units = (((unit, Fraction(1)),),) if unit else ()
    value = read_number(gold, units)
    if value is None:
        return None
    if gold.endswith("%") and not given.endswith("%") and is_same_number(given + "%", gold):
        return True  # the question asks for percent, so the answer may leave the sign out
    return is_same_number(given, gold, units=units) or _is_rounded(given, value.value)


def _unit_of(gold: str) -> str:
    name = unit_of(gold)
    letters = re.findall(r"[^\W\d_]+", name)
    is_apart = re.search("[0-9}] ", gold)  # `20 N` is a force, `20N` may be a product
    short = {part.casefold() for part in (*letters, re.split(r"[0-9}]\s*", gold)[-1])} & _SHORT_UNITS
    is_known = "\\text" in gold or "\u00b0" in name or short or (is_apart and all(map(is_known_unit, letters)))
    # `3 x y` is a product, `25 December` a day, and `3 apples` a number with its unit.
    is_word = is_apart and re.search("[a-z]{3}", gold) and name[:1].islower() and name not in _FUNCTIONS
    return name if name != "%" and (is_known or is_word) else ""


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


def judge_pairs(
    pairs: Sequence[Question], *, seconds: float = PAIR_SECONDS, batch_seconds: float = BATCH_SECONDS
) -> dict[Question, bool]:
    """Judge pairs of (gold, given) in this order; return the verdict of each that the call's limit was enough for.

    A pair over its own limit is not equal; it is remembered, so that it costs its time once in a process. What the limit of the
    call leaves without a verdict is not remembered.

    Raises:
        EnvironmentProblem: math-verify is missing or does not start, or the system cannot fork.
    """
    with _lock:
        # As a number False is 0 and True 1, so a verdict has to be told from seconds.
        held = {pair: _cache[pair] for pair in pairs if pair in _cache}
        known = {pair: was is True for pair, was in held.items() if isinstance(was, bool) or was >= seconds}
        todo = [pair for pair in pairs if pair not in known]
        verdicts = _ask({"pairs": todo, "seconds": seconds, "batch_seconds": batch_seconds}) if todo else []
        for pair, verdict in zip(todo, verdicts, strict=False):
            _cache[pair] = float(seconds) if verdict is None else verdict
            known[pair] = bool(verdict)
        while len(_cache) > _CACHE_SIZE:
            del _cache[next(iter(_cache))]
        return known


def _ask(request: dict[str, Any]) -> list[bool | None]:
    global _worker
    if _worker is None or not _worker.is_alive:
        _worker = _started()
    line = None
    try:
        with contextlib.suppress(OSError):  # late, or killed from outside
            _worker.send(json.dumps(request))
            line = _worker.line(request["batch_seconds"] + _GRACE_SECONDS)
    finally:  # an interrupt, too, leaves an answer in the pipe that the next question must not read
        if line is None:
            stop_worker()
    return json.loads(line or "[]")


def _started() -> LineProcess:
    if importlib.util.find_spec("math_verify") is None:
        raise EnvironmentProblem(
            "the package math-verify is not installed, and it is what compares expressions. "
            "Run `pip install -r requirements.txt`."
        )
    if not hasattr(os, "fork"):
        raise EnvironmentProblem(
            "comparing expressions needs Linux, macOS or WSL 2: elsewhere it cannot be held to its limits. "
            "Use rewards.correctness where the answers are numbers."
        )
    # -P: else the folder of the script would come first on sys.path, and its modules before the standard library's.
    command = [sys.executable, "-P", str(Path(__file__).with_name("maths_worker.py"))]
    worker = LineProcess(command, environment={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    with contextlib.suppress(TimeoutError):
        if worker.line(_START_SECONDS) == "ready":
            return worker
    worker.end()
    raise EnvironmentProblem(
        f"the process for comparing expressions did not start within {_START_SECONDS:.0f} s. "
        "Run `python -c 'import math_verify'` to see whether math-verify works here."
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
