"""A run can tell whether its rewards are still the same, in another process too, and make the kit's again from its record."""

import functools
import json
import linecache
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.rewards.record import differences, rebuilt, record_of
from tests.conftest import ROOT
from tests.rewards.cases import TABLES

LIMIT = 3


def helper(text: str) -> bool:
    return any(len(word) > LIMIT for word in text.split()) or again(text[1:])


def again(text: str) -> bool:
    return bool(text) and helper(text)


def graded(completions: list, *, low: float = 0.0, **columns: object) -> list[float]:
    return [low + helper(c) for c in completions]


def make(tolerance: float, cache: object = None) -> Callable:
    def closed(completions: list, **columns: object) -> list[float]:
        return [tolerance + bool(cache) for _ in completions]

    return closed


def written(text: str) -> Callable:
    """As in a notebook that was lost: without a source."""
    names: dict = {}
    exec(f"def written(completions, **columns): return [{text} for c in completions]", names)
    return names["written"]


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
    "another kind": (KIT(), gn.rewards.maths(), "it was correctness, is maths", True),
    "a function": (KIT(), graded, "it was correctness, is a function", True),
    "the source": (graded, helper, "its source is another", True),
    "a class of a notebook": (written_class("1.0"), written_class("2.0"), "its source is another", True),
    "an argument": (
        functools.partial(graded, low=0.5),
        functools.partial(graded, low=1.0),
        "other values of low",
        True,
    ),
    "a field": (Own(), Own(least=2), "other values of least", True),
    # What may be a memory is told, and makes no other reward of it.
    "a closure": (make(0.1), make(0.2), "other values of tolerance", False),
    "a cache": (make(1, {}), make(1, {"text": 1.0}), "other values of cache", False),
    "a set": (make(1, {"a", "b"}), make(1, {"a", "c"}), "other values of cache", False),
    "an attribute": (Judge(1.0), Judge(2.0), "other values of factor", False),
}


@pytest.mark.parametrize("case", PAIRS)
def test_how_two_rewards_differ(case: str) -> None:
    one, other, told, is_another = PAIRS[case]
    before, now = record_of(one), record_of(other)
    assert differences(before, record_of(one)) == "", "the same reward"
    assert told in differences(before, now) and (before["hash"] != now["hash"]) == is_another
    kept = json.loads(json.dumps(before))
    assert kept == before and differences(kept, now) == differences(before, now), "as run.json has it"


def test_what_a_helper_uses_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = record_of(graded), record_of(Own())
    monkeypatch.setitem(globals(), "LIMIT", 4)
    assert [differences(old, record_of(now)) for old, now in zip(before, (graded, Own()), strict=True)] == [
        "other values of LIMIT"
    ] * 2
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "again", written("True"))
    assert "again" in differences(before[0], record_of(graded))


def test_texts_of_the_users_own_code_are_not_written_down() -> None:
    for reward in (make(1, "sk-secret"), functools.partial(graded, key="sk-secret"), Judge(1.0), Own(name="sk-secret")):
        held = {key: value for key, value in record_of(reward).items() if key != "source"}
        assert "secret" not in json.dumps(held)


def test_a_model_or_what_refers_to_itself_is_not_looked_into() -> None:
    circle: list = []
    circle.append(circle)
    assert record_of(make(1, circle)) == record_of(make(1, circle))
    assert record_of(make(1, threading.Lock()))["uses"] == record_of(make(1, threading.Lock()))["uses"]


@pytest.mark.parametrize("reward", [reward for reward, _ in TABLES.values()], ids=TABLES)
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


_THEIRS = """
WORDS = {"one", "two", "three", "four", "five"}
def find(text): return next((w for w in WORDS if w in text), None)
def first(completions, **columns): return [float(find(c) in {"one", "two", "six"}) for c in completions]
"""


def test_another_process_agrees(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(_THEIRS)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import theirs; from grpo_nb.rewards.record import record_of; "
        "print(record_of(theirs.first)); print(*(m for m in ('torch', 'datasets') if m in sys.modules))"
    )
    said = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed}, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.add(done.stdout.strip())
    (same,) = said
    assert "'WORDS': " in same and "torch" not in same
