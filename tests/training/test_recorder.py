"""What goes wrong while a step is recorded: the step is kept, nothing is lost without a word, and a figure ends no training."""

import warnings
from pathlib import Path

import numpy
import pytest
import torch

import grpo_nb as gn
from grpo_nb.training.recorder import Recorder
from tests.conftest import brevity
from tests.support.tiny import load_tiny


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path):
    return load_tiny(tiny_folder, 8, 2)[:3]


@pytest.fixture
def settings(tiny_settings: gn.Settings) -> gn.Settings:
    return tiny_settings.replace(max_completion_length=6, num_generations=4, per_device_train_batch_size=8)


class Adds(gn.training.Observer):
    """Adds these to each row."""

    def __init__(self, **values: object) -> None:
        self.values = values

    def on_row(self, row: dict, completions: object) -> bool:
        row.update(self.values)
        return False


def said(caught: list, word: str) -> list[str]:
    return [str(warning.message) for warning in caught if word in str(warning.message)]


def test_numbers_of_other_kinds_are_kept_and_what_is_none_is_said_to_be_lost(tiny, settings: gn.Settings) -> None:
    def logging(completions: list, log_metric=None, **columns: object) -> list[float]:
        if log_metric is not None:
            log_metric("logged", numpy.float32(0.25))
        return brevity(completions)

    adds = Adds(
        single=numpy.float32(0.5), whole=numpy.int64(3), tensor=torch.tensor(2.0), unknown=None, thing=object(), note="x"
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = gn.train(*tiny, [logging], settings.replace(max_steps=2), observers=[adds])
    assert run.status == "finished" and run.checkpoint_step == 2
    for row in run.rows:
        assert (row["single"], row["whole"], row["tensor"], row["logged"], row["note"]) == (0.5, 3, 2.0, 0.25, "x")
        assert not {"unknown", "thing"} & set(row), "what was not measured has no key"
    told = said(caught, "left out of the rows")
    assert len(told) == 1 and told[0].startswith("'thing' of step 1 is left out of the rows: <object")


def test_numbers_that_wait_for_their_row_are_resumed(tiny, settings: gn.Settings) -> None:
    presses = [True]

    def logging(completions: list, log_metric=None, trainer_state=None, **columns: object) -> list[float]:
        if log_metric is not None:
            log_metric("logged", numpy.float64(0.25))
        if getattr(trainer_state, "global_step", 0) == 3 and presses.pop():
            raise KeyboardInterrupt
        return brevity(completions)

    settings = settings.replace(max_steps=4, extra={"logging_steps": 2})
    run = gn.train(*tiny, [logging], settings, name="waits")
    assert run.status == "interrupted" and run.checkpoint_step == 3 and [row["step"] for row in run.rows] == [2]
    presses.append(False)
    run = gn.train(*tiny, [logging], settings, resume="waits")
    assert run.status == "finished" and [(row["step"], row["logged"]) for row in run.rows] == [(2, 0.25), (4, 0.25)]


@pytest.mark.parametrize("what", ["_completions", "_write"])
def test_a_step_that_cannot_be_recorded_is_in_the_checkpoint(tiny, settings, monkeypatch, what: str) -> None:
    working = getattr(Recorder, what)

    def breaks(self: Recorder, *args: object) -> object:
        if self.step == 2:
            raise TypeError("not what the table takes")
        return working(self, *args)

    monkeypatch.setattr(Recorder, what, breaks)
    with pytest.raises(TypeError, match="not what the table takes") as caught:
        gn.train(*tiny, [brevity], settings, name="broken")
    assert "while step 2 was recorded" in caught.value.__notes__[0]
    run = gn.open_run(Path(settings.run_root) / "broken")
    assert run.status == "failed" and "not what the table takes" in run.info["error"]
    assert run.checkpoint_step == 2 and run.adapter_path.is_dir() and not run.info["not_saved"]
    monkeypatch.undo()
    run = gn.train(*tiny, [brevity], settings, resume="broken")
    assert run.status == "finished" and [row["step"] for row in run.rows] == [1, 2, 3]


def test_of_several_errors_in_one_step_none_is_lost(tiny, settings, monkeypatch) -> None:
    def breaks(self: Recorder, *args: object) -> None:
        raise OSError("the drive is gone")

    class Fails(Adds):
        def on_row(self, row: dict, completions: object) -> bool:
            raise ZeroDivisionError("in an observer")

    monkeypatch.setattr(Recorder, "_write", breaks)
    with pytest.raises(ZeroDivisionError, match="in an observer") as caught:
        gn.train(*tiny, [brevity], settings, observers=[Fails()])
    assert any("OSError: the drive is gone" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("where", ["notebook", "terminal"])
def test_a_display_that_fails_is_switched_off_and_the_training_goes_on(tiny, settings, monkeypatch, where: str) -> None:
    def breaks(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr("grpo_nb.training.recorder.is_notebook", lambda: where == "notebook")
    monkeypatch.setattr("grpo_nb.training.recorder.LivePlot.update", breaks)
    monkeypatch.setattr("grpo_nb.training.recorder.ProgressLine.update", breaks)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = gn.train(*tiny, [brevity], settings)
    assert run.status == "finished" and len(run.rows) == 3 and not run.info["not_saved"]
    assert (run.path / "figures" / "training.png").is_file()
    told = said(caught, "switched off")
    assert len(told) == 1 and "no font" in told[0] and ("figure" if where == "notebook" else "bar") in told[0]
