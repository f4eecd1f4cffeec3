r"""The reward for mathematical answers.

An answer is compared in three steps:

1. Normalise: `math_shapes` writes both answers in one spelling of LaTeX and splits them into parts.
2. Compare numbers and words in this file, and lists and tuples part by part.
3. Compare expressions: math-verify does this, in another process (`math_worker`).

math-verify alone is not enough. It was made to find an answer in a text, so it accepts `41 = 42`,
`42 \text{ is wrong}` and `x + 1 = 42` as 42, and `1 2 3 4` as 10. So `is_single_answer` first
refuses a text with more than one answer. And math-verify ignores capitals and drops primes, so
`math_symbols` first writes both as indices.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.rewards.answers import SlotReward
from grpo_nb.rewards.math_shapes import (
    EXPRESSION,
    LIST,
    ROUND,
    Shape,
    boxed_answers,
    normalize_latex,
    without_spaces,
)
from grpo_nb.rewards.math_symbols import (
    LETTERS_READ_AS_PRODUCT,
    capitals_to_indices,
    has_distinct_capitals,
    primes_to_indices,
    split_unit,
)
from grpo_nb.rewards.math_worker import are_equal_expressions
from grpo_nb.rewards.question_text import has_text_of_option, is_copied_from_question
from grpo_nb.tasks.answers import comparable, is_right_answer
from grpo_nb.tasks.markup import BALANCED_TEXT
from grpo_nb.tasks.number_reading import is_right_number, read_number

_LONGEST_EXPRESSION = 400
"""Most characters of an answer, given or gold, that is compared as mathematics. Longer ones are
compared as in `correctness`."""

# A digit, an operator, a bracket or a comma. A gold answer without a match is compared as words.
# One small letter is a variable, but one capital may be an option.
_MATHS_CHARACTER = re.compile(r"[0-9\\^_+*/=<>(|,;-]|^[a-z]$")
_NOT_AN_EXPRESSION = re.compile(
    r".*(?:\"|(?<![\w)}'])').*"  # quoted text, JSON; but a ' after a letter or bracket is a prime
    r"|0\d+"  # 007
    r"|\d{1,4}([-/.])\d{1,2}\1\d{1,4}"  # 2025-06-03
    r"|(?:[\d.]+ ?[A-Za-z]+,? ?){2,}",  # 2 h 20 min
    re.DOTALL,
)
"""Gold answers that look like formulas and are not. They are compared as in `correctness`."""
# Any sign between two sides, such as = or \approx.
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|ne|approx|sim|simeq|cong|equiv|in|to)(?![A-Za-z])")
_INEQUALITY = re.compile(r"[<>]|\\[lg]e")
# x, x_{1}, \alpha
_VARIABLE = re.compile(r"(?:\\[A-Za-z]+|[A-Za-z])(?:_\{\w+\})?")


@dataclass(frozen=True, kw_only=True)
class maths(SlotReward):
    r"""1.0 if the answer slot holds an expression equal to the gold answer, else 0.0.

    None without a gold answer, or if the comparison took too long or its process failed.

    `1+x` is `x+1`, `\frac{1}{2}` is `0.5`, `2\sqrt{3}` is `\sqrt{12}`, `\{2, 1\}` is `1, 2`. On the
    examples in TRL's documentation, the scores are those of TRL's `accuracy_reward`. They differ
    here:

    * Only the slot counts, and it must come last. TRL takes the first box, whatever follows.
    * The slot must hold one answer: `41 = 42` and `42 \text{ is wrong}` score 0.0. TRL gives 1.0 to
      both.
    * If the gold answer is a number, the answer must be one too, compared as `correctness` does.
      Arithmetic that is left undone (`23 + 19`, `2^{10}`) scores 0.0. TRL gives it 1.0.
    * If the gold answer has parts, the answer must have the same parts: in any order for a list, in
      the same order for a tuple or an interval. A gold answer of several boxes is a list. `x < 5`
      and `(-\infty, 5)` are the same interval, and `x < 1 or x > 5` is a union of intervals.
    * `R/r` is not `r/R`, and `\Delta` is not `\delta`. TRL ignores capitals.
    * An expression copied from the question scores 0.0, unless it is written exactly as the gold
      answer.
    * If the gold answer is the option B, `B)` scores 0.0 with any text but that of option B.
    * A gold answer of words, a date or JSON is compared as `correctness` does. TRL skips such rows.
    * It works in any thread. Each pair of expressions has two seconds of processor time, so a
      busy machine changes no score. If it takes longer, the score is None.

    Args:
        weight: Weight in the total reward.
        format: Where the answer is written; `xml()` if not given, `boxed()` for MATH.
        column: The data column with the gold answer, or with a worked solution that has it in a
            `\boxed{}`. A list holds several right answers.
        name: Name in TRL's logs.

    >>> completions = ["<answer>1 + x</answer>", "<answer>x = 1 + x</answer>"]
    >>> maths()(completions=completions, answer=["x + 1", "x + 1"])
    [1.0, 0.0]
    """

    def golds(self, row: dict[str, Any]) -> list[str]:
        return [boxed_answers(gold) for gold in super().golds(row)]

    def is_same(self, given: str, gold: str, row: dict[str, Any]) -> bool:
        verdict = has_text_of_option(given, gold, row)
        if verdict is not None:
            return verdict
        return is_same_maths(given, gold) and not is_copied_from_question(given, gold, row)


def is_same_maths(given: str, gold: str) -> bool:
    r"""Return True if the text in an answer slot is the gold answer.

    Raises:
        Undecided: A comparison of two expressions was not finished.

    >>> is_same_maths(r"\{2, 1\}", "1, 2"), is_same_maths("1+x", "x+1")
    (True, True)
    """
    # As `correctness` compares numbers, letters, JSON and text.
    is_plainly_same = is_right_answer(given, gold)
    length = max(len(given), len(gold))
    if length > _LONGEST_EXPRESSION or _NOT_AN_EXPRESSION.fullmatch(gold):
        return is_plainly_same
    given = normalize_latex(given)
    gold = normalize_latex(gold)
    is_formula = _MATHS_CHARACTER.search(gold) is not None and read_number(gold) is None
    if is_formula and any(map(has_distinct_capitals, (given, gold))):
        # Capitals matter here, so the result of `is_right_answer`, which ignores them, is not used.
        return _equals_normalized(capitals_to_indices(given), capitals_to_indices(gold))
    return is_plainly_same or _equals_normalized(given, gold)


def _equals_normalized(given: str, gold: str) -> bool:
    """Return True if two normalised answers, or parts of them, are equal."""
    if without_spaces(given) == without_spaces(gold):
        return True
    gold_number = read_number(gold)
    if gold_number is not None:
        given_number = read_number(given)
        return given_number is not None and is_right_number(given_number, gold_number)
    if not _MATHS_CHARACTER.search(gold):
        # Words. math-verify would read them as products of letters, so that "on" equals "no".
        letters = without_spaces(gold)
        if LETTERS_READ_AS_PRODUCT.fullmatch(letters):
            # The gold answer `ab` is a product, which may also be written `a*b`. `ba` is refused,
            # because `ab` may still be a word.
            given = without_spaces(given).replace("*", "")
            gold = letters
        return comparable(given) == comparable(gold)
    return _equals_as_formula(given, gold)


def _equals_as_formula(given: str, gold: str) -> bool:
    """Return True if two formulas are equal: as expressions, as equations or part by part."""
    given_shape = Shape.of(given)
    gold_shape = Shape.of(gold)
    left_sides = {given_shape.left_side, gold_shape.left_side}
    have_left_sides = "" not in left_sides
    if have_left_sides and len(left_sides) > 1:
        # `y = 2x` is not `z = 2x`. But `2x`, which has no left side, equals both.
        return False
    if EXPRESSION not in (given_shape.kind, gold_shape.kind):
        return _equals_part_by_part(given_shape, gold_shape)
    # Two equations or inequalities are compared as a whole: `-x > -1` equals `x < 1`. But if both
    # only give the same variable a value, as `y = 2x` and `y = x + x` do, the values are compared.
    are_relations = _RELATION.search(given) and _RELATION.search(gold)
    if are_relations and not have_left_sides:
        return _equals_by_math_verify(given, gold)
    if given_shape.kind != gold_shape.kind:
        # One answer has several parts, and the other is an expression.
        return False
    gold_value, _ = split_unit(gold)
    if given_shape.left_side in _VARIABLE.findall(gold_value) and not gold_shape.left_side:
        # `x = x + 1` does not give the gold answer `x + 1` a name, but is an equation for x.
        return False
    return _equals_by_math_verify(given_shape.parts[0], gold_shape.parts[0])


def _equals_part_by_part(given: Shape, gold: Shape) -> bool:
    """Return True if two answers of several parts are equal."""
    given_parts = given.parts
    if given.kind == LIST and len(given_parts) > len(gold.parts):
        # A part that the answer repeats counts once. Spaces are ignored in this comparison only:
        # the parts keep theirs, because `\pi r` is not `\pir`.
        given_parts = list({without_spaces(part): part for part in given_parts}.values())
    if len(given_parts) != len(gold.parts) or not _conjunctions_agree(given, gold):
        return False
    kinds = {given.kind, gold.kind}
    # Two lists of values, or two lists of equations, whose left sides show which parts belong
    # together. And the index in `x_1 = 1, x_2 = 2` has no meaning if the gold answer is 1, 2.
    are_alike = bool(given.variables) == bool(gold.variables) or len(given.variables) == 1
    if kinds == {LIST} and are_alike:
        return _equal_in_any_order(given_parts, gold.parts)
    # `x = 1, y = 2` also equals 1, 2 and (1, 2). These have no left sides, so their order counts.
    is_named_tuple = kinds == {LIST, ROUND} and bool(given.variables or gold.variables)
    has_same_kind = len(kinds) == 1 or is_named_tuple
    return has_same_kind and all(map(_equals_normalized, given_parts, gold.parts))


def _conjunctions_agree(given: Shape, gold: Shape) -> bool:
    """Return True if `and` and `or` in an answer do not contradict those of the gold answer.

    Between the values of one variable, both words mean the same: `x = 1 and x = 2`. They differ for
    several variables (`x = 1 and y = 2`) and for inequalities (`x > 1 and x < 3`). A comma can
    stand for either word, so the words contradict each other only if both occur:
    `x = 1, y = 2 and z = 3` equals `x = 1 and y = 2 and z = 3`.
    """
    words = {*given.conjunctions, *gold.conjunctions}
    if len(words) < 2 or given.conjunctions == gold.conjunctions:
        return True
    have_several_variables = min(len(given.variables), len(gold.variables)) > 1
    return not have_several_variables and not any(map(_INEQUALITY.search, gold.parts))


def _equal_in_any_order(given_parts: Sequence[str], gold_parts: Sequence[str]) -> bool:
    """Return True if two equally long lists have equal parts, in any order."""
    unmatched = list(gold_parts)
    for given_part in given_parts:
        for gold_part in unmatched:
            # Greedy: the first match is taken. This refuses a right answer only if a part without
            # unit equals several gold parts, which is rare.
            if _equals_normalized(given_part, gold_part):
                unmatched.remove(gold_part)
                break
        else:
            return False
    return True


_BASE_OR_RATIO = re.compile(r"[0-9]_\{|:")
"""math-verify reads a number in another base, such as 101_{2}, as a product, and the ratio 1:3:2 as
a quotient, which equals 1:2:3. So such a gold answer is right only as it is written, which
`_equals_normalized` has compared already.
"""


def _equals_by_math_verify(given: str, gold: str) -> bool:
    """Return True if two expressions are equal.

    A unit that only one of them has contradicts nothing.
    """
    given, given_unit = split_unit(given)
    gold_without_unit, gold_unit = split_unit(gold)
    if given_unit and gold_unit and given_unit != gold_unit:
        return False
    # In the gold answer 2\pi h, the h may be a variable. So an answer without a unit needs it too.
    if given_unit or not re.search(" [A-Za-z]$", gold):
        gold = gold_without_unit
    if _BASE_OR_RATIO.search(gold) or not is_single_answer(given, gold):
        return False
    given = primes_to_indices(given)
    gold = primes_to_indices(gold)
    # A prime that is still there belongs to a bracket, as in (fg)', and math-verify would drop it.
    return "'" not in given + gold and are_equal_expressions(given, gold)


_HUGE_POWER = re.compile(r"[0-9)}]\s*\^\s*[({]*\s*-?(?:[0-9]{5}|[0-9]+[)}\s]*\^)")
"""A power in the exponent of a number, as in 2^{9^9}, or an exponent of five digits or more. If
such a number is too large to compute, each completion with it would end a worker after two seconds.
"""
_TOKEN = re.compile(r"\\text\s*\{[^{}]*\}|\\[a-z]+|\\.|[a-z]{2,}|[0-9]+\s+[0-9.]|\n|\S", re.DOTALL)
"""Numbers side by side ("1 2") and a line break are tokens too, because they show a second answer.
"""
_HARMLESS_TOKEN = re.compile(
    r"[- +*/^_(){}\[\].'=<>]"
    r"|\\?(?:[{}]|le|ge|frac|sqrt|pi|cdot|times|div|infty|circ|binom|overline"
    r"|(?:arc)?(?:sin|cos|tan)|cot|sec|csc|sinh|cosh|tanh|log|ln|lg|exp"
    r"|alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau"
    r"|upsilon|phi|chi|psi|omega)"
)
"""Tokens that an answer may contain more often than the gold answer: operators, brackets, functions
and Greek letters. Relations are counted before, so they are harmless here. The backslash of a name
may be missing.
"""


def is_single_answer(given: str, gold: str) -> bool:
    r"""Return True if a text holds a single answer, judged by its form.

    Relations, commas, words, `\text{}`, most commands and numbers side by side, as in `1 2`, can
    show a second answer. So the text may not have more of them than the gold answer. A power that
    may be too large to compute is refused too, unless the gold answer has one.

    >>> is_single_answer("1+x", "x+1"), is_single_answer(r"42x \text{ is wrong}", "42x")
    (True, False)
    >>> is_single_answer("x or y", "x")
    False
    """
    if len(_RELATION.findall(given)) > len(_RELATION.findall(gold)):
        return False
    # Open or deeply nested braces would take seconds to parse.
    if not re.fullmatch(BALANCED_TEXT, given):
        return False
    # A gold answer with such a power, as 2^{2^n} + 1, shows that the question asks for one.
    if _HUGE_POWER.search(given) and not _HUGE_POWER.search(gold):
        return False
    gold_tokens = _TOKEN.findall(gold.casefold())
    gold_letters = set("".join(filter(str.isalpha, gold_tokens)))
    extra_tokens = Counter(_TOKEN.findall(given.casefold())) - Counter(gold_tokens)
    for token in extra_tokens:
        # A digit or a letter is left to math-verify. Several letters must be a product of the gold
        # answer's variables, because otherwise they are a word.
        is_ascii = token.isascii() and token.isalnum()
        may_be_symbols = is_ascii and (len(token) == 1 or gold_letters.issuperset(token))
        if not may_be_symbols and not _HARMLESS_TOKEN.fullmatch(token):
            return False
    return True
