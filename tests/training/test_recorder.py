"""Each logged step has its row with alerts, its completions, and a display."""

import copy
import math
import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy
import pandas
import pytest
import torch
from peft import get_peft_model_state_dict

import grpo_nb as gn
from grpo_nb.generation.choice import EngineChoice
from grpo_nb.runs.measures import ACCURACY_KEY
from grpo_nb.training.prepare import PreparedTraining
from grpo_nb.training.recorder import HoldoutObserver
from tests.conftest import ROOT
from tests.run_fixtures import brevity
from tests.support.run_folders import checkpoint_step
from tests.support.tiny import load_tiny


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path):
    return load_tiny(tiny_folder, 20, 6)[:3]


@pytest.fixture
def settings(tiny_settings: gn.Settings) -> gn.Settings:
    return tiny_settings.replace(
        max_completion_length=6, num_generations=4, per_device_train_batch_size=8
    )


def test_logged_metrics_reach_rows_and_health_rules(tiny, settings: gn.Settings) -> None:
    def logging(completions: list, log_metric=None, **columns: object) -> list[float]:
        if log_metric is not None:
            log_metric("logged", numpy.float32(0.25))
        return brevity(completions)

    def added(row: dict, completions: object) -> None:
        row.update(single=numpy.float32(0.5), broken=math.inf)

    run = gn.train(*tiny, [logging], settings.replace(max_steps=2), observers=[added])
    assert [(row["single"], row["logged"], row["broken"]) for row in run.rows] == [
        (0.5, 0.25, math.inf)
    ] * 2
    assert [(alert.rule, alert.subject) for alert in run.alerts] == [("not_finite", "broken")]


def test_observer_numbers_of_other_libraries_are_stored_as_floats(tiny, settings) -> None:
    def added(row: dict, completions: object) -> None:
        row.update(tensor=torch.tensor(0.5), count=numpy.int64(3), part=Fraction(1, 4))

    run = gn.train(*tiny, [brevity], settings.replace(max_steps=1), observers=[added])
    (row,) = run.rows
    assert (row["tensor"], row["count"], row["part"]) == (0.5, 3.0, 0.25)


def test_observer_cannot_remove_what_is_recorded(tiny, settings) -> None:
    def damaging(row: dict, completions: pandas.DataFrame) -> None:
        row.clear()
        row.update(step=0, reward=99.0)
        completions.drop(columns="total", inplace=True)

    def adding(row: dict, completions: pandas.DataFrame) -> None:
        row["mean_total"] = completions["total"].mean()

    observers = [damaging, adding]
    run = gn.train(*tiny, [brevity], settings.replace(max_steps=1), observers=observers)
    assert run.completions(1)["total"].notna().all()
    assert run.rows[0]["step"] == 1
    assert run.rows[0]["reward"] < 99.0
    assert run.rows[0]["mean_total"] == pytest.approx(run.completions(1)["total"].mean())


def test_observer_cannot_change_what_another_one_added(tiny, settings) -> None:
    def adding(row: dict, completions: pandas.DataFrame) -> None:
        row["parts"] = [1]

    def appending(row: dict, completions: pandas.DataFrame) -> None:
        row["parts"].append(2)

    observers = [adding, appending]
    run = gn.train(*tiny, [brevity], settings.replace(max_steps=1), observers=observers)
    assert run.rows[0]["parts"] == [1]


def test_observer_cannot_write_alerts(tiny, settings) -> None:
    def alarming(row: dict, completions: pandas.DataFrame) -> None:
        row["alerts"] = 3

    with pytest.raises(ValueError, match=r"an observer cannot write row\['alerts'\]"):
        gn.train(*tiny, [brevity], settings, name="alarming", observers=[alarming])
    run = gn.open_run(f"{settings.run_root}/alarming")
    assert len(run.rows) == 1
    assert run.alerts == []


def test_interrupt_in_an_observer_asks_no_further_observer(tiny, settings) -> None:
    def interrupted(row: dict, completions: object) -> None:
        raise KeyboardInterrupt

    asked = []
    observers = [interrupted, lambda row, completions: asked.append(row["step"])]
    run = gn.train(*tiny, [brevity], settings, observers=observers)
    assert (run.status, asked, len(run.rows)) == ("interrupted", [], 1)


CIRCULAR: list = []
CIRCULAR.append(CIRCULAR)


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        (("a", 1), 0.5, TypeError, "keys must be str"),
        ("image", CIRCULAR, ValueError, "Circular reference"),
        ("image", {"a set"}, TypeError, "must be a string or a real number, not 'set'"),
    ],
)
def test_observer_entry_that_json_cannot_hold_keeps_the_step(
    tiny, settings, key: object, value: object, error: type, message: str
) -> None:
    def noted(row: dict, completions: object) -> None:
        row["noted"] = "yes"

    def added(row: dict, completions: object) -> None:
        row["added"] = "yes"
        if row["step"] == 2:
            row[key] = value

    with pytest.raises(error, match=message):
        gn.train(*tiny, [brevity], settings, name="a", observers=[noted, added])
    run = gn.open_run(Path(settings.run_root) / "a")
    assert run.status == "failed"
    assert [row["step"] for row in run.rows] == run.steps == [1, 2]
    assert [row["noted"] for row in run.rows] == ["yes", "yes"]
    assert ["added" in row for row in run.rows] == [True, False]
    assert "image" not in run.rows[-1]
    assert checkpoint_step(run) == 2


@pytest.mark.parametrize("where", ["notebook", "terminal"])
def test_failing_display_is_switched_off(tiny, settings, monkeypatch, where: str) -> None:
    def breaks(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr("grpo_nb.training.recorder.is_notebook", lambda: where == "notebook")
    broken = "LivePlot.update" if where == "notebook" else "tqdm.set_postfix"
    monkeypatch.setattr(f"grpo_nb.training.recorder.{broken}", breaks)
    with pytest.warns(
        UserWarning, match="progress of this training is not shown any more"
    ) as caught:
        run = gn.train(*tiny, [brevity], settings)
    assert run.status == "finished"
    assert len(run.rows) == 3
    assert not any("its folder is incomplete" in str(warning.message) for warning in caught)
    told = [
        str(warning.message)
        for warning in caught
        if "progress of this training is not shown any more" in str(warning.message)
    ]
    assert len(told) == 1
    assert "no font" in told[0]


def nothing(completions: list, **columns: object) -> list[float]:
    return [0.0] * len(completions)


def test_run_without_signal_stops_on_critical_alert(tiny, settings, capsys) -> None:
    settings = settings.replace(max_steps=30, num_generations=2, per_device_train_batch_size=4)
    run = gn.train(*tiny, [nothing], settings.replace(stop_on_alert="critical"))
    assert run.status == "stopped"
    assert "zero_variance" in run.info["stopped_by"]
    assert len(run.rows) < settings.max_steps
    assert run.adapter_path.is_dir()
    told = [(alert.rule, alert.severity, alert.step) for alert in run.alerts]
    assert ("zero_variance", "critical", 20) in told
    said = "".join(capsys.readouterr())
    for rule, severity, step in told:
        assert re.search(rf"{severity} +{step} +{rule}", said)

    # Gone on with without the stop, nothing is told twice and nothing forgotten.
    resumed = gn.train(*tiny, [nothing], settings, resume=run.path)
    assert resumed.status == "finished"
    assert len(resumed.rows) == settings.max_steps
    again = [(alert.rule, alert.subject) for alert in resumed.alerts]
    assert len(again) == len(set(again))
    assert [rule for rule, _ in again][: len(told)] == [rule for rule, *_ in told]


def test_stop_by_observer_and_alert_names_both(tiny, settings) -> None:
    def impatient(row: dict, completions: object) -> bool:
        return row["step"] == 20

    settings = settings.replace(max_steps=30, num_generations=2, per_device_train_batch_size=4)
    settings = settings.replace(stop_on_alert="critical")
    run = gn.train(*tiny, [nothing], settings, observers=[impatient])
    assert run.info["stopped_by"].startswith("impatient, zero_variance")


def test_stop_for_the_same_reason_twice_names_it_once(tiny, settings) -> None:
    def impatient(row: dict, completions: object) -> bool:
        return True

    run = gn.train(*tiny, [brevity], settings, observers=[impatient, impatient])
    assert run.info["stopped_by"] == "impatient"


@pytest.mark.parametrize("value", [math.nan, None])
def test_step_without_scores_has_no_reward(tiny, settings, value) -> None:
    def silent(completions: list, trainer_state=None, **columns: object) -> list:
        return (
            brevity(completions) if trainer_state.global_step >= 2 else [value] * len(completions)
        )

    run = gn.train(*tiny, [silent], settings)
    assert ["reward" in row for row in run.rows] == [False, False, True]
    assert run.completions(1)["total"].isna().all()
    assert run.completions(3)["total"].notna().all()


def test_holdout_score_uses_the_runs_own_grader(monkeypatch) -> None:
    """20 questions, 19 of them right."""
    shared = {"is_formatted": True, "tokens": 5, "is_truncated": False}
    answers = [
        {**shared, "is_correct": number > 0, "is_correct_anywhere": number > 1}
        for number in range(20)
    ]
    graders = []
    observers = "grpo_nb.training.recorder"
    decodings = []
    monkeypatch.setattr(
        f"{observers}.complete_rows", lambda *args: decodings.append(args[-1]) or []
    )
    monkeypatch.setattr(
        f"{observers}.grade_answers", lambda *args, grader: graders.append(grader) or answers
    )
    task = SimpleNamespace(
        holdout=[{"prompt": "q", "answer": "7"}] * 30,
        format=None,
        chat_template_kwargs={},
        tools=None,
        start_episode=dict,
    )
    settings = gn.preset("cpu", holdout_every=5, holdout_questions=20)
    paid_by = [gn.rewards.correctness(tolerance=0.5), gn.rewards.partial_format()]
    prepared = PreparedTraining(
        task=task,
        settings=settings,
        model=None,
        tokenizer=None,
        rewards=paid_by,
        weights={},
        engine_choice=EngineChoice("transformers' own generation", "no GPU", "this model is odd"),
        dtype="float32",
    )
    watch = HoldoutObserver(prepared)
    rows = [{"step": step, "max_steps": 12} for step in (1, 3, 5, 10, 12)]
    for row in rows:
        watch(row, None)
    assert [row["step"] for row in rows if "holdout/accuracy" in row] == [1, 5, 10, 12]
    assert [grader.reward for grader in graders] == paid_by[:1] * 4
    assert not any(decoding.settings.shared_prompts for decoding in decodings)
    assert rows[0]["holdout/accuracy"] == 0.95
    assert (rows[0]["holdout/in_format"], rows[0]["holdout/anywhere"]) == (1.0, 0.9)
    assert rows[0]["holdout/anywhere_low"] < 0.9 < rows[0]["holdout/anywhere_high"]
    assert (rows[0]["holdout/accuracy_low"], rows[0]["holdout/accuracy_high"]) == pytest.approx(
        (0.764, 0.991), abs=1e-3
    ), "Wilson's"


@pytest.mark.parametrize("first", [None, math.nan, numpy.float32(0.25)])
def test_holdout_score_of_an_observer_never_ends_the_training(tiny, settings, first) -> None:
    def scoring(row: dict, completions: object) -> None:
        row[ACCURACY_KEY] = first if row["step"] == 1 else numpy.float32(0.5)

    run = gn.train(*tiny, [brevity], settings, observers=[scoring])
    assert run.status == "finished"
    assert run.metrics.set_index("step")[ACCURACY_KEY].idxmax() == 2


@pytest.mark.parametrize(
    ("scores", "best_step"), [({1: 0.2, 2: 0.6, 3: 0.4}, 2), ({1: 0.0, 2: 0.0, 3: 0.0}, 1)]
)
def test_observer_of_the_guide_keeps_the_best_adapter(
    tiny, settings, tmp_path, monkeypatch, scores: dict[int, float], best_step: int
) -> None:
    model, tokenizer, task = tiny
    adapters = {}

    def planned(self: HoldoutObserver, row: dict, completions: object) -> None:
        row[ACCURACY_KEY] = scores[row["step"]]
        adapters[row["step"]] = copy.deepcopy(get_peft_model_state_dict(model))

    monkeypatch.setattr(HoldoutObserver, "__call__", planned)
    monkeypatch.chdir(tmp_path)
    guide = (ROOT / "docs/guide/runs.md").read_text()
    recipe = guide.partition("```python\ndef keep_best")[2].partition("```")[0]
    names = {
        "gn": gn,
        "model": model,
        "tokenizer": tokenizer,
        "task": task,
        "rewards": [brevity],
        "settings": settings,
    }
    exec(compile(f"def keep_best{recipe}", "docs/guide/runs.md", "exec"), names)
    best = get_peft_model_state_dict(names["model"])
    assert best.keys() == adapters[best_step].keys()
    assert all(torch.equal(best[name], tensor) for name, tensor in adapters[best_step].items())
    assert not all(torch.equal(best[name], tensor) for name, tensor in adapters[3].items())
