"""The words "It worked" need a better comparison, a cleared majority baseline and a risen reward, all three."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_nb.runs.outcome import MajorityBaseline, baseline_of_task, judge_outcome
from grpo_nb.runs.rise import Rise
from grpo_nb.runs.run_folder import Run
from tests.support.written_run import COMPARISON, compare_by_hand, write_run

ROSE = Rise(first=0.2, last=0.9, p_value=0.001, steps=12)
FLAT = Rise(first=0.5, last=0.4, p_value=0.7, steps=12)
BETTER = SimpleNamespace(verdict="better", sentence="Better: the answers.")
CLEARED = MajorityBaseline(
    answer="spam", share=0.4, is_cleared=True, sentence="It is above that floor."
)
BELOW = dataclasses.replace(CLEARED, is_cleared=False, sentence="It is not clear of that floor.")


@pytest.mark.parametrize("baseline", [None, CLEARED])
def test_outcome_worked_where_all_three_agree(baseline: MajorityBaseline | None) -> None:
    outcome = judge_outcome(ROSE, BETTER, baseline)
    assert outcome.worked
    assert str(outcome).startswith("It worked. The reward rose from 0.20")
    assert "Held-out: Better: the answers." in outcome.sentence


@pytest.mark.parametrize(
    ("rise", "comparison", "baseline", "missing"),
    [
        (FLAT, BETTER, None, "the reward did not rise clearly."),
        (ROSE, BETTER, BELOW, "the majority-class baseline is not cleared."),
        (ROSE, None, None, "the held-out answers were not compared."),
        (
            ROSE,
            SimpleNamespace(verdict="worse", sentence="Worse."),
            None,
            "the held-out answers got worse.",
        ),
        (
            FLAT,
            SimpleNamespace(verdict="no difference shown", sentence="No difference shown."),
            None,
            "the held-out comparison shows no difference, and the reward did not rise clearly.",
        ),
    ],
)
def test_outcome_names_what_is_missing(rise, comparison, baseline, missing: str) -> None:
    outcome = judge_outcome(rise, comparison, baseline)
    assert not outcome.worked
    assert outcome.sentence.startswith(f"No gain is shown: {missing}")
    assert "It worked" not in outcome.sentence


def test_run_outcome_reads_the_saved_comparison(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "first")
    assert not run.outcome().worked
    compare_by_hand(run)
    assert run.outcome().worked


def test_run_outcome_needs_the_saved_baseline_cleared(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "first")
    compare_by_hand(run, majority=dataclasses.asdict(BELOW))
    assert not run.outcome().worked


def test_run_outcome_of_an_old_comparison_uses_the_tasks_baseline(tmp_path: Path) -> None:
    """The comparison has 53 to 89 % after, and no baseline of its own."""
    run = write_run(tmp_path / "runs" / "first")
    info = run.info
    info["task"]["floor"] = ["spam", 0.6]
    (run.path / "run.json").write_text(json.dumps(info))
    compare_by_hand(run)
    assert "majority" not in COMPARISON
    assert "is not clearly above this majority-class baseline" in run.outcome().sentence
    assert not run.outcome().worked


def test_baseline_without_an_interval_is_not_cleared() -> None:
    after = SimpleNamespace(accuracy=0.9, interval=None)
    baseline = baseline_of_task({"task": {"floor": ["spam", 0.6]}}, after)
    assert not baseline.is_cleared
    assert "was stored without its interval" in baseline.sentence


def test_outcome_did_not_work_where_the_answers_got_worse() -> None:
    comparison = SimpleNamespace(**vars(BETTER), answers_verdict="worse")
    outcome = judge_outcome(ROSE, comparison, None)
    assert not outcome.worked
    assert "the format improved, but the answers themselves got worse" in outcome.sentence


def compared_run(folder: Path, **sides: str) -> Run:
    """Write a run whose saved comparison says which models it is of."""
    run = write_run(folder)
    ids = {"before": run.model_id("start"), "after": run.model_id("adapter")} | sides
    compare_by_hand(
        run, **{name: COMPARISON[name] | {"model_id": ids[name]} for name in ("before", "after")}
    )
    return run


def test_outcome_of_the_runs_own_models_worked(tmp_path: Path) -> None:
    assert compared_run(tmp_path / "first").outcome().worked


def test_outcome_of_another_adapter_did_not_work(tmp_path: Path) -> None:
    outcome = compared_run(tmp_path / "first", after="adapter 0123456789abcdef").outcome()
    assert not outcome.worked
    assert "the comparison is not of the adapter that this run has now" in outcome.sentence


def test_outcome_of_an_older_adapter_did_not_work(tmp_path: Path) -> None:
    run = compared_run(tmp_path / "first")
    adapter = run.adapter_path / "adapter_model.safetensors"
    adapter.write_bytes(adapter.read_bytes() + b" ")
    assert not run.outcome().worked


def test_outcome_from_another_start_did_not_work(tmp_path: Path) -> None:
    outcome = compared_run(tmp_path / "first", before="").outcome()
    assert not outcome.worked
    assert "does not start with the model that this run started from" in outcome.sentence


def test_outcome_of_trained_questions_did_not_work(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first")
    trained = {"questions": 20, "count": 3, "example": "1 + 1?", "source": "the training part"}
    compare_by_hand(run, contamination=trained)
    outcome = run.outcome()
    assert not outcome.worked
    assert "3 of the held-out questions were trained on" in outcome.sentence


def test_outcome_of_a_stopped_run_says_so(tmp_path: Path) -> None:
    run = compared_run(tmp_path / "first")
    info = run.info | {"status": "stopped", "stopped_by": "kl"}
    (run.path / "run.json").write_text(json.dumps(info))
    assert "The run is stopped by kl, after 20 of " in run.outcome().sentence


def test_outcome_without_held_out_questions_says_how_to_have_some(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first")
    info = run.info
    info["task"]["holdout"] = 0
    (run.path / "run.json").write_text(json.dumps(info))
    assert "The run has no held-out questions: gn.load_task(..., holdout=0.2)." in str(
        run.outcome()
    )


def test_outcome_refuses_what_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"is not a comparison\. Write run"):
        write_run(tmp_path / "first").outcome("better")
