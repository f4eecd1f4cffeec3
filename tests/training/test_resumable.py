"""A killed, interrupted or failed training is resumed as if nothing had happened, or refused."""

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pandas
import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer

import grpo_nb as gn
from grpo_nb.core.locks import FolderLockedError, holding_lock
from grpo_nb.runs import checkpoints
from grpo_nb.scoring.scores import RewardError
from grpo_nb.training import prepare
from grpo_nb.training.recorder import Recorder
from tests.run_fixtures import brevity
from tests.support import killed_training
from tests.support.adapters import way_back
from tests.support.locks import holder_of
from tests.support.own_rewards import Fading
from tests.support.run_folders import checkpoint_step, untimed
from tests.support.tiny import load_tiny
from tests.support.warm_kernel import run_module

pytestmark = pytest.mark.begins(60)

GONE = 2**22 + 1  # above any pid that Linux gives out


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path):
    """Model, tokenizer and four prompts, so that a few steps pass over the data several times."""
    return load_tiny(tiny_folder, 4, 6)[:3]


@pytest.fixture
def back(tiny):
    """Makes the adapter zero again, as loading the model anew does."""
    back = way_back(tiny[0])
    yield back
    back()


@pytest.fixture
def fresh(tiny, back):
    """The same with a zero adapter."""
    return tiny


SETTINGS = {
    "max_steps": 5,
    "save_steps": 2,
    "max_completion_length": 8,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "learning_rate": 2e-2,
    "lr_scheduler_type": "linear",
    "max_grad_norm": 10.0,
}


@pytest.fixture
def settings(tiny_settings: gn.Settings) -> gn.Settings:
    return tiny_settings.replace(**SETTINGS)


def crash_images(root: str, name: str, *steps: int):
    """An observer that copies the run's folder within given steps, as a lost machine leaves it."""

    def copies(row: dict, completions: pandas.DataFrame) -> None:
        if row["step"] in steps:
            copy = Path(root) / f"{name}-{row['step']}"
            shutil.copytree(Path(root) / name, copy)
            info = json.loads((copy / "run.json").read_text())
            (copy / "run.json").write_text(json.dumps({**info, "status": "running", "pid": GONE}))
            (copy / "metrics.jsonl").open("a").write('{"step": 9, "rew')  # the last line cut short

    return copies


def adapter_in(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def assert_same_run(resumed: gn.runs.Run, whole: gn.runs.Run) -> None:
    assert [row["step"] for row in resumed.rows] == [row["step"] for row in whole.rows]
    for ours, theirs in zip(untimed(resumed.rows), untimed(whole.rows), strict=True):
        assert ours == theirs, f"step {theirs['step']}"
    pandas.testing.assert_frame_equal(resumed.completions(), whole.completions())
    ours = adapter_in(resumed.adapter_path)
    theirs = adapter_in(whole.adapter_path)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert any(tensor.any() for name, tensor in theirs.items() if "lora_B" in name), (
        "nothing was trained"
    )


# A generation serves four optimizer steps, and a checkpoint waits for its end.
CYCLES = {
    "gradient_accumulation_steps": 2,
    "per_device_train_batch_size": 4,
    "extra": {"num_iterations": 2, "steps_per_generation": 4},
}


@pytest.fixture(scope="module")
def five_steps(tiny, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `whole`, of five steps, and `whole-5`, which crashed in the fifth with checkpoints 2 and
    4."""
    root = tmp_path_factory.mktemp("five_steps")
    settings = gn.preset("cpu", model=str(tiny_folder), run_root=str(root), **SETTINGS)
    back = way_back(tiny[0])
    gn.train(
        *tiny, [brevity], settings, name="whole", observers=[crash_images(str(root), "whole", 5)]
    )
    back()
    return root


@pytest.fixture
def whole(five_steps: Path) -> gn.runs.Run:
    """The run of five steps, only to be looked at."""
    return gn.open_run(five_steps / "whole")


@pytest.fixture
def crashed(fresh, five_steps: Path, settings: gn.Settings) -> gn.runs.Run:
    """The one that crashed, in a copy of the folder of both."""
    shutil.copytree(five_steps, settings.run_root)
    return gn.open_run(Path(settings.run_root) / "whole-5")


# All eight in `make test-slow`; of the four in `make test` any two settings meet in each way.
WAYS = [
    pytest.param(
        changes,
        shared,
        beta,
        marks=[] if bool(changes) != (shared == bool(beta)) else pytest.mark.slow,
    )
    for changes, shared, beta in itertools.product(({}, CYCLES), (True, False), (0.0, 0.04))
]


@pytest.mark.parametrize(("changes", "shared", "beta"), WAYS)
def test_interrupted_and_resumed_is_uninterrupted(
    fresh, back, settings, changes, shared, beta
) -> None:
    # Newest checkpoint by step. A pass over the data is two steps, so 3 is within the second one.
    crashes = {5: 4} if changes else {1: 0, 4: 3} if shared and beta else {4: 3}
    settings = settings.replace(
        shared_prompts=shared, beta=beta, save_steps=2 if changes else 1, **changes
    )
    rewards = [Fading(brevity), gn.rewards.partial_format()]
    images = crash_images(settings.run_root, "whole", *crashes)
    whole = gn.train(*fresh, rewards, settings, name="whole", observers=[images])
    assert len(whole.rows) == 5
    for step, checkpoint in crashes.items():
        back()
        rewards = [Fading(brevity), gn.rewards.partial_format()]
        assert gn.open_run(Path(settings.run_root) / f"whole-{step}").status == "crashed"
        run = gn.train(*fresh, rewards, settings, resume=f"{settings.run_root}/whole-{step}")
        assert run.status == "finished"
        assert run.info["resumed"][0]["step"] == checkpoint
        assert_same_run(run, whole)


# Once in each way: while it writes a checkpoint, at any moment, and at any operation on files.
@pytest.mark.parametrize("times", [3, pytest.param(7, marks=pytest.mark.slow)])
def test_run_killed_at_random_moments_ends_the_same(
    times: int, tiny_folder: Path, tmp_path: Path
) -> None:
    root = str(tmp_path / "runs")
    said = run_module(
        "tests.support.killed_training", str(tiny_folder), root, str(times), folder=tmp_path
    )
    kills = json.loads(said[-1])
    assert len(kills) >= min(times, 5), f"too few were killed before the end: {kills}"
    assert any(kill["at"] == "fsync" for kill in kills), (
        f"none was killed while it wrote a checkpoint: {kills}"
    )
    # The end is done by this process, which has nothing of the others but their files.
    threads = torch.get_num_threads()
    try:
        killed_training.train(*killed_training.loaded(str(tiny_folder), root), "killed")
    finally:
        torch.set_num_threads(threads)
    run, whole = (gn.open_run(tmp_path / "runs" / name) for name in ("killed", "whole"))
    assert run.status == "finished"
    assert len(run.rows) == 12
    assert "resumed" not in whole.info
    assert_same_run(run, whole)


def test_reference_adapter_is_kept_on_resume(fresh, back, settings: gn.Settings) -> None:
    """With the `ref` adapter of trl 1.15, transformers loads zeros as the trained adapter."""
    model = fresh[0]
    settings = settings.replace(max_steps=4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02, generator=torch.Generator().manual_seed(1))
    images = crash_images(settings.run_root, "second", 4)
    whole = gn.train(*fresh, [brevity], settings, name="second", observers=[images])
    assert whole.info["reference"] == "the adapter it started from"
    assert whole.rows[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert whole.rows[-1]["kl"] > 1e-3
    back()  # a fresh process has neither the adapter that it started from nor the trained one
    resumed = gn.train(*fresh, [brevity], settings, resume=f"{settings.run_root}/second-4")
    assert_same_run(resumed, whole)
    assert set(model.peft_config) == {"default"}
    build = prepare.build_trainer

    def without_copy(*parts):  # as Unsloth's on a GPU
        trainer = build(*parts)
        model.delete_adapter("ref")
        return trainer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grpo_nb.training.train.build_trainer", without_copy)
        refused = {name: p.detach().clone() for name, p in model.named_parameters()}
        with pytest.raises(ValueError, match="on a GPU Unsloth measures it against the base model"):
            gn.train(
                *fresh,
                [brevity],
                settings.replace(max_steps=5),
                resume=f"{settings.run_root}/second-4",
            )
    # A refused resumption leaves the adapter in memory as it was.
    assert all(torch.equal(p, refused[name]) for name, p in model.named_parameters())


def test_adapter_that_transformers_zeroed_is_restored(
    fresh, settings, whole, crashed, monkeypatch
) -> None:
    """As its loader does if there is a `ref` adapter. Nothing comes after the kit's own load."""
    load = Trainer._load_optimizer_and_scheduler

    def zero_adapter(trainer: Trainer, checkpoint: str | None) -> None:
        load(trainer, checkpoint)
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                torch.nn.init.zeros_(parameter)

    monkeypatch.setattr(Trainer, "_load_optimizer_and_scheduler", zero_adapter)
    run = gn.train(*fresh, [brevity], settings, resume=crashed.path)
    assert_same_run(run, whole)


def test_weights_that_were_not_restored_are_an_error(fresh, settings, crashed, monkeypatch) -> None:
    monkeypatch.setattr("peft.set_peft_model_state_dict", lambda *args, **kwargs: None)
    with pytest.raises(ValueError, match=r"was not loaded: .* did not arrive"):
        gn.train(*fresh, [brevity], settings, resume=f"{settings.run_root}/whole-5")
    monkeypatch.undo()
    assert crashed.status == "failed"
    # The adapter on the disk is that of the checkpoint, not the one in memory.
    left = adapter_in(crashed.adapter_path)
    saved = adapter_in(crashed.path / "checkpoints" / "checkpoint-4")
    assert all(torch.equal(left[name], saved[name]) for name in saved)
    assert checkpoint_step(crashed) == 4
    assert checkpoints.find_damage(crashed.path / "checkpoints/checkpoint-4") is None


def test_damaged_checkpoint_is_passed_over(fresh, settings, whole, crashed) -> None:
    newest = crashed.path / "checkpoints" / "checkpoint-4"
    file = newest / "optimizer.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    # As a process leaves it that was killed while it wrote.
    shutil.copytree(newest, newest.with_name(".checkpoint-6.partial-x"))
    with pytest.warns(
        UserWarning,
        match="checkpoint passed over: checkpoint-4: optimizer.pt is not what was written",
    ):
        run = gn.train(*fresh, [brevity], settings, resume=crashed.path)
    assert run.info["resumed"][0]["step"] == 2
    assert_same_run(run, whole)
    assert (run.path / "checkpoints" / "damaged-4").is_dir(), (
        "what may still be worth something is not deleted"
    )


def test_finished_run_continues_for_more_steps(fresh, settings, crashed) -> None:
    whole = gn.open_run(crashed.path.with_name("whole"))
    with pytest.raises(ValueError, match="has already done 5 steps"):
        gn.train(*fresh, [brevity], settings, resume=f"{settings.run_root}/whole")
    before = whole.rows
    (whole.path / "comparison").mkdir()
    (whole.path / "comparison" / "comparison.json").write_text(
        '{"sentence": "of the model at step 5"}'
    )
    with pytest.warns(UserWarning, match="max_steps was 5, is 7"):
        run = gn.train(
            *fresh, [brevity], settings.replace(max_steps=7), resume=f"{settings.run_root}/whole"
        )
    assert [row["step"] for row in run.rows] == list(range(1, 8))
    assert run.rows[:5] == before
    assert run.settings.max_steps == 7
    (resumption,) = run.info["resumed"]
    assert resumption["step"] == 5
    assert resumption["changed"][0] == "max_steps was 5, is 7"
    assert run.comparison is None
    assert (run.path / "comparison-step-5").is_dir()


def content_of(folder: Path) -> dict[Path, bytes]:
    """Return all files of a run except its lock, which names the process that took it last."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != ".lock"]
    return {file: file.read_bytes() for file in files}


@pytest.mark.parametrize("name", [pytest.param(None, marks=pytest.mark.slow), "finished"])
def test_same_cell_returns_the_finished_run(fresh, back, settings, name) -> None:
    def cell(**changes: object) -> gn.runs.Run:
        rewards = [Fading(brevity), gn.rewards.partial_format()]
        return gn.train(*fresh, rewards, settings.replace(**changes), name=name, resume="auto")

    model, _, task = fresh
    first = cell()
    trained = {n: p.detach().clone() for n, p in model.named_parameters() if "lora_" in n}
    answered = gn.compare(first, task)
    files = content_of(first.path)
    back()  # as a new process has it: the adapter is new
    with pytest.warns(
        UserWarning, match=f"'{first.name}' is already finished; returning it without training"
    ):
        run = cell()
    assert run.path == first.path
    assert content_of(first.path) == files, "nothing was written"
    assert all(torch.equal(p, trained[n]) for n, p in model.named_parameters() if n in trained)
    assert run.rewards[0].state_dict() == first.rewards[0].state_dict()
    # Later cells take the model of the run: what they ask is what was trained.
    again = gn.compare(run, task)
    assert [row["completion"] for row in again.after.rows] == [
        row["completion"] for row in answered.after.rows
    ]
    more = cell(max_steps=7)
    assert more.path == first.path
    assert len(more.rows) == 7, "more steps go on"


def broken_at(step: int, error: BaseException | None = None):
    """A reward called `brevity` that fails in the generation after a step."""

    def brevity_that_breaks(
        completions: list, trainer_state=None, **columns: object
    ) -> list[float]:
        if getattr(trainer_state, "global_step", 0) == step:
            if error is not None:
                raise error
            return [1 / (index - 5) for index, _ in enumerate(completions)]
        return brevity(completions)

    brevity_that_breaks.__name__ = "brevity"
    return brevity_that_breaks


def test_reward_error_costs_steps_since_the_checkpoint(
    fresh, back, settings, whole: gn.runs.Run
) -> None:
    failing = broken_at(
        3, ZeroDivisionError("a model said: CUDA out of memory. No space left on device")
    )
    with pytest.raises(
        RewardError, match=r"the reward 'brevity' raised ZeroDivisionError: a model said"
    ) as caught:
        gn.train(*fresh, [failing], settings, name="broken")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    run = gn.open_run(Path(settings.run_root) / "broken")
    assert run.status == "failed"
    assert "'brevity' raised" in run.status_sentence
    assert len(run.rows) == 3
    assert checkpoint_step(run) == 2
    assert run.info["adapter_step"] == 2
    assert (run.path / "figures" / "training.png").is_file()
    assert set(fresh[0].peft_config) == {"default"}
    adapter = adapter_in(run.adapter_path)
    kept = adapter_in(run.path / "checkpoints" / "checkpoint-2")
    assert all(torch.equal(adapter[name], kept[name]) for name in kept)
    back()
    assert_same_run(
        gn.train(*fresh, [brevity], settings, resume=f"{settings.run_root}/broken"), whole
    )


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (
            None,
            RewardError,
            r"raised ZeroDivisionError: .*whole batch; no row alone fails in this way",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            gn.machine.EnvironmentProblem,
            r"settings\.replace\(per_device_train_batch_size=.*gn\.load_model\(settings, adapter='",
        ),
    ],
)
def test_machine_faults_are_explained(fresh, settings, error, kind, told: str) -> None:
    with pytest.raises(kind, match=told):
        gn.train(*fresh, [broken_at(1, error)], settings, name="failed")
    run = gn.open_run(Path(settings.run_root) / "failed")
    assert run.status == "failed"
    assert re.search(told, run.info["error"])
    assert run.adapter_path.is_dir()


def test_disk_full_in_an_observer_is_raised(fresh, settings) -> None:
    def fails(row: dict, completions: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left on device"):
        gn.train(*fresh, [brevity], settings, name="full", observers=[fails])
    assert gn.open_run(Path(settings.run_root) / "full").status == "failed"


def test_error_within_an_update_keeps_the_last_checkpoint(
    fresh, settings, whole, monkeypatch
) -> None:
    model = fresh[0]

    def breaks(
        self: Recorder, args: object, state: object, control: object, **kwargs: object
    ) -> None:
        if state.global_step == 3:
            torch.nn.init.ones_(
                next(p for p in model.parameters() if p.requires_grad)
            )  # half of an update
            raise RuntimeError("device lost")

    monkeypatch.setattr(Recorder, "on_pre_optimizer_step", breaks)
    with pytest.raises(RuntimeError, match="device lost"):
        gn.train(*fresh, [brevity], settings, name="lost")
    monkeypatch.undo()
    run = gn.open_run(Path(settings.run_root) / "lost")
    assert run.status == "failed"
    assert checkpoint_step(run) == run.info["adapter_step"] == 2
    left = adapter_in(run.adapter_path)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert not any(torch.equal(p, torch.ones_like(p)) for p in (*left.values(), *trained.values()))
    assert_same_run(
        gn.train(*fresh, [brevity], settings, resume=f"{settings.run_root}/lost"), whole
    )


def test_diverged_run_resumes_from_its_last_finite_adapter(
    fresh, settings, whole: gn.runs.Run
) -> None:
    model = fresh[0]

    def diverge(row: dict, completions: object) -> bool:
        if row["step"] == 4:
            trained = next(p for p in model.parameters() if p.requires_grad)
            torch.nn.init.constant_(trained, float("nan"))
        return row["step"] == 4

    with pytest.warns(UserWarning, match="values that are not finite at step 4") as caught:
        run = gn.train(*fresh, [brevity], settings, name="diverged", observers=[diverge])
    assert run.status == "stopped"
    assert not any("its folder is incomplete" in str(warning.message) for warning in caught)
    assert run.info["adapter_step"] == checkpoint_step(run) == 2
    assert all(tensor.isfinite().all() for tensor in adapter_in(run.adapter_path).values())
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert_same_run(
        gn.train(*fresh, [brevity], settings, resume=f"{settings.run_root}/diverged"), whole
    )


def test_run_that_diverges_at_its_last_step_is_not_finished(fresh, settings) -> None:
    model = fresh[0]

    def diverge(row: dict, completions: object) -> None:
        if row["step"] == row["max_steps"]:
            trained = next(p for p in model.parameters() if p.requires_grad)
            torch.nn.init.constant_(trained, float("nan"))

    with pytest.warns(
        UserWarning,
        match="the last step has no complete checkpoint, so the adapter is that of step 4",
    ):
        run = gn.train(*fresh, [brevity], settings, name="diverged", observers=[diverge])
    assert run.status == "failed"
    assert run.info["adapter_step"] == checkpoint_step(run) == 4
    resumed = gn.train(*fresh, [brevity], settings, name="diverged", resume="auto")
    assert resumed.status == "finished"
    assert resumed.info["adapter_step"] == settings.max_steps


def presses(step: int, times: int = 1):
    """An observer that presses Ctrl-C when the weights are changed and the row is not written."""

    def stop_button(row: dict, completions: object) -> None:
        for _ in range(times if row["step"] == step else 0):
            signal.raise_signal(signal.SIGINT)

    return stop_button


def raises(error: BaseException):
    """An observer that raises at step 3."""

    def fails(row: dict, completions: object) -> None:
        if row["step"] == 3:
            raise error

    return fails


STOPS = {
    "once": [presses(3)],
    "twice": [presses(3, times=2)],
    "from code": [raises(KeyboardInterrupt())],
    "with an error": [presses(3), raises(ZeroDivisionError("mine"))],
}


# Within a generation those that end otherwise.
WITHIN = [
    pytest.param(how, marks=[] if how in ("once", "with an error") else pytest.mark.slow)
    for how in STOPS
]


@pytest.fixture(scope="module")
def whole_cycles(tiny, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> gn.runs.Run:
    """Five steps, of which several are of one generation."""
    root = tmp_path_factory.mktemp("whole_cycles")
    settings = gn.preset(
        "cpu",
        model=str(tiny_folder),
        run_root=str(root),
        **{**SETTINGS, **CYCLES, "save_steps": 100},
    )
    back = way_back(tiny[0])
    run = gn.train(*tiny, [brevity], settings, name="whole")
    back()
    return run


@pytest.mark.parametrize("how", WITHIN)
def test_step_within_a_generation_is_kept(fresh, settings, whole_cycles, how) -> None:
    test_step_of_an_interrupt_is_kept(fresh, settings.replace(**CYCLES), whole_cycles, how)


@pytest.mark.parametrize("how", STOPS)
def test_step_of_an_interrupt_is_kept(fresh, settings, whole, how) -> None:
    settings = settings.replace(save_steps=100)
    observers = STOPS[how]
    before = signal.getsignal(signal.SIGINT)
    has_error = len(observers) == 2
    with pytest.raises(ZeroDivisionError, match="mine") if has_error else contextlib.nullcontext():
        gn.train(*fresh, [brevity], settings, name="stopped", observers=observers)
    assert signal.getsignal(signal.SIGINT) is before
    run = gn.open_run(Path(settings.run_root) / "stopped")
    assert run.status == ("failed" if has_error else "interrupted")
    assert len(run.rows) == checkpoint_step(run) == run.info["adapter_step"] == 3
    assert (run.path / "figures" / "training.png").is_file()
    assert f"gn.train(..., resume={str(run.path)!r})" in repr(run)
    # In the same kernel: the model is the trained one, and is set back to its checkpoint.
    assert_same_run(
        gn.train(*fresh, [brevity], settings, resume=f"{settings.run_root}/stopped"), whole
    )


@pytest.mark.parametrize(("times", "steps"), [(1, 4), (2, 3)])
def test_one_press_ends_after_the_step_and_two_end_at_once(
    fresh, settings, whole, times, steps
) -> None:
    is_pressed = True

    def brevity_or_stop(completions: list, trainer_state=None, **columns: object) -> list[float]:
        for _ in range(
            times if is_pressed and getattr(trainer_state, "global_step", 0) == 3 else 0
        ):
            signal.raise_signal(signal.SIGINT)
        return brevity(completions)

    brevity_or_stop.__name__ = "brevity"
    run = gn.train(*fresh, [brevity_or_stop], settings.replace(save_steps=3), name="pressed")
    assert run.status == "interrupted"
    assert len(run.rows) == checkpoint_step(run) == steps
    is_pressed = False
    assert_same_run(
        gn.train(*fresh, [brevity], settings, resume=f"{settings.run_root}/pressed"), whole
    )


class Watcher:
    """Counts rows, and stops at one."""

    def __init__(self, stop_at: int) -> None:
        self.stop_at = stop_at
        self.count = 0

    def __call__(self, row: dict, completions: pandas.DataFrame) -> bool:
        self.count += 1
        assert len(completions) == 8
        assert completions["step"].eq(row["step"]).all()
        row["watched"] = float(self.count)
        return row["step"] == self.stop_at

    def state_dict(self) -> dict:
        return {"count": self.count}

    def load_state_dict(self, state: dict) -> None:
        self.count = state["count"]


def test_observer_stops_a_run_and_keeps_its_state(fresh, settings: gn.Settings) -> None:
    run = gn.train(*fresh, [brevity], settings, name="watched", observers=[Watcher(3), Watcher(99)])
    assert run.status == "stopped"
    assert "stopped: Watcher" in repr(run)
    assert len(run.rows) == checkpoint_step(run) == 3
    run = gn.train(
        *fresh,
        [brevity],
        settings,
        resume=f"{settings.run_root}/watched",
        observers=[Watcher(98), Watcher(99)],
    )
    assert run.status == "finished"
    assert [row["watched"] for row in run.rows] == [1, 2, 3, 4, 5]


def test_resumption_without_an_observer_warns_of_its_state(fresh, settings: gn.Settings) -> None:
    gn.train(*fresh, [brevity], settings, name="watched", observers=[Watcher(3)])
    with pytest.warns(UserWarning, match=r"saved state of \['0 Watcher'\] is lost"):
        gn.train(*fresh, [brevity], settings, resume=f"{settings.run_root}/watched")


def test_holdout_score_does_not_change_the_training(fresh, back, settings, whole) -> None:
    runs = {"first": whole}
    for name, changes in {"again": {}, "score": {"holdout_every": 2}, "seed": {"seed": 1}}.items():
        runs[name] = gn.train(*fresh, [brevity], settings.replace(**changes), name=name)
        back()
    rows = {name: untimed(run.rows) for name, run in runs.items()}
    assert rows["first"] == rows["again"]
    assert rows["first"] != rows["seed"]
    scored = [row["step"] for row in rows["score"] if "holdout/accuracy" in row]
    assert scored == [1, 2, 4, 5]
    assert all(0 <= row.get("holdout/accuracy", 0) <= 1 for row in rows["score"])
    assert [
        {k: v for k, v in row.items() if not k.startswith("holdout/")} for row in rows["score"]
    ] == rows["first"]


def test_train_keeps_the_run_locked_until_its_end(
    fresh, back, settings: gn.Settings, crashed: gn.runs.Run
) -> None:
    seen = []

    def look(row: dict, completions: pandas.DataFrame) -> None:
        with pytest.raises(FolderLockedError) as caught:
            holding_lock(Path(settings.run_root) / name).__enter__()
        seen.append(caught.type)

    for name, resume in (("begun", None), ("whole-5", f"{settings.run_root}/whole-5")):
        back()
        run = gn.train(*fresh, [brevity], settings, name=name, resume=resume, observers=[look])
        assert run.status == "finished"
    assert seen == [FolderLockedError] * (5 + 1)


def contents(run: Path) -> dict[Path, bytes]:
    """Return the files of a run but the lock."""
    files = [file for file in run.rglob("*") if file.is_file() and file.name != ".lock"]
    return {file: file.read_bytes() for file in files}


def test_train_of_a_run_locked_elsewhere_is_refused(
    fresh, settings: gn.Settings, crashed: gn.runs.Run
) -> None:
    before = contents(crashed.path)
    with (
        holder_of(crashed.path),
        pytest.raises(ValueError, match="'whole-5' is being trained right now by another process"),
    ):
        gn.train(*fresh, [brevity], settings, name="whole-5", resume="auto")
    assert contents(crashed.path) == before


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small file system can only be mounted by root, and not in every container")
    yield folder
    subprocess.run(
        ["umount", "-l", str(folder)], check=True
    )  # lazily: a failed writer may still hold its file


def test_full_disk_keeps_earlier_work(fresh, back, settings, whole, small_disk: Path) -> None:
    settings = settings.replace(run_root=str(small_disk / "runs"))
    filler = small_disk / "filler"

    def fill(row: dict, completions: pandas.DataFrame) -> None:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while row["step"] == 4:
                file.write(bytes(4096))

    with (
        pytest.raises(OSError, match="No space left on device"),
        pytest.warns(UserWarning, match="its folder is incomplete"),
    ):
        gn.train(*fresh, [brevity], settings, name="full", observers=[fill])
    run = gn.open_run(small_disk / "runs" / "full")
    assert run.status in ("failed", "crashed")
    assert checkpoint_step(run) == 2
    assert len(run.rows) >= 3
    filler.unlink()
    back()
    assert_same_run(gn.train(*fresh, [brevity], settings, resume=run.path), whole)
