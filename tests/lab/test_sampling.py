"""Check sampling in the reward lab, with a small model of real architecture."""

from __future__ import annotations

from typing import Any

import pytest

import grpo_nb as gn
from grpo_nb.generation import sampling
from grpo_nb.generation.completions import GeneratedCompletion
from tests.support.lab_controls import click, control, text_of


@pytest.fixture(scope="module")
def loaded(tiny_folder: Any) -> tuple[Any, Any]:
    return gn.load_model(gn.preset("cpu", model=str(tiny_folder)))


def token_count(completions, completion_ids, **columns) -> list[float]:
    return [float(len(ids)) for ids in completion_ids]


@pytest.fixture
def lab(loaded: tuple[Any, Any]) -> gn.RewardLab:
    task = gn.load_task("arithmetic", train_size=6, holdout=2)
    settings = gn.preset("cpu", num_generations=4, max_completion_length=9)
    return gn.RewardLab([gn.rewards.partial_format(), token_count], task, *loaded, settings)


def test_lab_shows_the_prompt_as_the_model_sees_it(lab: gn.RewardLab) -> None:
    shown = text_of(lab)
    assert "<|im_start|>user\n" in shown
    # The turn of the example, and the one that the model is asked for.
    assert shown.count("<|im_start|>assistant") == 2


def test_sample_replaces_and_scores_the_completions(lab: gn.RewardLab, loaded) -> None:
    click(lab, "Sample a group")
    assert len(lab.completions) == len(lab.scores) == 4
    assert len(set(lab.completions)) > 1
    expected = gn.score(lab.rewards, lab.completions, lab.row, tokenizer=loaded[1])
    assert lab.scores.totals == expected.totals
    assert lab.scores.advantages() == gn.scoring.group_advantages(expected.totals, 4)


def test_plain_rows_are_sampled_with_the_prompt_of_a_task(loaded, monkeypatch) -> None:
    rows = [{"question": "What is 20 + 3?", "answer": "23"}]
    settings = gn.preset("cpu", num_generations=2, max_completion_length=3)
    lab = gn.RewardLab(gn.rewards.partial_format(), rows, *loaded, settings)
    prompts = []

    def generate(model: Any, tokenizer: Any, rows: list, **options: Any) -> list:
        prompts.extend(row["prompt"] for row in rows)
        return [GeneratedCompletion("23", False, ids=(1, 2)) for _ in rows]

    monkeypatch.setattr(sampling, "generate", generate)
    lab.sample()
    system, question = prompts[0]
    assert system["content"] == gn.tasks.xml().system_prompt()
    assert question == {"role": "user", "content": "What is 20 + 3?"}
    assert lab.completions == ["23", "23"]


def test_failure_of_the_model_is_shown(lab: gn.RewardLab, monkeypatch) -> None:
    before = lab.completions

    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(sampling, "generate", fail)
        control(lab, "Sample a group").click()
    assert "RuntimeError: out of memory" in " ".join(text_of(lab).split())
    assert lab.completions == before
    assert lab.scores is not None
    control(lab, "Sample a group").click()
    assert "RuntimeError" not in text_of(lab)
    assert len(lab.completions) == 4


def test_failed_sample_in_a_cell_leaves_no_status(lab: gn.RewardLab, monkeypatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(sampling, "generate", fail)
    with pytest.raises(RuntimeError):
        lab.sample()
    assert "The kernel is busy" not in text_of(lab)


def test_failed_reward_leaves_no_status_of_earlier_completions(lab: gn.RewardLab) -> None:
    lab.sample()
    assert "Sampled 4 completions" in text_of(lab)
    lab.rewards[0] = lambda completions, **columns: 1 / 0
    control(lab, "Add a completion").click()
    assert "Not scored." in text_of(lab)
    assert "Sampled 4 completions" not in text_of(lab)


def test_sample_uses_the_sampling_of_the_settings(loaded, monkeypatch) -> None:
    task = gn.load_task("arithmetic", train_size=6, holdout=2)
    settings = gn.preset("cpu", num_generations=2, temperature=0.7, top_p=0.9, shared_prompts=False)
    lab = gn.RewardLab(gn.rewards.partial_format(), task, *loaded, settings)
    used = {}
    generate = sampling.generate

    def record(*args: Any, **options: Any) -> Any:
        used.update(options)
        return generate(*args, **options)

    monkeypatch.setattr(sampling, "generate", record)
    lab.sample()
    assert used["temperature"] == 0.7
    assert used["sampling_parameters"] == settings.sampling_besides_temperature
    assert used["sampling_parameters"]["top_p"] == 0.9
    assert used["shared_prompts"] is False
