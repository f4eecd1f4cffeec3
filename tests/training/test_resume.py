"""The run that is resumed, its reported changes and its folder, without a model."""

import errno
import json
import os
import platform
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

import grpo_nb as gn
from grpo_nb.core.locks import FolderLockedError, holding_lock
from grpo_nb.runs import checkpoints
from grpo_nb.runs.run_info import RunInfo
from grpo_nb.training.resume import FoundRun, claim_run, resumed_run_info, rewind
from tests.support.locks import holder_of
from tests.support.run_folders import write_run_folder

GONE = 2**22 + 1  # above any pid that Linux gives out
SETTINGS = gn.preset("cpu", max_steps=9)
TASK = {
    "name": "sums",
    "format": {"name": "xml"},
    "train": 4,
    "holdout": 2,
    "fingerprint": "f",
    "is_ordered": False,
}
REWARD = {
    "name": "short",
    "weight": 1.0,
    "kind": "",
    "parameters": {},
    "call": "short",
    "source": "a",
    "hash": "b",
    "state": "a",
}


def make_info(**changes: object) -> dict:
    return {
        "status": "running",
        "pid": GONE,
        "host": platform.node(),
        "started": "2026-01-01",
        "settings": SETTINGS.to_dict(),
        "task": TASK,
        "rewards": [REWARD],
        "versions": {"trl": "1.15.0"},
        "dtype": "float32",
        "engine": "the kit's CPU engine",
        "machine": {"gpu": None},
        "reference": "the base model",
        "base_weights_hash": "weights",
        **changes,
    }


def make_run(
    folder: Path, steps: int = 4, saved: tuple[int, ...] = (2, 4), **changes: object
) -> gn.runs.Run:
    """A run with rows and completions up to `steps`, and checkpoints of these steps."""
    run = write_run_folder(
        folder, make_info(**changes), [{"step": step} for step in range(1, steps + 1)]
    )
    (folder / "completions").mkdir()
    for step in range(1, steps + 1):
        (folder / "completions" / f"step_{step:06d}.parquet").write_bytes(b"")
    for step in saved:
        write(folder / "checkpoints", step)
    return run


def write(root: Path, step: int) -> Path:
    return checkpoints.write_checkpoint(
        root, step, lambda staged: (staged / "a").write_text("content") and None
    )


def put(file: Path, content: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def settings(root: Path) -> gn.Settings:
    return SETTINGS.replace(run_root=str(root))


def find_run(
    settings: gn.Settings, name: str | None, resume: object, **changes: object
) -> FoundRun | None:
    with ExitStack() as locks:
        info = RunInfo(**make_info(settings=settings.to_dict(), **changes))
        return claim_run(name, resume, info, locks)


def continued(run: gn.runs.Run, **now: object) -> dict:
    info = RunInfo(**make_info(**now))
    with ExitStack() as locks:
        return resumed_run_info(claim_run(None, run.path, info, locks), info)


def test_auto_resumes_the_newest_run(root: Path, settings: gn.Settings) -> None:
    assert find_run(settings, None, "auto") is None
    assert find_run(settings, None, None) is None
    late = make_run(root / "a", started="2026-01-02")
    put(late.path / "adapter" / "adapter_model.safetensors", b"weights")
    early = make_run(root / "b", started="2026-01-01")
    assert find_run(settings, None, "auto").run.path == late.path
    assert find_run(settings, "b", "auto").run.path == early.path
    assert find_run(settings, "c", "auto") is None


def test_finished_run_resumes_only_for_more_steps(root: Path, settings: gn.Settings) -> None:
    run = make_run(root / "a", status="finished")
    put(run.path / "adapter" / "adapter_model.safetensors", b"weights")
    for steps in (3, 4):
        with pytest.raises(ValueError, match=r"has already done 4 steps.*max_steps=8"):
            find_run(settings.replace(max_steps=steps), None, root / "a")
    for name, resume in ((None, run.path), (None, "auto"), ("a", "auto")):
        more = find_run(settings.replace(max_steps=10), name, resume)
        assert more.checkpoint.step == 4
        assert not more.needs_no_training, "the cell asks for more steps now"


@pytest.mark.parametrize("name", [None, "a"])
def test_auto_returns_a_finished_run_of_the_same_training(
    root: Path, settings: gn.Settings, name
) -> None:
    run = make_run(
        root / "a", status="finished", saved=()
    )  # on a drive its checkpoints may be gone
    put(run.path / "adapter" / "adapter_model.safetensors", b"weights")
    found = find_run(settings, name, "auto")
    assert found.needs_no_training
    assert found.run.path == run.path
    for changed, now in (
        (settings.replace(seed=7), {}),
        (settings, {"task": {**TASK, "fingerprint": "g"}}),
        (settings, {"rewards": [{**REWARD, "source": "another", "hash": "c"}]}),
    ):
        with pytest.raises(
            ValueError, match=r"'a' was another training: (seed|hash of rows|the reward 'short')"
        ) as caught:
            find_run(changed, name, "auto", **now)
        assert "To start a new run, pass resume=None and another name." in str(caught.value)
        assert "Resume it" not in str(caught.value)


@pytest.mark.parametrize("resume", ["auto", "{root}/a"])
def test_finished_run_without_adapter_is_restored(
    root: Path, settings: gn.Settings, resume: str
) -> None:
    make_run(root / "a", steps=9, saved=(9,), status="finished")
    found = find_run(settings, None, resume.format(root=root))
    assert found.checkpoint.step == 9
    assert not found.needs_no_training, "train writes the adapter of the checkpoint"


@pytest.mark.parametrize(("name", "resume"), [("a", "auto"), (None, "auto"), (None, "{root}/a")])
def test_run_without_checkpoint_is_kept_and_refused(
    root: Path, settings: gn.Settings, name: str | None, resume: str
) -> None:
    run = make_run(root / "a", steps=0, saved=())
    file = put(run.path / "checkpoints" / "checkpoint-4" / "x", b"weeks of work")
    with pytest.raises(ValueError, match="the run 'a' has no complete checkpoint to resume from"):
        find_run(settings, name, resume.format(root=root))
    assert file.read_bytes() == b"weeks of work"


@pytest.mark.parametrize("name", ["a", None])
@pytest.mark.parametrize("status", ["running", "failed", "interrupted"])
def test_auto_restarts_a_run_without_first_checkpoint(
    root: Path, settings: gn.Settings, status: str, name: str | None
) -> None:
    """The user repairs the cell and runs it again: its name must not be blocked."""
    run = make_run(root / "a", steps=0, saved=(), status=status)
    with pytest.raises(ValueError, match="the run 'a' has no complete checkpoint to resume from"):
        find_run(settings, None, run.path)
    assert find_run(settings, name, "auto", rewards=[{**REWARD, "weight": 2.0}]) is None
    assert run.path.exists() == (name is None), "only a name that the user gave is freed"


@pytest.mark.parametrize("changes", [{"steps": 1}, {"host": "elsewhere"}, {"status": "finished"}])
def test_auto_keeps_a_run_that_may_hold_work(
    root: Path, settings: gn.Settings, changes: dict
) -> None:
    run = make_run(root / "a", **{"steps": 0, "saved": (), "status": "running", **changes})
    with pytest.raises(ValueError, match="the run 'a' has no complete checkpoint to resume from"):
        find_run(settings, "a", "auto", host=run.info["host"])
    assert (run.path / "run.json").is_file()


def test_resume_reports_and_records_changes(root: Path) -> None:
    run = make_run(root / "a", host="here", versions={"trl": "1.15.0", "vllm": "0.31.0"})
    same = {"host": "here", "versions": {"trl": "1.15.0", "vllm": "0.31.0", "new": "1"}}
    assert continued(run, **same)["resumed"][-1]["changed"] == []
    now = {
        "settings": SETTINGS.replace(save_steps=7).to_dict(),
        "versions": {"trl": "1.16.0"},
        "engine": "transformers' own generation",
        "host": "there",
        "started": "2028",
        "reference": "the adapter",
        "rewards": [{**REWARD, "source": "c", "hash": "c"}],
    }
    with pytest.warns(UserWarning, match="Resuming 'a' at step 4: save_steps was 0, is 7; "):
        info = continued(run, **now)
    changed = [
        "save_steps was 0, is 7",
        "trl was",
        "vllm was",
        "engine was",
        "host was",
        "the reward 'short' has",
    ]
    assert all(
        said.startswith(part)
        for said, part in zip(info["resumed"][-1]["changed"], changed, strict=True)
    )
    assert (info["host"], info["started"], info["reference"]) == (
        "there",
        "2026-01-01",
        "the base model",
    )
    put(run.path / "run.json", json.dumps(info).encode())
    assert [len(entry["changed"]) for entry in continued(run, **now)["resumed"]] == [6, 0]


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (
            {"settings": SETTINGS.replace(beta=0.1).to_dict()},
            r"beta was 0\.04, is 0\.1",
        ),
        (
            {"rewards": [{**REWARD, "weight": 2.0}]},
            r"rewards was \[\('short', 1\.0\)\], is \[\('short', 2\.0\)\]",
        ),
        ({"rewards": [REWARD, {**REWARD, "name": "more"}]}, r"rewards was .*'more'"),
        ({"task": {**TASK, "fingerprint": "g"}}, "hash of rows and tools was 'f', is 'g'"),
        ({"task": {**TASK, "format": {"name": "think"}}}, "format of the answers was"),
        ({"task": {**TASK, "is_ordered": True}}, "is_ordered of the task was False, is True"),
        ({"base_weights_hash": "other weights"}, "the weights of the base model have changed"),
    ],
)
def test_resume_refuses_another_training(root: Path, now: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        continued(make_run(root / "a"), **now)


def test_rewind_removes_later_files(root: Path) -> None:
    run = make_run(root / "a", steps=6)
    put(run.path / "comparison" / "new", b"")
    put(run.path / "comparison-step-4" / "old", b"of a resume before")
    (write(run.path / "checkpoints", 6) / "manifest.json").unlink()
    for _ in range(2):  # a kill can come at any moment, and then it is done again
        rewind(FoundRun(run, checkpoints.newest_checkpoint(run.path / "checkpoints"), []))
        assert [row["step"] for row in run.rows] == [1, 2, 3, 4]
        assert [
            int(f.stem.split("_")[1]) for f in sorted((run.path / "completions").iterdir())
        ] == [1, 2, 3, 4]
        assert not (run.path / "comparison").exists()
        assert [file.name for file in (run.path / "comparison-step-4").iterdir()] == ["new"]
        kept = sorted(folder.name for folder in (run.path / "checkpoints").iterdir())
        assert kept == ["checkpoint-2", "checkpoint-4", "damaged-6"]


def test_resume_compares_only_recorded_values(root: Path) -> None:
    task = {name: value for name, value in TASK.items() if name != "is_ordered"}
    run = make_run(root / "a", task=task, host=None)
    now = {"task": {**TASK, "is_ordered": True}, "host": "here"}
    assert continued(run, **now)["resumed"][-1]["changed"] == []


# Two processes, clocks, neighbours, drives.


def test_auto_refuses_a_locked_run(root: Path, settings: gn.Settings) -> None:
    """The holder has not written a byte yet: run.json still says that the run has crashed."""
    run = make_run(root / "a")
    with holder_of(run.path):
        for resume in ("auto", run.path):
            with pytest.raises(ValueError, match="'a' is being trained right now by another"):
                find_run(settings, None, resume)
    assert find_run(settings, None, "auto").run.path == run.path
    assert [file.name for file in root.iterdir()] == ["a"]


def test_find_run_locks_the_run_until_the_stack_closes(root: Path, settings: gn.Settings) -> None:
    run = make_run(root / "a")
    with ExitStack() as locks:
        info = RunInfo(**make_info(settings=settings.to_dict()))
        claim_run(None, "auto", info, locks)
        with pytest.raises(FolderLockedError):
            holding_lock(run.path).__enter__()
    with holding_lock(run.path):
        assert (run.path / ".lock").is_file()


def test_settings_of_an_earlier_version_are_named(root: Path) -> None:
    run = make_run(root / "a")
    earlier = json.loads((run.path / "run.json").read_text())
    earlier["settings"] |= {"keep_adapter": "last"}
    put(run.path / "run.json", json.dumps(earlier).encode())
    with pytest.raises(ValueError, match=r"run\.json is damaged, or .*'keep_adapter'"):
        _ = run.settings


def test_auto_refuses_a_damaged_newest_run(root: Path, settings: gn.Settings) -> None:
    """Otherwise an older run would be resumed, or returned as if it were the newest."""
    run = make_run(root / "a")
    put(root / "b" / "run.json", b'{"status": "running", "pid": "x"}')
    with pytest.raises(ValueError, match=r"b/run\.json is damaged.*started Field required"):
        find_run(settings, None, "auto")
    with pytest.raises(ValueError, match="started Field required"):
        find_run(settings, "b", "auto")
    assert find_run(settings, None, root / "a").run.path == run.path


def test_auto_refuses_a_damaged_only_run(root: Path, settings: gn.Settings) -> None:
    put(root / "b" / "run.json", b"{")
    with pytest.raises(ValueError, match=r"b/run\.json is damaged"):
        find_run(settings, None, "auto")


def test_auto_ignores_damage_that_hides_no_start(root: Path, settings: gn.Settings) -> None:
    make_run(root / "a", started="2026-01-01")
    newest = make_run(root / "b", started="2026-01-02")
    put(root / "a" / "metrics.jsonl", b"{\n{}")
    put(root / "a" / "comparison" / "comparison.json", b"{")
    assert find_run(settings, None, "auto").run.path == newest.path


def test_auto_refuses_a_finished_run_of_another_reward_state(
    root: Path, settings: gn.Settings
) -> None:
    make_run(root / "a", status="finished", saved=(), rewards=[REWARD])
    put(root / "a" / "adapter" / "adapter_model.safetensors", b"weights")
    now = {"rewards": [{**REWARD, "state": "b"}]}
    with pytest.raises(
        ValueError,
        match="'a' was another training: the reward 'short' has changed: it holds other values",
    ):
        find_run(settings, None, "auto", **now)


def test_resumed_record_keeps_facts_on_files_that_stay(root: Path) -> None:
    """Until the resumed part ends, the adapter and the held-out scores are the earlier ones."""
    facts = {"adapter_step": 4, "grader_description": "the right number"}
    info = continued(make_run(root / "a", **facts))
    assert {key: info[key] for key in facts} == facts


# Checkpoints.


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            lambda folder: (folder / "manifest.json").write_text('{"files"'),
            "its manifest or a file that it lists cannot be read",
        ),
        (
            lambda folder: (folder / "manifest.json").write_text("[]"),
            "its manifest or a file that it lists cannot be read",
        ),
        (lambda folder: (folder / "a").write_text("Content"), "a is not what was written"),
        (lambda folder: (folder / "a").unlink(), "a is not what was written"),
        (
            lambda folder: shutil.rmtree(folder) or folder.touch(),
            "its manifest or a file that it lists cannot be read",
        ),
    ],
)
def test_newest_checkpoint_passes_over_damage(tmp_path: Path, damage: Callable, told: str) -> None:
    write(tmp_path, 9)
    damage(write(tmp_path, 10))
    newest = checkpoints.newest_checkpoint(tmp_path)
    assert newest.step == 9
    assert newest.skip_reasons[0].startswith(f"checkpoint-10: {told}")
    checkpoints.set_aside_damaged(tmp_path, newest)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-9", "damaged-10"]


def test_copy_of_a_checkpoint_under_another_step_is_passed_over(tmp_path: Path) -> None:
    complete = write(tmp_path, 40)
    shutil.copytree(complete, tmp_path / "checkpoint-400")
    newest = checkpoints.newest_checkpoint(tmp_path)
    assert newest.path == complete
    assert newest.skip_reasons == ["checkpoint-400: it is the checkpoint of step 40"]


def test_interrupted_deletion_leaves_no_complete_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (2, 10, 3):
        write(tmp_path, step)

    def cut_short(folder: Path, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoints.shutil, "rmtree", cut_short)
        checkpoints.keep_newest(tmp_path, 2)
    assert checkpoints.find_damage(tmp_path / "checkpoint-2").startswith(
        "its manifest or a file that it lists cannot be read"
    )
    checkpoints.keep_newest(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-3"]


@pytest.mark.parametrize(
    ("failed", "free", "kind"),
    [
        (KeyboardInterrupt(), 2**30, KeyboardInterrupt),
        (RuntimeError("PytorchStreamWriter failed writing"), 2**30, RuntimeError),
        (RuntimeError("PytorchStreamWriter failed writing"), 4096, OSError),
    ],
)
def test_failed_write_leaves_no_checkpoint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failed: BaseException,
    free: int,
    kind: type,
) -> None:
    def fill(folder: Path) -> None:
        (folder / "a").write_text("half")
        raise failed

    write(tmp_path, 1)
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(kind):
        checkpoints.write_checkpoint(tmp_path, 2, fill)
    newest = checkpoints.newest_checkpoint(tmp_path)
    assert newest.step == 1
    assert newest.skip_reasons == []
    assert (newest.path / "a").read_text() == "content"
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-1"]


def test_checkpoint_syncs_its_subfolders(tmp_path: Path, monkeypatch) -> None:
    synced = []
    monkeypatch.setattr(checkpoints, "sync", lambda path: synced.append(path.name))

    def fill(folder: Path) -> None:
        (folder / "rewards").mkdir()
        (folder / "rewards" / "state.json").write_text("{}")

    checkpoints.write_checkpoint(tmp_path, 2, fill)
    assert {"rewards", "state.json", "manifest.json"} <= set(synced)


def test_checkpoint_needs_no_folder_sync(tmp_path: Path, monkeypatch) -> None:
    real = os.fsync

    def fsync(number: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{number}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    write(tmp_path, 1)
    assert checkpoints.newest_checkpoint(tmp_path).step == 1


@pytest.mark.parametrize(
    "manifest",
    ["[" * 200_000, '{"files": []}', '{"files": null}', '{"files": {"' + "a" * 300 + '": {}}}'],
    ids=["deep", "list", "null", "long name"],
)
def test_damaged_manifest_is_passed_over(tmp_path: Path, manifest: str) -> None:
    complete = write(tmp_path, 2)
    write(tmp_path, 4)
    (tmp_path / "checkpoint-4" / "manifest.json").write_text(manifest)
    newest = checkpoints.newest_checkpoint(tmp_path)
    assert newest.path == complete
    assert newest.skip_reasons[0].startswith("checkpoint-4: its manifest or a file")


def test_manifest_that_is_a_folder_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-4" / "manifest.json").mkdir(parents=True)
    assert "cannot be read" in checkpoints.find_damage(tmp_path / "checkpoint-4")


def test_manifest_on_a_failing_drive_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(OSError, match="Input/output error"):
        checkpoints.find_damage(tmp_path)


# Names, paths and old records.


def test_resume_path_with_another_name_is_refused(root: Path, settings: gn.Settings) -> None:
    run = make_run(root / "a")
    with pytest.raises(ValueError, match=r"/a' is the run 'a', not 'b'\. Leave out name="):
        find_run(settings, "b", run.path)
    # The folder of a run is a path, as everywhere.
    with pytest.raises(FileNotFoundError, match="'a' is not a run"):
        find_run(settings, None, "a")
    with pytest.raises(TypeError, match="run"):
        find_run(settings, None, True)


def test_resume_path_expands_the_home_folder(
    root: Path, settings: gn.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(root))
    run = make_run(root / "elsewhere" / "a")
    assert find_run(settings, None, "~/elsewhere/a").run.path == run.path


@pytest.mark.parametrize(("name", "resume"), [(None, "auto"), ("a", "auto"), (None, "~/mine/a")])
def test_run_root_expands_the_home_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, resume: str
) -> None:
    monkeypatch.setenv("HOME", str(root))
    run = make_run(root / "mine" / "a")
    assert find_run(SETTINGS.replace(run_root="~/mine"), name, resume).run.path == run.path


def test_resumed_run_without_reference_has_the_base_model(root: Path) -> None:
    run = make_run(root / "a")
    info = run.info
    del info["reference"]
    put(run.path / "run.json", json.dumps(info).encode())
    assert continued(run)["reference"] == "the base model"


def test_manifest_with_a_path_that_cannot_exist_is_damage(tmp_path: Path) -> None:
    folder = write(tmp_path, 4)
    name = "/".join(["long" * 50] * 30)
    (folder / "manifest.json").write_text(json.dumps({"files": {name: {"sha256": ""}}}))
    assert checkpoints.find_damage(folder) is not None


def test_manifest_that_links_to_itself_is_damage(tmp_path: Path) -> None:
    manifest = write(tmp_path, 4) / "manifest.json"
    manifest.unlink()
    manifest.symlink_to(manifest)
    assert "cannot be read" in checkpoints.find_damage(manifest.parent)
