"""Check which level of a task is chosen, with stand-ins for models of different ability."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.checks.levels import LevelChoice, choose_level
from grpo_nb.generation.completions import GeneratedCompletion

REWARDS = [
    gn.rewards.correctness(weight=2.0),
    gn.rewards.exact_format(),
    gn.rewards.partial_format(),
]


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> tuple:
    settings = gn.preset("cpu", model=str(tiny_folder))
    model, tokenizer = gn.load_model(settings)
    levels = []
    for options in gn.tasks.ARITHMETIC_LEVELS:
        levels.append(gn.load_task("arithmetic", settings, tokenizer=tokenizer, **options))
    return model, tokenizer, levels, settings


@pytest.fixture
def choose(loaded: tuple, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LevelChoice]:
    """Choose a level for a model that gets so many of eight answers right at each level."""
    model, tokenizer, levels, settings = loaded

    def choose(ability: list[int]) -> LevelChoice:
        right_of_eight = {}
        for task, right in zip(levels, ability, strict=True):
            right_of_eight |= dict.fromkeys(task.train["question"], right)

        def generate(
            _: object, __: object, rows: list, **more: object
        ) -> list[GeneratedCompletion]:
            completions = []
            for i, row in enumerate(rows):
                question = row["prompt"][-1]["content"]
                value = eval(question.removeprefix("What is ").removesuffix("?"))
                answer = value if i % 8 < right_of_eight[question] else -1
                text = gn.tasks.xml().render("so", str(answer))
                completions.append(GeneratedCompletion(text, False, ids=range(20)))
            return completions

        monkeypatch.setattr("grpo_nb.generation.sampling.generate", generate)
        return choose_level(model, tokenizer, levels, REWARDS, settings)

    return choose


@pytest.mark.parametrize(
    ("ability", "level", "measured", "can_improve", "sentence"),
    [
        pytest.param([1, 0, 0, 0, 0, 0], 0, 1, True, "Level 0: 12% of the answers", id="weak"),
        pytest.param([5, 0, 0, 0, 0, 0], 0, 1, True, "There is something to learn.", id="62 %"),
        pytest.param([8, 6, 4, 0, 0, 0], 2, 3, True, "Level 2: 50%", id="third level"),
        pytest.param([8, 8, 8, 8, 8, 3], 5, 6, True, "Level 5: 38%", id="last level"),
        pytest.param(
            [8, 8, 8, 8, 8, 8], 5, 6, False, "Too little is left to show a gain", id="perfect"
        ),
        pytest.param(
            [0, 0, 0, 0, 0, 0],
            0,
            1,
            True,
            "This level gives no learning signal.",
            id="hopeless",
        ),
        pytest.param(
            [8, 0, 0, 0, 0, 0],
            1,
            2,
            True,
            "This level gives no learning signal.",
            id="no level",
        ),
    ],
)
def test_choose_level_takes_first_level_not_mastered(
    choose: Callable,
    loaded: tuple,
    ability: list[int],
    level: int,
    measured: int,
    can_improve: bool,
    sentence: str,
) -> None:
    choice = choose(ability)
    assert len(choice.baselines) == measured
    assert choice.can_improve == can_improve
    assert sentence in repr(choice)
    assert choice.task is loaded[2][level]


def test_choose_level_measures_a_single_task(loaded: tuple) -> None:
    model, tokenizer, levels, settings = loaded
    state = random.getstate()
    settings = settings.replace(max_completion_length=8)
    choice = choose_level(model, tokenizer, [levels[3]], REWARDS, settings, prompts=2)
    assert choice.task is levels[3]
    assert choice.can_improve
    assert len(choice.baselines[0].group_results) == 2
    assert random.getstate() == state


def test_choose_level_without_levels_is_refused() -> None:
    with pytest.raises(ValueError, match="levels has no tasks"):
        choose_level(None, None, [], REWARDS, None)
