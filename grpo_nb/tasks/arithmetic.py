"""Generate the questions of the task `arithmetic`: sums, differences and products."""

import itertools
import math
import random
import re
from typing import Any

from grpo_nb.core.words import require_whole_number
from grpo_nb.tasks.read_rows import Rows

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
ARITHMETIC_HOLDOUT_SIZE = 96
ARITHMETIC_EXAMPLE = ("What is 3 + 4?", "3 + 4 = 7", "7")
"""Example turn: question, reasoning, answer. Its sum is never one of the questions."""
# Up to this many numbers, all pairs are listed, because sampling would find the last ones slowly:
# the default asks 320 of 400 sums. With more numbers there are too many pairs, so questions are
# sampled.
_MAX_NUMBERS_FOR_ALL_PAIRS = 101


def arithmetic_rows(
    seed: int,
    holdout: int,
    train_size: int = 224,
    low: int = 1,
    high: int = 20,
    operators: str = "+",
    terms: int = 2,
) -> Rows:
    """Return questions with their answers.

    Args:
        seed: Seed of the choice of questions.
        holdout: Number of held-out questions.
        train_size: Number of training questions.
        low: Smallest number in a question.
        high: Largest number in a question.
        operators: Some of `+-*`.
        terms: Count of numbers in a question, at least 2.

    Raises:
        ValueError: Too few distinct questions or terms, a `high` below `low`, or another operator.
    """
    if not re.fullmatch("[-+*]+", operators):
        raise ValueError(f"operators = {operators!r} must be some of '+-*', such as '+-'.")
    require_whole_number("train_size", train_size, 1)
    require_whole_number("low", low, -math.inf)
    require_whole_number("high", high, low)
    require_whole_number("terms", terms, 2)
    rng = random.Random(seed)
    count = train_size + holdout
    numbers = range(low, high + 1)

    # A dict without values, because a set has no fixed order: a seed must give the same questions.
    texts = {}
    if terms == 2 and len(numbers) <= _MAX_NUMBERS_FOR_ALL_PAIRS:
        pairs = itertools.product(operators, numbers, numbers)
        texts = dict.fromkeys(f"{a} {operator} {b}" for operator, a, b in pairs)
    else:
        # Most samples are new. If 100 samples per question do not suffice, the range is too small.
        for _ in range(100 * count):
            text = str(rng.randint(low, high))
            for _ in range(terms - 1):
                text += f" {rng.choice(operators)} {rng.randint(low, high)}"
            texts[text] = None
            # One more than needed, because the example may be among them.
            if len(texts) > count:
                break
    texts.pop("3 + 4", None)  # the example
    if len(texts) < count:
        raise ValueError(
            f"train_size + holdout = {count}, but only {len(texts)} distinct questions exist "
            "with these options: raise high, or lower a size."
        )
    sampled = rng.sample(list(texts), count)
    # eval() computes the answer: the text has only numbers and operators.
    return [{"question": f"What is {text}?", "answer": str(eval(text))} for text in sampled]
