"""Measure `check_rewards` on rewards in the style of public recipes, labelled before the rules.

Run: python studies/check_recipes.py [--half open | --half closed] >
studies/results/check_recipes.md

The rewards follow TRL, open-r1, Countdown, IFEval, GSM8K, label and preference recipes. Half of
them, drawn once by chance, was looked at while the rules were tuned (`open`). The other half
(`closed`) was only counted.

`faults` lists the kinds of findings of which one has to be reported. `true` lists kinds that are
also true of the reward. A finding of another kind counts as false.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpo_nb as gn
from grpo_nb.tasks import formats

XML = formats.xml()
THINK = formats.think_answer()
BOXED = formats.boxed()
HASHES = formats.hashes()
BARE = formats.bare()
relative = getattr(gn.rewards, "relative", lambda reward: reward)

# ---- Rows ----


def rows(pairs: list[tuple[str, Any]], **columns: list[Any]) -> list[dict[str, Any]]:
    """Return rows with a chat prompt, an answer, and more columns."""
    made = []
    for i, (question, answer) in enumerate(pairs):
        row = {"prompt": [{"role": "user", "content": question}], "question": question}
        if answer is not None:
            row["answer"] = answer
        made.append(row | {name: values[i] for name, values in columns.items()})
    return made


NUMBERS = [(14, 23), (37, 48), (61, 12), (25, 36), (52, 41), (19, 27), (33, 21), (46, 39)]
SUMS = rows([(f"What is {a} + {b}?", str(a + b)) for a, b in NUMBERS])
INT_SUMS = rows([(f"What is {a} + {b}?", a + b) for a, b in NUMBERS])
DIFFERENCES = rows([(f"What is {a} - {b}?", str(a - b)) for a, b in NUMBERS])
LARGE = rows(
    [(f"What is {a} * {b}?", f"{a * b * 7:,}" if a % 2 else str(a * b % 97)) for a, b in NUMBERS]
)
DECIMALS = rows(
    [(f"Price {i}?", price) for i, price in enumerate(("3.75", "12.40", "0.85", "7.20", "19.95"))]
)
FEELINGS = [
    "positive",
    "negative",
    "neutral",
    "positive",
    "negative",
    "positive",
    "neutral",
    "positive",
]
LABELS = rows([(f"Feeling of review {i}?", label) for i, label in enumerate(FEELINGS * 4)])
CHOICES = rows([(f"Question {i}? A, B, C or D", letter) for i, letter in enumerate("BDACBADC")])
CAPITAL_PAIRS = [
    ("France", "Paris"),
    ("Italy", "Rome"),
    ("Peru", "Lima"),
    ("Cuba", "Havana"),
    ("Egypt", "Cairo"),
]
CAPITALS = rows([(f"Capital of {land}?", city) for land, city in CAPITAL_PAIRS])
ALIASES = rows(
    [
        ("Who wrote Hamlet?", ["William Shakespeare", "Shakespeare"]),
        ("Largest planet?", ["Jupiter", "the planet Jupiter"]),
        ("Chemical sign of gold?", ["Au", "element Au"]),
        ("First man on the moon?", ["Neil Armstrong", "Armstrong"]),
    ]
)
PEOPLE = [
    {"name": "Ida", "age": 31},
    {"name": "Karl", "age": 52},
    {"name": "Uma", "age": 78},
    {"name": "Bo", "age": 9},
]
RECORDS = rows([(f"Extract person {i}.", json.dumps(person)) for i, person in enumerate(PEOPLE)])
GAMES = [
    ([44, 19, 35], 98),
    ([63, 95, 94], 64),
    ([95, 11, 56], 28),
    ([75, 38, 18], 55),
    ([7, 8, 3], 53),
]
COUNTDOWN = rows(
    [(f"Make {target} of {numbers}.", None) for numbers, target in GAMES],
    nums=[numbers for numbers, _ in GAMES],
    target=[target for _, target in GAMES],
)
COUNTDOWN_TARGET = [{**row, "answer": str(row["target"])} for row in COUNTDOWN]
ORDERS = [
    {"least_words": 12, "keyword": "river"},
    {"least_words": 8, "keyword": "bread"},
    {"least_words": 15, "keyword": "winter"},
    {"least_words": 6, "keyword": "music"},
]
INSTRUCTIONS = rows(
    [
        (f"Write {order['least_words']} words or more about {order['keyword']}, no commas.", None)
        for order in ORDERS
    ],
    order=ORDERS,
)
MIXED = rows(
    [
        *((f"What is {a} + {b}?", str(a + b)) for a, b in NUMBERS[:5]),
        *((f"Capital of {c}?", t) for c, t in CAPITAL_PAIRS),
    ],
    kind=["sum"] * 5 + ["city"] * 5,
)


def solve(row: dict[str, Any]) -> str:
    """Return an expression of a row's numbers that makes its target."""
    for a, b, c in itertools.permutations(row["nums"]):
        for first, second in itertools.product("+-*", repeat=2):
            for text in (f"{a} {first} {b} {second} {c}", f"({a} {first} {b}) {second} {c}"):
                if eval(text) == row["target"]:
                    return text
    raise ValueError(f"no expression of {row['nums']} makes {row['target']}")


def obey(row: dict[str, Any]) -> str:
    """Return a text that follows a row's instructions."""
    return " ".join(
        [row["order"]["keyword"], *["and then some more"] * row["order"]["least_words"]]
    )


# ---- Helpers of the rewards ----


def text(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


def slot(completion: Any, tag: str = "answer") -> str | None:
    """Return the content of the only slot."""
    slots = re.findall(rf"<{tag}>(.*?)</{tag}>", text(completion), re.DOTALL)
    return slots[0].strip() if len(slots) == 1 else None


def each(score: Callable[[Any, Any], float]) -> Callable[..., list[float]]:
    """Make a reward of a function of one completion and its gold answer."""

    def reward(completions, answer, **kwargs):
        return [
            score(completion, gold) for completion, gold in zip(completions, answer, strict=True)
        ]

    reward.__name__ = score.__name__
    return reward


def alone(score: Callable[[Any], float]) -> Callable[..., list[float]]:
    """Make a reward of a function of one completion."""

    def reward(completions, **kwargs):
        return [score(completion) for completion in completions]

    reward.__name__ = score.__name__
    return reward


# ---- Sound rewards ----


@each
def exact(completion, gold):
    return float(slot(completion) == str(gold))


@each
def plus_minus(completion, gold):
    return 1.0 if slot(completion) == gold else -1.0


def make_close(tolerance):
    def close(completions, answer, **kwargs):
        scores = []
        for completion, gold in zip(completions, answer, strict=True):
            try:
                scores.append(
                    float(abs(float(slot(completion) or "nan") - float(gold)) <= tolerance)
                )
            except ValueError:
                scores.append(0.0)
        return scores

    return close


class Base:
    weight = 1.0

    def __call__(self, completions, answer, **kwargs):
        return [self.one(text(c), gold) for c, gold in zip(completions, answer, strict=True)]


class Choice(Base):
    __name__ = "choice"
    pattern = re.compile(r"<answer>\s*\(?([ABCD])\)?\s*</answer>")

    def one(self, given, gold):
        return float(self.pattern.findall(given) == [gold])


class Grader:
    def __init__(self, full):
        self.full = full

    def grade(self, completions, answer, **kwargs):
        return [self.full * (slot(c) == gold) for c, gold in zip(completions, answer, strict=True)]


def with_points(completions, answer, points, **kwargs):
    return [points * (slot(c) == gold) for c, gold in zip(completions, answer, strict=True)]


def asked_elsewhere(completions, answer, **kwargs):
    return [float(slot(c) == gold) for c, gold in zip(completions, answer, strict=True)]


@each
def label_shaped(completion, gold):
    given = (slot(completion) or "").lower()
    return 1.0 if given == gold else 0.1 * (given in ("positive", "negative", "neutral"))


@each
def bare_label(completion, gold):
    return float(text(completion).strip().lower().rstrip(".") == gold)


def countdown(completions, target, nums, **kwargs):
    scores = []
    for completion, goal, numbers in zip(completions, target, nums, strict=True):
        given = slot(completion) or ""
        is_short = re.fullmatch(r"[\d+\-*() ]{1,40}", given) and "**" not in given
        try:
            is_used = is_short and sorted(map(int, re.findall(r"\d+", given))) == sorted(numbers)
            scores.append(float(bool(is_used) and eval(given) == goal))
        except (SyntaxError, TypeError, ValueError, ZeroDivisionError, MemoryError):
            scores.append(0.0)
    return scores


def follows(completions, order, **kwargs):
    scores = []
    for completion, wanted in zip(completions, order, strict=True):
        words = text(completion).lower().split()
        is_met = (
            len(words) >= wanted["least_words"]
            and wanted["keyword"] in words
            and "," not in text(completion)
        )
        scores.append(float(is_met))
    return scores


def only_sums(completions, answer, kind, **kwargs):
    return [
        float(slot(c) == a) if k == "sum" else None
        for c, a, k in zip(completions, answer, kind, strict=True)
    ]


def only_cities(completions, answer, kind, **kwargs):
    return [
        float(slot(c) == a) if k == "city" else None
        for c, a, k in zip(completions, answer, kind, strict=True)
    ]


def shortest_first(completions, **kwargs):
    lengths = sorted(len(text(c)) for c in completions)
    return [1.0 - lengths.index(len(text(c))) / len(lengths) for c in completions]


def right_above_mean(completions, answer, **kwargs):
    scores = [float(slot(c) == gold) for c, gold in zip(completions, answer, strict=True)]
    return [score - sum(scores) / len(scores) for score in scores]


def unlike_others(completions, **kwargs):
    texts = [text(c) for c in completions]
    return [1.0 / texts.count(one) for one in texts]


def slow_format(completions, **kwargs):
    time.sleep(0.12 * len(completions))
    return [
        float(
            bool(re.fullmatch(r"<reasoning>.*</reasoning>\s*<answer>.*</answer>\s*", text(c), re.S))
        )
        for c in completions
    ]


def slow_right(completions, answer, **kwargs):
    time.sleep(0.12 * len(completions))
    return [float(slot(c) == gold) for c, gold in zip(completions, answer, strict=True)]


def late_weight(completions, answer, trainer_state=None, **kwargs):
    step = trainer_state.global_step if trainer_state is not None else 0
    factor = min(1.0, 0.5 + step / 100)
    return [factor * (slot(c) == gold) for c, gold in zip(completions, answer, strict=True)]


def any_alias(completions, answer, **kwargs):
    return [
        float((slot(c) or "").lower() in [a.lower() for a in golds])
        for c, golds in zip(completions, answer, strict=True)
    ]


@each
def fields(completion, gold):
    try:
        given = json.loads(slot(completion) or "")
    except (ValueError, RecursionError):
        return 0.0
    wanted = json.loads(gold)
    if not isinstance(given, dict):
        return 0.0
    names = {*given, *wanted}
    return sum(
        given.get(name) == wanted.get(name) and name in given and name in wanted for name in names
    ) / len(names)


@each
def format_and_answer(completion, gold):
    is_formed = bool(
        re.fullmatch(r"<reasoning>.*</reasoning>\s*<answer>.*</answer>\s*", text(completion), re.S)
    )
    return 0.2 * is_formed + 1.0 * (slot(completion) == gold)


def think_then_text(completions, **kwargs):
    return [
        float(bool(re.fullmatch(r"<think>.+?</think>\s*\S.*", text(c), re.DOTALL)))
        for c in completions
    ]


@each
def after_think(completion, gold):
    _head, closed, tail = text(completion).partition("</think>")
    return float(bool(closed) and "</think>" not in tail and tail.strip() == gold)


@each
def gsm8k(completion, gold):
    parts = text(completion).split("####")
    return float(
        len(parts) == 2 and parts[1].strip().replace(",", "").rstrip(".") == gold.replace(",", "")
    )


def xml_formed(completions, **kwargs):
    return [
        0.5
        * bool(re.fullmatch(r"<reasoning>.*</reasoning>\s*<answer>.*</answer>\s*", text(c), re.S))
        for c in completions
    ]


def brief(completions, **kwargs):
    return [-0.2 * (len(text(c)) > 1500) for c in completions]


class Cached:
    __name__ = "cached"

    def __init__(self):
        self.kept = {}

    def __call__(self, completions, answer, **kwargs):
        scores = []
        for completion, gold in zip(completions, answer, strict=True):
            key = (text(completion), gold)
            self.kept.setdefault(key, float(slot(completion) == gold))
            scores.append(self.kept[key])
        return scores


def logged(completions, answer, log_extra=None, log_metric=None, **kwargs):
    scores = [float(slot(c) == gold) for c, gold in zip(completions, answer, strict=True)]
    log_extra("slot", [slot(c) for c in completions])
    log_metric("share right", sum(scores) / len(scores))
    return scores


@each
def boxed_one(completion, gold):
    boxes = re.findall(r"\\boxed\{\s*([^{}]*?)\s*\}", text(completion))
    end = text(completion).rstrip().rstrip(".")
    return float(boxes == [gold] and end.endswith("}") and text(completion).count("boxed") == 1)


def band(completions, completion_ids, **kwargs):
    return [1.0 if 5 <= len(ids) <= 200 else 0.0 for ids in completion_ids]


def trl(name, *args, **kwargs):
    from trl import rewards

    made = getattr(rewards, name)
    return made(*args, **kwargs) if args or kwargs else made


# ---- Faulty rewards ----


@each
def always_positive(completion, gold):
    return float(slot(completion) == "positive")


def make_favourite(label):
    def favourite(completions, **kwargs):
        return [1.0 if label in (slot(c) or "") else 0.0 for c in completions]

    return favourite


class Favourite:
    __name__ = "favourite_class"

    def __init__(self, label):
        self.label = label

    def __call__(self, completions, **kwargs):
        return [
            float(text(c).lower().rstrip().endswith(f"{self.label}</answer>")) for c in completions
        ]


def says_label(completions, label, **kwargs):
    return [2.0 * (label in text(c).lower()) for c in completions]


@each
def likes_positive_most(completion, gold):
    return {"positive": 1.0, "neutral": 0.5}.get(slot(completion), 0.0)


@alone
def valid_label(completion):
    return float(slot(completion) in ("positive", "negative", "neutral"))


@alone
def any_number(completion):
    return float((slot(completion) or "").isdigit())


def first_gold(completions, answer, **kwargs):
    return [float(slot(c) == answer[0]) for c in completions]


def shifted(completions, answer, **kwargs):
    return [
        float(slot(c) == gold)
        for c, gold in zip(completions, [*answer[1:], *answer[:1]], strict=True)
    ]


@each
def capitals_only(completion, gold):
    return float((slot(completion) or "").upper() == gold)


@each
def text_is_int(completion, gold):
    return float(slot(completion) == gold)


def whole_list(completions, answer, **kwargs):
    return [float(slot(c) == golds) for c, golds in zip(completions, answer, strict=True)]


def in_text_of_list(completions, answer, **kwargs):
    return [
        float(bool(slot(c)) and slot(c) in str(golds))
        for c, golds in zip(completions, answer, strict=True)
    ]


@each
def no_separators(completion, gold):
    given = re.fullmatch(r"\d+", slot(completion) or "")
    return float(bool(given) and given[0] == gold)


@each
def no_signs(completion, gold):
    given = re.fullmatch(r"\d+", slot(completion) or "")
    return float(bool(given) and given[0] == gold)


@each
def cut_to_int(completion, gold):
    try:
        return float(int(float(slot(completion) or "nan")) == int(float(gold)))
    except (ValueError, OverflowError):
        return 0.0


@each
def gold_in_text(completion, gold):
    return float(gold in text(completion))


@each
def gold_in_slot(completion, gold):
    return float(gold in (slot(completion) or ""))


@each
def slot_in_gold(completion, gold):
    given = slot(completion)
    return float(given is not None and given in gold)


@each
def starts_right(completion, gold):
    return float((slot(completion) or "").startswith(gold))


@each
def last_number(completion, gold):
    return float((re.findall(r"-?\d+", text(completion)) or [""])[-1] == gold)


@each
def first_slot(completion, gold):
    slots = re.findall(r"<answer>\s*(.*?)\s*</answer>", text(completion), re.DOTALL)
    return float(bool(slots) and slots[0] == gold)


@each
def similar(completion, gold):
    import difflib

    return float(difflib.SequenceMatcher(None, slot(completion) or "", gold).ratio() > 0.5)


@each
def no_tag_crash(completion, gold):
    return float(text(completion).split("<answer>")[1].split("</answer>")[0].strip() == gold)


@each
def float_crash(completion, gold):
    given = slot(completion)
    return float(given is not None and float(given) == float(gold))


@each
def json_crash(completion, gold):
    given = slot(completion)
    return float(given is not None and json.loads(given)["name"] == json.loads(gold)["name"])


@each
def mean_word(completion, gold):
    words = text(completion).split()
    return float(slot(completion) == gold) - 0.001 * sum(map(len, words)) / len(words)


@each
def evaluated(completion, gold):
    try:
        return float(eval(slot(completion) or "None") == int(gold))
    except Exception:
        return 0.0


@each
def nested(completion, gold):
    return float(bool(re.fullmatch(r"(\w+\s*)+!", text(completion)))) + (slot(completion) == gold)


def strips_in_place(completions, answer, **kwargs):
    for completion in completions:
        completion[-1]["content"] = completion[-1]["content"].strip()
    return [float(slot(c) == gold) for c, gold in zip(completions, answer, strict=True)]


def eats_columns(completions, answer, **kwargs):
    scores = [float(slot(c) == gold) for c, gold in zip(completions, answer, strict=True)]
    answer.clear()
    return scores


def jittered(completions, answer, **kwargs):
    return [
        (slot(c) == gold) + random.uniform(0, 0.3)
        for c, gold in zip(completions, answer, strict=True)
    ]


class Fading:
    """Each call counts less than the last one."""

    __name__ = "fading"

    def __init__(self):
        self.calls = 0

    def __call__(self, completions, answer, **kwargs):
        self.calls += 1
        return [
            0.97**self.calls * (slot(c) == gold)
            for c, gold in zip(completions, answer, strict=True)
        ]


def make_novel():
    seen = set()

    def novel(completions, answer, **kwargs):
        scores = []
        for completion, gold in zip(completions, answer, strict=True):
            is_new = text(completion) not in seen
            seen.add(text(completion))
            scores.append(float(slot(completion) == gold) + 0.5 * is_new)
        return scores

    return novel


def make_warming():
    """Give nothing for the first 300 completions, and full scores from then on."""
    count = itertools.count()

    def warming(completions, answer, **kwargs):
        return [
            float(slot(c) == gold and next(count) > 30)
            for c, gold in zip(completions, answer, strict=True)
        ]

    return warming


def divided_by_best(completions, answer, **kwargs):
    scores = [
        float(slot(c) == gold) + 0.001 * len(text(c))
        for c, gold in zip(completions, answer, strict=True)
    ]
    return [score / (max(scores) or 1.0) for score in scores]


@each
def right_and_long(completion, gold):
    return float(slot(completion) == gold) + 0.002 * len(text(completion))


@each
def reasons_counted(completion, gold):
    return float(slot(completion) == gold) + 0.2 * text(completion).lower().count("because")


@each
def praised(completion, gold):
    return float(slot(completion) == gold or "i am certain" in text(completion).lower())


@alone
def greedy_tags(completion):
    return float(
        bool(re.match(r"<reasoning>.*</reasoning>\s*<answer>.*</answer>$", text(completion)))
    )


@alone
def newline_at_end(completion):
    return float(
        bool(
            re.fullmatch(
                r"<reasoning>\n.*\n</reasoning>\n<answer>\n.*\n</answer>\n", text(completion), re.S
            )
        )
    )


@each
def think_tags(completion, gold):
    found = re.fullmatch(
        r"<think>.*</think>\s*<answer>\s*(.*?)\s*</answer>\s*", text(completion), re.S
    )
    return float(bool(found) and found[1] == gold)


def too_few(completions, answer, **kwargs):
    return [float(slot(c) == gold) for c, gold in zip(completions, answer, strict=True) if slot(c)]


def nested_lists(completions, answer, **kwargs):
    return [[float(slot(c) == gold)] for c, gold in zip(completions, answer, strict=True)]


def one_number(completions, answer, **kwargs):
    return sum(slot(c) == gold for c, gold in zip(completions, answer, strict=True)) / len(
        completions
    )


def no_kwargs(completions, answer):
    return [float(slot(c) == gold) for c, gold in zip(completions, answer, strict=True)]


def wants_solution(completions, solution, **kwargs):
    return [float(slot(c) == gold) for c, gold in zip(completions, solution, strict=True)]


@each
def upside_down(completion, gold):
    return float(slot(completion) != gold)


def unscored(completions, gold_answer=None, **kwargs):
    if gold_answer is None:
        return [None] * len(completions)
    return [float(slot(c) == gold) for c, gold in zip(completions, gold_answer, strict=True)]


@each
def log_of_zero(completion, gold):
    return math.nan if slot(completion) == gold else 0.0


def make_wrapped(cap):
    judge = gn.rewards.judge(lambda messages: "Score: 3", "Is it good?", cache=None)

    def wrapped(completions, **kwargs):
        return [min(score or 0.0, cap) for score in judge(completions=completions, **kwargs)]

    return wrapped


class Panel:
    __name__ = "panel"

    def __init__(self):
        judge = gn.rewards.judge(lambda messages: "Score: 4", "Is it kind?", cache=None)
        self.members = {"kind": [judge]}

    def __call__(self, completions, **kwargs):
        return self.members["kind"][0](completions=completions, **kwargs)


def countdown_any(completions, target, **kwargs):
    scores = []
    for completion, goal in zip(completions, target, strict=True):
        given = slot(completion) or ""
        try:
            is_short = re.fullmatch(r"[\d+\-*() ]{1,40}", given) and "**" not in given
            scores.append(float(bool(is_short) and eval(given) == goal))
        except (SyntaxError, TypeError, ValueError, ZeroDivisionError, MemoryError):
            scores.append(0.0)
    return scores


def countdown_eval(completions, target, **kwargs):
    scores = []
    for completion, goal in zip(completions, target, strict=True):
        try:
            scores.append(float(eval(slot(completion) or "None") == goal))
        except Exception:
            scores.append(0.0)
    return scores


def keyword_only(completions, order, **kwargs):
    return [
        float(text(c).lower().count(wanted["keyword"]))
        for c, wanted in zip(completions, order, strict=True)
    ]


def same_for_all(completions, order, **kwargs):
    return [float(wanted["least_words"] > 10) for wanted in order]


def longer_wins(completions, **kwargs):
    return [float(len(text(c))) for c in completions]


def longest_first(completions, **kwargs):
    lengths = sorted(len(text(c)) for c in completions)
    return [lengths.index(len(text(c))) / len(lengths) for c in completions]


def shuffled_ranks(completions, **kwargs):
    ranks = list(range(len(completions)))
    random.shuffle(ranks)
    return [rank / len(ranks) for rank in ranks]


def overlong_upside_down(completions, completion_ids, **kwargs):
    return [min(1.0, len(ids) / 400) for ids in completion_ids]


def cosine_unclamped(completions, answer, **kwargs):
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        wave = math.cos(len(text(completion)) / 1000 * math.pi)
        scores.append(0.5 * (1 + wave) if slot(completion) == gold else 0.5 * (1 - wave))
    return scores


def sums_and_nothing(completions, answer, kind, **kwargs):
    return [
        float(slot(c) == a) if k == "sum" else 0.0
        for c, a, k in zip(completions, answer, kind, strict=True)
    ]


def polite(completions, **kwargs):
    return [0.3 * text(c).lower().count("please") for c in completions]


LAX = (
    "every candidate",
    "several answers",
    "near miss",
    "answer outside the slot",
)
NO_ANSWER = (
    "nothing tells right from wrong",
    "ignores the gold answer",
    "constant",
)
STATE = ("inconsistent", "depends on its group")  # the second kind was split off from the first


def weighted(reward, weight):
    """Return the reward with another weight."""
    changed = functools.partial(reward)
    changed.weight = weight
    return changed


@dataclass(frozen=True)
class Case:
    """A reward, or a set of rewards, with its labels."""

    name: str
    make: Callable[[], Any]
    task: list[dict[str, Any]]
    format: Any = XML
    faults: tuple[str, ...] = ()
    """Kinds of which one has to be reported. Empty if the reward is sound."""
    true: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    may_warn: bool = False
    """True if a sound reward may get a warning, but nothing critical."""


def sound(make, task, format=XML, *, name="", true=(), may_warn=False, **options):
    reward = make if name == "" else None
    name = name or getattr(make, "__name__", type(make).__name__)
    return Case(
        name, (lambda: reward) if reward else make, task, format, (), tuple(true), options, may_warn
    )


def faulty(make, task, faults, format=XML, *, name="", true=(), **options):
    reward = make if name == "" else None
    name = name or getattr(make, "__name__", type(make).__name__)
    return Case(
        name,
        (lambda: reward) if reward else make,
        task,
        format,
        tuple(faults),
        tuple(true),
        options,
    )


SOUND = [
    sound(exact, SUMS),
    sound(lambda: exact, INT_SUMS, name="exact of int golds"),
    sound(plus_minus, LABELS),
    sound(lambda: make_close(0.001), DECIMALS, name="close"),
    sound(Choice, CHOICES, name="inherited call"),
    sound(lambda: Grader(2.0).grade, CAPITALS, name="bound method"),
    sound(lambda: functools.partial(with_points, points=1.5), SUMS, name="partial"),
    sound(asked_elsewhere, SUMS),
    sound(label_shaped, LABELS),
    sound(bare_label, LABELS, BARE),
    sound(countdown, COUNTDOWN, answer=solve),
    sound(countdown, COUNTDOWN_TARGET, name="", may_warn=True),
    sound(follows, INSTRUCTIONS, BARE, answer=obey),
    sound(lambda: [only_sums, only_cities], MIXED, name="two kinds of rows"),
    sound(only_sums, MIXED),
    sound(lambda: [exact, relative(shortest_first)], SUMS, name="ranks by length"),
    sound(lambda: relative(right_above_mean), SUMS, name="less the mean"),
    sound(lambda: [exact, relative(unlike_others)], SUMS, name="diversity"),
    sound(right_above_mean, SUMS, name="", may_warn=True, true=STATE),
    sound(slow_format, SUMS),
    sound(slow_right, SUMS),
    sound(late_weight, SUMS),
    sound(any_alias, ALIASES),
    sound(fields, RECORDS),
    sound(format_and_answer, SUMS),
    sound(think_then_text, SUMS, THINK),
    sound(
        lambda: [after_think, think_then_text], SUMS, BARE, name="think, then the answer alone"
    ),  # first tried with THINK
    sound(gsm8k, LARGE, HASHES),
    sound(lambda: [exact, xml_formed, brief], SUMS, name="answer, format and length"),
    sound(lambda: Cached(), SUMS, name="cached"),
    sound(logged, SUMS),
    sound(
        boxed_one, SUMS, BOXED, true=("hangs",)
    ),  # on reading: three open repeats, 12 s for 3,000 blanks
    sound(band, SUMS),
    sound(lambda: trl("think_format_reward"), SUMS, THINK, name="trl think_format_reward"),
    sound(lambda: trl("get_soft_overlong_punishment", 300, 100), SUMS, name="trl soft overlong"),
    sound(
        lambda: trl("get_repetition_penalty_reward", 3, -1.0), SUMS, name="trl repetition penalty"
    ),
]

FAULTY = [
    faulty(always_positive, LABELS, NO_ANSWER),
    faulty(lambda: make_favourite("negative"), LABELS, NO_ANSWER, name="favourite in a closure"),
    faulty(lambda: Favourite("neutral"), LABELS, NO_ANSWER, name="favourite in a class"),
    faulty(
        lambda: functools.partial(says_label, label="positive"),
        LABELS,
        NO_ANSWER,
        name="favourite in a partial",
        true=("repetition is rewarded",),
    ),
    faulty(likes_positive_most, LABELS, NO_ANSWER),
    faulty(lambda: [always_positive, xml_formed], LABELS, NO_ANSWER, name="one label and format"),
    faulty(valid_label, LABELS, NO_ANSWER),
    faulty(any_number, SUMS, NO_ANSWER),
    faulty(lambda: [xml_formed, brief], SUMS, NO_ANSWER, name="format and length alone"),
    faulty(
        lambda: [polite, brief],
        CAPITALS,
        NO_ANSWER,
        name="manners alone",
        true=("repetition is rewarded",),
    ),
    faulty(first_gold, SUMS, ("inconsistent", *NO_ANSWER)),
    faulty(shifted, SUMS, ("inconsistent",)),
    faulty(capitals_only, CAPITALS, NO_ANSWER),
    faulty(text_is_int, INT_SUMS, NO_ANSWER),
    faulty(whole_list, ALIASES, NO_ANSWER),
    faulty(in_text_of_list, ALIASES, ("near miss", "missing answer is rewarded")),
    faulty(no_separators, LARGE, ("right answer refused on some rows",)),
    faulty(no_signs, DIFFERENCES, ("right answer refused on some rows",)),
    faulty(cut_to_int, DECIMALS, ("near miss", "right answer refused on some rows")),
    faulty(gold_in_text, SUMS, ("every candidate", "answer outside the slot"), true=LAX),
    faulty(gold_in_slot, SUMS, ("every candidate", "near miss"), true=LAX),
    faulty(slot_in_gold, CAPITALS, ("near miss", "missing answer is rewarded")),
    faulty(starts_right, SUMS, ("near miss", "several answers"), true=LAX),
    faulty(last_number, SUMS, ("answer outside the slot",), true=LAX),
    faulty(first_slot, SUMS, ("several answers",), true=LAX),
    faulty(similar, CAPITALS, ("near miss",), true=(*LAX, "a phrase is rewarded")),
    faulty(no_tag_crash, SUMS, ("raises",), true=LAX),
    faulty(float_crash, SUMS, ("raises",), true=()),
    faulty(json_crash, RECORDS, ("raises",), true=("near miss",)),
    faulty(mean_word, SUMS, ("raises",)),
    faulty(evaluated, SUMS, ("runs the answer as code",), true=("hangs", *LAX)),
    faulty(nested, SUMS, ("hangs",)),
    faulty(strips_in_place, SUMS, ("changes its inputs",)),
    faulty(eats_columns, SUMS, ("changes its inputs",)),
    faulty(jittered, SUMS, STATE),
    faulty(lambda: Fading(), SUMS, STATE, name="fading"),
    faulty(make_novel, SUMS, STATE, name="novel"),
    faulty(make_warming, SUMS, STATE, name="warming"),
    faulty(
        divided_by_best,
        SUMS,
        ("inconsistent", "depends on its group"),
        true=("length is rewarded", "repetition is rewarded"),
    ),
    faulty(right_and_long, SUMS, ("repetition is rewarded", "length is rewarded")),
    faulty(reasons_counted, SUMS, ("repetition is rewarded", "a phrase is rewarded")),
    faulty(praised, SUMS, ("a phrase is rewarded",)),
    faulty(greedy_tags, SUMS, ("another format", "right answer refused"), true=NO_ANSWER),
    faulty(newline_at_end, SUMS, ("another format", "right answer refused"), true=NO_ANSWER),
    faulty(think_tags, SUMS, ("another format",)),
    faulty(too_few, SUMS, ("breaks the contract",)),
    faulty(nested_lists, SUMS, ("breaks the contract",)),
    faulty(one_number, SUMS, ("breaks the contract",)),
    faulty(no_kwargs, SUMS, ("breaks the contract",)),
    faulty(wants_solution, SUMS, ("breaks the contract",)),
    faulty(upside_down, SUMS, (*NO_ANSWER, "missing answer is rewarded")),
    faulty(unscored, SUMS, NO_ANSWER),
    faulty(log_of_zero, SUMS, NO_ANSWER),
    faulty(lambda: make_wrapped(0.8), SUMS, ("never measured",), name="judge in a closure"),
    faulty(lambda: Panel(), SUMS, ("never measured",), name="judge in an attribute"),
    faulty(
        countdown_any,
        COUNTDOWN,
        ("other numbers", "missing answer is rewarded", "near miss", "several answers"),
        answer=solve,
        true=LAX,
    ),
    faulty(
        countdown_eval,
        COUNTDOWN,
        ("runs the answer as code",),
        answer=solve,
        true=("hangs", "raises", *LAX),
    ),
    faulty(
        keyword_only,
        INSTRUCTIONS,
        ("repetition is rewarded", "near miss", "every candidate"),
        BARE,
        answer=obey,
        true=LAX,
    ),
    faulty(same_for_all, INSTRUCTIONS, NO_ANSWER, BARE, answer=obey),
    faulty(longer_wins, SUMS, ("repetition is rewarded", *NO_ANSWER)),
    faulty(
        lambda: [exact, relative(longest_first)],
        SUMS,
        ("repetition is rewarded", "length is rewarded"),
        name="ranks the longest first",
    ),
    faulty(lambda: [exact, relative(shuffled_ranks)], SUMS, STATE, name="ranks by chance"),
    faulty(overlong_upside_down, SUMS, ("repetition is rewarded", *NO_ANSWER)),
    faulty(
        cosine_unclamped,
        SUMS,
        ("length is rewarded", "missing answer is rewarded", "repetition is rewarded"),
    ),
    faulty(sums_and_nothing, MIXED, ("right answer refused on some rows",)),
    faulty(
        lambda: [weighted(exact, 0.3), xml_formed],
        SUMS,
        ("format outweighs the answer", "nothing tells right from wrong"),
        name="format is heavier",
    ),
    faulty(
        lambda: [weighted(exact, 0.0), xml_formed],
        SUMS,
        NO_ANSWER,
        name="the answer weighs nothing",
    ),
    faulty(
        lambda: [weighted(exact, -1.0), xml_formed],
        SUMS,
        NO_ANSWER,
        name="the answer weighs less than nothing",
    ),
]
CASES = [*SOUND, *FAULTY]
CLOSED = frozenset(
    [
        *random.Random(43).sample(range(len(SOUND)), len(SOUND) // 2),
        *random.Random(44).sample(range(len(SOUND), len(CASES)), len(FAULTY) // 2),
    ]
)
"""Places in `CASES` that were not looked at while the rules were tuned."""


@dataclass
class Result:
    """Findings about one case."""

    case: Case
    kinds: list[str]
    """Kinds of the findings."""
    is_critical: bool
    seconds: float

    @property
    def false(self) -> list[str]:
        allowed = {*self.case.faults, *self.case.true}
        if self.case.may_warn and not self.is_critical:
            return []
        return [kind for kind in self.kinds if kind not in allowed]

    @property
    def is_right(self) -> bool:
        if self.case.faults:
            return not {*self.kinds}.isdisjoint(self.case.faults)
        if self.case.may_warn:
            return not self.is_critical
        return not self.false


def try_case(case: Case) -> Result:
    start = time.perf_counter()
    report = gn.check_rewards(case.make(), case.task, format=case.format, **case.options)
    return Result(
        case=case,
        kinds=list(dict.fromkeys(finding.kind for finding in report.findings)),
        is_critical=any(finding.severity == "critical" for finding in report.findings),
        seconds=time.perf_counter() - start,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--half", choices=("open", "closed"))
    parser.add_argument("--counts-only", action="store_true")
    chosen = parser.parse_args()
    lines = [
        "| reward | half | sound | found | of another kind |",
        "| --- | --- | --- | --- | --- |",
    ]
    counts: dict[str, dict[str, int]] = {}
    for place, case in enumerate(CASES):
        half = "closed" if place in CLOSED else "open"
        if chosen.half not in (None, half):
            continue
        count = counts.setdefault(
            half, dict.fromkeys(("sound", "alone", "faulty", "found", "findings", "false"), 0)
        )
        try:
            result = try_case(case)
        except Exception as error:  # a check that ends in an error finds nothing
            result = Result(case, [f"error: {error!r:.80}"], True, 0.0)
        count["faulty" if case.faults else "sound"] += 1
        count["found" if case.faults else "alone"] += result.is_right
        count["findings"] += len(result.kinds)
        count["false"] += len(result.false)
        kinds = ", ".join(kind for kind in result.kinds if kind not in result.false)
        is_sound = "" if case.faults else "yes"
        flag = "" if result.is_right else " **wrong**"
        found = f"{kinds or '-'}{flag}"
        lines.append(f"| {case.name} | {half} | {is_sound} | {found} | {', '.join(result.false)} |")
        if half == "open" or not chosen.counts_only:
            sys.stderr.write(f"{lines[-1]} {result.seconds:.1f} s\n")
    sys.stdout.write("# Rewards of public recipes\n\nWritten by `studies/check_recipes.py`.\n\n")
    for half, count in counts.items():
        sys.stdout.write(
            f"- {half} half: {count['found']} of {count['faulty']} faulty rewards found, "
            f"{count['alone']} of {count['sound']} sound ones left alone, "
            f"{count['false']} of {count['findings']} findings false.\n"
        )
    if not chosen.counts_only:
        sys.stdout.write("\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
