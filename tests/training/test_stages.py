"""Stages are a loop over `gn.train(..., name=..., resume="auto")` with one adapter."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from peft import get_peft_model_state_dict
from safetensors.torch import load_file

import grpo_nb as gn
from grpo_nb.evaluation.model_sources import version_before_training
from grpo_nb.scoring.scores import RewardError
from tests.run_fixtures import brevity
from tests.support.adapters import way_back
from tests.support.run_folders import untimed
from tests.support.tiny import SMALL, load_tiny

pytestmark = pytest.mark.begins(100)


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path):
    loaded = load_tiny(
        tiny_folder, 12, 4, **SMALL, max_completion_length=8, max_steps=3, save_steps=1
    )
    return *loaded, way_back(loaded[0])


def short(completions: list, trainer_state=None, **columns: object) -> list[float]:
    if os.environ.get("STOP_AT") == str(getattr(trainer_state, "global_step", None)):
        raise KeyboardInterrupt
    return brevity(completions)


def train_both(tiny, root: Path) -> list[gn.runs.Run]:
    """The loop of docs/guide/train.md, begun with a model just loaded."""
    model, tokenizer, task, settings, again = tiny
    again()
    kept = []
    for name, paid in (
        ("form", [brevity]),
        ("answer", [gn.rewards.partial_format(weight=2.0), short]),
    ):
        its_settings = settings.replace(run_root=str(root))
        run = gn.train(
            model, tokenizer, task.after(kept), paid, its_settings, name=name, resume="auto"
        )
        kept.append(run)
        if run.status != "finished":
            break
    return kept


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory: pytest.TempPathFactory) -> list[gn.runs.Run]:
    return train_both(tiny, tmp_path_factory.mktemp("whole"))


def adapter(run: gn.runs.Run, folder: str = "adapter") -> dict[str, torch.Tensor]:
    return load_file(run.path / folder / "adapter_model.safetensors")


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_stage_continues_from_the_earlier_adapter(whole: list[gn.runs.Run]) -> None:
    first, second = whole
    assert [run.status for run in whole] == ["finished", "finished"]
    assert not are_equal(adapter(first), adapter(first, "start")), "the first stage taught nothing"
    assert are_equal(adapter(second, "start"), adapter(first))
    assert [run.info["reference"] for run in whole] == [
        "the base model",
        "the adapter it started from",
    ]
    assert [run.rows[0]["kl"] for run in whole] == pytest.approx([0, 0], abs=1e-6)
    assert first.rows[-1]["kl"] > 1e-4


def test_second_stage_is_known_to_start_trained(whole: list[gn.runs.Run]) -> None:
    first, second = whole
    assert version_before_training(first) == "base"
    assert version_before_training(second) == "start"


def test_stage_starts_with_unsampled_questions(
    whole: list[gn.runs.Run],
) -> None:
    """12 questions, 2 of them in each step."""
    first, second = (set(run.completions()["prompt"]) for run in whole)
    assert len(first) == len(second) == 6
    assert not first & second


def test_interrupted_stage_resumes_after_a_restart(
    tiny, whole: list[gn.runs.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole[0].path, tmp_path / "form")
    monkeypatch.setenv("STOP_AT", "2")
    with pytest.warns(UserWarning, match="'form' is already finished; returning it"):
        stopped = train_both(tiny, tmp_path)
    assert "resumed" not in stopped[0].info
    assert are_equal(adapter(stopped[1], "start"), adapter(whole[0]))
    assert stopped[1].status == "interrupted"
    assert len(stopped[1].rows) == 2
    monkeypatch.delenv("STOP_AT")
    runs = train_both(tiny, tmp_path)
    assert runs[1].info["resumed"][0]["step"] == 2
    assert [run.status for run in runs] == [
        "finished",
        "finished",
    ]
    assert untimed(runs[1].rows) == untimed(whole[1].rows)
    assert are_equal(adapter(runs[1]), adapter(whole[1]))
    assert are_equal(get_peft_model_state_dict(tiny[0]), adapter(whole[1]))


@pytest.mark.filterwarnings("ignore:The main reward of the run")
def test_outcome_of_a_stage_takes_its_own_comparison_only(tiny, whole: list[gn.runs.Run]) -> None:
    first, second = (gn.open_run(run.path) for run in whole)
    own = gn.compare(second, tiny[2])
    assert "the comparison" not in second.outcome(own).facts[0].partition(".")[0]
    from_base = gn.compare(second, tiny[2], against="base")
    reason = "is not known to start with the model that this run started from"
    assert reason in second.outcome(from_base).facts[0]
    reason = "the comparison is not of the adapter that this run has now"
    assert reason in first.outcome(own).facts[0]


def seen(completions: list, completion_ids: list, answer: list, **columns: object) -> list[float]:
    """Score 2.0 for a completion with the gold answer; it also needs the token ids."""
    texts = [turns[-1]["content"] for turns in completions]
    assert all(ids is not None for ids in completion_ids)
    return [2.0 * (gold in text) for gold, text in zip(answer, texts, strict=True)]


def test_run_names_the_grader_of_its_held_out_curve(tiny, tmp_path: Path) -> None:
    model, tokenizer, task, settings, again = tiny
    again()
    curved = settings.replace(run_root=str(tmp_path), holdout_every=1)
    run = gn.train(
        model, tokenizer, task, [seen, gn.rewards.partial_format()], curved, name="curve"
    )
    correctness_rule = (
        "answers to which seen() gives 2 or more (its score for a gold answer in the format)"
    )
    assert run.info["grader_description"] == correctness_rule
    assert gn.compare(run).after.grader.correctness_rule == correctness_rule


def test_grader_that_fails_on_held_out_rows_leaves_no_run(tiny, tmp_path: Path) -> None:
    model, tokenizer, task, settings, again = tiny
    again()
    held_out = set(task.holdout["question"])

    def picky(completions: list, question: list, **columns: object) -> list[float]:
        if held_out & set(question):
            raise KeyError("level")
        return [float(len(turns[-1]["content"])) for turns in completions]

    curved = settings.replace(run_root=str(tmp_path), holdout_every=1)
    with pytest.raises(RewardError, match="'picky' raised KeyError"):
        gn.train(model, tokenizer, task, [picky], curved, name="broken")
    assert not (tmp_path / "broken").exists()
