"""A training that was killed, interrupted or failed goes on as if nothing had happened, or says why it does not."""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas
import pytest
import torch
from safetensors.torch import load_file

import grpo_nb as gn
from grpo_nb.core import files as liveness
from grpo_nb.rewards.calls import RewardError
from grpo_nb.runs import checkpoints
from grpo_nb.training import session
from grpo_nb.training.observers import HoldoutScore, Observer
from grpo_nb.training.recorder import Recorder
from tests.conftest import ROOT, brevity
from tests.support import killed_training
from tests.support.adapters import way_back
from tests.support.own_rewards import Fading
from tests.support.run_folders import untimed
from tests.support.tiny import load_tiny

pytestmark = pytest.mark.begins(60)


GONE = 2**22 + 1  # above any pid that Linux gives out


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path):
    """Model, tokenizer and a task of four prompts, so that a few steps go through the data several times."""
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
    "max_steps": 5, "save_steps": 2, "max_completion_length": 8, "num_generations": 4, "per_device_train_batch_size": 8,
    "learning_rate": 2e-2, "lr_scheduler_type": "linear", "max_grad_norm": 10.0,
}  # fmt: skip


@pytest.fixture
def settings(tiny_settings: gn.Settings) -> gn.Settings:
    return tiny_settings.replace(**SETTINGS)


class CrashImages(Observer):
    """Copies the run's folder in the middle of given steps: what a machine that dies there leaves behind."""

    def __init__(self, root: str, name: str, *steps: int) -> None:
        self.folder, self.steps = Path(root) / name, steps

    def on_row(self, row: dict, completions: pandas.DataFrame) -> bool:
        if row["step"] in self.steps:
            copy = crashed_copy(self.folder, f"{self.folder.name}-{row['step']}")
            (copy / "metrics.jsonl").open("a").write('{"step": 9, "rew')  # the last line cut short
        return False


def crashed_copy(folder: Path, name: str) -> Path:
    copy = folder.with_name(name)
    shutil.copytree(folder, copy)
    change_info(copy, status="running", pid=GONE)
    return copy


def change_info(folder: Path, **changes: object) -> None:
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, **changes}))


def assert_same_run(resumed: gn.runs.Run, whole: gn.runs.Run) -> None:
    assert [row["step"] for row in resumed.rows] == [row["step"] for row in whole.rows]
    for ours, theirs in zip(untimed(resumed.rows), untimed(whole.rows), strict=True):
        assert ours == theirs, f"step {theirs['step']}"
    pandas.testing.assert_frame_equal(resumed.completions(), whole.completions())
    ours, theirs = (load_file(run.adapter_path / "adapter_model.safetensors") for run in (resumed, whole))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert any(tensor.any() for name, tensor in theirs.items() if "lora_B" in name), "nothing was trained"


CYCLES = {
    # A generation serves four optimizer steps, so that checkpoints fall into the middle of one.
    "gradient_accumulation_steps": 2,
    "per_device_train_batch_size": 4,
    "extra": {"num_iterations": 2, "steps_per_generation": 4},
}


@pytest.fixture(scope="module")
def five_steps(tiny, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `whole` of five steps, and `whole-5`, which crashed in the fifth with the checkpoints of 2 and 4."""
    model, tokenizer, task = tiny
    root = tmp_path_factory.mktemp("five_steps")
    settings = gn.preset("cpu", model=str(tiny_folder), run_root=str(root), **SETTINGS)
    back = way_back(model)
    gn.train(model, tokenizer, task, [brevity], settings, name="whole", observers=[CrashImages(root, "whole", 5)])
    back()
    return root


@pytest.fixture
def whole(five_steps: Path) -> gn.runs.Run:
    """The run of five steps, only to be looked at."""
    return gn.open_run(five_steps / "whole")


@pytest.fixture
def half_done(fresh, five_steps: Path, settings: gn.Settings) -> tuple:
    """Copies of both runs."""
    model, tokenizer, task = fresh
    shutil.copytree(five_steps, settings.run_root)
    whole, crashed = (gn.open_run(Path(settings.run_root) / name) for name in ("whole", "whole-5"))
    return model, tokenizer, task, settings, whole, crashed


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "stock"])
@pytest.mark.parametrize("changes", [{}, CYCLES], ids=["plain", "cycles"])
def test_interrupted_and_resumed_is_uninterrupted(fresh, back, settings, shared, beta, changes) -> None:
    # step: the newest checkpoint then. A pass through the data is two steps, so 3 is in the middle of the second one.
    crashes = {4: 2} if changes else {1: 0, 4: 3} if shared and beta else {4: 3}
    settings = settings.replace(shared_prompts=shared, beta=beta, save_steps=2 if changes else 1, **changes)
    rewards = [Fading(brevity), gn.rewards.xml_tags()]
    images = CrashImages(settings.run_root, "whole", *crashes)
    whole = gn.train(*fresh, rewards, settings, name="whole", observers=[images])
    assert len(whole.rows) == 5
    for step, checkpoint in crashes.items():
        back()
        rewards = [Fading(brevity), gn.rewards.xml_tags()]
        assert gn.open_run(Path(settings.run_root) / f"whole-{step}").status == "crashed"
        run = gn.train(*fresh, rewards, settings, resume=f"whole-{step}")
        assert run.status == "finished" and run.info["resumed"][0]["step"] == checkpoint
        assert_same_run(run, whole)


def brevity_reward():
    class Brevity(gn.rewards.base.Reward):
        def score_text(self, text: str, row: dict) -> float:
            return brevity([[{"content": text}]])[0]

    return Brevity(name="brevity")


# Three times is once in each way: while it writes a checkpoint, at any moment, and at any operation on files.
@pytest.mark.parametrize("times", [3, pytest.param(7, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_ends_as_if_nothing_had_happened(
    times: int, tiny_folder: Path, tmp_path: Path
) -> None:
    root = str(tmp_path / "runs")
    command = [sys.executable, "-m", "tests.support.killed_training", str(tiny_folder), root, str(times)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    kills = json.loads(done.stdout.splitlines()[-1])
    assert len(kills) >= min(times, 5), f"too few were killed before the end: {kills}"
    assert any(kill["at"] == "fsync" for kill in kills), f"none was killed while it wrote a checkpoint: {kills}"
    # The end is done by this process, which has nothing of the others but their files.
    threads = torch.get_num_threads()
    try:
        killed_training.train(*killed_training.loaded(str(tiny_folder), root), "killed")
    finally:
        torch.set_num_threads(threads)
    run, whole = (gn.open_run(tmp_path / "runs" / name) for name in ("killed", "whole"))
    assert run.status == "finished" and len(run.rows) == 12 and "resumed" not in whole.info
    assert_same_run(run, whole)
    left = sorted(file.name for file in run.path.rglob("*") if "partial" in file.name)
    assert not left, "what was half written when it was killed is still there"


def test_a_reference_that_is_an_adapter_is_kept(fresh, back, settings: gn.Settings) -> None:
    """The trap of trl 1.15: its `ref` adapter makes transformers load zeros in place of what was trained."""
    model, tokenizer, task = fresh
    settings = settings.replace(max_steps=4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02, generator=torch.Generator().manual_seed(1))
    images = CrashImages(settings.run_root, "second", 4)
    whole = gn.train(model, tokenizer, task, [brevity], settings, name="second", observers=[images])
    assert whole.info["reference"] == "the adapter it started from"
    assert whole.rows[0]["kl"] == pytest.approx(0, abs=1e-6) and whole.rows[-1]["kl"] > 1e-3
    back()  # a fresh process has neither the adapter that it started from nor the trained one
    resumed = gn.train(model, tokenizer, task, [brevity], settings, resume="second-4")
    assert_same_run(resumed, whole)
    assert set(model.peft_config) == {"default"}
    build = session.build_trainer

    def without_copy(*parts):  # as Unsloth's on a GPU
        trainer = build(*parts)
        model.delete_adapter("ref")
        return trainer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "build_trainer", without_copy)
        with pytest.raises(ValueError, match="Unsloth on a GPU only to the base model"):
            gn.train(model, tokenizer, task, [brevity], settings.replace(max_steps=5), resume="second-4")


def test_weights_that_were_not_restored_are_an_error(half_done, monkeypatch) -> None:
    model, tokenizer, task, settings, _, crashed = half_done
    monkeypatch.setattr("grpo_nb.training.resumable.load_adapter", lambda *args: None)  # as transformers' loader does
    with pytest.raises(RuntimeError, match="was not restored"):
        gn.train(model, tokenizer, task, [brevity], settings, resume="whole-5")
    assert crashed.status == "failed" and not crashed.adapter_path.exists()
    assert crashed.checkpoint_step == 4 and checkpoints.find_damage(crashed.path / "checkpoints/checkpoint-4") is None


def test_a_damaged_checkpoint_is_passed_over_and_said(half_done) -> None:
    model, tokenizer, task, settings, whole, crashed = half_done
    newest = crashed.path / "checkpoints" / "checkpoint-4"
    file = newest / "optimizer.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    shutil.copytree(newest, newest.with_name(".checkpoint-6.partial"))
    with pytest.warns(UserWarning, match="passed over checkpoint-4: optimizer.pt is not what was written") as said:
        run = gn.train(model, tokenizer, task, [brevity], settings, resume=crashed.path)
    assert any("checkpoint-6: it was not finished" in str(warning.message) for warning in said)
    assert run.info["resumed"][0]["step"] == 2 and len(run.info["resumed"][0]["passed_over"]) == 2
    assert_same_run(run, whole)
    assert (run.path / "checkpoints" / "damaged-4").is_dir(), "what may still be worth something is not deleted"


def test_nothing_complete_is_no_start(half_done) -> None:
    model, tokenizer, task, settings, _, crashed = half_done
    for folder in (crashed.path / "checkpoints").glob("checkpoint-*"):
        (folder / "manifest.json").unlink()
    before = (crashed.path / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"no complete checkpoint.*it has no manifest"):
        gn.train(model, tokenizer, task, [brevity], settings, resume="whole-5")
    assert (crashed.path / "metrics.jsonl").read_bytes() == before


def test_another_training_is_refused_with_each_difference(half_done) -> None:
    model, tokenizer, task, settings, _, crashed = half_done

    def refused(changed: gn.Settings = settings, data=task, rewards=(brevity,)) -> str:
        with pytest.raises(ValueError) as caught:
            gn.train(model, tokenizer, data, list(rewards), changed, resume="whole-5")
        return str(caught.value)

    told = refused(settings.replace(learning_rate=1e-3, beta=0.0))
    assert "learning_rate was 0.02, is 0.001" in told and "beta was 0.04, is 0.0" in told and "max_steps" not in told
    assert "has done 4 steps already" in refused(settings.replace(max_steps=3))
    assert "other data: fingerprint" in refused(
        data=gn.load_task("arithmetic", settings, train_size=5, holdout_size=6, tokenizer=tokenizer)
    )
    assert "other rewards: it had {'brevity': 1.0}" in refused(rewards=[brevity, gn.rewards.xml_tags()])
    assert crashed.status == "crashed" and len(crashed.rows) == 4, "nothing may have been written"


def test_other_parameters_of_a_reward_are_said(fresh, settings: gn.Settings) -> None:

    def rewards(tolerance: float, words: int) -> list:
        def graded(completions: list, **columns: object) -> list[float]:
            return [score * words for score in brevity(completions)]

        return [gn.rewards.correctness(tolerance=tolerance), graded]

    def train(steps: int, *parameters: float) -> list[str]:
        resume = None if steps == 1 else "told"
        run = gn.train(*fresh, rewards(*parameters), settings.replace(max_steps=steps),
                       name="told", resume=resume)  # fmt: skip
        return run.info["resumed"][-1]["changed"] if resume else []

    train(1, 0.1, 1)
    told = "the reward 'correctness' has changed: tolerance was 0.1, is 0.5"
    with pytest.warns(UserWarning, match=re.escape(told)):
        changed = train(2, 0.5, 2)
    assert changed == ["max_steps was 1, is 2", told], "what a function uses from outside is not looked at"
    assert train(3, 0.5, 2) == ["max_steps was 2, is 3"], "the run goes by what it was resumed with"

    def again(*parameters: float) -> None:
        gn.train(*fresh, rewards(*parameters), settings.replace(max_steps=3), name="told", resume="auto")

    with pytest.warns(UserWarning, match="nothing was trained"):
        again(0.5, 3)
    with pytest.raises(ValueError, match=r"is finished, and its reward 'correctness' has changed since: tolerance was"):
        again(0.1, 2)


def test_completions_cut_off_by_a_crash_are_said_and_set_aside(half_done) -> None:
    model, tokenizer, task, settings, whole, crashed = half_done
    empty, half, unreadable = (crashed.path / "completions" / f"step_00000{step}.parquet" for step in (1, 2, 3))
    empty.write_bytes(b"")
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    content = unreadable.read_bytes()
    unreadable.write_bytes(content[:4] + bytes(len(content) - 8) + content[-4:])
    with pytest.warns(UserWarning, match="step_000001.parquet is damaged, and was renamed; .*step_000002.parquet"):
        run = gn.train(model, tokenizer, task, [brevity], settings, resume="whole-5")
    assert run.status == "finished" and run.info["resumed"][0]["damaged"] == [empty.name, half.name]
    assert sorted(file.name for file in empty.parent.glob("*.damaged")) == [
        "step_000001.damaged",
        "step_000002.damaged",
    ]
    assert untimed(run.rows) == untimed(whole.rows)
    pandas.testing.assert_frame_equal(run.completions(5), whole.completions(5))


def test_more_steps_go_on_and_are_stated(half_done) -> None:
    model, tokenizer, task, settings, whole, _ = half_done
    with pytest.raises(ValueError, match="is finished: it has done its 5 steps"):
        gn.train(model, tokenizer, task, [brevity], settings, resume="whole")
    before = whole.rows
    (whole.path / "comparison").mkdir()
    (whole.path / "comparison" / "comparison.json").write_text('{"sentence": "of the model at step 5"}')
    with pytest.warns(UserWarning, match="max_steps was 5, is 7"):
        run = gn.train(model, tokenizer, task, [brevity], settings.replace(max_steps=7), resume="whole")
    assert [row["step"] for row in run.rows] == list(range(1, 8)) and run.rows[:5] == before
    assert run.settings.max_steps == 7 and "Resumed at step 5 (max_steps was 5, is 7)" in repr(run)
    assert run.comparison is None and (run.path / "comparison-step-5").is_dir()
    assert [p.name for p in (run.path / "checkpoints").iterdir()] == ["checkpoint-7"], "a finished run keeps the last"


def test_auto_goes_on_with_what_is_not_finished_and_begins_otherwise(half_done) -> None:
    model, tokenizer, task, settings, _, crashed = half_done
    root = Path(settings.run_root)
    change_info(crashed.path, started="2998-01-01")
    assert gn.train(model, tokenizer, task, [brevity], settings, resume="auto").path == crashed.path
    one = gn.train(model, tokenizer, task, [brevity], settings.replace(max_steps=1), name="new", resume="auto")
    assert one.path == root / "new" and "resumed" not in one.info
    change_info(one.path, started="2999-01-01")  # the newest, and finished
    two = gn.train(model, tokenizer, task, [brevity], settings.replace(max_steps=1, seed=7), resume="auto")
    assert two.path not in (one.path, crashed.path) and two.status == "finished" and len(two.rows) == 1
    (root / "killed").mkdir()  # before its first file
    again = gn.train(model, tokenizer, task, [brevity], settings.replace(max_steps=1), name="killed", resume="auto")
    assert again.status == "finished"
    with pytest.raises(FileNotFoundError, match="Runs in"):
        gn.train(model, tokenizer, task, [brevity], settings, resume="another")


@pytest.mark.parametrize("name", [None, "finished"])
def test_all_cells_run_again_give_the_finished_run_back(fresh, back, settings, monkeypatch, name) -> None:
    def cell(**changes: object) -> gn.runs.Run:
        rewards = [Fading(brevity), gn.rewards.xml_tags()]
        return gn.train(*fresh, rewards, settings.replace(**changes), name=name, resume="auto")

    model, _, task = fresh
    first = cell()
    trained = {n: p.detach().clone() for n, p in model.named_parameters() if "lora_" in n}
    answered = gn.compare(first, task)
    files = {file: file.read_bytes() for file in first.path.rglob("*") if file.is_file()}
    back()  # as a new process has it: the adapter is new
    shown = []
    monkeypatch.setattr(session, "is_notebook", lambda: True)
    monkeypatch.setattr(session.LivePlot, "update", lambda _, rows, **how: shown.append((len(rows), how["is_last"])))
    with pytest.warns(
        UserWarning, match=rf"The run '{first.name}' is finished: it is given back .* nothing was trained"
    ):
        run = cell()
    assert run.path == first.path and shown == [(5, True)]
    assert {file: file.read_bytes() for file in first.path.rglob("*") if file.is_file()} == files, "nothing was written"
    assert all(torch.equal(p, trained[n]) for n, p in model.named_parameters() if n in trained)
    assert run.rewards[0].state_dict() == first.rewards[0].state_dict()
    # Later cells take the model of the run: what they ask is what was trained.
    again = gn.compare(run, task)
    assert [row["completion"] for row in again.after.rows] == [row["completion"] for row in answered.after.rows]
    more = cell(max_steps=7)
    assert more.path == first.path and len(more.rows) == 7, "more steps go on"


def test_a_run_that_is_being_trained_is_left_alone(half_done) -> None:
    model, tokenizer, task, settings, _, crashed = half_done

    def resume(how: str = "auto") -> gn.runs.Run:
        return gn.train(model, tokenizer, task, [brevity], settings, name=None, resume=how)

    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        change_info(crashed.path, started="2999-01-01", pid=sleeper.pid, process_start=liveness._start_of(sleeper.pid))
        assert crashed.status == "running"
        for how in ("auto", "whole-5"):
            with pytest.raises(ValueError, match="being trained right now"):
                resume(how)
        change_info(crashed.path, process_start=1.0)
        assert crashed.status == "crashed", "another process has the number now"
    finally:
        sleeper.kill()
        sleeper.wait()
    change_info(crashed.path, host="colab-1")
    assert crashed.status == "unknown" and "the machine 'colab-1' wrote to it last, 0 minutes ago" in repr(crashed)
    with pytest.raises(ValueError, match="seconds ago by another machine"):
        resume()
    with pytest.warns(UserWarning, match="the machine was 'colab-1', is"):
        assert resume("whole-5").status == "finished", "who names it knows that the other machine is gone"


def test_a_row_and_its_reward_are_named(fresh, back, settings: gn.Settings, whole: gn.runs.Run) -> None:

    def brevity_that_breaks(completions: list, trainer_state=None, **columns: object) -> list[float]:
        if getattr(trainer_state, "global_step", 0) == 2 and broken:
            return [1 / (len(c[-1]["content"]) - lengths[2]) for c in completions]
        return brevity(completions)

    brevity_that_breaks.__name__, broken = "brevity", True
    lengths = [len(text) for text in whole.completions(3)["completion"]]
    with pytest.raises(
        RewardError, match=r"the reward 'brevity' raised ZeroDivisionError: .* \(on row \d: '"
    ) as caught:
        gn.train(*fresh, [brevity_that_breaks], settings, name="broken")
    assert lengths[caught.value.row] == lengths[2] and isinstance(caught.value.__cause__, ZeroDivisionError)
    run = gn.open_run(Path(settings.run_root) / "broken")
    assert run.status == "failed" and "on row" in run.status_sentence and len(run.rows) == run.checkpoint_step == 2
    assert (run.path / "figures" / "training.png").is_file()
    back()
    broken = False
    assert_same_run(gn.train(*fresh, [brevity_that_breaks], settings, resume="broken"), whole)


def scores_that_do_not_fit(completions: list, trainer_state=None, **columns: object) -> list[float]:
    return [0.0] * (len(completions) + getattr(trainer_state, "global_step", 0))


def quotes_a_model(completions: list, trainer_state=None, **columns: object) -> list[float]:
    if getattr(trainer_state, "global_step", 0) == 1:
        raise ValueError("no number in 'No space left on device. CUDA out of memory. CUDA error: no kernel image'")
    return brevity(completions)


def no_memory(completions: list, trainer_state=None, **columns: object) -> list[float]:
    if getattr(trainer_state, "global_step", 0) == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return brevity(completions)


@pytest.mark.parametrize(
    ("reward", "error", "told"),
    [
        (scores_that_do_not_fit, RewardError, "'scores_that_do_not_fit' raised ValueError: it returned 9 scores for 8"),
        (quotes_a_model, RewardError, "'quotes_a_model' raised ValueError: no number in"),
        (no_memory, gn.machine.EnvironmentProblem, r"settings\.replace\(per_device_train_batch_size="),
    ],
)
def test_an_error_is_explained_and_saves_what_there_is(fresh, settings, reward, error, told) -> None:
    with pytest.raises(error, match=told):
        gn.train(*fresh, [reward], settings, name="failed")
    run = gn.open_run(Path(settings.run_root) / "failed")
    assert run.status == "failed" and len(run.rows) == run.checkpoint_step == 1 and run.adapter_path.is_dir()
    assert re.search(told, run.info["error"]) and set(fresh[0].peft_config) == {"default"}


def test_the_advice_after_out_of_memory_can_be_pasted(fresh, back, settings: gn.Settings) -> None:
    model, tokenizer, task = fresh
    full = True

    def brevity_without_memory(completions: list, trainer_state=None, **columns: object) -> list[float]:
        if full and getattr(trainer_state, "global_step", 0) == 2:
            raise RuntimeError("CUDA out of memory.")
        return brevity(completions)

    settings = settings.replace(max_steps=4)
    with pytest.raises(gn.machine.EnvironmentProblem) as caught:
        gn.train(model, tokenizer, task, [brevity_without_memory], settings, name="full")
    failed = gn.open_run(Path(settings.run_root) / "full")
    assert f"What the 2 steps have taught is in {str(failed.adapter_path)!r}" in str(caught.value)
    lines = [line.strip() for line in str(caught.value).splitlines() if line.startswith("    ")]
    full = False
    made = {"gn": gn, "settings": settings, "task": task, "rewards": [brevity_without_memory]}
    exec("\n".join(lines), made)
    run, changed = made["run"], made["settings"]
    assert run.status == "finished" and changed != settings and run.settings == changed
    assert "it is another run" in str(caught.value) and run.name == "full-2" and len(run.rows) == 4
    assert run.info["reference"] == "the adapter it started from"
    started, learnt = (
        load_file(f / "adapter_model.safetensors") for f in (run.path / "reference", failed.adapter_path)
    )
    assert all(torch.equal(started[name], learnt[name]) for name in learnt)
    back()
    with pytest.raises(ValueError, match="started with other settings: per_device_train_batch_size was 8"):
        gn.train(model, tokenizer, task, [brevity_without_memory], changed, resume="full")


class StopButton(Observer):
    """Presses Ctrl-C at the worst moment: when the weights of a step are changed and its row is not written."""

    def on_row(self, row: dict, completions: pandas.DataFrame) -> bool:
        if row["step"] == 3:
            signal.raise_signal(signal.SIGINT)
        return False


def test_an_error_in_the_middle_of_an_update_leaves_the_checkpoint_before(fresh, settings, whole, monkeypatch) -> None:
    model, tokenizer, task = fresh
    hold = Recorder.on_pre_optimizer_step

    def breaks(self: Recorder, args: object, state: object, control: object, **kwargs: object) -> None:
        hold(self, args, state, control)
        if state.global_step == 3:
            torch.nn.init.ones_(next(p for p in model.parameters() if p.requires_grad))  # half of an update
            raise RuntimeError("device lost")

    monkeypatch.setattr(Recorder, "on_pre_optimizer_step", breaks)
    with pytest.raises(RuntimeError, match="device lost") as caught:
        gn.train(model, tokenizer, task, [brevity], settings, name="lost")
    assert any("the last checkpoint is whole" in note for note in caught.value.__notes__)
    run = gn.open_run(Path(settings.run_root) / "lost")
    assert run.status == "failed" and run.checkpoint_step == 2 and not run.adapter_path.exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    assert_same_run(gn.train(model, tokenizer, task, [brevity], settings, resume="lost"), whole)


@pytest.mark.parametrize("where", ["between the update and its row", "in the next step"])
def test_an_interrupt_is_resumed_where_it_came(fresh, settings: gn.Settings, whole: gn.runs.Run, where: str) -> None:
    model, tokenizer, task = fresh
    settings = settings.replace(save_steps=100)
    is_pressed = where == "in the next step"

    def brevity_or_stop(completions: list, trainer_state=None, **columns: object) -> list[float]:
        if is_pressed and getattr(trainer_state, "global_step", 0) == 3:
            signal.raise_signal(signal.SIGINT)
        return brevity(completions)

    brevity_or_stop.__name__ = "brevity"
    before = signal.getsignal(signal.SIGINT)
    observers = [] if is_pressed else [StopButton()]
    run = gn.train(model, tokenizer, task, [brevity_or_stop], settings, name="stopped", observers=observers)
    assert signal.getsignal(signal.SIGINT) is before
    assert run.status == "interrupted" and len(run.rows) == run.checkpoint_step == 3
    assert run.adapter_path.is_dir() and (run.path / "figures" / "training.png").is_file()
    assert "gn.train(..., resume='stopped')" in repr(run)
    # In the same kernel: the model is the trained one, and is set back to its checkpoint.
    is_pressed = False
    assert_same_run(gn.train(model, tokenizer, task, [brevity_or_stop], settings, resume="stopped"), whole)


class StopAndFail(StopButton):
    """The same, and then it fails."""

    def on_row(self, row: dict, completions: pandas.DataFrame) -> bool:
        super().on_row(row, completions)
        if row["step"] == 3:
            raise ZeroDivisionError("right after it")
        return False


def test_an_error_in_the_step_that_is_interrupted_is_not_lost(fresh, settings: gn.Settings, whole: gn.runs.Run) -> None:
    with pytest.raises(ZeroDivisionError, match="right after it") as caught:
        gn.train(*fresh, [brevity], settings, name="both", observers=[StopAndFail()])
    assert isinstance(caught.value.__context__, KeyboardInterrupt)
    run = gn.open_run(Path(settings.run_root) / "both")
    assert run.status == "failed" and "right after it" in run.info["error"] and run.checkpoint_step == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_same_run(gn.train(*fresh, [brevity], settings, resume="both"), whole)


@pytest.mark.parametrize("when", ["before", "while"])
def test_the_stop_button_does_not_wait_for_the_held_out_score(fresh, settings, whole, monkeypatch, when: str) -> None:
    score, seen = HoldoutScore.score, []

    def pressed(self: HoldoutScore) -> dict[str, float]:
        torch.rand(3)  # as generating draws; it has to be put back although it is cut short
        if len(seen) == 2:
            if when == "while":
                signal.raise_signal(signal.SIGINT)
            seen.append("waited")
        return score(self)

    class Last(Observer):
        """Asked after the score, and held: a second press waits for it."""

        def on_row(self, row: dict, completions: pandas.DataFrame) -> bool:
            seen.append(sorted(key for key in row if key.startswith("holdout/")))
            if len(seen) == 3:
                signal.raise_signal(signal.SIGINT)
                seen.append("asked to the end")
            return False

    hold = Recorder.on_pre_optimizer_step

    def press(self: Recorder, args: object, state: object, control: object, **kwargs: object) -> None:
        hold(self, args, state, control)
        if when == "before" and state.global_step == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(HoldoutScore, "score", pressed)
    monkeypatch.setattr(Recorder, "on_pre_optimizer_step", press)
    scored = settings.replace(holdout_every=1)
    run = gn.train(*fresh, [brevity], scored, name="scored", observers=[Last()])
    assert run.status == "interrupted" and len(run.rows) == run.checkpoint_step == 3
    keys = [f"holdout/{name}" for name in ("accuracy", "behind_best", "high", "in_format", "low", "mean_length")]
    assert seen == [keys, keys, [], "asked to the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    resumed = gn.train(*fresh, [brevity], scored, resume="scored")
    assert ["holdout/accuracy" in row for row in resumed.rows] == [True, True, False, True, True]
    rows = [{k: v for k, v in row.items() if not k.startswith("holdout/")} for row in resumed.rows]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert_same_run(resumed, whole)


class Watcher(Observer):
    """Counts rows, and stops at one."""

    def __init__(self, stop_at: int) -> None:
        self.stop_at, self.count = stop_at, 0

    def on_row(self, row: dict, completions: pandas.DataFrame) -> bool:
        self.count += 1
        assert len(completions) == 8 and completions["step"].eq(row["step"]).all()
        row["watched"] = float(self.count)
        return row["step"] == self.stop_at

    def state_dict(self) -> dict:
        return {"count": self.count}

    def load_state_dict(self, state: dict) -> None:
        self.count = state["count"]


def test_an_observer_stops_a_run_and_remembers(fresh, settings: gn.Settings) -> None:
    run = gn.train(*fresh, [brevity], settings, name="watched", observers=[Watcher(3)])
    assert run.status == "stopped" and "stopped by Watcher" in repr(run) and len(run.rows) == run.checkpoint_step == 3
    run = gn.train(*fresh, [brevity], settings, resume="watched", observers=[Watcher(99)])
    assert run.status == "finished" and [row["watched"] for row in run.rows] == [1, 2, 3, 4, 5]


def test_the_same_settings_give_the_same_curves_with_and_without_a_held_out_score(fresh, back, settings, whole) -> None:
    runs = {"first": whole}
    for name, changes in {"again": {}, "score": {"holdout_every": 2}, "seed": {"seed": 1}}.items():
        runs[name] = gn.train(*fresh, [brevity], settings.replace(**changes), name=name)
        back()
    rows = {name: untimed(run.rows) for name, run in runs.items()}
    assert rows["first"] == rows["again"] != rows["seed"]
    scored = [row["step"] for row in rows["score"] if "holdout/accuracy" in row]
    assert scored == [1, 2, 4, 5] and all(0 <= row.get("holdout/accuracy", 0) <= 1 for row in rows["score"])
    assert [{k: v for k, v in row.items() if not k.startswith("holdout/")} for row in rows["score"]] == rows["first"]


RIGHT = {1: 1, 2: 4, 3: 5, 4: 5, 5: 0}  # of six questions, by step: the best is the third


def test_the_best_adapter_is_left_with_the_last_beside_it(fresh, back, settings, monkeypatch) -> None:
    on_row = HoldoutScore.on_row

    def planned(self: HoldoutScore, row: dict, completions: object) -> bool:
        scores = {"is_formatted": False, "tokens": 3, "is_cut": False}
        answers = [{"is_correct": i < RIGHT[row["step"]], **scores} for i in range(6)]
        monkeypatch.setattr("grpo_nb.training.observers.read_answers", lambda *args, **named: answers)
        return on_row(self, row, completions)

    monkeypatch.setattr(HoldoutScore, "on_row", planned)
    best = settings.replace(holdout_every=1, keep="best", save_steps=4)
    whole = gn.train(*fresh, [brevity], best, name="whole", observers=[CrashImages(settings.run_root, "whole", 5)])
    adapter, last, third = (
        load_file(folder / "adapter_model.safetensors")
        for folder in (whole.adapter_path, whole.path / "adapter-last", whole.path / "checkpoints" / "checkpoint-3")
    )
    assert all(torch.equal(adapter[name], third[name]) for name in adapter)
    assert any(not torch.equal(adapter[name], last[name]) for name in adapter)
    assert whole.best.step == 3 and whole.info["adapter_step"] == 3 and "The adapter is that of step 3." in repr(whole)
    assert sorted(p.name for p in (whole.path / "checkpoints").iterdir()) == ["checkpoint-3", "checkpoint-5"]
    comparison = gn.compare(whole)  # from memory, which is refused for a model that is not the run's
    assert "is the best of 5" in comparison.after.subject
    # Killed after its best step and gone on with, it leaves the same; with more steps it goes on from the last.
    back()
    run = gn.train(*fresh, [brevity], best, resume="whole-5")
    assert run.info["resumed"][0]["step"] == 4 and run.info["adapter_step"] == 3
    assert_same_run(run, whole)
    RIGHT[6] = 6
    with pytest.warns(UserWarning, match="max_steps was 5, is 6"):
        longer = gn.train(*fresh, [brevity], best.replace(max_steps=6), resume="whole")
    assert longer.best.step == longer.info["adapter_step"] == 6 and not (longer.path / "adapter-last").exists()
    last_6 = load_file(longer.adapter_path / "adapter_model.safetensors")
    assert any(not torch.equal(last_6[name], adapter[name]) for name in adapter)
    # What was not kept cannot be left.
    back()
    kept_last = gn.train(*fresh, [brevity], best.replace(keep="last"), name="kept")
    assert kept_last.info["adapter_step"] == 5 and kept_last.best.step == 3
    with pytest.warns(UserWarning, match="Not saved: the adapter: that of the best held-out step, 3, is not there"):
        RIGHT[6] = 0
        gn.train(*fresh, [brevity], best.replace(max_steps=6), resume="kept")


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = os.geteuid() == 0 and not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True
    ).returncode  # fmt: skip
    if not mounted:
        pytest.skip("a small file system can only be mounted by root, and not in every container")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)  # lazily: a failed writer may still hold its file


class DiskFiller(Observer):
    """Fills the disk at a step, as another program would."""

    def __init__(self, file: Path, step: int) -> None:
        self.file, self.step = file, step

    def on_row(self, row: dict, completions: pandas.DataFrame) -> bool:
        if row["step"] == self.step:
            with contextlib.suppress(OSError), self.file.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        return False


def test_a_full_disk_loses_nothing_earlier(fresh, back, settings, whole, small_disk: Path, monkeypatch) -> None:
    settings = settings.replace(run_root=str(small_disk / "runs"))
    monkeypatch.setattr("grpo_nb.training.session.require_disk", lambda *args: None)  # there was room when it started
    filler = DiskFiller(small_disk / "filler", 4)
    with pytest.raises(gn.machine.EnvironmentProblem, match="is full") as caught:
        gn.train(*fresh, [brevity], settings, name="full", observers=[filler])
    assert "Free some space" in str(caught.value) and "resume=" in str(caught.value)
    assert any("the checkpoint" in note for note in caught.value.__notes__)
    run = gn.open_run(small_disk / "runs" / "full")
    assert run.status in ("failed", "crashed") and run.checkpoint_step == 2 and len(run.rows) >= 3
    filler.file.unlink()
    back()
    assert_same_run(gn.train(*fresh, [brevity], settings, resume=run.path), whole)


def test_a_full_disk_is_known_whoever_says_it(small_disk: Path) -> None:
    from safetensors.torch import save_file

    with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    tensor = torch.zeros(100_000)
    writers = [
        lambda: torch.save(tensor, small_disk / "a.pt"),
        lambda: save_file({"a": tensor}, small_disk / "a.safetensors"),
        lambda: (small_disk / "a.txt").write_text("x" * 10_000),
    ]
    for write in writers:
        with pytest.raises(Exception) as caught:
            write()
        assert checkpoints.is_disk_full(caught.value, is_of_a_writer=True), repr(caught.value)
    assert not checkpoints.is_disk_full(RuntimeError("something else")) and not checkpoints.is_disk_full(None)


def test_a_checkpoint_is_complete_or_not_there(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "a").write_text("first")
        raise KeyboardInterrupt

    checkpoints.write_checkpoint(tmp_path, 1, lambda folder: (folder / "a").write_text("one") and None)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.write_checkpoint(tmp_path, 2, fill)
    newest = checkpoints.newest_checkpoint(tmp_path)
    assert newest.step == 1 and newest.passed_over == () and (newest.path / "a").read_text() == "one"
    for step in (3, 10):
        checkpoints.write_checkpoint(tmp_path, step, lambda folder: (folder / "a").write_text("more") and None)
    checkpoints.keep_newest(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-3"]


def test_a_drive_that_cannot_sync_folders_is_no_obstacle(tmp_path: Path, monkeypatch) -> None:
    real = os.fsync

    def fsync(number: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{number}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(number)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("link", "symlink"):
        monkeypatch.setattr(os, name, refuse)
    checkpoints.write_checkpoint(tmp_path, 1, lambda folder: (folder / "a").write_text("one") and None)
    assert checkpoints.newest_checkpoint(tmp_path).step == 1
