"""The real model is trained; that it learns takes minutes, and is what `make run` shows."""

from __future__ import annotations

from pathlib import Path

import pytest

import grpo_nb as gn

pytestmark = [pytest.mark.begins(11), pytest.mark.usefixtures("embedded_folder")]


def trained(folder: Path, steps: int, warmup: int, length: int) -> gn.runs.Run:
    settings = gn.preset(
        "cpu",
        max_steps=steps,
        max_completion_length=length,
        per_device_train_batch_size=8,
        learning_rate=3e-4,
        warmup_steps=warmup,
        run_root=str(folder),
    )
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, holdout_size=16, tokenizer=tokenizer)
    kinds = {
        gn.rewards.correctness: 2.0,
        gn.rewards.exact_format: 1.0,
        gn.rewards.partial_format: 0.5,
    }
    return gn.train(
        model, tokenizer, task, [kind(weight=weight) for kind, weight in kinds.items()], settings
    )


def test_real_model_learns_in_two_steps(tmp_path: Path) -> None:
    first, last = trained(tmp_path, 2, 0, 32).rows
    assert abs(first["kl"]) < 1e-3 < last["grad_norm"]
    assert last["kl"] > 0
    assert first["reward"] > 0, "with the example it writes a tag here and there"


@pytest.mark.slow
def test_six_steps_show_in_reward_and_held_out_answers(tmp_path: Path) -> None:
    """Three seeds gave a reward from at most 0.6 to at least 1.4, and correct answers (of 24)
    from 4 to 8 % to 58 to 75 %."""
    run = trained(tmp_path, 6, 1, 48)
    rise = run.rise()
    comparison = gn.compare(run)
    assert rise.last_mean > 1.5 * rise.first_mean, rise.sentence
    assert comparison.after.accuracy > comparison.before.accuracy, comparison.sentence
