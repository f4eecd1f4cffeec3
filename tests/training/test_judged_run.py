"""Runs with a judge: records, a judge that goes away, no repeated questions."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest

import grpo_nb as gn
from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.scoring.advantages import group_advantages
from tests.support.judges import Asked
from tests.support.tiny import load_tiny


def trained(settings: gn.Settings, rewards: list, **more: object) -> gn.runs.Run:
    model, tokenizer, task, settings = load_tiny(
        settings.model,
        8,
        2,
        max_steps=4,
        max_completion_length=8,
        run_root=settings.run_root,
        save_steps=1,
    )
    return gn.train(model, tokenizer, task, rewards, settings, name="judged", **more)


def judge_of(asked: Asked, folder: Path, **how: object) -> gn.rewards.judge:
    return gn.rewards.judge(asked.function, "Long is good.", cache=folder / "replies.jsonl", **how)


def test_resumed_run_sends_no_answer_twice(tiny_settings: gn.Settings, tmp_path: Path) -> None:
    first = Asked()
    # The trial before the training and one batch.
    limit = tiny_settings.completions_per_step + 1

    def ask(messages: list) -> str:
        if first.calls == limit:
            raise ConnectionError("no more calls")
        return first.now(messages)

    judge = gn.rewards.judge(ask, "Long is good.", cache=tmp_path / "replies.jsonl", concurrent=1)
    with pytest.raises(EnvironmentProblem, match="replied to none"):
        trained(tiny_settings, [judge], resume="auto")
    second = Asked()
    run = trained(tiny_settings, [judge_of(second, tmp_path)], resume="auto")
    assert run.status == "finished"
    assert len(run.rows) == 4
    asked = {(row.prompt, row.completion) for row in run.completions().itertuples()}
    assert first.calls + second.calls <= len(asked) + 1, "the trial is kept too"
    third = Asked()
    again = trained(
        tiny_settings.replace(run_root=str(tmp_path / "other")), [judge_of(third, tmp_path)]
    )
    assert third.calls == 0
    assert again.completions().equals(run.completions()), "a repeated run asks nothing"

    table = run.completions(1)
    assert table["judge says"].str.contains(r"It has words\.\nScore: ").all()
    assert table["judge"].between(0, 1).all()
    assert all(row["judge/unscored"] == 0 for row in run.rows)
    assert "It has words." in run.step(1)._repr_html_(), "which the viewer shows, too"
    assert (
        json.loads((run.path / "run.json").read_text())["rewards"][0]["parameters"]["rubric"]
        == "Long is good."
    )


def test_advantages_equal_those_of_a_run(tiny_run: gn.runs.Run) -> None:
    paths = sorted((tiny_run.path / "completions").glob("*"))
    logged = pandas.concat([pandas.read_parquet(path) for path in paths])
    assert logged["advantage"].abs().max() > 0.5
    for _, step in logged.groupby("step"):
        advantages = group_advantages(step["total"].tolist(), tiny_run.settings.num_generations)
        assert advantages == pytest.approx(step["advantage"].tolist(), abs=2e-3)
