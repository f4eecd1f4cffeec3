"""The written folder: its content, the runs it can be written from, and refusals."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import grpo_nb as gn
from grpo_nb.scaleout.reward_source import NotPortableError
from grpo_nb.training.kl_reference import START_REFERENCE
from tests.export.test_merged import rewrite
from tests.support.own_rewards import hashed
from tests.support.scale import said_by, signs, start_warm, trained


@pytest.fixture(scope="module")
def run(letters_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> gn.runs.Run:
    """A run of three steps, with its rewards in memory."""
    return trained(
        letters_folder, tmp_path_factory.mktemp("runs"), "a-run", extra={"adam_beta2": 0.9}
    )


def values_of(folder: gn.scaleout.Project) -> dict:
    return yaml.safe_load((folder.path / "run.yaml").read_text())


@pytest.fixture(scope="module")
def project(run: gn.runs.Run, tmp_path_factory: pytest.TempPathFactory) -> gn.scaleout.Project:
    return gn.scaleout.write_project(run, tmp_path_factory.mktemp("folders") / "anywhere")


def test_folder_is_complete_and_has_nothing_private(
    run: gn.runs.Run, project: gn.scaleout.Project, letters_folder: Path
) -> None:
    values = values_of(project)
    assert values["model"] == "base"
    assert (project.path / "base" / "config.json").is_file()
    assert values["reward_weights"] == {"signs": 1.0, "partial_format": 0.5}
    assert values["trainer"]["learning_rate"] == 0.5
    assert values["trainer"]["adam_beta2"] == 0.9
    assert len((project.path / "train.jsonl").read_text().splitlines()) == 16
    record = [json.loads(line) for line in (project.path / "record.jsonl").read_text().splitlines()]
    assert [entry["rewards"]["signs"] for entry in record] == [
        run.completions(n)["signs"].tolist() for n in (1, 2, 3)
    ]
    program = (project.path / "train.py").read_text()
    assert "unsloth" not in program
    assert "import grpo_nb" not in program
    assert '"trl==1.16.0"' in program.partition('///\n"""')[0]
    readme = (project.path / "README.md").read_text()
    assert "trains <code>letters</code> (copied to `base/`) for 3 steps with TRL" in readme
    origin = json.loads((project.path / "origin.json").read_text())
    assert not origin.keys() & {"pid", "host", "adapter_step", "grader_description"}
    assert origin["settings"]["run_root"] == "runs"
    texts = [file.read_text("latin1") for file in project.path.iterdir() if file.is_file()]
    private = (str(letters_folder), str(Path.cwd()), str(letters_folder.parent))
    assert not [word for word in private if any(word in text for text in texts)]


def test_bnpo_becomes_dapo_with_a_sentence(project: gn.scaleout.Project) -> None:
    sentence = "The loss bnpo becomes dapo."
    assert values_of(project)["trainer"]["loss_type"] == "dapo"
    assert sentence in repr(project)
    assert sentence in (project.path / "README.md").read_text()


def test_plan_never_splits_a_group(
    project: gn.scaleout.Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight completions in groups of four: no group is split."""
    for count, size in ((1, 8), (2, 4)):
        said = said_by(project.path, capsys, "--plan", "--processes", str(count))
        assert said == f"{count} processes x {size} completions x 1 passes a step\n"
    for count in (3, 4):
        told = said_by(project.path, capsys, "--plan", "--processes", str(count))
        assert f"8 a generation, in groups of 4, cannot be divided among {count} processes" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--processes", "2"), "planned for 2 processes, started with 1"),
        (("--set", "lerning_rate=1"), "unknown ['lerning_rate']"),
        (("--set", "rate=1", "--set", "size=2"), "unknown ['rate', 'size']"),
        (("--set", "use_vllm"), "--set use_vllm has no value: write --set use_vllm=VALUE"),
        (
            ("--set", "output_dir=elsewhere"),
            "output_dir cannot be set, because train.py sets output_dir, reward_weights, use_cpu",
        ),
    ],
)
def test_train_py_refuses_unknown_arguments(
    arguments: tuple[str, ...],
    told: str,
    project: gn.scaleout.Project,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert told in said_by(project.path, capsys, *arguments)
    assert not (project.path / "result").exists()


def test_generation_steps_of_none_are_the_default_of_trl(
    project: gn.scaleout.Project, capsys: pytest.CaptureFixture[str]
) -> None:
    said = said_by(project.path, capsys, "--plan", "--set", "steps_per_generation=null")
    assert said == "1 processes x 8 completions x 1 passes a step\n"


def test_replay_logs_every_step(project: gn.scaleout.Project) -> None:
    program = runpy.run_path(str(project.path / "train.py"), run_name="train")
    settings = program["read_settings"](["logging_steps=10"])
    batch = program["divide_batch"](settings["trainer"], 1)
    for is_replay, steps in ((True, 1), (False, 10)):
        config = program["trainer_config"](settings, batch, project.path / "replay", is_replay)
        assert config.logging_steps == steps


def test_adapter_of_the_folder_is_a_copy(run: gn.runs.Run, project: gn.scaleout.Project) -> None:
    name = "adapter_config.json"
    copy = project.path / "adapter_init" / name
    assert not copy.samefile(run.start_path / name)


def test_scientific_number_is_a_number(project: gn.scaleout.Project) -> None:
    """The default of epsilon_high is None, so its type cannot be seen there."""
    program = runpy.run_path(str(project.path / "train.py"), run_name="train")
    changes = ["epsilon_high=1e-1", "lr_scheduler_kwargs={min_lr: 1e-6}"]
    arguments = program["read_settings"](changes)["trainer"]
    assert arguments["epsilon_high"] == 0.1
    assert arguments["lr_scheduler_kwargs"] == {"min_lr": 1e-6}


def test_plan_of_deleted_sizes_has_the_defaults_of_trl(
    project: gn.scaleout.Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copyfile(project.path / "train.py", tmp_path / "train.py")
    (tmp_path / "run.yaml").write_text("trainer: {}\n")
    assert said_by(tmp_path, capsys, "--plan") == "1 processes x 8 completions x 1 passes a step\n"


def test_replay_of_fewer_steps_compares_those(
    project: gn.scaleout.Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --set max_steps=1, train.py does one of the three recorded steps."""
    compare = runpy.run_path(str(project.path / "replay.py"))["compare"]
    lines = (project.path / "record.jsonl").read_text().splitlines()
    recorded = [json.loads(line) for line in lines]
    compare(recorded, [recorded[0]], 1e-4)
    assert "The same numbers in 1 steps" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="NOTHING was compared"):
        compare(recorded, [], 1e-4)


def test_replay_finds_an_infinite_number_that_became_finite(project: gn.scaleout.Project) -> None:
    """A gradient norm is infinite in the first steps of float16."""
    difference = runpy.run_path(str(project.path / "replay.py"))["difference"]
    infinite = float("inf")
    missing = float("nan")
    assert difference("grad_norm", infinite, infinite) == 0.0
    assert difference("reward", missing, missing) == 0.0
    for recorded, new in ((infinite, 1.5), (1.5, infinite), (infinite, -infinite), (1.0, missing)):
        assert difference("grad_norm", recorded, new) == infinite
    assert difference("loss", 2.0, 1.0) == 0.5


def test_replay_compares_a_loss_only_if_dapo_equals_bnpo(
    project: gn.scaleout.Project, letters_folder: Path, tmp_path: Path
) -> None:
    two_passes = rewritten(letters_folder, tmp_path, [signs], gradient_accumulation_steps=2)
    names = {}
    for folder in (project.path, two_passes.path):
        step = json.loads((folder / "record.jsonl").read_text().splitlines()[0])
        quantities = runpy.run_path(str(folder / "replay.py"))["compared_quantities"]
        names[folder] = [name for name, _, _ in quantities(step, step)]
    assert names[project.path][-3:] == ["advantages", "loss", "grad_norm"]
    assert names[two_passes.path] == ["reward signs", "advantages"]
    assert "but not loss and gradient norm" in (two_passes.path / "README.md").read_text()
    assert_formatted(two_passes.path)


def assert_formatted(folder: Path) -> None:
    for options in (["check"], ["format", "--check", "--line-length", "100"]):
        command = [sys.executable, "-m", "ruff", *options, "--isolated", "train.py", "replay.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_folder_is_formatted_and_linted(project: gn.scaleout.Project) -> None:
    assert_formatted(project.path)


def test_run_whose_base_changed_is_refused(run: gn.runs.Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    rewrite(copy / "run.json", base_weights_hash="0" * 32)
    with pytest.raises(gn.export.ExportError, match="are not those that the run"):
        gn.scaleout.write_project(copy, tmp_path / "folder", rewards=run.rewards)
    assert not (tmp_path / "folder").exists()


def published_copy(run: gn.runs.Run, root: Path, **info: object) -> Path:
    """A copy of the run, as if its model were acme/tiny on the Hub."""
    copy = Path(shutil.copytree(run.path, root / "copy"))
    settings = run.info["settings"] | {"model": "acme/tiny"}
    rewrite(copy / "run.json", settings=settings, is_base_local=False, **info)
    return copy


def test_revision_of_a_hub_model_is_that_of_the_cache(
    run: gn.runs.Run, letters_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Path(shutil.copytree(letters_folder, tmp_path / "snapshots" / "0a1b2c"))
    cached = str(commit / "config.json")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: cached)
    copy = published_copy(run, tmp_path)
    project = gn.scaleout.write_project(copy, tmp_path / "folder", rewards=run.rewards)
    assert values_of(project)["model"] == "acme/tiny"
    assert values_of(project)["revision"] == "0a1b2c"


@pytest.mark.parametrize("info", [{"base_weights_hash": "0" * 32}, {}], ids=["other", "missing"])
def test_hub_model_with_other_or_missing_weights_is_refused(
    run: gn.runs.Run,
    letters_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    info: dict,
) -> None:
    """The folder would pin the commit in the cache, which is not that of the training."""
    # Without an entry, the cache has no weights of its newest commit.
    commit = letters_folder if info else tmp_path / "snapshots" / "0a1b2c"
    cached = str(commit / "config.json")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: cached)
    copy = published_copy(run, tmp_path, **info)
    with pytest.raises(gn.export.ExportError, match="are not those that the run"):
        gn.scaleout.write_project(copy, tmp_path / "folder", rewards=run.rewards)
    assert not (tmp_path / "folder").exists()


def test_hub_model_known_to_have_no_config_has_no_revision(
    run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import _CACHED_NO_EXIST

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: _CACHED_NO_EXIST)
    copy = published_copy(run, tmp_path)
    project = gn.scaleout.write_project(copy, tmp_path / "folder", rewards=run.rewards)
    assert values_of(project)["revision"] is None


def test_folder_with_the_name_of_a_hub_model_is_replaced(
    run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was trained on acme/tiny of the Hub, not on a folder in the working directory."""
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    copy = published_copy(run, tmp_path)
    for _ in range(2):
        project = gn.scaleout.write_project(copy, "acme", rewards=run.rewards, overwrite=True)
    assert (project.path / "train.py").is_file()


def test_launcher_knows_the_commands_of_the_readme(project: gn.scaleout.Project) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    # It refuses keys that it does not know.
    config = load_config_from_file(str(project.path / "cpu2.yaml"))
    assert config.num_processes == 2
    assert config.use_cpu
    rows = (project.path / "README.md").read_text().splitlines()
    (command,) = (row for row in rows if row.startswith("| N GPUs"))
    options = command.partition("accelerate launch ")[2].partition("`")[0].replace("N", "4")
    launched = launch_command_parser().parse_args(options.split())
    assert launched.multi_gpu
    assert launched.num_processes == 4
    assert launched.training_script_args == ["--processes", "4"]


# Other runs


def rewritten(
    folder: Path, root: Path, rewards: list, steps: int = 2, **more: object
) -> gn.scaleout.Project:
    """Train a few steps with these rewards, and write the run."""
    run = trained(folder, root / "runs", "other", steps=steps, rewards=rewards, **more)
    return gn.scaleout.write_project(run, root / "folder")


def test_stage_replays_equal_numbers(run: gn.runs.Run, plain_trl: Path, tmp_path: Path) -> None:
    """A stage begins with the adapter of the one before."""
    settings = run.settings.replace(max_steps=2, loss_type="dapo", run_root=str(tmp_path), extra={})
    rewards = [signs, hashed]
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, train_size=16, holdout=4, tokenizer=tokenizer)
    kept: list[gn.runs.Run] = []
    for name in ("first", "second"):
        kept.append(gn.train(model, tokenizer, task.after(kept), rewards, settings, name=name))
    stage = gn.scaleout.write_project(kept[-1], tmp_path / "stage", rewards=rewards)
    assert values_of(stage)["reference"] == START_REFERENCE
    told = start_warm(stage.path, plain_trl, "--replay", "--tolerance", "1e-5")
    assert "loss: largest difference" in told
    assert "The same numbers in 2 steps" in told


def test_opened_run_with_rewards_of_the_kit_is_written(
    letters_folder: Path, tmp_path: Path
) -> None:
    rewards = [gn.rewards.partial_format()]
    run = trained(letters_folder, tmp_path / "runs", "kit", steps=2, rewards=rewards)
    project = gn.scaleout.write_project(gn.open_run(run.path), tmp_path / "folder")
    assert "partial_format()" in (project.path / "rewards.py").read_text()


def test_rewards_that_start_processes_are_written(letters_folder: Path, tmp_path: Path) -> None:
    rows = [
        {"question": f"Add {n}.", "answer": str(n), "tests": [f"assert f(1) == {n + 1}"]}
        for n in range(8)
    ]
    rewards = [signs, gn.rewards.code_tests(), gn.rewards.maths()]
    project = rewritten(
        letters_folder, tmp_path, rewards, task=gn.load_task(rows, format=gn.tasks.xml(), holdout=2)
    )
    asked = [json.loads(line) for line in (project.path / "train.jsonl").read_text().splitlines()]
    assert all(row["tests"] == [f"assert f(1) == {int(row['answer']) + 1}"] for row in asked)
    assert len(asked) == 6
    assert '"math-verify==' in (project.path / "train.py").read_text()


def test_settings_of_a_gpu_run_are_written(run: gn.runs.Run, tmp_path: Path) -> None:
    more = {
        "fast_inference": True,
        "model": "acme/tiny",
        "load_in_4bit": True,
    }
    made = {
        "loss_type": "dapo",
        "mask_truncated_completions": True,
        "epsilon_high": 0.28,
    }
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    arguments = run.info["effective"]["arguments"] | made | {"use_vllm": True}
    effective = run.info["effective"] | {"arguments": arguments}
    rewrite(
        copy / "run.json",
        settings=run.info["settings"] | {"loss_type": "dapo", **more},
        effective=effective,
        is_base_local=False,
    )
    project = gn.scaleout.write_project(copy, tmp_path / "folder", rewards=run.rewards)
    values = values_of(project)
    program = (project.path / "train.py").read_text()
    # With the reentrant kind of Unsloth, a step of several processes would end in an error.
    wanted = made | {"gradient_checkpointing_kwargs": {"use_reentrant": False}}
    assert wanted.items() <= values["trainer"].items()
    assert values["load_in_4bit"] is True
    assert '"bitsandbytes==' in program
    assert "use_vllm" not in values["trainer"], "it needs packages of its own"
    assert values["model"] == "acme/tiny", "a model of the Hub stays there"
    assert project.origin["is_base_local"] is False
    assert not (project.path / "base").exists(), "a model of the Hub stays there"


@pytest.mark.parametrize(
    "argument",
    ["per_device_train_batch_size=6", "per_device_train_batch_size=0", "num_generations=0"],
)
def test_plan_of_a_batch_without_whole_groups_is_refused(
    project: gn.scaleout.Project, capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    message = said_by(project.path, capsys, "--plan", "--set", argument)
    assert "Change the number of processes or the batch." in message


def test_arguments_that_publish_are_not_written(run: gn.runs.Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    arguments = run.info["effective"]["arguments"] | {"push_to_hub": True, "hub_model_id": "a/b"}
    rewrite(copy / "run.json", effective=run.info["effective"] | {"arguments": arguments})
    project = gn.scaleout.write_project(copy, tmp_path / "folder", rewards=run.rewards)
    assert "hub" not in (project.path / "run.yaml").read_text()


# Refusals


@pytest.mark.parametrize("content", ["[]", "{", '{"step": 0}'])
def test_damaged_generations_are_refused(run: gn.runs.Run, tmp_path: Path, content: str) -> None:
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    (copy / "start" / "generation_000000.json").write_text(content)
    with pytest.raises(ValueError, match=r"generation_000000\.json is damaged"):
        gn.scaleout.write_project(copy, tmp_path / "folder", rewards=run.rewards)
    assert not (tmp_path / "folder").exists()


def test_damaged_completions_are_named(run: gn.runs.Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    (copy / "completions" / "step_000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"step_000001\.parquet is damaged") as caught:
        gn.scaleout.write_project(copy, tmp_path / "folder", rewards=run.rewards)
    assert "generation_" not in str(caught.value)


def reads_a_file(completions: list, **columns: object) -> list[float]:
    return [len(Path("beside.txt").read_text()) / (1 + len(str(c))) for c in completions]


KEY = "hf_" + "k" * 34


def leaks(completions: list, **columns: object) -> list[float]:
    return [len(KEY) / (1 + len(str(c))) for c in completions]


def drawn(completions: list, **columns: object) -> list[float]:
    import random

    return [random.random() for _ in completions]


def with_outer_variable() -> Callable:
    """Return a reward that uses a variable of the function around it."""
    limit = 3

    def signs(completions: list, **columns: object) -> list[float]:
        return [limit for _ in completions]

    return signs


def with_own_module() -> Callable:
    """Return a reward that imports a file next to the notebook."""

    def signs(completions: list, **columns: object) -> list[float]:
        import own_helpers

        return own_helpers.score(completions)

    return signs


def with_other_scores() -> Callable:
    """Return a reward with the name of another one."""

    def signs(completions: list, **columns: object) -> list[float]:
        return [0.0 for _ in completions]

    return signs


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (
            with_outer_variable(),
            "signs is not defined by .*uses variables of the function around it",
        ),
        (with_own_module(), "process of its own: ModuleNotFoundError: .*'own_helpers'"),
        (with_other_scores(), "'signs' gives other scores .* not the reward of the run"),
    ],
    ids=["variable", "module", "scores"],
)
def test_reward_that_differs_in_a_fresh_process_is_refused(
    run: gn.runs.Run, tmp_path: Path, reward: Callable, message: str
) -> None:
    with pytest.raises(NotPortableError, match=message):
        gn.scaleout.write_project(
            run, tmp_path / "folder", rewards=[reward, gn.rewards.partial_format()]
        )
    assert not (tmp_path / "folder").exists()


def test_bad_input_is_refused_and_leaves_nothing(
    run: gn.runs.Run, letters_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "there"
    away = tmp_path / "a"
    write = gn.scaleout.write_project
    target.mkdir()
    (target / "mine.txt").write_text("kept")
    without = Path(shutil.copytree(run.path, tmp_path / "without"))
    shutil.rmtree(without / "start")
    monkeypatch.chdir(tmp_path)
    Path("beside.txt").write_text("words")
    reading, lucky = (
        trained(letters_folder, tmp_path / "runs", reward.__name__, steps=2, rewards=[reward])
        for reward in (reads_a_file, drawn)
    )
    refused = [
        (
            lambda: write(reading, away),
            NotPortableError,
            "process of its own: FileNotFound.*beside.txt",
        ),
        (
            lambda: write(lucky, away),
            NotPortableError,
            "other scores in a fresh process.*draws random numbers",
        ),
        (
            lambda: write(gn.open_run(run.path), away),
            ValueError,
            r"only the source text of your own rewards.*rewards=\[\.\.\.\]",
        ),
        (lambda: write(run, target), FileExistsError, "overwrite=True"),
        (
            lambda: write(run, run.path, overwrite=True),
            FileExistsError,
            "which would be deleted too",
        ),
        (
            lambda: write(run, letters_folder, overwrite=True),
            FileExistsError,
            "which would be deleted too",
        ),
        (lambda: write(without, away), FileNotFoundError, "has not kept all completions of its"),
        (
            lambda: write(run, away, rewards=[signs]),
            ValueError,
            "not the rewards that the run was trained",
        ),
    ]
    for call, kind, told in refused:
        with pytest.raises(kind, match=told) as caught:
            call()
        assert caught.type is kind, told
        assert "\n" not in str(caught.value), told
    assert not away.exists()
    assert (target / "mine.txt").read_text() == "kept"
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "extra",
    [{"logging_steps": 2}, {"steps_per_generation": 1}, {"steps_per_generation": 4}],
    ids=str,
)
def test_run_without_a_whole_recorded_step_is_refused(
    letters_folder: Path, tmp_path: Path, extra: dict
) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"has not kept all completions.*this version.*logging_steps=1"
    ):
        rewritten(letters_folder, tmp_path, [signs], extra=extra, gradient_accumulation_steps=2)
    assert not (tmp_path / "folder").exists()


def test_reward_with_a_key_is_refused(letters_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"rewards.py would hold what looks like an access token"
    ) as caught:
        rewritten(letters_folder, tmp_path, [leaks])
    assert KEY not in str(caught.value)
    assert not (tmp_path / "folder").exists()


def test_file_of_the_base_model_with_a_key_is_refused(
    run: gn.runs.Run, letters_folder: Path, tmp_path: Path
) -> None:
    note = letters_folder / "notes.txt"
    note.write_text(KEY)
    try:
        with pytest.raises(ValueError, match=r"base/notes\.txt would hold what looks like"):
            gn.scaleout.write_project(run, tmp_path / "folder")
    finally:
        note.unlink()
    assert not (tmp_path / "folder").exists()


def test_run_without_its_rows_is_refused(run: gn.runs.Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    (copy / "start" / "train.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"start/train\.jsonl"):
        gn.scaleout.write_project(copy, tmp_path / "folder", rewards=run.rewards)
    assert not (tmp_path / "folder").exists()


def test_folder_that_appears_meanwhile_is_kept(
    run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "folder"

    def somebody_else(files: object) -> list[str]:
        target.mkdir()
        (target / "theirs").touch()
        return []

    monkeypatch.setattr("grpo_nb.scaleout.project_writing.files_with_secrets", somebody_else)
    with pytest.raises(FileExistsError, match="exists, and is kept"):
        gn.scaleout.write_project(run, target)
    assert [file.name for file in target.iterdir()] == ["theirs"]


def test_run_of_an_early_version_without_a_reference_is_written(
    run: gn.runs.Run, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    info = json.loads((copy / "run.json").read_text())
    del info["reference"]
    (copy / "run.json").write_text(json.dumps(info))
    project = gn.scaleout.write_project(copy, tmp_path / "folder", rewards=run.rewards)
    assert values_of(project)["reference"] == "the reference model"
