"""The verdict "It worked" needs a better comparison, a cleared baseline and a risen reward."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_nb.evaluation.model_sources import RunModel, model_id_of
from grpo_nb.runs.outcome import Rise, decide_outcome
from grpo_nb.runs.run_folder import Run
from grpo_nb.runs.run_info import MajorityBaseline
from tests.support.written_run import COMPARISON, compare_by_hand, write_run

ROSE = Rise(first_mean=0.2, last_mean=0.9, p_value=0.001, step_count=12)
FLAT = Rise(first_mean=0.5, last_mean=0.4, p_value=0.7, step_count=12)
CHECKED = SimpleNamespace(trained_count=0)
UNRECORDED = SimpleNamespace(model_id=None)


def compared(verdict: str, sentence: str, **fields: object) -> SimpleNamespace:
    others = {"anywhere_verdict": None, "majority": None, "contamination": CHECKED} | fields
    return SimpleNamespace(
        verdict=verdict, sentence=sentence, before=UNRECORDED, after=UNRECORDED, **others
    )


BETTER = compared("better", "Better: the answers.")
BEATEN = MajorityBaseline(
    answer="spam", share=0.4, is_beaten=True, sentence="It is above that floor."
)
BELOW = dataclasses.replace(BEATEN, is_beaten=False, sentence="It is not clear of that floor.")


@pytest.mark.parametrize("baseline", [None, BEATEN])
def test_outcome_worked_where_all_three_agree(baseline: MajorityBaseline | None) -> None:
    outcome = decide_outcome(ROSE, compared("better", "Better: the answers.", majority=baseline))
    assert outcome.has_worked
    assert str(outcome).startswith("It worked. The reward rose from 0.20")
    assert repr(outcome) == str(outcome)
    assert "Held-out: Better: the answers." in " ".join(outcome.facts)


def test_printed_outcome_fits_a_notebook_and_has_all_facts() -> None:
    outcome = decide_outcome(ROSE, compared("better", "Better: the answers. " * 12))
    lines = str(outcome).splitlines()
    assert max(len(line) for line in lines) <= 88
    assert " ".join(lines).endswith("Better: the answers.")
    assert str(outcome).split() == " ".join(outcome.facts).split()


@pytest.mark.parametrize(
    ("rise", "comparison", "missing"),
    [
        (FLAT, BETTER, "A gain is shown, but the reward did not rise clearly: it went from 0.50 "),
        (
            ROSE,
            compared("better", "Better.", majority=BELOW),
            "A gain is shown, but the majority-class baseline is not beaten.",
        ),
        (ROSE, None, "No gain is shown: the held-out answers were not compared."),
        (ROSE, compared("worse", "Worse."), "No gain is shown: the held-out answers got worse."),
        (
            ROSE,
            compared("no difference shown", "None.", anywhere_verdict="worse"),
            "No gain is shown: the held-out comparison shows no difference, and right answers "
            "were found less often anywhere in the completion.",
        ),
        (
            FLAT,
            compared("no difference shown", "No difference shown."),
            "No gain is shown: the held-out comparison shows no difference, and the reward did not "
            "rise clearly: it went from 0.50 (first 4 of 12 logged",
        ),
    ],
)
def test_outcome_names_missing_evidence(rise, comparison, missing: str) -> None:
    outcome = decide_outcome(rise, comparison)
    assert not outcome.has_worked
    assert " ".join(outcome.facts).startswith(missing)
    assert "It worked" not in " ".join(outcome.facts)


@pytest.mark.parametrize("comparison", [None, BETTER])
def test_outcome_says_once_that_the_reward_did_not_rise(comparison) -> None:
    verdict = decide_outcome(FLAT, comparison).facts[0]
    assert verdict.count("did not rise clearly") == 1
    assert "the reward did not rise clearly: it went from 0.50 (first 4 of 12 logged" in verdict


def test_outcome_of_a_comparison_with_trained_questions_shows_no_gain() -> None:
    trained = SimpleNamespace(trained_count=5)
    outcome = decide_outcome(ROSE, compared("better", "Better.", contamination=trained))
    assert not outcome.has_worked
    assert " ".join(outcome.facts).startswith(
        "No gain is shown: 5 of the held-out questions were trained on."
    )


def test_run_outcome_reads_the_saved_comparison(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "first")
    assert not run.outcome().has_worked
    compare_by_hand(run)
    assert run.outcome().has_worked


def test_run_outcome_needs_the_saved_baseline_cleared(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "first")
    compare_by_hand(run, majority=dataclasses.asdict(BELOW))
    assert not run.outcome().has_worked


def test_outcome_did_not_work_where_the_answers_got_worse() -> None:
    outcome = decide_outcome(ROSE, compared("better", "Better.", anywhere_verdict="worse"))
    assert not outcome.has_worked
    assert "right answers were found less often anywhere in the completion" in " ".join(
        outcome.facts
    )


def compared_run(folder: Path, **sides: str) -> Run:
    """Write a run whose saved comparison says which models it is of."""
    run = write_run(folder)
    ids = {"before": run.adapter_id("start"), "after": run.adapter_id("adapter")} | sides
    compare_by_hand(
        run, **{name: COMPARISON[name] | {"model_id": ids[name]} for name in ("before", "after")}
    )
    return run


def test_outcome_of_the_runs_own_models_worked(tmp_path: Path) -> None:
    assert compared_run(tmp_path / "first").outcome().has_worked


def test_outcome_of_another_adapter_did_not_work(tmp_path: Path) -> None:
    outcome = compared_run(tmp_path / "first", after="adapter 0123456789abcdef").outcome()
    assert not outcome.has_worked
    assert "the comparison is not of the adapter that this run has now" in " ".join(outcome.facts)


def test_outcome_of_an_older_adapter_did_not_work(tmp_path: Path) -> None:
    run = compared_run(tmp_path / "first")
    adapter = run.adapter_path / "adapter_model.safetensors"
    adapter.write_bytes(adapter.read_bytes() + b" ")
    assert not run.outcome().has_worked


@pytest.mark.parametrize("recorded", ["adapter 0123456789abcdef", "adapter of first", ""])
def test_outcome_without_the_adapter_did_not_work(tmp_path: Path, recorded: str) -> None:
    run = compared_run(tmp_path / "first", after=recorded)
    (run.adapter_path / "adapter_model.safetensors").unlink()
    assert run.adapter_id("adapter") is None
    assert not run.outcome().has_worked


def test_model_without_its_adapter_is_recorded_as_no_model_of_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first")
    assert model_id_of(RunModel(run)) == run.adapter_id("adapter")
    (run.adapter_path / "adapter_model.safetensors").unlink()
    assert model_id_of(RunModel(run)) == ""


def test_outcome_from_another_start_did_not_work(tmp_path: Path) -> None:
    outcome = compared_run(tmp_path / "first", before="").outcome()
    assert not outcome.has_worked
    assert "is not known to start with the model that this run started from" in " ".join(
        outcome.facts
    )


def test_outcome_of_trained_questions_did_not_work(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first")
    trained = {"question_count": 20, "trained_count": 3, "source": "the training part"}
    compare_by_hand(run, contamination=trained)
    outcome = run.outcome()
    assert not outcome.has_worked
    assert "3 of the held-out questions were trained on" in " ".join(outcome.facts)


def test_outcome_says_when_training_questions_are_unknown(tmp_path: Path) -> None:
    outcome = compared_run(tmp_path / "a").outcome()
    assert outcome.has_worked
    assert "Not all training questions are known" in " ".join(outcome.facts)
    assert "not known" not in " ".join(decide_outcome(ROSE, BETTER).facts)


def test_outcome_without_comparison_names_the_calls() -> None:
    sentence = " ".join(decide_outcome(ROSE, None).facts)
    assert "gn.compare(run, task) compares the held-out answers." in sentence
    assert "needs gn.load_task(..., holdout=0.2)." in sentence
