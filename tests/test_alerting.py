"""Alerts reach the person who trains, and the folder of the run."""

import json
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.alerting import AlertDisplay
from grpo_nb.environment import EnvironmentProblem


def nothing(completions: list, **columns: object) -> list[float]:
    return [0.0] * len(completions)


@pytest.fixture
def training(tiny_folder: Path, tmp_path: Path):
    """What `gn.train` takes: the tiny model, and a reward that pays nobody."""
    settings = gn.preset(
        "cpu", model=str(tiny_folder), max_steps=30, max_completion_length=6, num_generations=2,
        per_device_train_batch_size=4, run_root=str(tmp_path / "runs"),
    )  # fmt: skip
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, train_size=20, holdout_size=6, tokenizer=tokenizer)
    return model, tokenizer, task, [nothing], settings


def test_a_run_that_learns_nothing_says_so_and_ends_if_asked_to(training, capsys: pytest.CaptureFixture) -> None:
    *first, settings = training
    run = gn.train(*first, settings.replace(stop_on_alert="critical"))
    assert run.status == "stopped" and run.info["stopped_by"] == "HealthAlerts"
    assert len(run.rows) < settings.max_steps and run.adapter_path.is_dir()
    told = [(alert.rule, alert.severity, alert.step) for alert in run.alerts()]
    assert ("no_spread", "warning", 10) in told
    assert {step for _, severity, step in told if severity == "critical"} == {len(run.rows)}, "it went on"
    # The terminal was told the same, once each.
    said = capsys.readouterr()
    for alert in run.alerts():
        assert (said.out + said.err).count(alert.message) == 1

    # Gone on with without the stop, nothing is told twice and nothing forgotten.
    resumed = gn.train(*first, settings, resume=run.name)
    assert resumed.status == "finished" and len(resumed.rows) == settings.max_steps
    again = [(alert.rule, alert.subject, alert.severity) for alert in resumed.alerts()]
    assert len(again) == len(set(again)) and [a[:1] + a[2:] for a in again][: len(told)] == [t[:2] for t in told]


def test_out_of_memory_says_what_to_write(training) -> None:
    *first, _, settings = training

    def hungry(completions: list, **columns: object) -> list[float]:
        if columns["trainer_state"].global_step >= 2:
            raise MemoryError("no more")
        return [float(len(c[0]["content"])) for c in completions]

    with pytest.raises(EnvironmentProblem, match=r"per_device_train_batch_size=2, gradient_accumulation_steps=2"):
        gn.train(*first, [hungry], settings)
    (folder,) = Path(settings.run_root).iterdir()
    (alert,) = [a for a in gn.open_run(folder).alerts() if a.rule == "out_of_memory"]
    assert alert.evidence["change"] == {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    assert alert.step == 2


def test_a_notebook_shows_one_table_that_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, str]] = []

    class FakeHandle:
        def update(self, bundle: dict, *, raw: bool) -> None:
            shown.append(("update", bundle["text/html"]))

    def fake_display(bundle: dict, *, raw: bool, display_id: bool) -> FakeHandle:
        shown.append(("display", bundle["text/html"]))
        return FakeHandle()

    monkeypatch.setattr("IPython.display.display", fake_display)
    show = AlertDisplay(tmp_path, None)
    for step, message in ((10, "first <b>"), (20, "second")):
        alert = gn.Alert(rule="kl_spike", severity="warning", step=step, message=message, why="w", advice="a")
        with (tmp_path / "alerts.jsonl").open("a") as file:
            file.write(json.dumps(alert.to_dict()) + "\n")
        show([alert])
    assert [how for how, _ in shown] == ["display", "update"]
    assert "first &lt;b&gt;" in shown[0][1] and "second" in shown[1][1]


def test_a_misspelt_stop_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="stop_on_alert = 'crit': write 'critical'"):
        gn.preset("cpu", stop_on_alert="crit")
