"""The words "It worked" need a better comparison, a cleared majority baseline and a risen reward, all three."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_nb.runs.outcome import MajorityBaseline, judge_outcome
from grpo_nb.runs.rise import Rise
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
    assert "not clear of that floor" in run.outcome().sentence
    assert not run.outcome().worked
