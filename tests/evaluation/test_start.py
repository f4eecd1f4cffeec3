"""Before means before this run: a run from a trained adapter is compared with its start."""

import shutil

import pytest
from peft import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

import grpo_nb as gn
from grpo_nb.evaluation.model_sources import version_before_training
from tests.run_fixtures import brevity

# The folder of the tiny run has only the source of its main reward, which is not the matter here.
pytestmark = pytest.mark.filterwarnings("ignore:The main reward of the run")


@pytest.fixture
def staged_run(run: gn.runs.Run) -> gn.runs.Run:
    """A run that learnt nothing: it began with the adapter that it ended with."""
    shutil.copyfile(
        run.adapter_path / "adapter_model.safetensors", run.start_path / "adapter_model.safetensors"
    )
    return run


def completions_of(side: gn.evaluation.Evaluation) -> list[str]:
    return [row["completion"] for row in side.rows]


def test_run_from_an_untrained_adapter_starts_as_its_base(run: gn.runs.Run) -> None:
    assert version_before_training(run) == "base"
    assert "The base model of the run" in gn.compare(run).before.description


def test_run_from_a_trained_adapter_is_compared_with_it(staged_run: gn.runs.Run) -> None:
    comparison = gn.compare(staged_run)
    assert completions_of(comparison.before) == completions_of(comparison.after)
    assert comparison.verdict == "no difference shown"
    assert "with the adapter as it was before the first step" in comparison.before.description


def test_comparison_of_a_stage_is_kept_in_its_folder(staged_run: gn.runs.Run) -> None:
    comparison = gn.compare(staged_run, grader=brevity)
    card = (staged_run.path / "README.md").read_text()
    assert "| held-out, 95 % interval | before | after |" in card
    assert staged_run.comparison.sentence == comparison.sentence


def test_trained_adapter_is_put_back_bit_for_bit(staged_run: gn.runs.Run) -> None:
    start = staged_run.start_path / "adapter_model.safetensors"
    tensors = {name: tensor * 3 for name, tensor in load_file(start).items()}
    save_file(tensors, start)
    comparison = gn.compare(staged_run)
    assert completions_of(comparison.before) != completions_of(comparison.after)
    held = get_peft_model_state_dict(staged_run.model)
    saved = load_file(staged_run.adapter_path / "adapter_model.safetensors")
    assert held.keys() == saved.keys()
    assert all(held[name].equal(saved[name]) for name in saved)


def test_start_can_be_evaluated_by_name(staged_run: gn.runs.Run) -> None:
    start = gn.evaluate("start", run=staged_run, limit=2)
    after = gn.evaluate(staged_run, limit=2)
    assert completions_of(start) == completions_of(after)
    assert "started from, with the adapter as it was before the first step" in start.description


def test_start_without_a_run_is_refused() -> None:
    with pytest.raises(ValueError, match="'start' is an earlier model of a run"):
        gn.evaluate("start", [{"question": "1 + 1?", "answer": "2"}])


def test_ask_compares_with_the_start(staged_run: gn.runs.Run) -> None:
    answers = gn.ask(staged_run, "What is 2 + 2?")
    assert answers.before == answers.after
