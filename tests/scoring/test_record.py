"""A run knows if its rewards are the same, and rebuilds rewards of the kit from its record."""

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import json
import linecache
import operator
import os
import pathlib
import re
import subprocess
import sys
import threading
import types
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import numpy
import pandas
import pytest
import torch
from trl.rewards import get_soft_overlong_punishment

import grpo_nb as gn
from grpo_nb.rewards.base import is_relative, relative
from grpo_nb.scoring.record import difference_in_words, rebuild_reward, record_of
from tests.rewards.cases import KINDS

LIMIT = 3


def helper(text: str) -> bool:
    return any(len(word) > LIMIT for word in text.split())


def graded(completions: list, *, low: float = 0.0, **columns: object) -> list[float]:
    return [low + helper(c) for c in completions]


def make(tolerance: object) -> Callable:
    def closed(completions: list, **columns: object) -> list[float]:
        return [bool(tolerance) for _ in completions]

    return closed


def notebook_class(text: str, attribute: str = "target = 1") -> Callable:
    """Return an object of a class as in a notebook, which has no file, but its methods have one."""
    source = (
        "import functools\n"
        "class Written:\n"
        f"    {attribute}\n"
        "    def __call__(self, completions, **columns):\n"
        f"        return [{text}]\n"
    )
    name = f"<ipython-input-{text}-{attribute}>"
    names = {"__name__": "__main__"}
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), names)
    return names["Written"]()


@dataclass(frozen=True)
class Own(gn.rewards.Reward):
    least: int = 1

    def score_text(self, text: str, row: dict) -> float:
        return float(len(text) > self.least + LIMIT)


class Judge:
    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.key = "sk-secret"
        self.lock = threading.Lock()

    def __call__(self, completions: list, **columns: object) -> list[float]:
        return [self.factor * len(self.key) for _ in completions]


class Weighing:
    """A reward that holds an object with a weight, which is not the weight of the reward."""

    def __init__(self, weight: float) -> None:
        self.rule = types.SimpleNamespace(weight=weight)

    def __call__(self, completions: list, **columns: object) -> list[float]:
        return [self.rule.weight for _ in completions]


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Counting:
    def __init__(self, calls: int) -> None:
        self._calls = calls

    def __call__(self, completions: list, **columns: object) -> list[float]:
        self._calls += 1
        return [0.0 for _ in completions]

    def state_dict(self) -> dict[str, int]:
        return {"calls": self._calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._calls = state["calls"]


class CountingJudge(Counting):
    """A reward that saves how often it was called, but not its bonus."""

    def __init__(self, bonus: float, calls: int = 0) -> None:
        super().__init__(calls)
        self.bonus = bonus


def with_default(value: int) -> Callable:
    def scored(completions: list, factor: int = value, **columns: object) -> list[float]:
        return [factor for _ in completions]

    return scored


def with_keyword_default(value: int) -> Callable:
    def scored(completions: list, *, factor: int = value, **columns: object) -> list[float]:
        return [factor for _ in completions]

    return scored


def unchanged(completions: list, *, low: float = 0.0, **columns: object) -> list[float]:
    return [low for _ in completions]


def circle() -> Callable:
    judge = Judge(1.0)
    judge.itself = [judge]
    return judge


KIT = gn.rewards.correctness
OTHER_VALUES = "it holds other values now"
OTHER_SOURCE = "its source changed"
# Values of the standard library and of the usual packages, each with another value of its type.
VALUES = [
    (decimal.Decimal("0.1"), decimal.Decimal("0.2")),
    (fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    (uuid.UUID(int=1), uuid.UUID(int=2)),
    (collections.deque([1]), collections.deque([2])),
    (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
    (array.array("i", [1]), array.array("i", [2])),
    (torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([2.0], dtype=torch.bfloat16)),
    (pandas.DataFrame({"a": [1]}), pandas.DataFrame({"a": [2]})),
    (pandas.Series([1]), pandas.Series([2])),
    (numpy.array([1.0]), numpy.array([2.0])),
    (numpy.float32(1.0), numpy.float32(2.0)),
    (re.compile("a"), re.compile("b")),
    (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)),
    (pathlib.PurePosixPath("a"), pathlib.PurePosixPath("b")),
    (operator.itemgetter(1), operator.itemgetter(2)),
    (Colour.RED, Colour.BLUE),
    (range(2), range(3)),
    ({(1, 2): "a"}, {(1, 2): "b"}),
    ({1, 2}, {1, 3}),
    (Own, Weighing),
]
DIFFERENT = [
    pytest.param(
        KIT(tolerance=0.1),
        KIT(tolerance=0.5),
        "it was correctness(tolerance=0.1) and is correctness(tolerance=0.5)",
        id="parameter",
    ),
    pytest.param(KIT(), KIT(format=gn.tasks.boxed()), "is correctness(format=", id="format"),
    pytest.param(
        KIT(format=dataclasses.replace(gn.tasks.xml(), name="mine")),
        KIT(format=dataclasses.replace(gn.tasks.boxed(), name="mine")),
        "its parameters changed",
        id="format of the same name",
    ),
    pytest.param(KIT(), gn.rewards.maths(), "it was correctness() and is maths()", id="kind"),
    pytest.param(KIT(), graded, "it was correctness() and is a function", id="function"),
    pytest.param(graded, helper, OTHER_SOURCE, id="source"),
    pytest.param(notebook_class("1.0"), notebook_class("2.0"), OTHER_SOURCE, id="notebook class"),
    pytest.param(
        notebook_class("1.0"),
        notebook_class("1.0", "target = 2"),
        OTHER_SOURCE,
        id="attribute of a notebook class",
    ),
    *[
        pytest.param(
            notebook_class("1.0", f"@{decorator}\n    def limit(self): return 0.5"),
            notebook_class("1.0", f"@{decorator}\n    def limit(self): return 0.9"),
            OTHER_SOURCE,
            id=f"{decorator} of a notebook class",
        )
        for decorator in ("property", "functools.cached_property")
    ],
    pytest.param(
        functools.partial(graded, low=0.5),
        functools.partial(graded, low=1.0),
        OTHER_VALUES,
        id="argument of a partial",
    ),
    pytest.param(Own(), Own(least=2), OTHER_VALUES, id="field"),
    pytest.param(make(0.1), make(0.2), OTHER_VALUES, id="closure"),
    pytest.param(Judge(1.0), Judge(2.0), OTHER_VALUES, id="attribute"),
    pytest.param(Weighing(0.3), Weighing(0.7), OTHER_VALUES, id="weight of a part"),
    pytest.param(
        Judge(1.0).__call__, Judge(2.0).__call__, OTHER_VALUES, id="object of a bound method"
    ),
    pytest.param(with_default(1), with_default(2), OTHER_VALUES, id="default"),
    pytest.param(
        with_keyword_default(1), with_keyword_default(2), OTHER_VALUES, id="keyword default"
    ),
    pytest.param(CountingJudge(1), CountingJudge(9), OTHER_VALUES, id="not saved by state_dict"),
    pytest.param(
        get_soft_overlong_punishment(512, 128),
        get_soft_overlong_punishment(64, 8),
        OTHER_VALUES,
        id="reward of trl",
    ),
    *[
        pytest.param(make(one), make(other), OTHER_VALUES, id=type(one).__name__)
        for one, other in VALUES
    ],
]
SAME = [
    # A lock, a client or a model differs between two processes, and counts by its type.
    pytest.param(make(threading.Lock()), make(threading.Lock()), id="no data"),
    pytest.param(Counting(0), Counting(7), id="saved by state_dict"),
    pytest.param(Counting(0).__call__, Counting(7).__call__, id="bound method, saved"),
    pytest.param(CountingJudge(1, 0), CountingJudge(1, 7), id="saved next to another value"),
    pytest.param(circle(), circle(), id="cycle"),
    pytest.param(
        # The order in which a set of these two numbers is written is that of its source.
        notebook_class("1.0", "target = {0, 8}"),
        notebook_class("1.0", "target = {8, 0}"),
        id="order of a set in a notebook class",
    ),
    pytest.param(make(Judge(1.0)), make(Judge(2.0)), id="object in a closure"),
]


def identity(record: dict) -> tuple[str, str]:
    return record["hash"], record["state"]


@pytest.mark.parametrize(("one", "other", "message"), DIFFERENT)
def test_different_rewards_have_different_records(one, other, message: str) -> None:
    before = record_of(one)
    now = record_of(other)
    assert message in difference_in_words(before, now)
    assert identity(before) != identity(now)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_rewards_have_equal_records(one, other) -> None:
    before = record_of(one)
    now = record_of(other)
    assert difference_in_words(before, now) == ""
    assert identity(before) == identity(now)


@pytest.mark.parametrize(("one", "other", "message"), DIFFERENT)
def test_record_of_a_reward_does_not_change(one, other, message: str) -> None:
    assert difference_in_words(record_of(one), record_of(one)) == ""


@pytest.mark.parametrize(("one", "other", "message"), DIFFERENT)
def test_record_in_a_file_is_compared_as_in_memory(one, other, message: str) -> None:
    before = record_of(one)
    read = json.loads(json.dumps(before))
    assert read == before
    assert difference_in_words(read, record_of(other)) == difference_in_words(
        before, record_of(other)
    )


def test_record_is_the_same_in_every_version() -> None:
    # A run that was recorded with these hashes can be resumed.
    before = {"kind": "", "hash": "deca9e67bd08cb07", "state": "828dc4f98912f222"}
    assert difference_in_words(before, record_of(unchanged)) == ""


def test_record_without_a_state_counts_as_changed() -> None:
    before = record_of(Judge(1.0))
    del before["state"]
    assert difference_in_words(before, record_of(Judge(1.0))).startswith(OTHER_VALUES)


def test_kit_record_without_a_state_is_unchanged() -> None:
    before = record_of(KIT())
    del before["state"]
    assert difference_in_words(before, record_of(KIT())) == ""


def test_attribute_of_a_function_without_source_is_not_its_source() -> None:
    names = {}
    exec("def solved(completions, **columns):\n    return [1.0]\n", names)
    before = record_of(names["solved"])
    names["solved"].least = 2.0
    now = record_of(names["solved"])
    assert now["source"].startswith("source not available")
    assert difference_in_words(before, now).startswith(OTHER_VALUES)


def test_record_of_a_notebook_class_has_no_value_of_an_attribute() -> None:
    record = record_of(notebook_class("1.0", "key = 'sk-secret'"))
    assert "key = " in record["source"]
    assert "sk-secret" not in str(record)


def test_state_is_the_same_in_every_process() -> None:
    program = (
        "import functools, numpy\n"
        "from grpo_nb.scoring.record import record_of\n"
        "def limited(most):\n"
        "    return lambda completions, **columns: [len(c) < most for c in completions]\n"
        "held = {'words': {'a', 'b', 'c'}, 'numbers': numpy.arange(3.0), 'other': object()}\n"
        "print(record_of(functools.partial(limited(9), **held))['state'])\n"
    )
    states = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program]
        states.add(subprocess.check_output(command, env=environment, text=True).strip())
    (state,) = states
    assert re.fullmatch(r"[0-9a-f]{16}", state)


def test_state_ignores_whether_an_event_is_set() -> None:
    event = threading.Event()
    before = record_of(functools.partial(make(1), event=event))
    event.set()
    assert difference_in_words(before, record_of(functools.partial(make(1), event=event))) == ""


@pytest.mark.parametrize(
    "reward",
    [
        pytest.param(make("sk-secret"), id="closure"),
        pytest.param(functools.partial(graded, key="sk-secret"), id="partial"),
        pytest.param(Judge(1.0), id="attribute"),
        pytest.param(Own(name="sk-secret"), id="field"),
    ],
)
def test_texts_of_a_users_own_reward_are_not_recorded(reward) -> None:
    record = record_of(reward)
    del record["source"]
    assert "secret" not in json.dumps(record)


@pytest.mark.parametrize("reward", KINDS.values(), ids=KINDS)
def test_kit_reward_is_rebuilt_from_its_record(reward: gn.rewards.Reward) -> None:
    assert rebuild_reward(json.loads(json.dumps(record_of(reward)))) == reward


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": ""},
        {"kind": "Own"},
        {"kind": "open"},
        {"parameters": {"format": "__import__('os').getcwd()"}},
        {"parameters": {"nothing": 1}},
        {"parameters": {"format": {"nothing": 7}}},
        {"parameters": []},
        {"kind": []},
        {"kind": "Reward", "parameters": {}},
        {"kind": "code_tests", "parameters": {"limits": {"cpu_seconds": "x"}}},
    ],
    ids=str,
)
def test_forged_record_is_not_rebuilt(changes: dict) -> None:
    assert rebuild_reward({**record_of(KIT()), **changes}) is None


def test_record_without_parameters_is_not_rebuilt() -> None:
    assert rebuild_reward({"kind": "correctness"}) is None


@pytest.mark.parametrize(
    ("of_numpy", "of_python"),
    [
        pytest.param(KIT(weight=numpy.float32(2)), KIT(), id="weight"),
        pytest.param(
            gn.rewards.exact_text(is_literal=numpy.bool_(True)),
            gn.rewards.exact_text(),
            id="boolean",
        ),
        pytest.param(
            gn.rewards.judge(len, "Kind?", scale=(numpy.int64(1), 5)),
            gn.rewards.judge(len, "Kind?"),
            id="scale",
        ),
    ],
)
def test_number_of_numpy_is_recorded_as_one_of_python(of_numpy, of_python) -> None:
    assert record_of(of_numpy)["hash"] == record_of(of_python)["hash"]


def test_reward_marked_as_relative_is_rebuilt() -> None:
    reward = gn.rewards.relative(KIT(tolerance=0.1))
    rebuilt = rebuild_reward(json.loads(json.dumps(record_of(reward))))
    assert rebuilt == KIT(tolerance=0.1)
    assert is_relative(rebuilt)


@pytest.mark.parametrize(
    "reward",
    [
        pytest.param(make(1), id="function"),
        pytest.param(Judge(1.0), id="object"),
        pytest.param(KIT(), id="kit reward"),
    ],
)
def test_mark_of_a_reward_is_noticed_as_that(reward: Callable) -> None:
    before = record_of(reward)
    now = record_of(relative(reward))
    assert difference_in_words(before, now) == "only one of the two is marked as relative"


def test_mark_of_a_partial_is_noticed() -> None:
    before = gn.scoring.record_of(functools.partial(graded, low=0.5))
    now = gn.scoring.record_of(relative(functools.partial(graded, low=0.5)))
    assert difference_in_words(before, now) == "only one of the two is marked as relative"
    assert not difference_in_words(now, now)
