"""The task `arithmetic`: generated sums, differences and products with their values."""

import itertools
import operator
import random
from typing import Any

from grpo_nb.core.words import in_line

ARITHMETIC_LEVELS: tuple[dict[str, Any], ...] = (
    {},
    {"low": 10, "high": 99, "operators": "*"},
    {"terms": 4, "operators": "+-*"},
    {"low": 100, "high": 999, "operators": "*"},
    {"low": 1000, "high": 9999, "operators": "*"},
    {"low": 10, "high": 99, "terms": 6, "operators": "+-*"},
)
"""Options of `arithmetic`, easiest first.

The first has sums of two numbers up to 20. Models of several billion parameters get the last ones
wrong.
"""
_EXAMPLE_SUM = "3 + 4"
EXAMPLE = (f"What is {_EXAMPLE_SUM}?", f"{_EXAMPLE_SUM} = 7", "7")
"""The example turn: question, reasoning, answer. Its sum is never one of the questions."""
_FUNCTIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
# Up to this many numbers, all pairs are enumerated; above, they are sampled.
_MOST_ENUMERATED = 101


def arithmetic_rows(
    seed: int,
    train_size: int = 224,
    holdout_size: int = 96,
    low: int = 1,
    high: int = 20,
    operators: str = "+",
    terms: int = 2,
) -> tuple[list[dict[str, Any]], int]:
    """Return questions with their answers, and how many of them are held out.

    Args:
        seed: Seed of the choice of questions.
        train_size: Number of training questions.
        holdout_size: Number of held-out questions.
        low: Smallest number in a question.
        high: Largest number in a question.
        operators: Some of `+-*`.
        terms: Count of numbers in a question.

    Raises:
        ValueError: Other operators, or too few distinct questions.
    """
    if not operators or not {*operators} <= {*_FUNCTIONS}:
        raise ValueError(
            f"operators = {in_line(operators)} must be a text of some of + - *, such as '+-'."
        )
    draw = random.Random(seed)
    count = train_size + holdout_size
    numbers = range(low, high + 1)
    values: dict[str, int] = {}
    if terms == 2 and len(numbers) <= _MOST_ENUMERATED:
        for op, a, b in itertools.product(operators, numbers, numbers):
            # Differences are never negative.
            if op != "-" or a >= b:
                values[f"{a} {op} {b}"] = _FUNCTIONS[op](a, b)
    else:
        # Most samples are new. If 100 samples per question do not suffice, the range is too small.
        for _ in range(100 * count):
            text, value = _expression(draw, terms, low, high, operators)
            values[text] = value
            if len(values) > count:
                break
    values.pop(_EXAMPLE_SUM, None)
    if len(values) < count:
        raise ValueError(
            f"there are {len(values)} distinct questions of train_size + holdout_size = {count}: "
            "raise high."
        )
    sampled = draw.sample(list(values), count)
    rows = [{"question": f"What is {text}?", "answer": str(values[text])} for text in sampled]
    return rows, holdout_size


def _expression(
    draw: random.Random, terms: int, low: int, high: int, operators: str
) -> tuple[str, int]:
    """Return an expression of `terms` numbers, with brackets, and its value."""
    if terms == 1:
        number = draw.randint(low, high)
        return str(number), number
    left = draw.randint(1, terms - 1)
    op = draw.choice(operators)
    parts = [_expression(draw, size, low, high, operators) for size in (left, terms - left)]
    if op == "-":
        # Differences are never negative.
        parts.sort(key=lambda part: part[1], reverse=True)
    texts = [f"({text})" if " " in text else text for text, _ in parts]
    values = [value for _, value in parts]
    return f" {op} ".join(texts), _FUNCTIONS[op](*values)
