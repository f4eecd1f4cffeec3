"""What goes wrong while a step is recorded: the step is kept, nothing is lost without a word, and a figure ends no training."""

import warnings
from pathlib import Path

import numpy
import pytest
import torch

import grpo_nb as gn
from grpo_nb.rewards.calls import RewardError
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
    assert ["bar" in text for text in told] == [True, False][: 1 + (where == "notebook")]
    assert all("no font" in text for text in told)


def test_a_notebook_has_a_line_for_each_step_while_the_figure_waits(
    tiny, settings, monkeypatch, displayed: list
) -> None:
    for module in ("grpo_nb.training.recorder", "grpo_nb.core.progress"):
        monkeypatch.setattr(f"{module}.is_notebook", lambda: True)
    gn.train(*tiny, [brevity], settings)
    lines = [data["text/plain"] for _, data, _ in displayed if data.keys() == {"text/plain"}]
    for step in (1, 2, 3):
        assert any(f"{step}/3" in line and "reward=" in line for line in lines), (step, lines)


def silent_until(step: int, value: float | None):
    """A reward that says nothing of any completion before a step."""

    def silent(completions: list, trainer_state=None, **columns: object) -> list:
        return brevity(completions) if trainer_state.global_step >= step else [value] * len(completions)

    return silent


@pytest.mark.parametrize(("value", "steps", "after"), [(float("nan"), 5, 3), (None, 5, 3), (None, 1, 1)])
def test_rewards_that_never_give_a_number_end_the_run_and_are_named(
    tiny, settings, value, steps: int, after: int
) -> None:
    with pytest.raises(
        ValueError, match=rf"last {after} steps?: the reward 'silent' gave NaN or None.*0.0 for a bad one"
    ):
        gn.train(*tiny, [silent_until(99, value)], settings.replace(max_steps=steps), name="silent")
    run = gn.open_run(Path(settings.run_root) / "silent")
    assert run.status == "failed" and "'silent' gave NaN or None" in run.info["error"] and len(run.rows) == after
    table = run.completions(1)
    assert table["completion"].str.len().max() > 0 and table["total"].isna().all() and table["silent"].isna().all()


def test_a_reward_that_is_silent_for_a_moment_ends_nothing(tiny, settings) -> None:
    run = gn.train(*tiny, [silent_until(2, None)], settings)
    assert run.status == "finished" and ["reward" in row for row in run.rows] == [False, False, True]


@pytest.mark.parametrize("value", [None, float("nan")], ids=["None", "NaN"])
def test_a_completion_without_a_score_has_that_of_the_other_rewards(tiny, settings, value) -> None:
    def now_and_then(completions: list, **columns: object) -> list:
        return [value if i % 2 else 1.0 for i in range(len(completions))]

    run = gn.train(*tiny, [now_and_then, brevity], settings.replace(max_steps=1))
    table = run.completions(1)
    unscored = table["now_and_then"].isna()
    assert run.status == "finished" and 0 < unscored.sum() < len(table)
    assert table["total"].tolist() == pytest.approx((table["now_and_then"].fillna(0) + table["brevity"]).tolist())
    assert table["advantage"].notna().all() and not run.info["not_saved"]


@pytest.mark.parametrize("from_step", [0, 1], ids=["tried before", "in training"])
def test_an_infinite_score_is_refused_with_its_row(tiny, settings, from_step: int) -> None:
    def infinite(completions: list, trainer_state=None, **columns: object) -> list:
        is_trial = getattr(trainer_state, "is_trial", False)
        return [1.0] * (len(completions) - 1) + [1e39 if from_step == 0 or not is_trial else 1.0]

    kind = RewardError if from_step else ValueError
    with pytest.raises(kind, match=r"'infinite' raised ValueError: it gave 1e\+39: give a finite number") as caught:
        gn.train(*tiny, [infinite], settings, name="infinite")
    assert f"on row {7 if from_step else 0}" in str(caught.value)
    assert (Path(settings.run_root) / "infinite").exists() == bool(from_step)
