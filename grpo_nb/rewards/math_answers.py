r"""The reward for mathematical answers.

`is_same_maths` compares an answer with the gold answer in three steps:

1. Gate: an answer is compared as mathematics only if the gold answer looks like mathematics.
2. Normalize: `math_latex` writes both answers in one spelling of LaTeX. If a letter occurs both
   small and as a capital, `math_symbols` writes capitals as indices, because math-verify ignores
   capitals.
3. Compare: numbers and words in this file, lists and tuples part by part (`math_parts`), and
   expressions by math-verify, in another process (`math_worker`). math-verify would accept an
   answer within other text, so `math_single_answer` first refuses a text with several answers.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_nb.rewards.answers import SlotReward
from grpo_nb.rewards.math_latex import boxed_answers, normalize_latex, without_spaces
from grpo_nb.rewards.math_parts import (
    ALTERNATIVES,
    ANY_ORDER,
    EQUATIONS,
    SYMBOL,
    AnswerParts,
)
from grpo_nb.rewards.math_single_answer import RELATION, is_single_answer
from grpo_nb.rewards.math_symbols import (
    LETTERS_READ_AS_PRODUCT,
    UNIT_OR_VARIABLE,
    capitals_to_indices,
    has_distinct_capitals,
    primes_to_indices,
    split_unit,
)
from grpo_nb.rewards.math_worker import are_equal_expressions
from grpo_nb.rewards.question_text import fits_question, resolve_option
from grpo_nb.tasks.answers import is_right_answer, normalize_answer
from grpo_nb.tasks.number_reading import read_number
from grpo_nb.tasks.read_rows import Row

_LONGEST_EXPRESSION = 400
"""Longest answer, given or gold, that is compared as mathematics, in characters."""
_NOT_MATHS = re.compile(
    r".*(?:\"|(?<![\w)}'])').*"  # quoted text, JSON; but a ' after a letter or bracket is a prime
    r"|0\d+"  # 007
    r"|\d{1,4}([-/.])\d{1,2}\1\d{1,4}"  # 2025-06-03
    r"|(?!.*\d[A-Za-z],)(?:[\d.]+ ?[A-Za-z]+,? ?){2,}",  # 2 h 20 min; but not the list 2x, 3y
    re.DOTALL,
)
"""Gold answers that look like formulas and are not."""
_LOOKS_LIKE_MATHS = re.compile(r"[0-9\\^_+*/=<>(|,;-]|^[a-z]$")
"""Gold answers with a digit, a sign of mathematics or a comma, and a single small letter, `x`.

Others are compared as words. A single capital is not a variable here, because it may be the letter
of an option.
"""
_MISREAD_BY_MATH_VERIFY = re.compile(r"[0-9]_\{|:|^[A-Za-z0-9]*[A-Z][0-9][A-Za-z0-9]*$")
"""Gold answers that math-verify misreads, so that only the same spelling is right.

It reads a number in another base, such as 101_{2}, and a chemical formula, such as H2O, as a
product. (A formula is any word with a digit after a capital.) It reads the ratio 1:3:2 as a
quotient, which equals 1:2:3.
"""


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
    * An expression copied from the question scores 0.0, even with a name before it or in other
      brackets, unless it is written exactly as the gold answer.
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

    def golds(self, row: Row) -> list[str]:
        return [boxed_answers(gold) for gold in super().golds(row)]

    def is_same(self, given: str, gold: str, row: Row) -> bool:
        given = resolve_option(given, gold, row)
        return is_same_maths(given, gold) and fits_question(given, gold, row)


def is_same_maths(given: str, gold: str) -> bool:
    r"""Return True if the text in an answer slot is the gold answer.

    Raises:
        Undecided: A comparison of two expressions was not finished.

    >>> is_same_maths(r"\{2, 1\}", "1, 2"), is_same_maths("1+x", "x+1")
    (True, True)
    """
    # The comparison of `correctness`: numbers, letters, JSON and text.
    is_right_as_text = is_right_answer(given, gold)
    # 1. Gate.
    is_too_long = max(len(given), len(gold)) > _LONGEST_EXPRESSION
    if is_too_long or _NOT_MATHS.fullmatch(gold):
        return is_right_as_text
    # A number with a unit may have capitals (5 KM), so it must not reach the check of capitals.
    if is_right_as_text and read_number(gold) is not None:
        return True
    # 2. Normalize.
    given = normalize_latex(given)
    gold = normalize_latex(gold)
    if _is_formula(gold) and any(map(has_distinct_capitals, (given, gold))):
        # Capitals matter here, so the result of `is_right_answer`, which ignores them, is not used.
        is_right_as_text = False
        given = capitals_to_indices(given)
        gold = capitals_to_indices(gold)
    # 3. Compare.
    return is_right_as_text or _equals_normalized(given, gold)


def _is_formula(gold: str) -> bool:
    """Return True if a normalized gold answer is neither a number nor words."""
    return _LOOKS_LIKE_MATHS.search(gold) is not None and read_number(gold) is None


def _equals_normalized(given: str, gold: str) -> bool:
    """Return True if two normalized answers, or parts of them, are equal."""
    if without_spaces(given) == without_spaces(gold):
        return True
    if _is_formula(gold):
        return _equals_as_formula(given, gold)
    if read_number(gold) is not None:
        return is_right_answer(given, gold)
    # Words. math-verify would read them as products of letters, so that "on" equals "no".
    if LETTERS_READ_AS_PRODUCT.fullmatch(gold):
        # The product `ab` may also be written `a*b`. `ba` is refused: `ab` may still be a word.
        given = without_spaces(given).replace("*", "")
    return normalize_answer(given) == normalize_answer(gold)


def _equals_as_formula(given: str, gold: str) -> bool:
    """Return True if two formulas are equal.

    | given and gold                     | compared                                |
    | ---------------------------------- | --------------------------------------- |
    | different left sides               | not equal                               |
    | both have parts                    | part by part                            |
    | both are relations                 | as a whole, by math-verify              |
    | one of them has parts              | not equal                               |
    | values, with or without left side  | without the left side, by math-verify   |
    """
    given_answer = AnswerParts.of(given)
    gold_answer = AnswerParts.of(gold)
    both_have_left_side = bool(given_answer.left_side and gold_answer.left_side)
    if both_have_left_side and given_answer.left_side != gold_answer.left_side:
        # `y = 2x` is not `z = 2x`. But `2x`, which has no left side, equals both.
        return False
    if given_answer.readings and gold_answer.readings:
        return _equals_part_by_part(given_answer, gold_answer)
    if not both_have_left_side and RELATION.search(given) and RELATION.search(gold):
        # `-x > -1` equals `x < 1`, and `x - y = 0` equals `x = y`.
        return _equals_by_math_verify(given, gold)
    # Two answers with the same left side are compared without it.
    if given_answer.readings or gold_answer.readings:
        return False
    # `x = x + 1` is an equation for x, so it does not equal the value `x + 1`. But `y = 2x` equals
    # `x + x`.
    gold_symbols = re.findall(SYMBOL, split_unit(gold)[0])
    if given_answer.left_side in gold_symbols and not gold_answer.left_side:
        return False
    return _equals_by_math_verify(given_answer.parts[0], gold_answer.parts[0])


def _equals_part_by_part(given: AnswerParts, gold: AnswerParts) -> bool:
    """Return True if two answers of several parts are equal."""
    shared_readings = given.readings & gold.readings
    if not shared_readings:
        return False
    given_parts = given.parts
    if ANY_ORDER in given.readings and len(given_parts) > len(gold.parts):
        # A part that the answer repeats counts once. Spaces are ignored in this comparison only:
        # the parts keep theirs, because `\pi r` is not `\pir`.
        given_parts = list({without_spaces(part): part for part in given_parts}.values())
    if len(given_parts) != len(gold.parts):
        return False
    # `x_1 = 1, x_2 = 2` may number the values of a list in any order.
    numbers_a_list = given.is_indexed and ANY_ORDER in gold.readings
    if numbers_a_list or shared_readings & {ANY_ORDER, EQUATIONS, ALTERNATIVES}:
        return _equals_in_any_order(given_parts, gold.parts)
    return all(map(_equals_normalized, given_parts, gold.parts))


def _equals_in_any_order(given_parts: Sequence[str], gold_parts: Sequence[str]) -> bool:
    """Return True if two equally long lists have equal parts, in any order."""
    unmatched = list(gold_parts)
    for given_part in given_parts:
        for gold_part in unmatched:
            # Greedy: the first match is taken. This refuses a right answer only if a part equals
            # several gold parts, which is rare: for the gold answer `5 m, 5 s`, the 5 of `5, 5 m`
            # takes the `5 m`.
            if _equals_normalized(given_part, gold_part):
                unmatched.remove(gold_part)
                break
        else:
            return False
    return True


def _equals_by_math_verify(given: str, gold: str) -> bool:
    """Return True if two expressions are equal. One of them may lack the unit."""
    given, given_unit = split_unit(given)
    gold_without_unit, gold_unit = split_unit(gold)
    if given_unit and gold_unit and given_unit != gold_unit:
        return False
    if given_unit or not UNIT_OR_VARIABLE.search(gold):
        gold = gold_without_unit
    if _MISREAD_BY_MATH_VERIFY.search(gold) or not is_single_answer(given, gold):
        return False
    given = primes_to_indices(given)
    gold = primes_to_indices(gold)
    # A prime that is still there belongs to a bracket, as in (fg)', and math-verify would drop it.
    return "'" not in given + gold and are_equal_expressions(given, gold)
