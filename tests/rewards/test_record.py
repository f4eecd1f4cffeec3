"""A run can tell whether its rewards are still the same, and make the kit's again from its record."""

import functools
import json
import linecache
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

import grpo_nb as gn
from grpo_nb.rewards.record import differences, rebuilt, record_of
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


KIT = gn.rewards.correctness
PAIRS = {
    "a parameter": (KIT(tolerance=0.1), KIT(tolerance=0.5), "tolerance was 0.1, is 0.5", True),
    "the format": (KIT(), KIT(format=gn.tasks.boxed()), "format was", True),
    "another kind": (KIT(), gn.rewards.maths(), "kind was 'correctness', is 'maths'", True),
    "a function": (KIT(), graded, "kind was 'correctness', is 'a function'", True),
    "the source": (graded, helper, "its source or its arguments", True),
    "a class of a notebook": (written_class("1.0"), written_class("2.0"), "its source or its arguments", True),
    "an argument": (functools.partial(graded, low=0.5), functools.partial(graded, low=1.0), "or its arguments", True),
    "a field": (Own(), Own(least=2), "or its arguments", True),
    # What it uses from outside, which may be a memory, is not looked at.
    "a closure": (make(0.1), make(0.2), "", False),
    "an attribute": (Judge(1.0), Judge(2.0), "", False),
}


@pytest.mark.parametrize("case", PAIRS)
def test_how_two_rewards_differ(case: str) -> None:
    one, other, told, is_another = PAIRS[case]
    before, now = record_of(one), record_of(other)
    assert differences(before, record_of(one)) == "", "the same reward"
    assert told in differences(before, now) and bool(told) == bool(differences(before, now))
    assert (before["hash"] != now["hash"]) == is_another
    kept = json.loads(json.dumps(before))
    assert kept == before and differences(kept, now) == differences(before, now), "as run.json has it"


def test_texts_of_the_users_own_code_are_not_written_down() -> None:
    for reward in (make("sk-secret"), functools.partial(graded, key="sk-secret"), Judge(1.0), Own(name="sk-secret")):
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
