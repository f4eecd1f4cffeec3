"""A reward leaves as code with all that it uses, or is refused with the name of what holds it here."""

from __future__ import annotations

import functools
import importlib.util
import pickle
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import grpo_nb as gn
from grpo_nb.rewards.record import record_of
from grpo_nb.scaleout.code import CannotLeave, RewardsCode
from grpo_nb.scaleout.project import _Plan, _write_rewards

WORDS = re.compile(r"\w+", re.IGNORECASE)
LIMIT, FACTOR, NAMES = 12, 2, {"a": (1, 2.5), "b": None}
SLOT = gn.tasks.boxed()


def words_of(text: str) -> list[str]:
    return WORDS.findall(text)


class Scale:
    """Used by a reward."""

    top = LIMIT

    def of(self, count: int) -> float:
        return count / self.top


def varied(completions, weight=FACTOR, **columns):
    """Uses a constant, a pattern, a function, a class, an import and the kit."""
    texts = [gn.rewards.completion_text(c) for c in completions]
    return [Scale().of(len(Counter(words_of(t)))) * weight * len(NAMES) + (SLOT.extract(t) is not None) for t in texts]


def loaded(tmp_path: Path, rewards: list, name: str = "rewards_there") -> ModuleType:
    """The module that rewards.py is, imported by itself."""
    code = RewardsCode()
    run = type("Run", (), {"name": "a-run"})()
    plan = _Plan(run, None, rewards, code, [code.add(reward) for reward in rewards], [])
    _write_rewards(tmp_path, plan)
    spec = importlib.util.spec_from_file_location(name, tmp_path / "rewards.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TEXTS = ["one two two", r"\boxed{7} three", ""]


def test_a_function_takes_with_it_what_it_uses(tmp_path: Path) -> None:
    (there,) = loaded(tmp_path, [varied]).REWARDS
    assert there is not varied and there(completions=TEXTS) == varied(completions=TEXTS)
    assert pickle.loads(pickle.dumps(there))(completions=TEXTS) == varied(completions=TEXTS)
    text = (tmp_path / "rewards.py").read_text()
    assert "LIMIT = 12" in text and "from collections import Counter" in text and "Uses a constant" in text
    assert "test_code" not in text and "NAMES = {'a': (1, 2.5), 'b': None}" in text


def test_a_partial_and_a_coroutine_leave_too(tmp_path: Path) -> None:
    there = loaded(tmp_path, [functools.partial(varied, weight=3), waits]).REWARDS
    assert there[0](completions=TEXTS) == varied(completions=TEXTS, weight=3)
    assert gn.rewards.reward_name(there[0]) == "varied"
    import asyncio

    assert asyncio.run(there[1](completions=TEXTS)) == [1.0] * 3


@functools.lru_cache
def known(text: str) -> int:
    return len(text)


def found_later(completions, **columns):
    import numpy

    from grpo_nb.rewards.base import completion_text

    return [float(numpy.float64(known(completion_text(c)))) for c in completions]


def of_another_name(completions, **columns):
    return [float(known(c)) for c in completions]


of_another_name.__name__ = "brevity"


def test_what_is_imported_inside_a_function_is_there_elsewhere(tmp_path: Path) -> None:
    (there,) = loaded(tmp_path, [found_later]).REWARDS
    assert there(completions=TEXTS) == found_later(completions=TEXTS)
    code = RewardsCode()
    code.add(found_later)
    assert code.needs_kit and [pin.partition("==")[0] for pin in code.requirements()] == ["numpy"]


def test_a_reward_keeps_the_name_that_it_was_given(tmp_path: Path) -> None:
    (there,) = loaded(tmp_path, [of_another_name]).REWARDS
    assert there.__name__ == "brevity" and there(completions=TEXTS) == of_another_name(completions=TEXTS)


async def waits(completions, **columns):
    return [1.0 for _ in completions]


def test_rewards_of_the_kit_are_the_same_ones(tmp_path: Path) -> None:
    ours = [
        gn.rewards.correctness(weight=2.0, format=gn.tasks.hashes()), gn.rewards.json_answer(column=None, schema={"type": "object"}, format=gn.tasks.boxed()),
        gn.rewards.xml_tags(name="tags"), gn.rewards.regex_answer('a "b"'), gn.rewards.length(5, 9, unit="words"),
    ]  # fmt: skip
    there = loaded(tmp_path, ours).REWARDS
    assert [record_of(reward) for reward in there] == [record_of(reward) for reward in ours]
    assert [repr(reward) for reward in there] == [repr(reward) for reward in ours]


def closure_of(limit: int):
    def held(completions, **columns):
        return [float(len(c) < limit) for c in completions]

    return held


class Judge:
    def __call__(self, completions, **columns):
        return [0.0 for _ in completions]


slider = type("IntSlider", (), {"value": 3})()


def reads_a_widget(completions, **columns):
    return [slider.value for _ in completions]


def uses_a_lambda(completions, **columns):
    return [double(1.0) for _ in completions]


double = lambda number: 2 * number  # noqa: E731


def uses_a_file(completions, **columns):
    return [tiny.load_tiny for _ in completions]


def uses_a_file_inside(completions, **columns):
    from tests.support import tiny

    return [tiny.load_tiny for _ in completions]


REWARDS = {"length": 0.5}


def uses_a_taken_name(completions, **columns):
    return [REWARDS["length"] for _ in completions]


from tests.support import tiny  # noqa: E402


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        (
            closure_of(3),
            r"'held' uses limit of the function around held, a closure.*def held\(completions, limit=\.\.\.",
        ),
        (Judge(), "'Judge' is an object of the class Judge.*def NAME"),
        (reads_a_widget, "'reads_a_widget' uses slider, .*IntSlider, which lives in this process only.*SLIDER = "),
        (uses_a_lambda, "is or uses a lambda"),
        (uses_a_file, "uses the module tests.support.tiny, a file of your own.*from tests.support.tiny import NAME"),
        (uses_a_file_inside, "uses the module tests.support, a file of your own.*outside of functions"),
        (uses_a_taken_name, "uses another 'REWARDS' than rewards.py has already"),
        (functools.partial(varied, weight=slider), "uses weight, .*IntSlider"),
    ],
)
def test_what_cannot_leave_is_named(reward: object, told: str) -> None:
    with pytest.raises(CannotLeave, match=told) as caught:
        RewardsCode().add(reward)
    assert "\n" not in str(caught.value)


def test_two_things_of_one_name_are_not_mixed_up() -> None:
    code = RewardsCode()
    code.add(varied)
    with pytest.raises(
        CannotLeave, match=r"'second' uses another 'LIMIT' than rewards.py has already: rename one of the two"
    ):
        code._take_used({"LIMIT"}, {"LIMIT": 3.5}, "second")
