"""`num_train_epochs`: the length of a run in passes over its questions."""

from typing import Any

import pytest

import grpo_nb as gn


def test_epochs_and_steps_together_are_refused() -> None:
    with pytest.raises(
        ValueError, match="max_steps = 5 and num_train_epochs = 2 both say how long"
    ):
        gn.preset("cpu", max_steps=5, num_train_epochs=2)


def test_replacing_steps_later_takes_the_epochs_away() -> None:
    settings = gn.preset("cpu", num_train_epochs=2).replace(max_steps=5)
    assert settings.max_steps == 5
    assert settings.num_train_epochs is None


def test_other_replacements_keep_the_epochs() -> None:
    settings = gn.preset("cpu", num_train_epochs=2).for_questions(40)
    assert settings.max_steps == 40
    assert settings.replace(beta=0.1) == gn.Settings.from_dict({**settings.to_dict(), "beta": 0.1})


def test_stored_settings_without_epochs_still_load() -> None:
    values = gn.preset("cpu", max_steps=7).to_dict()
    del values["num_train_epochs"]
    assert gn.Settings.from_dict(values) == gn.preset("cpu", max_steps=7)


def test_stored_settings_with_both_lengths_load() -> None:
    settings = gn.preset("t4", num_train_epochs=1.5).for_questions(100)
    assert gn.Settings.from_dict(settings.to_dict()) == settings


def test_too_few_questions_for_epochs_say_what_to_write() -> None:
    with pytest.raises(
        ValueError,
        match=r"there are 1 training questions, and one generation takes 2.*max_steps=14",
    ):
        gn.preset("cpu", num_train_epochs=1).for_questions(1)


def test_settings_with_epochs_do_not_show_unused_steps() -> None:
    shown = gn.preset("cpu", num_train_epochs=2)._repr_html_()
    assert "max_steps" not in shown
    assert "num_train_epochs" in shown


def test_plan_shows_the_steps_of_the_epochs() -> None:
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(30)]
    task = gn.load_task(rows, holdout=10)
    plan = gn.plan(gn.preset("cpu", num_train_epochs=3), task, machine="cpu")
    assert plan.settings.max_steps == 30
    assert "num_train_epochs=3 over 20 questions" in repr(plan)


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, 13),
        ({"gradient_accumulation_steps": 3}, 4),
        ({"extra": {"generation_batch_size": 16}}, 12),
        ({"gradient_accumulation_steps": 4, "extra": {"steps_per_generation": 2}}, 3),
        ({"extra": {"num_iterations": 2}}, 26),
    ],
)
def test_epoch_of_27_questions_has_steps_of_the_batch(changes: dict[str, Any], steps: int) -> None:
    """By the length of TRL's sampler; tests/training/test_epochs.py asks a trainer."""
    small = {"num_generations": 4, "per_device_train_batch_size": 8, "warmup_steps": 0}
    settings = gn.preset("cpu", num_train_epochs=1, **small, **changes)
    assert settings.for_questions(27).max_steps == steps
