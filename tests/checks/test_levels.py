"""The level to train on is found by measuring: with stand-ins for what a small model can do, a larger one and a perfect one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.checks.levels import LevelChoice, choose_level
from grpo_nb.generation.samples import Completion

REWARDS = [gn.rewards.correctness(weight=2.0), gn.rewards.xml_format(), gn.rewards.xml_tags()]


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> tuple:
    settings = gn.preset("cpu", model=str(tiny_folder))
    model, tokenizer = gn.load_model(settings)
    options = gn.tasks.ARITHMETIC_LEVELS
    return (
        model,
        tokenizer,
        [gn.load_task("arithmetic", settings, tokenizer=tokenizer, **one) for one in options],
        settings,
    )


@pytest.fixture
def choose(loaded: tuple, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LevelChoice]:
    """Choose among the levels for a model of which so many of a group of eight answers are right at each level."""
    model, tokenizer, levels, settings = loaded

    def chosen(ability: list[int], **options: float) -> LevelChoice:
        rights = {
            row["question"]: right
            for task, right in zip(levels, ability, strict=True)
            for row in task.train
        }

        def generate(_: object, __: object, prompts: list, **more: object) -> list[Completion]:
            asked = [prompt[-1]["content"] for prompt in prompts]
            values = [
                eval(question.removeprefix("What is ").removesuffix("?")) for question in asked
            ]
            given = [value if i % 8 < rights[asked[i]] else -1 for i, value in enumerate(values)]
            return [
                Completion(gn.tasks.xml().render("so", str(value)), 20, False) for value in given
            ]

        monkeypatch.setattr("grpo_nb.generation.sampling.generate", generate)
        return choose_level(model, tokenizer, levels, REWARDS, settings, **options)

    return chosen


@pytest.mark.parametrize(
    ("ability", "level", "measured", "has_room", "said"),
    [
        ([1, 0, 0, 0, 0, 0], 0, 1, True, "Level 0 is taken: 12% of the answers are right before training. There is som"),
        ([5, 0, 0, 0, 0, 0], 0, 1, True, "62%"),
        ([8, 6, 4, 0, 0, 0], 2, 3, True, "Level 2 is taken: 50%"),
        ([8, 8, 8, 8, 8, 3], 5, 6, True, "Level 5 is taken: 38%"),
        ([8, 8, 8, 8, 8, 8], 5, 6, False, "Nothing is left to learn: at every level two thirds or more are right."),
        ([0, 0, 0, 0, 0, 0], 0, 1, True, "No level gives a signal."),
        ([8, 7, 0, 0, 0, 0], 1, 3, False, "Level 1 is taken: 88% of the answers are right before training. Level 2 gives no"),
        ([8, 0, 0, 0, 0, 0], 1, 2, True, "No level gives a signal."),
    ],
)  # fmt: skip
def test_the_easiest_level_that_is_not_mastered_is_taken(
    choose: Callable,
    loaded: tuple,
    ability: list[int],
    level: int,
    measured: int,
    has_room: bool,
    said: str,
) -> None:
    choice = choose(ability)
    assert (choice.chosen, len(choice.baselines), choice.has_room) == (level, measured, has_room)
    assert said in choice.sentence and choice.task is loaded[2][level]
    lines = repr(choice).splitlines()
    assert [line.split()[0] for line in lines if line.endswith("taken")] == [str(level)]
    assert sum("not measured" in line for line in lines) == 6 - measured
    assert "8 of 8" in lines[2 + level] if 0 < ability[level] < 8 else "0 of 8" in lines[2 + level]
    assert "<b>taken</b>" in choice._repr_html_()


def test_no_level_is_begun_after_the_time(choose: Callable) -> None:
    choice = choose([8] * 6, seconds=0)
    assert len(choice.baselines) == 1 and choice.chosen == 0 and not choice.has_room
    assert (
        "no harder level was tried" in choice.sentence and repr(choice).count("not measured") == 5
    )


def test_a_task_of_ones_own_is_measured_as_it_is(loaded: tuple) -> None:
    model, tokenizer, levels, settings = loaded
    state = random.getstate()
    choice = choose_level(
        model, tokenizer, [levels[3]], REWARDS, settings.replace(max_completion_length=8), prompts=2
    )
    assert choice.task is levels[3] and len(choice.baselines[0].groups) == 2 and choice.has_room
    assert random.getstate() == state
