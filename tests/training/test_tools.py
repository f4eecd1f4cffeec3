"""A training with tools: its record, its resume, what is shown of it, and what is refused."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import grpo_nb as gn
from grpo_nb.models.templates import load_run_tokenizer
from tests.support.run_folders import untimed
from tests.support.village import Village, loaded_village, progress, speak_for

pytestmark = pytest.mark.begins(85)


def trained(parts: tuple, name: str, **options: Any) -> gn.runs.Run:
    return gn.train(*parts, name=name, **options)


@pytest.fixture(scope="module")
def whole(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple, gn.runs.Run]:
    """A run of four steps with scripted words, and what it was made of."""
    with pytest.MonkeyPatch.context() as patch:
        parts = loaded_village(tiny_folder, tmp_path_factory.mktemp("runs"))
        speak_for(patch, parts[1])
        return parts, trained(parts, "whole")


@pytest.fixture(autouse=True)
def spoken(whole: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    speak_for(monkeypatch, whole[0][1])


def test_rewards_score_the_last_turn_of_an_episode(whole: tuple) -> None:
    run = whole[1]
    table = run.completions(1)
    for line in table.itertuples():
        turns = json.loads(line.turns)
        assert [turn["role"] for turn in turns] == (["assistant", "tool"] * len(turns))[
            : len(turns)
        ]
        last = turns[-1]
        assert line.completion == (last["content"] if last["role"] == "assistant" else "")
        said = json.dumps(turns)
        assert (line.progress > 0) == ("Go to the" in said or "The number is" in said)
        assert line.correctness in (0.0, 1.0)
        assert not line.correctness or "<answer>" in line.completion
    assert table["correctness"].sum() > 0
    assert table["turns"].str.contains("Tool fly not found").any()
    row = run.rows[0]
    calls = [
        sum(len(turn.get("tool_calls") or ()) for turn in json.loads(turns))
        for turns in table["turns"]
    ]
    assert row["tools/call_frequency"] == pytest.approx(sum(calls) / len(calls))
    unanswered = sum("tool_calls" in json.loads(turns)[-1] for turns in table["turns"]) / len(table)
    assert 0 < row["tools/failure_frequency"] < 1
    assert row["tools/unanswered"] == unanswered
    shown = run.step(1)
    assert "read(place=" in repr(shown)
    assert "→" in shown._repr_html_()
    assert "Tool fly" in shown._repr_html_()
    assert run.plot().axes[0].get_title(loc="left").strip() == "Total reward"
    titles = [axis.get_title(loc="left").strip() for axis in run.plot("all").axes]
    assert "Tool calls" in titles
    assert run.info["task"]["tools"][0]["function"]["name"] == "read"


@pytest.mark.parametrize("beta", [pytest.param(0.0, marks=pytest.mark.slow), 0.04])
def test_resumed_run_with_tools_is_bit_equal(
    beta: float, whole: tuple, tiny_folder: Path, tmp_path: Path
) -> None:
    run = whole[1]
    if beta:
        run = trained(loaded_village(tiny_folder, tmp_path, beta=beta), "whole")

    def stop(row: dict, completions: Any) -> None:
        if row["step"] == 2:
            raise KeyboardInterrupt

    trained(loaded_village(tiny_folder, tmp_path, beta=beta), "cut", observers=[stop])
    resumed = trained(loaded_village(tiny_folder, tmp_path, beta=beta), "cut", resume="auto")
    assert len(resumed.rows) == 4
    assert untimed(resumed.rows) == untimed(run.rows)
    assert all(resumed.completions(step).equals(run.completions(step)) for step in run.steps)
    one, other = (
        load_file(each.adapter_path / "adapter_model.safetensors") for each in (run, resumed)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


class Deeper(Village):
    """Another environment."""

    def look(self, at: str) -> str:
        """Look at something.

        Args:
            at: What.
        """
        return "nothing"


def test_other_tools_are_another_training(whole: tuple) -> None:
    (model, tokenizer, task, rewards, settings), run = whole
    for other in (
        task.with_tools(environment=Deeper),
        task.with_tools(environment=Village, rounds=2),
    ):
        with pytest.raises(ValueError, match="was another training: hash of rows and tools was"):
            gn.train(
                model,
                tokenizer,
                other,
                rewards,
                settings.replace(max_steps=6),
                resume=str(run.path),
            )


def test_compare_runs_held_out_episodes(whole: tuple, tmp_path: Path) -> None:
    (_, tokenizer, task, _, settings), run = whole
    compared = gn.compare(run, task)
    assert (
        "read(place=" in compared.after.rows[0]["completion"] + compared.after.rows[1]["completion"]
    )
    for ask in (lambda: gn.compare(run), lambda: gn.ask(run, "Where?"), lambda: gn.evaluate(run)):
        with pytest.raises(
            ValueError,
            match=r"was trained with tools.*gn.compare\(run, task\)",
        ):
            ask()
    with pytest.raises(ValueError, match="has tools, which cannot be written to the folder"):
        gn.scaleout.write_project(run, tmp_path / "away")
    kept = load_run_tokenizer(run.path, settings.model)
    assert kept.response_template == tokenizer.response_template
    assert "<call>" in kept.chat_template
    exported = gn.export.export_adapter(run, tmp_path / "adapter")
    for folder in (exported.path, run.adapter_path):
        _, loaded = gn.load_model(settings, adapter=folder, report=lambda line: None)
        assert loaded.response_template == tokenizer.response_template
        assert loaded.chat_template == tokenizer.chat_template


def test_baseline_and_dry_run_use_tools(whole: tuple) -> None:
    model, tokenizer, task, rewards, settings = whole[0]
    gate = gn.baseline(model, tokenizer, task, rewards, settings, prompts=3)
    assert gate.scores.values["progress"] != (0.0,) * len(gate.scores)
    assert gate.verdict != "no signal"
    trial = gn.dry_run(model, tokenizer, task, rewards, settings)
    assert "read(place=" in repr(trial)


class Told(Village):
    """Says something at first."""

    def reset(self, **row: Any) -> str:
        super().reset(**row)
        return " Read the notes."


def test_environment_that_speaks_first_matches_its_rows(whole: tuple) -> None:
    model, tokenizer, task, rewards, settings = whole[0]
    told = task.with_tools(environment=Told)
    run = gn.train(
        model, tokenizer, told, rewards, settings.replace(max_steps=1, holdout_every=0), name="told"
    )
    assert run.step(1).groups[0].question.endswith("? Read the notes.")
    assert told.after([run]).train[0] != told.train[0]


def test_reward_error_names_the_row(whole: tuple) -> None:
    def broken(environments: list, **columns: Any) -> list[float]:
        return [1 / (each.seen - 1) for each in environments]

    model, tokenizer, task, rewards, settings = whole[0]
    with pytest.raises(gn.scoring.RewardError, match=r"'broken' raised ZeroDivisionError.*on row"):
        gn.train(model, tokenizer, task, [*rewards, broken], settings, name="broken")


def test_padding_that_ends_turns_is_refused(whole: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer, task, rewards, settings = whole[0]
    pad = tokenizer.pad_token
    tokenizer.pad_token = tokenizer.eos_token
    try:
        with pytest.raises(
            ValueError, match=r"is the token that ends a turn .* train on a wrong gradient"
        ):
            gn.train(model, tokenizer, task, rewards, settings, name="padded")
    finally:
        tokenizer.pad_token = pad


def test_alerts_where_every_call_fails() -> None:
    rows = [{"step": step, "reward": 0.1, "tools/failure_frequency": 1.0} for step in range(1, 13)]
    told = {
        alert.message: alert.state
        for alert in gn.health.check_health(rows).alerts
        if alert.rule == "tools"
    }
    assert any("100% of the tool calls failed" in message for message in told)


def test_function_that_reads_environments_can_judge(whole: tuple) -> None:
    """No gold answer can be played, so its pass score is unknown and no wrong answer is beaten."""
    task = whole[0][2]
    run = whole[1]
    scores_of_calls = []

    @functools.wraps(progress)
    def watched(*args: Any, **columns: Any) -> list[float]:
        scores = progress(*args, **columns)
        scores_of_calls.append(scores)
        return scores

    evaluation = gn.evaluate(run, task, grader=watched)
    scores = scores_of_calls[-1]
    assert "progress() gives 1 or more (the default; no gold" in evaluation.grader.correctness_rule
    assert max(scores) > 0, "environments are those that were played in"
    is_done = [score == 1.0 for score in scores]
    assert [row["is_correct"] for row in evaluation.rows] == is_done
    assert evaluation.grader.name == "progress"
    assert not evaluation.grader.tells_gold_from_wrong
