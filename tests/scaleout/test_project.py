"""A folder that is opened again gives a run like any other, and nothing in it is executed."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
import yaml

import grpo_nb as gn
from grpo_nb.evaluation.model_sources import version_before_training
from grpo_nb.runs.card import card_metadata
from grpo_nb.training.kl_reference import START_REFERENCE
from tests.export.test_merged import rewrite
from tests.support.scale import said_by, signs, start, start_warm, trained


@pytest.fixture(scope="module")
def run(letters_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> gn.runs.Run:
    return trained(letters_folder, tmp_path_factory.mktemp("runs"), "a-run", loss_type="dapo")


@pytest.fixture(scope="module")
def trained_project(
    run: gn.runs.Run, plain_trl: Path, tmp_path_factory: pytest.TempPathFactory
) -> gn.scaleout.Project:
    """Trained on another machine, as far as one can tell here: the folder was moved in between."""
    root = tmp_path_factory.mktemp("folders")
    there = gn.scaleout.write_project(run, root / "written").path
    start(there, plain_trl, "--set", "learning_rate=1e-1", "epsilon=0.3")
    return gn.scaleout.open(there.rename(root / "moved"))


@pytest.fixture
def copy(trained_project: gn.scaleout.Project, tmp_path: Path) -> Path:
    """A copy of that folder, without the run that other tests made of it."""
    ignored = shutil.ignore_patterns("run")
    return Path(shutil.copytree(trained_project.path, tmp_path / "copy", ignore=ignored))


def test_training_in_the_folder_is_a_run(
    trained_project: gn.scaleout.Project, run: gn.runs.Run
) -> None:
    assert repr(trained_project).startswith("Training script: ")
    came = trained_project.run
    assert came.status == "finished"
    assert came.name == "moved"
    assert came.info["engine"].startswith("trl, processes: 1 (")
    assert came.info["machine"]["device"] == "cpu"
    assert came.info["machine"]["gpu"] is None
    assert (came.adapter_path / "chat_template.jinja").is_file()
    assert [row["step"] for row in came.rows] == [1, 2, 3]
    assert all("kl" in row for row in came.rows)
    here, there = ([one.completions(n) for n in (1, 2, 3)] for one in (run, came))
    # The same prompts in each step, in the same order; other completions.
    assert [table["prompt"].tolist() for table in there] == [
        table["prompt"].tolist() for table in here
    ]
    assert there[1]["signs"].tolist() == signs(
        [[{"content": text}] for text in there[1]["completion"]]
    )
    assert isinstance(gn.health.check_health(came), gn.health.HealthReport)
    # Settings may be changed there, and two runs of one name are still two.
    assert came.settings.learning_rate == 0.1
    assert came.settings.extra == {"epsilon": 0.3}
    shown = repr(gn.runs.side_by_side(run, came))
    assert "learning_rate=0.5" in shown
    assert "learning_rate=0.1" in shown


def test_later_stage_that_comes_back_starts_from_its_adapter(copy: Path) -> None:
    """Compared with the base model, it would be credited with the earlier stage too."""
    name = "adapter_model.safetensors"
    shutil.copyfile(copy / "result" / "adapter" / name, copy / "adapter_init" / name)
    assert version_before_training(gn.scaleout.open(copy).run) == "start"


def test_run_that_comes_back_has_the_alerts_of_its_rows(copy: Path) -> None:
    file = copy / "result" / "steps.jsonl"
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    for step in steps:
        step["logs"]["grad_norm"] = float("nan")
    file.write_text("".join(json.dumps(step) + "\n" for step in steps))
    alerts = gn.scaleout.open(copy).run.alerts
    assert [(alert.rule, alert.subject) for alert in alerts] == [("not_finite", "grad_norm")]


def test_run_trained_on_a_gpu_is_shown_and_loaded_so(copy: Path) -> None:
    machine = {"platform": "Linux", "device": "cuda:0", "gpu": {"name": "NVIDIA L4"}}
    rewrite(copy / "result" / "finished.json", machine=machine)
    run = gn.scaleout.open(copy).run
    assert run.info["machine"]["device"] == "cuda:0"
    assert "Trained on NVIDIA L4, seed" in (run.path / "README.md").read_text()


def test_training_of_a_bnpo_run_comes_back_as_dapo(
    trained_project: gn.scaleout.Project, copy: Path
) -> None:
    rewrite(
        copy / "origin.json", settings=dict(trained_project.origin["settings"], loss_type="bnpo")
    )
    assert gn.scaleout.open(copy).run.settings.loss_type == "dapo"


def test_folder_of_another_version_is_refused(run: gn.runs.Run, tmp_path: Path) -> None:
    folder = gn.scaleout.write_project(run, tmp_path / "folder").path
    rewrite(folder / "origin.json", format_version=2)
    with pytest.raises(
        ValueError,
        match=r"origin\.json.* another version of grpo_nb \(.*format_version Input should be 1 .*input_value=2.*\): "
        r"restore the file from a copy, or delete the damaged part",
    ):
        gn.scaleout.open(folder)


def test_folder_from_elsewhere_writes_nothing_outside(
    trained_project: gn.scaleout.Project, tmp_path: Path
) -> None:
    """`.run` replaces a folder, so the folder must not be able to say which one."""
    (mine := tmp_path / "mine").mkdir()
    (mine / "thesis.txt").write_text("three years")
    sent = Path(
        shutil.copytree(
            trained_project.path, tmp_path / "sent", ignore=shutil.ignore_patterns("run")
        )
    )
    for name in ("", str(mine), "../../mine"):
        rewrite(sent / "origin.json", name=name)
        assert gn.scaleout.open(sent).run.path == sent / "run" / "sent"
    shutil.rmtree(sent / "run")
    for folder, link, target in (
        (sent, "run", mine),
        (sent / "result", "adapter/adapter_more", mine / "thesis.txt"),
        (sent / "base", "more", mine),
        (sent / "adapter_init", "more", mine),
    ):
        (folder / link).symlink_to(target)
        message = re.escape(f"'{link}' is, or goes through, a symbolic link")
        with pytest.raises(ValueError, match=message):
            gn.scaleout.open(sent)
        (folder / link).unlink()
    settings = json.loads((sent / "origin.json").read_text())["settings"]
    rewrite(sent / "origin.json", settings={**settings, "model": str(mine)})
    with pytest.raises(
        ValueError, match=r"origin\.json' names the model .* is not a name on the Hub"
    ):
        gn.scaleout.open(sent)
    rewrite(sent / "origin.json", settings={**settings, "run_root": str(mine)})
    finished = json.loads((sent / "result" / "finished.json").read_text())
    elsewhere = {**finished["trainer"], "run_root": str(mine), "model": str(mine)}
    rewrite(sent / "result" / "finished.json", trainer=elsewhere)
    came = gn.scaleout.open(sent).run
    assert (came.settings.run_root, came.settings.model) == ("runs", str(sent / "base"))
    assert came.path == sent / "run" / "sent"
    assert [file.name for file in mine.iterdir()] == ["thesis.txt"]


def test_link_among_results_copied_later_is_refused(
    trained_project: gn.scaleout.Project, tmp_path: Path
) -> None:
    """Results come from another machine, also into a folder that is open already."""
    ignored = shutil.ignore_patterns("run")
    copy = gn.scaleout.open(
        shutil.copytree(trained_project.path, tmp_path / "copy", ignore=ignored)
    )
    (tmp_path / "mine.txt").write_text("private")
    (copy.path / "result" / "adapter" / "adapter_more").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(ValueError, match="adapter_more' is, or goes through, a symbolic link"):
        _ = copy.run


def test_training_by_epochs_without_a_log_is_a_run(
    run: gn.runs.Run, plain_trl: Path, tmp_path: Path
) -> None:
    folder = gn.scaleout.write_project(run, tmp_path / "folder").path
    epochs = ("max_steps=-1", "num_train_epochs=0.25", "logging_steps=100")
    start_warm(folder, plain_trl, "--set", *epochs)
    came = gn.scaleout.open(folder).run
    assert came.settings.max_steps == 2
    assert came.rows == []


def test_run_of_an_earlier_training_is_kept(
    trained_project: gn.scaleout.Project, tmp_path: Path
) -> None:
    """Files have the times of two machines, so times cannot decide."""
    copy = gn.scaleout.open(shutil.copytree(trained_project.path, tmp_path / "copy"))
    mine = copy.run.path / "mine.txt"
    mine.write_text("kept")
    finished = copy.path / "result" / "finished.json"
    hour_ahead = time.time() + 3600
    os.utime(finished, (hour_ahead, hour_ahead))
    assert copy.run.path == mine.parent
    assert mine.read_text() == "kept"
    rewrite(finished, started="2026-01-01T00:00:00+0000")
    with pytest.raises(FileExistsError, match=r"run/copy' is the run of an earlier training"):
        _ = copy.run
    assert mine.read_text() == "kept"
    mine.parent.rename(mine.parent.with_name("first"))
    assert copy.run.path == mine.parent
    assert copy.run.info["started"] == "2026-01-01T00:00:00+0000"


def test_run_of_a_moved_folder_keeps_its_files_and_base_model(
    trained_project: gn.scaleout.Project, tmp_path: Path
) -> None:
    copy = gn.scaleout.open(shutil.copytree(trained_project.path, tmp_path / "copy"))
    assert copy.run.settings.model == str(tmp_path / "copy" / "base")
    (copy.run.path / "comparison").mkdir()
    (tmp_path / "elsewhere").mkdir()
    copy = gn.scaleout.open(copy.path.rename(tmp_path / "elsewhere" / "copy"))
    assert copy.run.settings.model == str(tmp_path / "elsewhere" / "copy" / "base")
    assert Path(copy.run.settings.model).is_dir()
    assert (copy.run.path / "comparison").is_dir()


@pytest.mark.usefixtures("checked_here")
def test_run_can_be_compared_and_exported(
    trained_project: gn.scaleout.Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "on 4 questions" in gn.compare(trained_project.run).sentence
    assert gn.export_merged(trained_project.run, tmp_path / "merged").verification["passed"]
    assert "holds a training already: move it away" in said_by(trained_project.path, capsys)
    assert trained_project.run.rows


@pytest.mark.parametrize("field", ["settings", "task", "versions"])
def test_damaged_origin_is_named(copy: Path, field: str) -> None:
    origin = json.loads((copy / "origin.json").read_text())
    del origin[field]
    (copy / "origin.json").write_text(json.dumps(origin))
    with pytest.raises(ValueError, match=rf"origin\.json.* damaged.*{field}"):
        _ = gn.scaleout.open(copy).run


@pytest.mark.parametrize(
    "machine", ["a CPU", {"device": "cuda"}, {"platform": "Linux", "device": "cuda", "gpu": "L4"}]
)
def test_damaged_machine_is_named_and_leaves_no_run(copy: Path, machine: object) -> None:
    rewrite(copy / "result" / "finished.json", machine=machine)
    with pytest.raises(ValueError, match=r"origin\.json or result/.* damaged"):
        _ = gn.scaleout.open(copy).run
    assert not (copy / "run" / "copy").exists()


def test_damaged_step_is_named(copy: Path) -> None:
    (copy / "result" / "steps.jsonl").write_text('{"step": "1", "logs": {"reward": 1.0}}\n')
    with pytest.raises(ValueError, match=r"origin\.json or result/.* damaged"):
        _ = gn.scaleout.open(copy).run


def test_rows_without_a_question_are_named(copy: Path) -> None:
    """TRL needs only the prompt, so a user may have replaced the rows by such rows."""
    (copy / "train.jsonl").write_text('{"prompt": "How much is 1 + 1?"}\n')
    with pytest.raises(ValueError, match=r"train\.jsonl is damaged.*'question'"):
        _ = gn.scaleout.open(copy).run
    assert not (copy / "run" / "copy").exists()


def test_run_of_a_folder_opened_as_a_dot_has_full_paths(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy)
    run = gn.scaleout.open(".").run
    assert run.settings.model == str(copy / "base")
    assert run.name == "copy"


@pytest.mark.parametrize(
    "name",
    [
        "result/steps.jsonl",
        "result/adapter/adapter_model.safetensors",
        "adapter_init/adapter_model.safetensors",
    ],
)
def test_result_that_was_copied_in_part_is_refused(
    trained_project: gn.scaleout.Project, copy: Path, name: str
) -> None:
    (copy / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"has no {name}.*copy the whole folder"):
        _ = gn.scaleout.open(copy).run
    shutil.copyfile(trained_project.path / name, copy / name)
    assert len(gn.scaleout.open(copy).run.rows) == 3


def test_open_executes_nothing(run: gn.runs.Run, tmp_path: Path) -> None:
    folder = gn.scaleout.write_project(run, tmp_path / "folder").path
    mark = tmp_path / "was-run"
    (folder / "rewards.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    with pytest.raises(FileNotFoundError, match=r"start train\.py there"):
        _ = gn.scaleout.open(folder).run
    assert not mark.exists()
    with pytest.raises(FileNotFoundError, match=r"origin\.json"):
        gn.scaleout.open(tmp_path)


def test_copy_of_the_run_does_not_replace_it(
    trained_project: gn.scaleout.Project, tmp_path: Path
) -> None:
    """Google Drive names a copy "Copy of ...", which sorts before the run's own folder."""
    copy = gn.scaleout.open(shutil.copytree(trained_project.path, tmp_path / "folder"))
    own = copy.run.path
    shutil.copytree(own, own.with_name("Copy of folder"))
    (own / "comparison").mkdir()
    assert (copy.run.path / "comparison").is_dir()
    assert (own.with_name("Copy of folder") / "run.json").is_file()


def test_card_of_a_renamed_project_has_the_new_name(
    trained_project: gn.scaleout.Project, tmp_path: Path
) -> None:
    copy = gn.scaleout.open(shutil.copytree(trained_project.path, tmp_path / "copy"))
    assert copy.run.name == "copy"
    renamed = gn.scaleout.open(copy.path.rename(tmp_path / "renamed"))
    assert "# renamed\n" in (renamed.run.path / "README.md").read_text()


def test_local_folder_with_the_name_of_the_model_is_no_hindrance(
    trained_project: gn.scaleout.Project,
    copy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rewrite(
        copy / "origin.json", settings=dict(trained_project.origin["settings"], model="acme/tiny")
    )
    effective = trained_project.origin["effective"] | {"model": "acme/tiny"}
    rewrite(copy / "origin.json", is_base_local=False, effective=effective)
    rewrite(copy / "result" / "finished.json", model="acme/tiny")
    (tmp_path / "acme" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    project = gn.scaleout.open("copy")
    assert project.base_model == "acme/tiny"
    assert card_metadata(project.run).base_model == "acme/tiny"


@pytest.mark.parametrize(
    "others",
    [
        pytest.param({"num_train_epochs": 0.25}, id="epochs of an early result"),
        pytest.param({"use_vllm": False, "bf16": True, "save_strategy": "steps"}, id="of --set"),
    ],
)
def test_arguments_that_settings_refuse_are_left_out(copy: Path, others: dict) -> None:
    file = copy / "result" / "finished.json"
    trainer = json.loads(file.read_text())["trainer"]
    rewrite(file, trainer=trainer | others)
    assert gn.scaleout.open(copy).run.settings.extra == {"epsilon": 0.3}


def test_edited_run_yaml_is_in_the_run(
    trained_project: gn.scaleout.Project, plain_trl: Path, tmp_path: Path
) -> None:
    left_out = shutil.ignore_patterns("run", "result")
    copy = Path(shutil.copytree(trained_project.path, tmp_path / "copy", ignore=left_out))
    file = copy / "run.yaml"
    values = yaml.safe_load(file.read_text())
    values |= {"reward_weights": {"signs": 3.0, "partial_format": 0.5}, "dtype": "bfloat16"}
    # Without a line, TRL takes its own default.
    del values["trainer"]["learning_rate"]
    del values["trainer"]["loss_type"]
    file.write_text(yaml.safe_dump(values | {"reference": START_REFERENCE}, sort_keys=False))
    start_warm(copy, plain_trl)
    run = gn.scaleout.open(copy).run
    assert run.weights == {"signs": 3.0, "partial_format": 0.5}
    table = run.completions(1)
    expected = 3.0 * table["signs"] + 0.5 * table["partial_format"]
    assert table["total"].tolist() == pytest.approx(expected.tolist())
    assert (run.info["dtype"], run.settings.dtype) == ("bfloat16", "bfloat16")
    assert run.reference == START_REFERENCE
    assert (run.settings.learning_rate, run.settings.loss_type) == (1e-6, "dapo")


def test_model_that_was_changed_in_run_yaml_is_refused(copy: Path) -> None:
    """A merged export would add the adapter to the model that origin.json names."""
    finished = copy / "result" / "finished.json"
    rewrite(finished, model="acme/other")
    with pytest.raises(ValueError, match="for the model 'base', but was trained with 'acme/other'"):
        _ = gn.scaleout.open(copy).run
    assert not (copy / "run" / "copy").exists()
    rewrite(finished, model="base")
    assert gn.scaleout.open(copy).run.settings.model == str(copy / "base")


def test_total_counts_rewards_with_a_new_name(copy: Path) -> None:
    """rewards.py may be changed before the training. Its rewards were renamed and reordered here."""
    file = copy / "result" / "steps.jsonl"
    text = file.read_text().replace("rewards/signs/", "rewards/letters/")
    file.write_text(text.replace('"signs"', '"letters"'))
    weights = {"partial_format": 0.5, "letters": 3.0}
    rewrite(copy / "result" / "finished.json", reward_weights=weights)
    run = gn.scaleout.open(copy).run
    assert run.weights == weights
    table = run.completions(1)
    expected = 3.0 * table["letters"] + 0.5 * table["partial_format"]
    assert table["total"].tolist() == pytest.approx(expected.tolist())
    known, renamed = run.info["rewards"]
    assert known["call"].startswith("partial_format(")
    assert renamed["source"] == "see rewards.py"
    assert "see rewards.py" in (run.path / "README.md").read_text()


def test_result_that_is_damaged_later_is_named(copy: Path) -> None:
    assert gn.scaleout.open(copy).run.rows
    (copy / "result" / "finished.json").write_text("{}")
    with pytest.raises(ValueError, match=r"finished\.json is damaged.*'started'"):
        _ = gn.scaleout.open(copy).run


def test_result_of_an_earlier_train_py_is_refused(copy: Path) -> None:
    file = copy / "result" / "finished.json"
    content = json.loads(file.read_text())
    del content["dtype"]
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"or was written by another version of grpo_nb.*'dtype'"):
        _ = gn.scaleout.open(copy).run


def test_smaller_batch_keeps_the_size_of_a_generation(
    trained_project: gn.scaleout.Project, copy: Path
) -> None:
    """With --set gradient_accumulation_steps=1 steps_per_generation=4, of two completions each."""
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    arguments = trained_project.origin["effective"]["trainer"] | sizes
    effective = trained_project.origin["effective"] | {"trainer": arguments}
    rewrite(
        copy / "origin.json",
        settings=trained_project.origin["settings"] | sizes,
        effective=effective,
    )
    file = copy / "result" / "finished.json"
    trainer = json.loads(file.read_text())["trainer"]
    changes = {"gradient_accumulation_steps": 1, "steps_per_generation": 4}
    rewrite(file, trainer=trainer | arguments | changes)
    settings = gn.scaleout.open(copy).run.settings
    assert settings.completions_per_step == 2
    assert settings.generation_batch_size == 8
