"""Alerts reach the person who trains, and the folder of the run."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

import grpo_nb as gn
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.health.monitor import HealthMonitor
from grpo_nb.runs.alert import alerts_of
from grpo_nb.runs.best import best_step
from grpo_nb.runs.live import training_figure
from grpo_nb.training.observers import HealthAlerts, HoldoutScore
from tests.support.tiny import load_tiny


def nothing(completions: list, **columns: object) -> list[float]:
    return [0.0] * len(completions)


@pytest.fixture
def training(tiny_folder: Path, tmp_path: Path):
    """What `gn.train` takes: the tiny model, and a reward that pays nobody."""
    *first, settings = load_tiny(
        tiny_folder, 20, 6, max_steps=30, max_completion_length=6, num_generations=2,
        per_device_train_batch_size=4, run_root=str(tmp_path / "runs"),
    )  # fmt: skip
    return *first, [nothing], settings


def test_a_run_that_learns_nothing_says_so_and_ends_if_asked_to(training, capsys: pytest.CaptureFixture) -> None:
    *first, settings = training
    run = gn.train(*first, settings.replace(stop_on_alert="critical"))
    assert run.status == "stopped" and run.info["stopped_by"] == "HealthAlerts"
    assert len(run.rows) < settings.max_steps and run.adapter_path.is_dir()
    told = [(alert.rule, alert.severity, alert.step) for alert in run.alerts]
    assert ("no_spread", "critical", 20) in told
    assert {step for _, severity, step in told if severity == "critical"} == {len(run.rows)}, "it went on"
    # The terminal was told the same when it came; the numbers are those of then.
    said = capsys.readouterr()
    for alert in run.alerts:
        assert f"{alert.severity}: {alert.rule}" in said.out + said.err

    # Gone on with without the stop, nothing is told twice and nothing forgotten.
    resumed = gn.train(*first, settings, resume=run.name)
    assert resumed.status == "finished" and len(resumed.rows) == settings.max_steps
    again = [(alert.rule, alert.subject) for alert in resumed.alerts]
    assert len(again) == len(set(again)) and [rule for rule, _ in again][: len(told)] == [rule for rule, *_ in told]


def test_out_of_memory_says_what_to_write(training) -> None:
    *first, _, settings = training

    def hungry(completions: list, **columns: object) -> list[float]:
        if columns["trainer_state"].global_step >= 2:
            raise MemoryError("no more")
        return [float(len(c[0]["content"])) for c in completions]

    with pytest.raises(EnvironmentProblem, match=r"per_device_train_batch_size=2, gradient_accumulation_steps=2"):
        gn.train(*first, [hungry], settings)


def row_with(step: int, name: str) -> dict:
    return {"step": step, "reward": 0.0, name: math.inf}


def test_a_notebook_shows_one_table_that_grows(displayed: list) -> None:
    alerts = HealthAlerts(HealthMonitor())
    for step, name in ((10, "first <b>"), (20, "second")):
        alerts.on_row(row_with(step, name), None)
    (how, first, _), (then, second, _) = displayed
    assert (how, then) == ("display", "update")
    assert "first &lt;b&gt;" in first["text/html"] and "second" in second["text/html"]


def test_a_misspelt_stop_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"stop_on_alert = 'crit' is not known here; did you mean 'critical'"):
        gn.preset("cpu", stop_on_alert="crit")


class Adds(gn.training.Observer):
    """Measures something, which goes wrong."""

    def on_row(self, row: dict, completions: object) -> bool:
        row["mine"] = math.inf
        return False


def test_what_observers_add_reaches_the_health_rules(training) -> None:
    *first, settings = training
    run = gn.train(*first, settings.replace(max_steps=1), observers=[Adds()])
    assert [(a.rule, a.subject) for a in run.alerts] == [("not_finite", "mine")]


def test_alerts_that_cannot_be_shown_are_kept_and_end_nothing() -> None:
    def write(fresh: object) -> None:
        raise RuntimeError("no front end")

    alerts, rows = HealthAlerts(HealthMonitor(), write), [row_with(step, f"value {step}") for step in (1, 2)]
    with pytest.warns(UserWarning, match="no front end.*run.alerts has them") as said:
        assert not any(alerts.on_row(row, None) for row in rows)
    assert len(said) == 1 and [a.step for a in alerts_of(rows)] == [1, 2]


def test_each_score_is_held_against_the_best_so_far(monkeypatch) -> None:
    """20 questions: half right, nearly all, all but one of them, none."""
    right = iter([[1] * 10 + [0] * 10, [1] * 19 + [0], [1] * 18 + [0] * 2, [0] * 20])
    like = {"is_formatted": True, "tokens": 5, "is_cut": False}
    rows_of = lambda: [{"is_correct": bool(ok), **like} for ok in next(right)]  # noqa: E731
    monkeypatch.setattr("grpo_nb.training.observers.answers_of_model", lambda *args, **named: [])
    judges = []
    monkeypatch.setattr(
        "grpo_nb.training.observers.read_answers", lambda *args, reward: judges.append(reward) or rows_of()
    )
    task = SimpleNamespace(holdout=[{"prompt": "q"}] * 20, format=None, chat_template_kwargs={})
    settings = gn.preset("cpu", holdout_every=5, holdout_questions=20)
    paid_by = [gn.rewards.correctness(tolerance=0.5), gn.rewards.xml_tags()]
    watch = HoldoutScore(SimpleNamespace(task=task, settings=settings, model=None, tokenizer=None, rewards=paid_by))
    rows = [{"step": step, "max_steps": 12} for step in (1, 3, 5, 10, 12)]
    for row in rows:
        watch.on_row(row, None)
    scored = [row for row in rows if "holdout/accuracy" in row]
    assert [(row["step"], row["holdout/accuracy"], row["holdout/behind_best"]) for row in scored] == [
        (1, 0.5, 0.0), (5, 0.95, 0.0), (10, 0.9, 0.0), (12, 0.0, 1.0)
    ]  # fmt: skip
    assert judges == paid_by[:1] * 4, "right is what the training pays"
    low, high = scored[1]["holdout/low"], scored[1]["holdout/high"]
    assert (low, high) == pytest.approx((0.764, 0.991), abs=1e-3), "Wilson's interval"
    assert best_step(rows[:-1]).sentence == (
        "Best held-out score: 95.0% (76.4% to 99.1%) at step 5, the best of 3; the last, at step 10, had 90.0%, and cannot be "
        "told from it on the same questions, in pairs."
    )
    assert "had 0.0%, and is worse on the same questions" in best_step(rows).sentence
    assert best_step(rows[:3]).sentence.endswith("at step 5, the last of 2.") and best_step([{"step": 1}]) is None
    # What it remembers is the best, not the last.
    state = json.loads(json.dumps(watch.state_dict()))
    assert sum(state["best"]) == 19
    figure = training_figure(rows)
    assert [line.get_xdata()[0] for axis in figure.axes for line in axis.lines if line.get_gid() == "best"] == [5]
    assert any("best, 95 % at step 5" in text.get_text() for axis in figure.axes for text in axis.texts)
