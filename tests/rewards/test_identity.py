"""Two rewards are the same if they compute the same, in this process and in another one."""

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch

import grpo_nb as gn
from grpo_nb.rewards.identity import describe_difference, differing_parts, identity_of, may_be_memory, parts_of

ROOT = Path(__file__).resolve().parents[2]
rewards = gn.rewards
LIMIT = 3
WORDS = {"one", "two", "three", "four"}


def helper(text: str) -> bool:
    return text in WORDS and again(text)


def again(text: str) -> bool:
    return len(text) > LIMIT or helper(text[1:])


def graded(completions: list, *, low: float = 0.0, **columns: object) -> list[float]:
    return [low + helper(c) for c in completions]


def make(tolerance: float, words: object = (), inner: Callable | None = None) -> Callable:
    def closed(completions: list, **columns: object) -> list[float]:
        return [tolerance + (c in words) + (inner is None) for c in completions]

    return closed


def with_default(value: float) -> Callable:
    def defaulted(completions: list, low: float = value, **columns: object) -> list[float]:
        return [low for c in completions]

    return defaulted


def written(text: str) -> Callable:
    names: dict = {}
    exec(f"def written(completions, **columns): return [{text} for c in completions]", names)
    return names["written"]


def written_class(text: str, limit: int) -> Callable:
    """As in a notebook, whose classes have no file."""
    names: dict = {"__name__": "__main__"}
    source = f"class Written:\n limit = {limit}\n def __call__(self, completions, **columns): return [{text}]"
    exec(compile(source, "<ipython-input-1>", "exec"), names)
    return names["Written"]()


@dataclasses.dataclass(frozen=True, repr=False)
class Own(gn.rewards.base.Reward):
    least: int = 1
    seen: list = dataclasses.field(default_factory=list, compare=False)

    def score_text(self, text: str, row: dict) -> float:
        return float(len(text) > self.least + LIMIT)


class Stateful:
    def __init__(self, factor: float) -> None:
        self.factor, self.count, self._lock = factor, 0, threading.Lock()

    def __call__(self, completions: list, **columns: object) -> list[float]:
        return [self.factor * LIMIT for _ in completions]

    def state_dict(self) -> dict:
        return {"count": self.count}

    def load_state_dict(self, state: dict) -> None:
        self.count = state["count"]


SAME_AND_OTHER = {
    "a field": (
        lambda: rewards.correctness(tolerance=0.1),
        lambda: rewards.correctness(tolerance=0.5),
        "tolerance was 0.1, is 0.5",
    ),
    "the format": (
        lambda: rewards.xml_format(format=gn.tasks.xml()),
        lambda: rewards.xml_format(format=gn.tasks.think_answer()),
        "format.name was 'xml', is 'think'",
    ),
    "a closure": (lambda: make(0.1), lambda: make(0.2), "closure tolerance was 0.1, is 0.2"),
    "a set": (lambda: make(1, {"a", "b", "c"}), lambda: make(1, {"a", "b", "d"}), "closure words was set"),
    "an array": (lambda: make(1, numpy.arange(3)), lambda: make(1, numpy.arange(1, 4)), "closure words was ndarray"),
    "a tensor": (
        lambda: make(1, torch.ones(2, dtype=torch.bfloat16)),
        lambda: make(1, torch.zeros(2, dtype=torch.bfloat16)),
        "closure words was Tensor",
    ),
    "a pattern": (lambda: make(1, re.compile("a")), lambda: make(1, re.compile("a", re.I)), "closure words was Pattern"),
    "an inner closure": (
        lambda: make(1, inner=make(1)), lambda: make(1, inner=make(2)), "closure inner.closure tolerance was 1",
    ),
    "a default": (lambda: with_default(1), lambda: with_default(2), "default low was 1, is 2"),
    "a partial": (
        lambda: functools.partial(graded, low=0.5),
        lambda: functools.partial(graded, low=1.0),
        "argument low was 0.5, is 1.0",
    ),
    "a partial's function": (
        lambda: functools.partial(make(1), low=0.5),
        lambda: functools.partial(make(2), low=0.5),
        "function.closure tolerance was 1, is 2",
    ),
    "a dataclass of the user's": (lambda: Own(least=1), lambda: Own(least=2), "field least was 1, is 2"),
    "an attribute": (lambda: Stateful(1.0), lambda: Stateful(2.0), "attribute factor was 1.0, is 2.0"),
    "code without a file": (lambda: written("1.0"), lambda: written("2.0"), "other code"),
    "a class without a file": (lambda: written_class("1.0", 3), lambda: written_class("2.0", 3), "other code"),
    "an attribute of such a class": (lambda: written_class("1.0", 3), lambda: written_class("1.0", 4), "other code"),
    "lambdas on one line": (lambda: (lambda completions: [1.0]), lambda: (lambda completions: [2.0]), "other code"),
    "another function": (lambda: graded, lambda: helper, "kind was function graded, is function helper"),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME_AND_OTHER)
def test_what_a_reward_computes_with_is_part_of_it(case: str) -> None:
    same, other, told = SAME_AND_OTHER[case]
    assert identity_of(same()) == identity_of(same()), "two equal rewards"
    assert identity_of(same()) != identity_of(other())
    said = describe_difference(parts_of(same()), parts_of(other()))
    assert said == told if case == "another function" else told in said, said


def test_a_global_and_the_code_of_a_helper_are_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {reward: parts_of(reward) for reward in (graded, Own(), Stateful(1.0))}
    monkeypatch.setitem(globals(), "LIMIT", 4)
    assert [describe_difference(parts, parts_of(reward)) for reward, parts in before.items()] == [
        "global helper.global again.global LIMIT was 3, is 4", "global LIMIT was 3, is 4", "global LIMIT was 3, is 4",
    ]  # fmt: skip
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "again", written("True"))
    assert describe_difference(before[graded], parts_of(graded)).startswith(
        "global helper.global again was function again"
    )


def test_what_a_reward_learns_is_not_part_of_it() -> None:
    own, stateful = Own(), Stateful(1.0)
    before = identity_of(own), identity_of(stateful)
    own.seen.append("text")
    stateful.count += 1
    assert (identity_of(own), identity_of(stateful)) == before


def test_a_cache_can_be_told_from_a_parameter() -> None:
    cache: dict = {}
    reward, before = make(1, cache), parts_of(make(1, cache))
    cache["text"] = 1.0
    (changed,) = differing_parts(before, parts_of(reward))
    assert changed == "closure words" and may_be_memory(changed)
    others = ("code", "global helper code", "closure inner.tolerance", "argument low", "kind")
    assert not any(map(may_be_memory, others))


def test_texts_of_the_users_own_code_are_not_written_down() -> None:
    class Judge:
        def __init__(self, key: str) -> None:
            self.key = key

        def __call__(self, completions: list, **columns: object) -> list[float]:
            return [float(len(self.key))] * len(completions)

    closed = make(1, "sk-secret"), make(1, {"k": "sk-secret"})
    for reward in (*closed, functools.partial(graded, key="sk-secret"), Judge("sk-secret")):
        assert "secret" not in json.dumps(parts_of(reward))
    assert parts_of(rewards.correctness(column="gold"))["column"] == "'gold'"


def test_what_refers_to_itself_and_to_much_is_read_in_the_end() -> None:
    tensors = torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta"), torch.ones(0)
    for odd in (*tensors, numpy.array(["a", None]), iter([])):
        assert identity_of(make(1, odd)) == identity_of(make(1, odd))
    nodes = [Stateful(number) for number in range(12)]
    for node in nodes:
        node.others = list(nodes)  # more ways through them than anybody can walk
    parts = parts_of(nodes[0])
    assert 1000 < len(parts) < 5000 and "itself" in parts.values()
    assert identity_of(nodes[0]) == identity_of(nodes[0])


_IN_ANOTHER_PROCESS = """
import sys
from grpo_nb import rewards; from grpo_nb.tasks import formats
from grpo_nb.rewards.identity import identity_of
sys.path.insert(0, sys.argv[1])
import theirs
made = [theirs.first, theirs.Second({"a", "b", "c"}), rewards.maths()]
print(*map(identity_of, made), "torch" in sys.modules)
"""
_THEIRS = """
import threading
WORDS = {"one", "two", "three", "four", "five"}
def find(text): return next((w for w in WORDS if w in text), None)
def first(completions, **columns): return [float(find(c) in {"one", "two", "six"}) for c in completions]
class Second:
    def __init__(self, words):
        self.words, self.lock, self.made = frozenset(words), threading.Lock(), [object(), find]
    def __call__(self, completions, **columns): return [float(c in self.words) for c in completions]
"""


def test_another_process_agrees(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(_THEIRS)
    said = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", _IN_ANOTHER_PROCESS, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed}, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    assert said[0] == said[1] and len(set(said[0][:3])) == 3 and said[0][3] == "False"
