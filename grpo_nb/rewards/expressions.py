r"""The reward for mathematical answers: equal expressions through math-verify, behind a gate that lets one answer through.

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
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from grpo_nb.core import EnvironmentProblem, LineProcess
from grpo_nb.rewards.answers import folded, is_same_number, read_number
from grpo_nb.rewards.numbers import split_variable, unwrap
from grpo_nb.rewards.slot import BATCH_SECONDS, Question, TimedReward, Verdicts, is_copied, seconds
from grpo_nb.tasks import AnswerFormat

PAIR_SECONDS = 1.0
"""Processor time for one pair. Most honest expressions take 5 to 100 ms, an identity of trigonometry up to 300."""

_START_SECONDS = 60.0
_GRACE_SECONDS = 2.0
_CACHE_SIZE = 50_000
# A verdict, or the seconds that were not enough for one.
_cache: dict[Question, bool | float] = {}
_lock = threading.RLock()
_worker: LineProcess | None = None


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LONGEST = 400
_COMMANDS = _words(
    "frac dfrac tfrac cfrac sqrt pi cdot times div left right infty circ degree binom boxed text mathrm mathbf mathbb "
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp alpha beta gamma delta epsilon varepsilon "
    "zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta "
    "Lambda Xi Pi Sigma Phi Psi Omega"
) | set(",!;: %$")
_FUNCTIONS = _words("sin cos tan cot sec csc arcsin arccos arctan log ln lg exp sqrt pi")
_COUPLING = _words("or and is not but if no nor to")
_CHARACTERS = frozenset(" +-*/^_(){}[].\\$'~")
_RELATION = re.compile(r"[=<>]|\\(?:leq?|geq?|lt|gt|neq?|approx|sim|simeq|cong|equiv|in|to)(?![A-Za-z])")
_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z]{2,}")
_SPLIT_DIGITS = re.compile(r"[0-9](?:\s|~|\\[;:, ])+[0-9.]")
_TOWER = re.compile(r"[0-9)}]\s*(?:\^|\*\*)\s*[({]*\s*(?:[0-9]{5}|[0-9]+[)}\s]*(?:\^|\*\*))")
_SPACING = re.compile(r"\\(?:left|right)(?![A-Za-z])|\\[,!;: ]|[\s~$]")
_UNICODE = str.maketrans({
    "\u2212": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ", "\u03c0": r"\pi ", "\u221e": r"\infty ",
    "\u00b2": "^{2}", "\u00b3": "^{3}", "\u00b0": r"^{\circ}",
})  # fmt: skip
_DEGREES = re.compile(r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})$")
_WITH_UNIT = re.compile(r"(.*?[0-9}])\s*([A-Za-z][A-Za-z/ ]*(?:\^\{?[0-9]\}?)?)")


@dataclass(frozen=True, kw_only=True, repr=False)
class maths(TimedReward):
    r"""1.0 if the answer slot holds an expression equal to the gold answer, else 0.0; None where there is no gold answer.

    `1+x` is `x+1`, `\frac{1}{2}` is `0.5`, `2\sqrt{3}` is `\sqrt{12}`, `\{2, 1\}` is `\{1, 2\}`. Gives the numbers of TRL's
    `accuracy_reward` on its documented examples, and differs where that one pays for nonsense or is not safe:

    * Only the slot counts, and it must be the last word; TRL takes the first box, whatever follows.
    * One answer: `41 = 42` and `42 \text{ is wrong}` are refused. TRL pays for both.
    * Where the gold answer is a number, the answer is one too, compared exactly: arithmetic left undone (`23 + 19`,
      `2^{10}`) is refused, and `42\%` is not 42. TRL pays for these. Six decimals stand for a fraction that has no end.
    * An expression copied from the question is no answer to it, unless it is the gold answer to the letter.
    * A gold answer of words is compared as text; TRL skips such rows.
    * Works in any thread. Each expression has `seconds` of processor time, the batch `batch_seconds` in all, kept from
      outside the process that computes. In a batch that uses them up, the longest expressions go unjudged, score 0.0, and
      a warning says so; until then no score depends on the rest of the batch.

    Args:
        weight: Of the total reward.
        format: Where the answer stands; `xml()` if not given, `boxed()` for MATH and for what TRL reads.
        column: The data column with the gold answer, or the worked solution with it in a `\boxed{}`. A list holds several.
        name: Under which TRL logs it.
        is_last: Nothing but white space and closing marks may follow the slot.
        needs_all: Of several gold answers, all must be given and no other; by default any one.
        seconds: Of processor time for one expression.
        batch_seconds: For all expressions of a call together.

    >>> maths()(completions=["<answer>1 + x</answer>", "<answer>x = 1 + x</answer>"], answer=["x + 1", "x + 2"])
    [1.0, 0.0]
    """

    seconds: float = seconds(PAIR_SECONDS)
    judged: ClassVar[str] = "expressions"
    source: ClassVar[str] = "TRL's accuracy_reward (math-verify 0.9); maths() says where it differs"

    def golds(self, row: dict[str, Any]) -> list[str]:
        return [_last_boxed(gold) for gold in super().golds(row)]

    def question(self, given: str, gold: str) -> Question | None:
        return math_verify_pair(given, gold) if compare_without_sympy(given, gold) is None else None

    def judge(self, asked: list[Question]) -> Verdicts:
        return judge_pairs(asked, seconds=self.seconds, batch_seconds=self.batch_seconds)

    def is_same(self, given: str, gold: str, row: dict[str, Any], verdicts: Verdicts) -> bool:
        verdict = compare_without_sympy(given, gold)
        if verdict is None:
            verdict = verdicts.get(math_verify_pair(given, gold), False)
        return verdict and (bare(given) == bare(gold) or not is_copied(given, row))


def compare_without_sympy(given: str, gold: str) -> bool | None:
    r"""Decide what needs no computer algebra: numbers, words, the same letters, and what is not one answer. None: ask.

    >>> compare_without_sympy("42.0", "42"), compare_without_sympy("41 = 42", "42"), compare_without_sympy("1+x", "x+1")
    (True, False, None)
    """
    if len(given) > _LONGEST:
        return False
    given, gold = _plain(given), _plain(gold)
    number = _compare_numbers(given, gold)
    if number is not None:
        return number
    (given_name, given), (gold_name, gold) = split_variable(given), split_variable(gold)
    if given_name and gold_name and bare(given_name) != bare(gold_name):
        return False
    if given_name and not gold_name and given_name in re.findall(r"\\[A-Za-z]+|[A-Za-z]", gold):
        return False  # `x = x + 1` defines nothing
    if bare(given) == bare(gold):
        return True
    if not re.search(r"[0-9\\^_+*/=<>(|-]", gold):
        # Words. math-verify reads them as a product of letters, for which "on" is "no".
        return folded(given) == folded(gold)
    return None if is_one_answer(given, gold) else False


def is_one_answer(given: str, gold: str) -> bool:
    r"""Whether the text has the form of one answer to what the gold answer answers.

    It has no relation, comma, word, text or command that the gold answer has not as well, no digits apart, and no tower
    of powers.

    >>> is_one_answer("1+x", "x+1"), is_one_answer(r"42x \text{ is wrong}", "42x"), is_one_answer("x or y", "x")
    (True, False, False)
    """
    if len(_RELATION.findall(given)) > len(_RELATION.findall(gold)):
        return False
    if any(pattern.search(given) and not pattern.search(gold) for pattern in (_SPLIT_DIGITS, _TOWER)):
        return False
    plain = _COMMAND.sub("", given)
    if plain.count("{") != plain.count("}") or "}" in plain.partition("{")[0]:
        return False
    if not set(_COMMAND.findall(given)) <= _COMMANDS | set(_COMMAND.findall(gold)) or not _texts(given) <= _texts(gold):
        return False
    without_text = _COMMAND.sub(" ", _TEXT.sub(" ", given))
    known = {word.casefold() for word in _WORD.findall(gold)}
    letters = set(gold)
    for word in _WORD.findall(without_text):
        # Letters in a row may be a product, but then of variables that the gold answer has.
        if word.casefold() not in known | _FUNCTIONS and (word.casefold() in _COUPLING or not set(word) <= letters):
            return False
    others = Counter(c for c in without_text if not c.isascii() or not (c.isalnum() or c in _CHARACTERS))
    return others - Counter(c for c in gold if not c.isalnum() or not c.isascii()) <= Counter(
        {c: others[c] for c in "=<>"}
    )


def math_verify_pair(given: str, gold: str) -> tuple[str, str]:
    """Return (gold, given) as math-verify reads them: LaTeX, without a variable's name before it."""
    return _latex(split_variable(_plain(gold))[1]), _latex(split_variable(_plain(given))[1])


def bare(text: str) -> str:
    r"""Return the text without what never changes an expression: white space, `\left`, `\cdot` written out, `\dfrac`.

    >>> bare(r"\left( \dfrac{1}{2}, 3 \right)")
    '(\\frac{1}{2},3)'
    """
    text = re.sub(r"\\cdot(?![A-Za-z])", "*", text)  # while the space after it still ends its name
    text = re.sub(r"\\[dt]frac", r"\\frac", _SPACING.sub("", text))
    return re.sub(r"(?<=[A-Za-z0-9)}])\*(?=[A-Za-z(\\])", "", text)


def _plain(text: str) -> str:
    if not text.isascii():
        text = text.translate(_UNICODE)
        text = re.sub(r"\u221a\s*(?:\(([^()]*)\)|([0-9A-Za-z]+))", lambda m: f"\\sqrt{{{m[1] or m[2]}}}", text)
    return unwrap(text)


def _compare_numbers(given: str, gold: str) -> bool | None:
    gold = _DEGREES.sub("", gold)
    value = read_number(gold)
    units: tuple[tuple[str, Fraction], ...] = ()
    if value is None:
        # A number with its unit, such as `5 \text{ cm}^2`: the unit may be given, and no other.
        match = _WITH_UNIT.fullmatch(_TEXT.sub(r"\1", gold)) if _TEXT.search(gold) else None
        value = read_number(match[1]) if match else None
        if match is None or value is None:
            return None
        gold, units = match[1], ((match[2], Fraction(1)),)
        given = _TEXT.sub(r"\1", given) if len(_TEXT.findall(given)) == 1 else given
    elif gold.endswith("%") and not given.endswith("%") and is_same_number(given + "%", gold):
        return True  # the question asks for percent, so the answer may leave the sign out
    given = _DEGREES.sub("", given)
    return is_same_number(given, gold, units=units) or _is_rounded(given, value[1])


def _is_rounded(given: str, gold: Fraction) -> bool:
    """Whether a decimal of six places or more is a gold fraction that no decimal can be, rounded: 0.333333 for 1/3."""
    if not re.fullmatch(r"[-+]?[0-9]*\.[0-9]{6,30}", given):
        return False
    denominator = gold.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator > 1 and round(gold, len(given.partition(".")[2])) == Fraction(given) != 0


def _last_boxed(gold: str) -> str:
    """The boxed answer of a gold answer that is a worked solution, as in MATH; any other gold answer as it is."""
    if "\\boxed{" not in gold:
        return gold
    last = AnswerFormat(name="last", answer_open="\\boxed{", answer_close="}")
    return last.extract("\\boxed{" + gold.rsplit("\\boxed{", 1)[1]) or gold


def _texts(text: str) -> set[str]:
    return set(map(folded, _TEXT.findall(text)))


def _latex(text: str) -> str:
    """The Python that models write, as LaTeX: `2*sqrt(3)**2`."""
    text = re.sub(r"(?<!\\)\bsqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text.replace("**", "^"))
    text = re.sub(r"\\(?:left|right)(?![A-Za-z])", "", text)
    text = re.sub(r"\\[dt]?frac\s*([0-9])\s*([0-9])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"(?<![A-Za-z\\])(pi|sin|cos|tan|log|ln|exp)(?![A-Za-z])", r"\\\1", text)
    text = re.sub(r"\^\(([^()]*)\)", r"^{\1}", text)
    return text.replace("*", r" \cdot ")


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
            "Use rewards.correctness, or rewards.number where the answers are numbers."
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
