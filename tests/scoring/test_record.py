"""A run can tell whether its rewards are still the same, and make the kit's again from its record."""

import array
import collections
import decimal
import fractions
import functools
import json
import linecache
import os
import re
import subprocess
import sys
import threading
import types
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pandas
import pytest
import torch
from trl.rewards import get_soft_overlong_punishment

import grpo_nb as gn
from grpo_nb.scoring.record import differences, rebuilt, record_of
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


def written_class(text: str) -> Callable:
    """As in a notebook, whose classes have no file and whose functions have."""
    source = f"class Written:\n    def __call__(self, completions, **columns):\n        return [{text}]\n"
    name, names = f"<ipython-input-{text}>", {"__name__": "__main__"}
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
        self.factor, self.key, self.lock = factor, "sk-secret", threading.Lock()

    def __call__(self, completions: list, **columns: object) -> list[float]:
        return [self.factor * len(self.key) for _ in completions]


class Slotted:
    __slots__ = ("__factor",)

    def __init__(self, factor: float) -> None:
        self.__factor = factor

    def __call__(self, completions: list, **columns: object) -> list[float]:
        return [self.__factor for _ in completions]


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


def with_default(value: int) -> Callable:
    def scored(completions: list, *, factor: int = value, **columns: object) -> list[float]:
        return [factor for _ in completions]

    return scored


def circle() -> Callable:
    judge = Judge(1.0)
    judge.itself = [judge]
    return judge


KIT = gn.rewards.correctness
# Values of the standard library and of the usual packages, each with another one of its type.
VALUES = [
    (decimal.Decimal("0.1"), decimal.Decimal("0.2")),
    (fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    (uuid.UUID(int=1), uuid.UUID(int=2)),
    (collections.deque([1]), collections.deque([2])),
    (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
    (array.array("i", [1]), array.array("i", [2])),
    (memoryview(b"a"), memoryview(b"b")),
    (10**5000, 10**5000 + 1),
    (torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([2.0], dtype=torch.bfloat16)),
    (pandas.DataFrame({"a": [1]}), pandas.DataFrame({"a": [2]})),
    (pandas.Series([1]), pandas.Series([2])),
]
PAIRS = {
    "a parameter": (KIT(tolerance=0.1), KIT(tolerance=0.5), "tolerance was 0.1, is 0.5", True),
    "the format": (KIT(), KIT(format=gn.tasks.boxed()), "format was", True),
    "another kind": (KIT(), gn.rewards.maths(), "kind was 'correctness', is 'maths'", True),
    "a function": (KIT(), graded, "kind was 'correctness', is 'a function'", True),
    "the source": (graded, helper, "its source or its arguments", True),
    "a class of a notebook": (written_class("1.0"), written_class("2.0"), "its source or its arguments", True),
    "an argument": (functools.partial(graded, low=0.5), functools.partial(graded, low=1.0), "or its arguments", True),
    "a field": (Own(), Own(least=2), "or its arguments", True),
    "a closure": (make(0.1), make(0.2), "it holds other values now", True),
    "an attribute": (Judge(1.0), Judge(2.0), "it holds other values now", True),
    "a slot": (Slotted(1), Slotted(2), "it holds other values now", True),
    "an object in a closure": (make(Slotted(1)), make(Slotted(2)), "it holds other values now", True),
    "a default": (with_default(1), with_default(2), "it holds other values now", True),
    "a method": (Judge(1.0).__call__, Judge(2.0).__call__, "it holds other values now", True),
    "a function in a partial": (
        functools.partial(graded, key=make(1)), functools.partial(graded, key=make(2)), "it holds other values now", True,
    ),
    "trl's own": (
        get_soft_overlong_punishment(512, 128), get_soft_overlong_punishment(64, 8), "it holds other values now", True,
    ),
    **{
        f"a {type(one).__name__}": (make(one), make(other), "it holds other values now", True)
        for one, other in VALUES
    },
    # A lock, a client or a model is not the same in two processes, and counts by its type.
    "no data": (make(threading.Lock()), make(threading.Lock()), "", False),
    "what state_dict holds": (Counting(0), Counting(7), "", False),
    "a circle": (circle(), circle(), "", False),
}  # fmt: skip


@pytest.mark.parametrize("case", PAIRS)
def test_how_two_rewards_differ(case: str) -> None:
    one, other, told, is_another = PAIRS[case]
    before, now = record_of(one), record_of(other)
    assert differences(before, record_of(one)) == "", "the same reward"
    assert told in differences(before, now) and bool(told) == bool(differences(before, now))
    identities = [(record["hash"], record["state"]) for record in (before, now)]
    assert (identities[0] != identities[1]) == is_another
    kept = json.loads(json.dumps(before))
    assert kept == before and differences(kept, now) == differences(before, now), (
        "as run.json has it"
    )


def test_state_is_the_same_in_every_process() -> None:
    program = (
        "import functools, numpy, trl.rewards\n"
        "from grpo_nb.scoring.record import record_of\n"
        "punish = trl.rewards.get_soft_overlong_punishment(512, 128)\n"
        "held = {'words': {'a', 'b', 'c'}, 'numbers': numpy.arange(3.0), 'other': object()}\n"
        "print(record_of(functools.partial(punish, **held))['state'])\n"
    )
    states = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        states.add(done.stdout.strip())
    (state,) = states
    assert re.fullmatch(r"2:[0-9a-f]{16}", state)


@pytest.mark.parametrize("state", [None, "0:0123456789abcdef"])
def test_records_of_earlier_versions_have_not_changed(state: str | None) -> None:
    before = {**record_of(make(1)), "state": state}
    assert differences(before, record_of(make(2))) == ""


def test_texts_of_the_users_own_code_are_not_written_down() -> None:
    for reward in (
        make("sk-secret"),
        functools.partial(graded, key="sk-secret"),
        Judge(1.0),
        Own(name="sk-secret"),
    ):
        held = {key: value for key, value in record_of(reward).items() if key != "source"}
        assert "secret" not in json.dumps(held)


@pytest.mark.parametrize("reward", KINDS.values(), ids=KINDS)
def test_a_reward_of_the_kit_is_made_again_from_its_record(reward: gn.rewards.Reward) -> None:
    assert rebuilt(json.loads(json.dumps(record_of(reward)))) == reward


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": ""}, {"kind": "Own"}, {"kind": "open"}, {"parameters": {"format": "__import__('os').getcwd()"}},
        {"parameters": {"nothing": 1}}, {"parameters": {"format": {"nothing": 7}}}, {"parameters": []},
    ],
)  # fmt: skip
def test_a_record_made_up_by_somebody_runs_nothing(changes: dict) -> None:
    assert rebuilt({**record_of(KIT()), **changes}) is None
