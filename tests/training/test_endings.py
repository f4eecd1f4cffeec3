"""Ends of a training that are easily missed: the last step, spent budgets, lost files."""

import asyncio
import errno
import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import grpo_nb as gn
from grpo_nb.config import planning
from grpo_nb.cpu.engine import CpuEngine
from grpo_nb.generation.choice import EngineChoice
from grpo_nb.training.errors import explaining_machine_faults
from grpo_nb.training.prepare import PreparedTraining
from grpo_nb.training.recorder import Recorder
from tests.run_fixtures import brevity
from tests.support.gpus import GPUS
from tests.support.tiny import load_tiny


def test_memory_advice_in_a_run_without_vllm_spares_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def generate() -> None:
        raise RuntimeError("CUDA out of memory.")

    monkeypatch.setattr(planning, "find_gpu", lambda: GPUS["t4"])
    settings = gn.preset("t4", per_device_train_batch_size=1, gradient_accumulation_steps=16)
    assert settings.fast_inference
    prepared = PreparedTraining(
        model=SimpleNamespace(vllm_engine=None),
        tokenizer=None,
        task=None,
        rewards=[],
        settings=settings,
        weights={},
        engine_choice=EngineChoice("Unsloth's own generation", "no vLLM", "it is for CPUs only"),
        dtype="float16",
    )
    with (
        pytest.raises(gn.machine.EnvironmentProblem, match="max_completion_length=128"),
        explaining_machine_faults(prepared.settings_as_run, tmp_path),
    ):
        generate()


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path):
    return load_tiny(tiny_folder, 20, 6)[:3]


class Counted:
    """A reward that counts its calls."""

    __name__ = "counted"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, completions: list, **columns: object) -> list[float]:
        self.calls += 1
        return brevity(completions)

    def state_dict(self) -> dict:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict) -> None:
        self.calls = state["calls"]


def rewrite_status(run: gn.runs.Run, status: str) -> None:
    from grpo_nb.runs.run_info import read_run_info

    info = read_run_info(run.path / "run.json")
    info.status = status
    run.write_info(info)


def test_run_stopped_at_its_last_step_is_finished(tiny, tiny_settings: gn.Settings) -> None:
    run = gn.train(
        *tiny,
        [brevity],
        tiny_settings,
        observers=[lambda row, completions: row["step"] == row["max_steps"]],
    )
    assert run.status == "finished"


def test_finished_run_keeps_only_its_last_checkpoint(tiny, tiny_settings: gn.Settings) -> None:
    run = gn.train(*tiny, [brevity], tiny_settings.replace(save_steps=1))
    kept = [folder.name for folder in (run.path / "checkpoints").iterdir()]
    assert kept == [f"checkpoint-{tiny_settings.max_steps}"]


def test_run_is_finished_where_checkpoints_cannot_be_deleted(
    tiny, tiny_settings: gn.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    # Only the deletion at the end fails, not the one after each checkpoint.
    monkeypatch.setattr("grpo_nb.training.train.keep_newest", fail)
    with pytest.warns(UserWarning, match="is incomplete: OSError: .*Directory not empty"):
        run = gn.train(*tiny, [brevity], tiny_settings)
    assert run.status == "finished"


def test_stopped_run_keeps_two_checkpoints(tiny, tiny_settings: gn.Settings) -> None:
    settings = tiny_settings.replace(save_steps=1, max_steps=4)
    run = gn.train(*tiny, [brevity], settings, observers=[lambda row, _: row["step"] == 3])
    kept = {folder.name for folder in (run.path / "checkpoints").iterdir()}
    assert kept == {"checkpoint-2", "checkpoint-3"}


def test_single_observer_may_be_given_without_a_list(tiny, tiny_settings: gn.Settings) -> None:
    def first_step(row: dict, completions: object) -> bool:
        return row["step"] == 1

    run = gn.train(*tiny, [brevity], tiny_settings, observers=first_step)
    assert run.status == "stopped"
    assert run.info["stopped_by"] == "first_step"


def test_observers_that_are_no_list_are_refused_first(tiny, tiny_settings: gn.Settings) -> None:
    with pytest.raises(TypeError):
        gn.train(*tiny, [brevity], tiny_settings, observers=None)
    assert not Path(tiny_settings.run_root).exists()


@pytest.mark.parametrize("observers", [[3], [[len]], "no", dict, [dict]])
def test_observer_that_is_no_function_is_refused_first(
    tiny, tiny_settings: gn.Settings, observers: object
) -> None:
    with pytest.raises(TypeError, match=r"an observer is not a function.*observers=\[function\]"):
        gn.train(*tiny, [brevity], tiny_settings, observers=observers)
    assert not Path(tiny_settings.run_root).exists()


@pytest.mark.parametrize("place", ["reward", "observer"])
def test_exit_within_a_training_is_recorded(tiny, tiny_settings: gn.Settings, place: str) -> None:
    def leaving(completions: list, trainer_state=None, **columns: object) -> list[float]:
        if place == "reward" and trainer_state.global_step == 1:
            sys.exit("no more budget")
        return brevity(completions)

    def watch(row: dict, completions: object) -> None:
        if place == "observer":
            sys.exit("no more budget")

    settings = tiny_settings.replace(save_steps=1)
    with pytest.raises(SystemExit, match="no more budget"):
        gn.train(*tiny, [leaving], settings, name="a", observers=[watch])
    run = gn.open_run(Path(settings.run_root) / "a")
    assert run.status == "failed"
    assert run.info["error"] == "SystemExit: no more budget"
    assert len(run.rows) == run.info["adapter_step"] == 1
    assert (run.path / "README.md").is_file()
    assert (run.path / "figures" / "training.png").is_file()


def test_cancelled_reward_is_recorded_as_a_failure(tiny, tiny_settings: gn.Settings) -> None:
    """`CancelledError` of asyncio is no `Exception`, and a judge that is asked may raise it."""

    def cancelled(completions: list, trainer_state=None, **columns: object) -> list[float]:
        if trainer_state.global_step == 1:
            raise asyncio.CancelledError("no reply")
        return brevity(completions)

    with pytest.raises(asyncio.CancelledError):
        gn.train(*tiny, [cancelled], tiny_settings, name="a")
    run = gn.open_run(Path(tiny_settings.run_root) / "a")
    assert run.status == "failed"
    assert run.info["error"] == "CancelledError: no reply"


def test_exit_of_a_forked_child_leaves_the_folder(tiny, tiny_settings: gn.Settings) -> None:
    statuses = []

    def forking(completions: list, trainer_state=None, **columns: object) -> list[float]:
        if trainer_state.global_step == 1:
            child = os.fork()
            if child == 0:
                sys.exit()
            os.waitpid(child, 0)
            statuses.append(gn.open_run(Path(tiny_settings.run_root) / "a").info["status"])
        return brevity(completions)

    process = os.getpid()
    try:
        run = gn.train(*tiny, [forking], tiny_settings, name="a")
    finally:
        if os.getpid() != process:
            os._exit(0)
    assert statuses == ["running"]
    assert run.status == "finished"


def test_finished_run_is_returned_without_memory_for_it(
    tiny, tiny_settings: gn.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = gn.train(*tiny, [brevity], tiny_settings, name="a")
    monkeypatch.setattr("grpo_nb.config.planning.free_memory_bytes", lambda: 1.0)
    again = gn.train(*tiny, [brevity], tiny_settings, name="a", resume="auto")
    assert again.path == run.path
    longer = tiny_settings.replace(max_steps=tiny_settings.max_steps + 1)
    with pytest.raises(gn.machine.EnvironmentProblem, match="needs about"):
        gn.train(*tiny, [brevity], longer, name="a", resume="auto")


def test_run_lost_after_its_last_step_restores_rewards(tiny, tiny_settings) -> None:
    first = Counted()
    run = gn.train(*tiny, [first], tiny_settings, name="a")
    rewrite_status(run, "failed")
    again = Counted()
    gn.train(*tiny, [again], tiny_settings, resume=run.path)
    assert again.calls == first.calls


def test_interrupt_after_the_last_step_leaves_the_run_finished(tiny, tiny_settings) -> None:
    class Interrupting(Counted):
        def load_state_dict(self, state: dict) -> None:
            super().load_state_dict(state)
            # The trial of the reward restores a state too, of no call.
            if self.calls:
                os.kill(os.getpid(), signal.SIGINT)

    run = gn.train(*tiny, [Counted()], tiny_settings, name="a")
    rewrite_status(run, "failed")
    again = gn.train(*tiny, [Interrupting()], tiny_settings, resume=run.path)
    assert again.status == "finished"


def test_state_that_cannot_be_saved_leaves_no_folder(tiny, tiny_settings) -> None:
    class Unsavable(Counted):
        def state_dict(self) -> dict:
            return {"calls": {1, 2}}

    with pytest.raises(TypeError, match="cannot be saved as JSON"):
        gn.train(*tiny, [Unsavable()], tiny_settings, name="a", resume="auto")
    assert not (Path(tiny_settings.run_root) / "a").exists()


def test_run_is_found_before_rewards_are_tried(tiny, tiny_settings: gn.Settings) -> None:
    run = gn.train(*tiny, [Counted()], tiny_settings, name="a")

    class Charged(Counted):
        def __call__(self, completions: list, **columns: object) -> list[float]:
            raise AssertionError("a reward was tried, which may ask a paid judge")

    with pytest.raises(FileNotFoundError):
        gn.train(*tiny, [Charged()], tiny_settings, resume=run.path.with_name("typo"))
    with pytest.raises(ValueError, match="has already done"):
        gn.train(*tiny, [Charged()], tiny_settings, resume=run.path)


def test_finished_run_gets_its_missing_adapter_back(tiny, tiny_settings) -> None:
    run = gn.train(*tiny, [brevity], tiny_settings, name="a")
    written = (run.adapter_path / "adapter_model.safetensors").read_bytes()
    shutil.rmtree(run.adapter_path)
    again = gn.train(*tiny, [brevity], tiny_settings, name="a", resume="auto")
    assert (again.adapter_path / "adapter_model.safetensors").read_bytes() == written
    assert again.status == "finished"
    assert len(again.rows) == tiny_settings.max_steps


def test_run_that_could_not_write_its_adapter_is_resumed(
    tiny, tiny_settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    first = gn.train(*tiny, [brevity], tiny_settings, name="a")
    earlier = (first.adapter_path / "adapter_model.safetensors").read_bytes()
    longer = tiny_settings.replace(max_steps=tiny_settings.max_steps + 1)
    with monkeypatch.context() as patch:
        patch.setattr("grpo_nb.training.train.copy_files", fail)
        with pytest.warns(UserWarning, match="is incomplete: OSError: .*No space left on device"):
            run = gn.train(*tiny, [brevity], longer, name="a", resume="auto")
    assert run.status == "failed"
    assert run.info["error"] == "OSError: [Errno 28] No space left on device"
    assert (run.adapter_path / "adapter_model.safetensors").read_bytes() == earlier
    again = gn.train(*tiny, [brevity], longer, name="a", resume="auto")
    assert again.status == "finished"
    assert again.info["adapter_step"] == longer.max_steps
    assert (again.adapter_path / "adapter_model.safetensors").read_bytes() != earlier


def test_failed_run_without_its_adapter_keeps_its_error_and_files(
    tiny, tiny_settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def broken(row: dict, completions: object) -> None:
        raise ValueError("broken observer")

    monkeypatch.setattr("grpo_nb.training.train.copy_files", fail)
    with (
        pytest.raises(ValueError, match="broken observer"),
        pytest.warns(
            UserWarning,
            match=r"^The training has ended, but its folder is incomplete: "
            r"OSError: \[Errno 5\] Input/output error$",
        ),
    ):
        gn.train(*tiny, [brevity], tiny_settings, name="a", observers=[broken])
    run = gn.open_run(Path(tiny_settings.run_root) / "a")
    assert run.status == "failed"
    assert run.info["error"] == "ValueError: broken observer"
    assert (run.path / "README.md").is_file()
    assert (run.path / "figures" / "training.png").is_file()


def test_memory_that_is_full_before_the_first_step_gets_advice(
    tiny, tiny_settings: gn.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out_of_memory(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr("grpo_nb.training.train.build_trainer", run_out_of_memory)
    with pytest.raises(gn.machine.EnvironmentProblem, match="per_device_train_batch_size"):
        gn.train(*tiny, [brevity], tiny_settings, name="a")
    assert not (Path(tiny_settings.run_root) / "a").exists()


def test_memory_advice_without_cpu_engine_spares_its_switch(
    tiny, tiny_settings: gn.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the CPU engine, no weights are copied, so shared_prompts=False would save nothing."""

    def run_out_of_memory(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(
        CpuEngine, "model_obstacle", lambda model, longest_sequence=None: "an unknown layer"
    )
    monkeypatch.setattr("grpo_nb.training.trainer.RunTrainer.train", run_out_of_memory)
    settings = tiny_settings.replace(per_device_train_batch_size=1, gradient_accumulation_steps=16)
    with pytest.raises(gn.machine.EnvironmentProblem, match="No setting of this run is left"):
        gn.train(*tiny, [brevity], settings)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space"), KeyboardInterrupt()])
def test_run_that_never_began_leaves_its_name_free(
    tiny, tiny_settings, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("grpo_nb.training.train.save_adapter", fail)
        with pytest.raises(type(error)):
            gn.train(*tiny, [brevity], tiny_settings, name="a")
    assert not (Path(tiny_settings.run_root) / "a").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"name": "../notes"}, "cannot be the name of a run", id="path as name"),
        pytest.param({"name": ""}, "cannot be the name of a run", id="empty name"),
    ],
)
def test_train_refuses_arguments_before_it_resumes(
    tiny, tiny_settings: gn.Settings, arguments: dict, message: str
) -> None:
    notes = Path(tiny_settings.run_root).parent / "notes"
    notes.mkdir()
    with pytest.raises(ValueError, match=message):
        gn.train(*tiny, [brevity], tiny_settings, resume="auto", **arguments)
    assert notes.is_dir()


def test_auto_refuses_a_name_taken_by_other_files_at_once(tiny, tiny_settings) -> None:
    notes = Path(tiny_settings.run_root) / "notes"
    notes.mkdir(parents=True)
    tried = []

    def counting(completions: list, **columns: object) -> list[float]:
        tried.append(completions)
        return brevity(completions)

    with pytest.raises(FileExistsError, match=r"A folder without run\.json is no run"):
        gn.train(*tiny, [counting], tiny_settings, name="notes", resume="auto")
    assert tried == []


def test_first_interrupt_only_sets_the_flag_to_end() -> None:
    recorder = SimpleNamespace(is_interrupted=False, bar=None)
    with Recorder.ending_after_step_at_interrupt(recorder):
        signal.raise_signal(signal.SIGINT)
        assert recorder.is_interrupted
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_close_saves_the_figure_where_the_display_fails() -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("no font")

    saved = []
    recorder = SimpleNamespace(
        bar=None,
        run=SimpleNamespace(save_figure=lambda: saved.append(True)),
        _plot=SimpleNamespace(update=fail),
        _can_show=True,
    )
    with pytest.raises(RuntimeError, match="no font"):
        Recorder.close(recorder)
    assert saved == [True]


def test_training_in_a_thread_ends_as_in_the_main_thread(tiny, tiny_settings) -> None:
    with ThreadPoolExecutor() as threads:
        run = threads.submit(gn.train, *tiny, [brevity], tiny_settings, name="thread").result()
    assert run.status == "finished"
