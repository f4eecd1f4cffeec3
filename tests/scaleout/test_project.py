"""The folder: what is in it, what it says, which runs it is written of, and what is refused before anything is there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

import grpo_nb as gn
from grpo_nb.scaleout.code import CannotLeave
from tests.export.test_merged import rewrite
from tests.support.own_rewards import hashed
from tests.support.scale import DRIVER, said_by, signs, start, trained


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
    return gn.scaleout.write(run, tmp_path_factory.mktemp("folders") / "anywhere")


def test_the_folder_has_all_that_it_needs_and_nothing_private(
    run: gn.runs.Run, project: gn.scaleout.Project, letters_folder: Path
) -> None:
    values = values_of(project)
    assert values["model"] == "base" and (project.path / "base" / "config.json").is_file()
    assert values["reward_weights"] == {"signs": 1.0, "xml_tags": 1.0}
    assert values["trainer"]["learning_rate"] == 0.5 and values["trainer"]["adam_beta2"] == 0.9
    assert len((project.path / "train.jsonl").read_text().splitlines()) == 16
    record = [json.loads(line) for line in (project.path / "record.jsonl").read_text().splitlines()]
    assert [entry["rewards"]["signs"] for entry in record] == [
        run.completions(n)["signs"].tolist() for n in (1, 2, 3)
    ]
    program = (project.path / "train.py").read_text()
    assert "unsloth" not in program and "import grpo_nb" not in program
    assert '"trl==1.16.0"' in program.partition('///\n"""')[0]
    texts = [file.read_text("latin1") for file in project.path.iterdir() if file.is_file()]
    private = (str(letters_folder), str(Path.cwd()), str(letters_folder.parent))
    assert not [word for word in private if any(word in text for text in texts)]


def test_run_that_would_publish_elsewhere_is_refused(run: gn.runs.Run, tmp_path: Path) -> None:
    """A run that somebody sent: its settings are checked when they are read, and so is what its trainer had."""
    sent = Path(shutil.copytree(run.path, tmp_path / "sent"))
    info = json.loads((sent / "run.json").read_text())
    info["effective"]["arguments"] |= {"push_to_hub": True, "hub_token": "mine"}
    (sent / "run.json").write_text(json.dumps(info))
    with pytest.raises(
        ValueError, match=r"has hub_token, push_to_hub in its run\.json.*gn\.export\.push_to_hub"
    ):
        gn.scaleout.write(gn.open_run(sent), tmp_path / "anywhere", rewards=run.rewards)


def test_folder_refuses_to_publish_while_it_trains(
    project: gn.scaleout.Project, capsys: pytest.CaptureFixture[str]
) -> None:
    for asked in ("push_to_hub=true", "hub_model_id=me/x", "log_completions_hub_repo=me/x"):
        assert "would publish while this trains" in said_by(
            project.path, capsys, "--plan", "--set", asked
        )


def test_the_plan_is_that_of_the_readme(
    project: gn.scaleout.Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight completions in groups of four: no group is split."""
    readme = (project.path / "README.md").read_text()
    for count, size in ((1, 8), (2, 4)):
        said = said_by(project.path, capsys, "--plan", "--processes", str(count))
        assert said == f"{count} processes x {size} completions x 1 passes a step\n"
        assert f"| {count} | {size} | 1 | {count} x {size} x 1 = 8 |" in readme
    for count in (3, 4):
        told = said_by(project.path, capsys, "--plan", "--processes", str(count))
        assert f"8 a generation, in groups of 4, do not divide by {count} processes" in told
        assert f"\n| {count} | " not in readme


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--processes", "2"), "planned for 2 processes, started with 1"),
        (("--set", "lerning_rate=1"), "unknown ['lerning_rate']"),
        (
            ("--set", "output_dir=elsewhere"),
            "output_dir cannot be set: it follows from the lines above trainer",
        ),
    ],
)
def test_train_py_refuses_what_it_does_not_know(
    arguments: tuple[str, ...],
    told: str,
    project: gn.scaleout.Project,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        told in said_by(project.path, capsys, *arguments) and not (project.path / "result").exists()
    )


def test_accelerate_knows_every_key(project: gn.scaleout.Project) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    known = {option.dest for option in launch_command_parser()._actions}
    for name, kind in (("ddp", "MULTI_GPU"), ("cpu2", "MULTI_GPU"), ("fsdp2", "FSDP")):
        config = load_config_from_file(
            str(project.path / f"{name}.yaml")
        )  # refuses keys of its own level
        assert config.distributed_type.value == kind and config.num_processes == 2
        assert config.use_cpu is (name == "cpu2")
        assert {*config.fsdp_config} <= known, "the launcher would drop it without a word"


# -- other runs -----------------------------------------------------------------------------------------------------


def rewritten(folder: Path, root: Path, rewards: list, **more: object) -> gn.scaleout.Project:
    """A run of two steps with these rewards, written: so they gave the same scores in a fresh process."""
    return gn.scaleout.write(
        trained(folder, root / "runs", "other", steps=2, rewards=rewards, **more), root / "folder"
    )


def test_a_stage_and_a_generation_for_several_steps_give_the_same_numbers(
    run: gn.runs.Run, letters_folder: Path, plain_trl: Path, tmp_path: Path
) -> None:
    """A stage begins with the adapter of the one before.

    Which of a generation's completions a step learns from is drawn, so that losses differ where nothing is wrong: compared are
    its rewards.
    """
    settings = run.settings.replace(max_steps=2, loss_type="dapo", run_root=str(tmp_path), extra={})
    rewards = [signs, hashed]
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, train_size=16, holdout_size=4, tokenizer=tokenizer)
    kept: list[gn.runs.Run] = []
    for name in ("first", "second"):
        kept.append(gn.train(model, tokenizer, task.after(kept), rewards, settings, name=name))
    stage = gn.scaleout.write(kept[-1], tmp_path / "stage", rewards=rewards)
    assert values_of(stage)["reference"] == "start"
    many = rewritten(
        letters_folder, tmp_path, [signs], loss_type="dapo", extra={"generation_batch_size": 16}
    )
    told = (plain_trl, "--replay", "--tolerance", "1e-5", str(stage.path), str(many.path))
    first, second, _ = start(stage.path, *told, script=DRIVER).split("The same numbers in ")
    assert "loss: largest difference" in first
    assert "advantages: largest difference" in second and "loss:" not in second


def test_code_rewards_and_mathematics_take_their_own_processes_along(
    letters_folder: Path, tmp_path: Path
) -> None:
    rows = [
        {"question": f"Add {n}.", "answer": str(n), "tests": [f"assert f(1) == {n + 1}"]}
        for n in range(8)
    ]
    rewards = [signs, gn.rewards.code_tests(), gn.rewards.maths()]
    project = rewritten(
        letters_folder, tmp_path, rewards, task=gn.load_task(rows, format=gn.tasks.xml(), holdout=2)
    )
    asked = [json.loads(line) for line in (project.path / "train.jsonl").read_text().splitlines()]
    assert (
        all(row["tests"] == [f"assert f(1) == {int(row['answer']) + 1}"] for row in asked)
        and len(asked) == 6
    )
    assert '"math-verify==' in (project.path / "train.py").read_text()


def test_a_run_of_a_gpu_takes_along_what_unsloth_set_there(
    run: gn.runs.Run, tmp_path: Path
) -> None:
    more = {
        "fast_inference": True,
        "extra": {"unsloth_num_chunks": 4},
        "model": "acme/tiny",
        "load_in_4bit": True,
    }
    made = {
        "loss_type": "dapo",
        "mask_truncated_completions": True,
        "epsilon_high": 0.28,
        "use_vllm": True,
    }
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    effective = run.info["effective"] | {"arguments": run.info["effective"]["arguments"] | made}
    rewrite(
        copy / "run.json",
        settings=run.info["settings"] | {"loss_type": "dapo", **more},
        effective=effective,
    )
    project = gn.scaleout.write(copy, tmp_path / "folder", rewards=run.rewards, processes=2)
    values, program = values_of(project), (project.path / "train.py").read_text()
    # Reentrant, as Unsloth has it, a step of several processes ends in an error.
    wanted = made | {"gradient_checkpointing_kwargs": {"use_reentrant": False}}
    assert wanted.items() <= values["trainer"].items() and values["load_in_4bit"] is True
    assert '"bitsandbytes==' in program and '"trl[vllm]==1.16.0"' in program
    assert values["model"] == "acme/tiny" and not (project.path / "base").exists(), (
        "a model of the Hub stays there"
    )
    assert "unsloth_num_chunks is left out" in (project.path / "README.md").read_text()


# -- refusals -------------------------------------------------------------------------------------------------------


def reads_a_file(completions: list, **columns: object) -> list[float]:
    return [len(Path("beside.txt").read_text()) / (1 + len(str(c))) for c in completions]


KEY = "hf_" + "k" * 34


def leaks(completions: list, **columns: object) -> list[float]:
    return [len(KEY) / (1 + len(str(c))) for c in completions]


def drawn(completions: list, **columns: object) -> list[float]:
    import random

    return [random.random() for _ in completions]


def test_bad_input_is_one_line_and_leaves_nothing(
    run: gn.runs.Run, letters_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, away, write = tmp_path / "there", tmp_path / "a", gn.scaleout.write
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
        (lambda: write(reading, away), CannotLeave, "process of its own: FileNotFound.*beside.txt"),
        (lambda: write(lucky, away), CannotLeave, "other scores in a fresh process.*draws numbers"),
        (
            lambda: write(gn.open_run(run.path), away),
            CannotLeave,
            r"of signs the text alone.*rewards=\[\.\.\.\]",
        ),
        (lambda: write(run, target), FileExistsError, "overwrite=True"),
        (
            lambda: write(run, run.path, overwrite=True),
            FileExistsError,
            "which would be gone with it",
        ),
        (lambda: write(without, away), FileNotFoundError, "has not kept what it began with"),
        (
            lambda: write(run, away, processes=4),
            ValueError,
            r"whole groups of 4.*Take one of \[1, 2\]",
        ),
        (lambda: write(run, away, rewards=[signs]), ValueError, "give the rewards of the run"),
    ]
    for call, kind, told in refused:
        with pytest.raises(kind, match=told) as caught:
            call()
        assert "\n" not in str(caught.value), told
    assert not away.exists() and (target / "mine.txt").read_text() == "kept"
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_no_key_goes_out(letters_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"rewards.py would hold what looks like an access token"
    ) as caught:
        rewritten(letters_folder, tmp_path, [leaks])
    assert KEY not in str(caught.value) and not (tmp_path / "folder").exists()
