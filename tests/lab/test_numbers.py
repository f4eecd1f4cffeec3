"""Sampling in the reward lab, with a model of real architecture that is small enough for a test."""

from __future__ import annotations

import html
from typing import Any

import pytest

import grpo_nb as gn
from grpo_nb.generation import sampling
from grpo_nb.lab.numbers import sample_group


@pytest.fixture(scope="module")
def loaded(tiny_folder: Any) -> tuple[Any, Any]:
    return gn.load_model(gn.preset("cpu", model=str(tiny_folder)))


@pytest.fixture
def lab(loaded: tuple[Any, Any]) -> gn.RewardLab:
    task = gn.load_task("arithmetic", train_size=6, holdout_size=2)
    settings = gn.preset("cpu", num_generations=4, max_completion_length=9)
    return gn.RewardLab([gn.rewards.xml_tags(), gn.rewards.length(20)], task, *loaded, settings)


def test_a_group_is_sampled_and_scored(lab: gn.RewardLab, loaded: tuple[Any, Any]) -> None:
    shown, states = html.unescape(lab._row_view.value), []
    assert "<|im_start|>user\n" in shown and shown.count("<|im_start|>assistant") == 2, (
        "an example turn, and the model's"
    )
    lab._sample_button.observe(
        lambda change: states.append((change["new"], lab._status.value)), "disabled"
    )
    assert not lab._sample_button.disabled and (lab._size.value, lab._length.value) == (4, 9)
    lab._size.value = 6
    lab._sample_button.click()
    assert states[0][0] is True and "Sampling 6 completions" not in states[0][1], (
        "disabled before anything else"
    )
    assert states[1] == (
        False,
        "Sampling 6 completions from the model. The kernel is busy until they are there.",
    )
    assert (
        lab._sample_button.description == "Sample a group"
        and "Sampled 6 completions for row 0" in lab._status.value
    )
    assert len(lab.completions) == len(lab.scores) == 6 and len(set(lab.completions)) > 1
    expected = gn.score(lab.rewards, lab.completions, lab.row, tokenizer=loaded[1])
    assert lab.scores.totals == expected.totals and lab.advantages == gn.scoring.group_advantages(
        expected.totals, 6
    )


def test_a_failure_of_the_model_is_shown(
    lab: gn.RewardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, works = lab.completions, sampling.generate

    def fails(*args: Any, **options: Any) -> None:
        raise RuntimeError("out of <memory>")

    monkeypatch.setattr(sampling, "generate", fails)
    lab._sample_button.click()
    assert "RuntimeError" in lab._errors.value and "out of &lt;memory&gt;" in lab._errors.value
    assert not lab._sample_button.disabled and lab.completions == before and lab.scores is not None
    monkeypatch.setattr(sampling, "generate", works)
    lab._size.value = 2
    lab._sample_button.click()
    assert lab._errors.value == "" and len(lab.completions) == 2


def test_a_row_without_messages_cannot_be_sampled(loaded: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="'prompt'"):
        sample_group(*loaded, {"question": "2 + 2?", "answer": "4"})
