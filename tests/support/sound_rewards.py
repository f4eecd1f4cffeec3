"""Sound reward functions in the manners of public repositories, and the tasks that they are for.

They use regular expressions, split tags, floats, Decimal, JSON, dates, expressions, source code,
labels, lengths and steps. They are functions, closures, classes and coroutines, for chat messages
and plain text.
"""

from __future__ import annotations

import ast
import datetime
import decimal
import functools
import json
import math
import operator
import re
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

from grpo_nb.tasks import formats
from grpo_nb.tasks.formats import AnswerFormat

# ---- Tasks ----


class Rows(NamedTuple):
    """Rows of a task, and the format that its prompt asks for."""

    rows: list[dict[str, Any]]
    format: AnswerFormat = formats.xml()


def _rows(
    pairs: list[tuple[str, str]], *, is_chat: bool = True, **columns: list[Any]
) -> list[dict[str, Any]]:
    """Rows with chat messages as prompt, or with plain text."""
    made = []
    for i, (question, answer) in enumerate(pairs):
        prompt = [{"role": "user", "content": question}] if is_chat else question
        made.append(
            {
                "prompt": prompt,
                "question": question,
                "answer": answer,
                **{k: v[i] for k, v in columns.items()},
            }
        )
    return made


_SUMS = [
    (f"What is {a} + {b}?", str(a + b))
    for a, b in ((20, 22), (8, 9), (30, 33), (50, 41), (60, 16), (12, 13))
]
SUMS = Rows(_rows(_SUMS))
SUMS_THINK = Rows(_rows(_SUMS), formats.think_answer())
SUMS_BOXED = Rows(_rows(_SUMS), formats.boxed())
SUMS_HASHES = Rows(
    _rows([(q, str(1000 + 37 * int(a))) for q, a in _SUMS], is_chat=False), formats.hashes()
)
PRICES = Rows(
    _rows(
        [
            (f"Price of item {i}?", price)
            for i, price in enumerate(("3.75", "12.50", "0.80", "7.25"))
        ]
    )
)
CAPITALS = Rows(
    _rows(
        [
            (f"Capital of {c}?", t)
            for c, t in (("France", "Paris"), ("Italy", "Rome"), ("Peru", "Lima"))
        ]
    )
)
CHOICES = Rows(_rows([(f"Question {i}? A, B, C or D.", letter) for i, letter in enumerate("BDAC")]))
RECORDS = Rows(
    _rows(
        [
            (f"Who is number {i}?", json.dumps({"name": name, "age": age}))
            for i, (name, age) in enumerate((("Ann", 31), ("Bob", 52), ("Eve", 27), ("Dan", 44)))
        ]
    )
)
FACTORS = Rows(
    _rows(
        [
            (f"Prime factors of {n}?", f)
            for n, f in ((30, "2, 3, 5"), (21, "3, 7"), (22, "2, 11"), (45, "3, 3, 5"))
        ]
    )
)
COUNTDOWN = Rows(
    _rows(
        [
            ("Make 50 of 8, 2, 5.", "(8 + 2) * 5"),
            ("Make 28 of 9, 5, 2.", "(9 + 5) * 2"),
            ("Make 17 of 3, 4, 5.", "3 * 4 + 5"),
        ],
        numbers=[[8, 2, 5], [9, 5, 2], [3, 4, 5]],
        target=[50, 28, 17],
    )
)
FUNCTIONS = Rows(
    _rows(
        [(f"Write f that adds {n}.", f"def f(x):\n    return x + {n}") for n in (3, 5, 8, 13)],
        is_chat=False,
    )
)
MOODS = Rows(
    _rows(
        [
            (f"Mood of text {i}?", m)
            for i, m in enumerate(("positive", "negative", "neutral", "positive"))
        ]
    )
)
DATES = Rows(
    _rows(
        [
            (f"Date of event {i}?", d)
            for i, d in enumerate(("2024-05-17", "1999-12-31", "2011-02-03"))
        ]
    )
)


# ---- Sound rewards ----


def slot_equals(completions, answer, **kwargs):
    """The one answer slot, letter for letter."""
    pattern = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        slots = pattern.findall(completion[0]["content"])
        scores.append(2.0 if len(slots) == 1 and slots[0].strip() == gold else 0.0)
    return scores


def split_tags(prompts, completions, answer, **kwargs) -> list[float]:
    def extract(text: str) -> str:
        if text.count("<answer>") != 1 or text.count("</answer>") != 1:
            return ""
        return text.split("<answer>")[-1].split("</answer>")[0].strip()

    responses = [completion[0]["content"] for completion in completions]
    return [2.0 if extract(r) == a else 0.0 for r, a in zip(responses, answer)]  # noqa: B905


def float_in_slot(completions, **kwargs):
    out = []
    for completion, gold in zip(completions, kwargs["answer"], strict=True):
        found = re.findall(r"<answer>\s*([^<]*?)\s*</answer>", completion[-1]["content"])
        try:
            value = float(found[0].replace(",", "")) if len(found) == 1 else math.nan
            out.append(1.0 if math.isclose(value, float(gold), rel_tol=1e-9) else -0.5)
        except (ValueError, OverflowError):
            out.append(-0.5)
    return out


class DecimalPrice:
    """Prices to the cent."""

    __name__ = "decimal_price"

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight

    def _parse(self, text: str) -> decimal.Decimal | None:
        match = re.search(r"<answer>\s*\$?\s*(-?[0-9]+(?:\.[0-9]+)?)\s*</answer>", text)
        if match is None or text.count("<answer>") > 1:
            return None
        try:
            return decimal.Decimal(match.group(1))
        except decimal.InvalidOperation:
            return None

    def __call__(self, completions, answer, **kwargs):
        prices = [self._parse(completion[0]["content"]) for completion in completions]
        golds = map(decimal.Decimal, answer)
        cent = decimal.Decimal("0.005")
        return [
            float(p is not None and abs(p - g) < cent) for p, g in zip(prices, golds, strict=True)
        ]


def near_price(completions, answer, **kwargs):
    """Most for the price, less for one close by, and less than nothing for one far away."""
    scores = []
    for completion, true_answer in zip(completions, answer, strict=True):
        text = completion[0]["content"]
        guesses = re.findall(r"<answer>\s*([-0-9.]{1,20})\s*</answer>", text)
        if len(guesses) != 1:
            scores.append(-1.0)
            continue
        try:
            ratio = float(guesses[0]) / float(true_answer)
        except ValueError:
            scores.append(-1.0)
            continue
        if ratio == 1.0:
            scores.append(3.0)
        elif 0.95 <= ratio <= 1.05:
            scores.append(0.5)
        else:
            scores.append(-1.0)
    return scores


def capital(completions, answer, **kwargs):
    def clean(text):
        return text.strip().strip(".!").casefold()

    def score(text, gold):
        _, opened, rest = text.partition("<answer>")
        inside, closed, tail = rest.partition("</answer>")
        if not opened or not closed or "<answer>" in tail:
            return 0.0
        return 1.0 if clean(inside) == clean(gold) else 0.0

    return [score(c[0]["content"], gold) for c, gold in zip(completions, answer, strict=True)]


def make_letter(options="ABCD"):
    pattern = re.compile(rf"<answer>\s*\(?([{options}])\)?[.:]?\s*</answer>", re.IGNORECASE)

    def letter(completions, answer, **kwargs):
        scores = []
        for completion, gold in zip(completions, answer, strict=True):
            found = pattern.findall(completion[0]["content"])
            scores.append(float([one.upper() for one in found] == [gold]))
        return scores

    return letter


def boxed_last(completions, answer, **_):
    def last_boxed(text):
        if text.count("\\boxed{") != 1:
            return None
        start = text.index("\\boxed{") + len("\\boxed{")
        depth = 1
        for end in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[start:end].strip()
        return None

    boxes = [last_boxed(completion[0]["content"]) for completion in completions]
    return [
        1.0 if box is not None and box == gold else 0.0
        for box, gold in zip(boxes, answer, strict=True)
    ]


def hashes_number(completions, answer, **kwargs):
    """Accept only a number after four hashes, as in GSM8K."""
    scores = []
    for text, gold in zip(completions, answer, strict=True):
        parts = text.split("####")
        given = parts[-1].strip().rstrip(".").replace(",", "") if len(parts) == 2 else ""
        scores.append(1.0 if given == gold else 0.0)
    return scores


def think_strict_format(completions, **kwargs):
    pattern = r"^<think>.*?</think>\s*<answer>.*?</answer>\s*$"
    contents = [completion[0]["content"] for completion in completions]
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    return [
        1.0
        if re.match(pattern, text, re.DOTALL) and all(text.count(tag) == 1 for tag in tags)
        else 0.0
        for text in contents
    ]


def tag_count(completions, **kwargs) -> list[float]:
    def count_tags(text: str) -> float:
        count = 0.0
        if text.count("<think>") == 1:
            count += 0.25
        if text.count("</think>") == 1:
            count += 0.25
        if text.count("<answer>") == 1:
            count += 0.25
        if text.count("</answer>") == 1:
            count += 0.25
        return count

    return [count_tags(completion[0]["content"]) for completion in completions]


def json_record(completions, answer, **kwargs):
    def score(text, gold):
        slots = re.findall(r"<answer>(.*?)</answer>", text, flags=re.DOTALL)
        if len(slots) != 1:
            return 0.0
        try:
            data = json.loads(slots[0])
        except (ValueError, RecursionError):
            return 0.0
        if not isinstance(data, dict):
            return 0.0
        expected = json.loads(gold)
        return (
            1.0
            if data.get("name") == expected["name"] and data.get("age") == expected["age"]
            else 0.0
        )

    return [score(c[0]["content"], gold) for c, gold in zip(completions, answer, strict=True)]


def json_fields(completions, answer, **kwargs):
    """The share of fields that are right, of all that are there or should be."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        text = completion[0]["content"]
        expected = json.loads(gold)
        try:
            body = (
                text[text.index("<answer>") + 8 : text.index("</answer>")]
                if text.count("<answer>") == 1
                else ""
            )
            given = json.loads(body)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            scores.append(0.0)
            continue
        fields = set(expected) | set(given)
        right = sum(
            key in given and key in expected and given[key] == expected[key] for key in fields
        )
        scores.append(right / len(fields))
    return scores


def factor_list(completions, answer, **kwargs):
    def numbers(text):
        if not re.fullmatch(r"\s*\d{1,9}(\s*,\s*\d{1,9})*\s*", text):
            return []
        return sorted(int(part) for part in text.split(","))

    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        slots = re.findall(r"<answer>(.*?)</answer>", completion[0]["content"], re.S)
        scores.append(1.0 * (len(slots) == 1 and numbers(slots[0]) == numbers(gold)))
    return scores


_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def countdown(completions, target, numbers, **kwargs):
    """An expression of exactly the numbers given that makes the target."""

    def value(node, used):
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left, used), value(node.right, used))
        if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 1000:
            used.append(node.value)
            return node.value
        raise ValueError("not arithmetic")

    def score(text, goal, given):
        found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
        if len(found) != 1 or len(found[0]) > 100:
            return 0.0
        used = []
        try:
            made = value(ast.parse(found[0].strip(), mode="eval").body, used)
        except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
            return 0.0
        return 1.0 if sorted(used) == sorted(given) and math.isclose(made, goal) else 0.0

    texts = [completion[0]["content"] for completion in completions]
    return [score(*one) for one in zip(texts, target, numbers, strict=True)]


def same_source(completions, answer, **kwargs):
    """The same program up to white space and comments."""

    def tree(code):
        try:
            return ast.dump(ast.parse(code))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    scores = []
    for text, gold in zip(completions, answer, strict=True):
        parts = re.split(r"</?answer>", text)
        code = parts[1].strip("\n") if len(parts) == 3 else ""
        code = re.sub(r"^\s*```(?:python)?\n(.*?)\n?```\s*$", r"\1", code, flags=re.DOTALL)
        code = textwrap.dedent(code).strip()
        scores.append(1.0 if code and tree(code) == tree(gold) else 0.0)
    return scores


def mood_label(completions, answer, **kwargs):
    labels = {"positive", "negative", "neutral"}
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        slots = re.findall(r"<answer>\s*(\S*?)\s*</answer>", completion[0]["content"])
        said = slots[0].lower() if len(slots) == 1 else ""
        scores.append((1.0 if said == gold else 0.1) if said in labels else 0.0)
    return scores


def iso_date(completions, answer, **kwargs):
    def read(text):
        slots = re.findall(r"<answer>\s*(.{0,40}?)\s*</answer>", text)
        try:
            return datetime.date.fromisoformat(slots[0]) if len(slots) == 1 else None
        except ValueError:
            return None

    dates = (read(completion[0]["content"]) for completion in completions)
    return [
        float(date == datetime.date.fromisoformat(gold))
        for date, gold in zip(dates, answer, strict=True)
    ]


def make_soft_length(limit=200, room=100):
    def soft_length(completion_ids, **kwargs):
        return [-min(1.0, max(0, len(ids) - limit) / room) for ids in completion_ids]

    return soft_length


def step_count(completions, **kwargs):
    """Three steps are enough."""
    pattern = r"(Step \d+:|^\d+\.|\n-|\n\*|First,|Second,|Next,|Finally,)"
    texts = [completion[0]["content"] for completion in completions]
    return [min(1.0, len(re.findall(pattern, text)) / 3) for text in texts]


def no_repeats(completions, **kwargs):
    scores = []
    for completion in completions:
        words = completion[0]["content"].lower().split()
        runs = list(zip(*(words[i:] for i in range(3)), strict=False))
        if not runs:
            scores.append(0.0)
            continue
        scores.append(len(set(runs)) / len(runs) - 1.0)
    return scores


def xml_count(completions, **kwargs):
    def count(text):
        total = 0.0
        for tag in ("<reasoning>", "</reasoning>", "<answer>", "</answer>"):
            if text.count(tag) == 1:
                total += 0.125
        rest = text.split("</answer>")[-1].strip() if "</answer>" in text else ""
        return max(0.0, total - 0.001 * len(rest))

    return [count(completion[0]["content"]) for completion in completions]


class NoApology:
    """Something off for words of an assistant that gives up."""

    phrases = ("as an ai", "i'm sorry", "i cannot")

    def __call__(self, completions, **kwargs):
        return [-0.5 * any(p in c[0]["content"].lower() for p in self.phrases) for c in completions]


def cosine_right(completions, answer, completion_ids, **kwargs):
    """Right and short is best; of wrong ones the longer lose less, and never gain."""
    scores = []
    for completion, gold, ids in zip(completions, answer, completion_ids, strict=True):
        slots = re.findall(r"<answer>\s*(.*?)\s*</answer>", completion[0]["content"], re.DOTALL)
        progress = min(1.0, len(ids) / 400)
        wave = (1.0 + math.cos(progress * math.pi)) / 2
        if slots == [gold]:
            scores.append(0.5 + 0.5 * wave)
        else:
            scores.append(-0.3 - 0.2 * wave)
    return scores


class Sound(NamedTuple):
    """A sound reward: its task, its source, and a function that makes the reward of it."""

    task: Rows
    source: Any
    make: Callable[[Any], Any] = lambda defined: defined


SOUND: dict[str, Sound] = {
    "slot_equals": Sound(SUMS, slot_equals),
    "split_tags": Sound(SUMS, split_tags),
    "float_in_slot": Sound(SUMS, float_in_slot),
    "decimal_price": Sound(PRICES, DecimalPrice, lambda defined: defined(weight=2.0)),
    "near_price": Sound(PRICES, near_price),
    "capital": Sound(CAPITALS, capital, lambda defined: functools.partial(defined, strict=True)),
    "letter": Sound(CHOICES, make_letter, lambda defined: defined()),
    "boxed_last": Sound(SUMS_BOXED, boxed_last),
    "hashes_number": Sound(SUMS_HASHES, hashes_number),
    "think_strict_format": Sound(SUMS_THINK, think_strict_format),
    "tag_count": Sound(SUMS_THINK, tag_count),
    "json_record": Sound(RECORDS, json_record),
    "json_fields": Sound(RECORDS, json_fields),
    "factor_list": Sound(FACTORS, factor_list),
    "countdown": Sound(COUNTDOWN, countdown),
    "same_source": Sound(FUNCTIONS, same_source),
    "mood_label": Sound(MOODS, mood_label),
    "iso_date": Sound(DATES, iso_date),
    "soft_length": Sound(SUMS, make_soft_length, lambda defined: defined()),
    "step_count": Sound(SUMS_THINK, step_count),
    "no_repeats": Sound(CAPITALS, no_repeats),
    "xml_count": Sound(SUMS, xml_count),
    "no_apology": Sound(CAPITALS, NoApology, lambda defined: defined()),
    "cosine_right": Sound(SUMS, cosine_right),
}

# As a training would use them: a reward for the answer with others for format and length.
TOGETHER: list[tuple[str, ...]] = [
    ("slot_equals", "float_in_slot", "soft_length", "xml_count"),
    ("split_tags", "cosine_right", "xml_count"),
    ("decimal_price", "near_price"),
    ("capital", "no_repeats", "no_apology"),
    ("json_record", "json_fields"),
    ("slot_equals", "think_strict_format", "tag_count", "step_count"),
    ("slot_equals", "split_tags", "float_in_slot", "cosine_right", "soft_length", "xml_count"),
]


def sound(name: str) -> Any:
    """Return a reward as it is."""
    return SOUND[name].make(SOUND[name].source)
