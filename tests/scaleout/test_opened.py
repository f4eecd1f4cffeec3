"""A folder brought back: what was trained there is a run like any other, what differs is said, and nothing in it is run."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.rewards.identity import identity_of
from grpo_nb.settings.number_types import number_type
from tests.support.scale import said_by, signs, start, trained


@pytest.fixture(scope="module")
def run(letters_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> gn.runs.Run:
    return trained(letters_folder, tmp_path_factory.mktemp("runs"), "a-run", loss_type="dapo")


@pytest.fixture(scope="module")
def back(run: gn.runs.Run, plain_trl: Path, tmp_path_factory: pytest.TempPathFactory) -> gn.scaleout.Project:
    """Trained by two processes on another machine, as far as one can tell here: the folder was moved in between."""
    root = tmp_path_factory.mktemp("folders")
    there = gn.scaleout.write(run, root / "written").path
    start(there, plain_trl, "--set", "learning_rate=1e-1", "epsilon=0.3", processes=2)
    return gn.scaleout.open(there.rename(root / "moved"))


@pytest.fixture
def folder(run: gn.runs.Run, tmp_path: Path) -> Path:
    return gn.scaleout.write(run, tmp_path / "folder").path


def test_what_was_trained_there_is_a_run_here(back: gn.scaleout.Project, run: gn.runs.Run) -> None:
    came = back.run
    assert came.status == "finished" and came.name == "a-run" and "2 processes" in came.info["rollout"]
    assert [row["step"] for row in came.rows] == [1, 2, 3] and all("kl" in row for row in came.rows)
    table = came.completions(2)
    assert list(table.columns) == list(run.completions(2).columns) and len(table) == 8
    # The same prompts in each step, in the same order; other completions.
    assert [came.completions(n)["prompt"].tolist() for n in (1, 2, 3)] == [
        run.completions(n)["prompt"].tolist() for n in (1, 2, 3)
    ]
    assert table["signs"].tolist() == signs([[{"content": text}] for text in table["completion"]])
    assert (came.path / "README.md").read_text().partition("# ")[2].startswith("a-run\n")
    assert came.plot() is not None and (came.path / "figures" / "training.png").is_file()
    assert isinstance(gn.health.check_health(came), gn.health.HealthReport)
    assert "finished" in repr(gn.open_run(came.path)) and gn.runs.compare(run, came) is not None
    assert back.run.path == came.path


def rewritten(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_folder_that_somebody_sends_touches_nothing_of_mine(back: gn.scaleout.Project, tmp_path: Path) -> None:
    """Opened by its maker, `.run` replaces what is at its place: the place is not theirs to choose."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("three years")
    sent = Path(shutil.copytree(back.path, tmp_path / "sent"))
    for name in (str(mine), "../../mine", "..", "", "C:\\mine", "a/../../../mine"):
        rewritten(sent / "origin.json", run=name)
        with pytest.raises(ValueError, match="leads out of the folder"):
            _ = gn.scaleout.open(sent).run
    rewritten(sent / "origin.json", run="a-run")
    shutil.rmtree(sent / "back", ignore_errors=True)
    for link, target in (
        ("back", mine), ("holdout.jsonl", mine / "thesis.txt"), ("result/adapter/adapter_more", mine / "thesis.txt"),
        ("adapter_init", mine), ("base/more.json", mine / "thesis.txt"), ("chat_template.jinja", Path("../mine/thesis.txt")),
    ):  # fmt: skip
        held = sent / link
        aside = held.rename(tmp_path / "aside") if held.exists() else None
        held.symlink_to(target)
        with pytest.raises(ValueError, match=f"'{link}' leads out of the folder"):
            gn.scaleout.open(sent)
        held.unlink()
        if aside is not None:
            aside.rename(held)
    record = json.loads((sent / "origin.json").read_text())
    for model in (str(mine), "../mine", None):
        rewritten(sent / "origin.json", settings={**record["settings"], "model": model})
        with pytest.raises(ValueError, match=r"origin\.json' names the model .* no name on the Hub"):
            gn.scaleout.open(sent)
    rewritten(sent / "origin.json", settings={**record["settings"], "run_root": str(mine)})
    finished = json.loads((sent / "result" / "finished.json").read_text())
    finished["run"]["trainer"] |= {"run_root": str(mine), "model": str(mine)}
    rewritten(sent / "result" / "finished.json", **finished)
    (sent / "runs" / "a-run").mkdir(parents=True)
    (sent / "runs" / "a-run" / "run.json").write_text("a run of mine, trained in that folder")
    project = gn.scaleout.open(sent)
    for settings in (project.settings, project.run.settings):
        assert (settings.run_root, settings.model) == ("runs", str(sent / "base"))
    assert project.run.path == sent / "back" / "a-run" and (sent / "runs" / "a-run" / "run.json").is_file()
    assert [file.name for file in mine.iterdir()] == ["thesis.txt"]
    assert (mine / "thesis.txt").read_text() == "three years"


def test_it_can_be_compared_and_exported(back: gn.scaleout.Project, tmp_path: Path) -> None:
    compared = gn.compare(back.run, back.task)
    assert "on 4 questions" in compared.sentence
    exported = gn.export_merged(back.run, tmp_path / "merged")
    assert exported.verification["passed"]


def test_it_says_what_it_was_trained_with(back: gn.scaleout.Project, run: gn.runs.Run) -> None:
    """Settings may be changed there, and two runs of one name are still two."""
    assert back.run.settings.learning_rate == 0.1 and back.run.settings.extra == {"epsilon": 0.3}
    compared = gn.runs.compare(run, back.run)
    assert list(compared.differences["learning_rate"].values()) == [0.5, 0.1]
    assert "what differs is luck" not in repr(compared) and str(back.path) in repr(compared)


@dataclasses.dataclass
class Bonus:
    """Of a reward, held in a class."""

    worth: float = 0.5


def paid(completions: list, **columns: object) -> list[float]:
    return [Bonus().worth * score for score in signs(completions)]


def test_a_class_of_a_reward_is_the_same_one_here(letters_folder: Path, tmp_path: Path) -> None:
    run = trained(letters_folder, tmp_path / "runs", "classes", steps=1, rewards=[paid])
    folder = gn.scaleout.write(run, tmp_path / "folder").path
    assert gn.scaleout.open(folder, trust_code=True).differences == ()


def test_a_training_is_not_written_over(back: gn.scaleout.Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds a training already: move it away" in said_by(back.path, capsys)
    assert back.run.rows


def test_it_gives_back_settings_data_and_rewards(run: gn.runs.Run, folder: Path) -> None:
    project = gn.scaleout.open(folder)
    assert project.settings == run.settings.replace(model=str(folder / "base"), run_root="runs")
    assert project.task.fingerprint == run.info["task"]["fingerprint"] and not project.is_trained
    assert list(project.missing_rewards) == ["signs"] and not project.is_complete
    assert "trust_code=True" in project.missing_rewards["signs"] and "not made again" in project._repr_html_()
    with pytest.raises(FileNotFoundError, match=r"start train\.py there"):
        _ = project.run
    trusted = gn.scaleout.open(folder, trust_code=True)
    assert trusted.is_complete and trusted.differences == () and "Nothing was found" in repr(trusted)
    assert [identity_of(reward) for reward in trusted.rewards[1:]] == [identity_of(gn.rewards.xml_tags())]
    assert (
        trusted.rewards[0](completions=[[{"content": "ab"}]]) == [(97 + 98) % 17 / 16]
        and trusted.rewards[0].weight == 1.0
    )
    again = gn.train(
        *gn.load_model(trusted.settings), trusted.task, trusted.rewards,
        trusted.settings.replace(run_root=str(folder.parent / "runs")), name="again",
    )  # fmt: skip
    assert [row["loss"] for row in again.rows] == [row["loss"] for row in run.rows], (
        "the same run, from the folder alone"
    )


def test_opening_runs_nothing(run: gn.runs.Run, folder: Path) -> None:
    mark = folder.parent / "was-run"
    rewards = folder / "rewards.py"
    rewards.write_text(
        f"open({str(mark)!r}, 'w').close()\n" + rewards.read_text().replace("from __future__", "# from __future__")
    )
    gn.scaleout.open(folder)
    assert not mark.exists()
    gn.scaleout.open(folder, trust_code=True)
    assert mark.exists()
    rewards.write_text("raise OSError('no')")
    with pytest.raises(ValueError, match=r"could not be run \(OSError: no\)"):
        gn.scaleout.open(folder, trust_code=True)


@pytest.mark.parametrize("value", ["Fraction(1, 0)", "__import__('os').getcwd()", "tuple of 9", "open"])
def test_a_record_made_up_by_somebody_runs_nothing(folder: Path, value: str) -> None:
    record = json.loads((folder / "origin.json").read_text())
    record["rewards"][1]["parts"]["format"] = value
    (folder / "origin.json").write_text(json.dumps(record))
    project = gn.scaleout.open(folder)
    assert project.rewards == [] and "do not fit this version" in project.missing_rewards["xml_tags"]


def test_what_differs_here_is_said(folder: Path) -> None:
    record = json.loads((folder / "origin.json").read_text())
    record["versions"] |= {"trl": "0.9.9", "datasets": "1.0"}
    record["number_type"] = "float16"
    record["machine"]["gpu"] = {"name": "Tesla T4", "memory_gib": 15.0, "compute_capability": [7, 5]}
    record["rewards"][1] |= {"weight": 3.0, "parts": {**record["rewards"][1]["parts"], "code": "0123456789abcdef"}}
    record["task"]["fingerprint"] = "0" * 16
    (folder / "origin.json").write_text(json.dumps(record))
    project = gn.scaleout.open(folder)
    found = {d.what: d for d in project.differences}
    assert (found["trl"].then, found["trl"].changes_results) == ("0.9.9", True)
    assert found["datasets"].changes_results is False and found["device"].then == "Tesla T4"
    assert found["number type"].now == number_type(gn.preset("cpu"), None).name
    assert "other code" in found["reward xml_tags"].now and found["weight of xml_tags"].then == "3"
    assert found["data"].now == f"fingerprint {project.task.fingerprint}"
    assert "trl" in project.sentence.split("expected here from")[1] and "Tesla T4" in project._repr_html_()


def test_what_is_no_such_folder(folder: Path, tmp_path: Path) -> None:
    for path, told in ((tmp_path / "nothing", "there is no folder"), (tmp_path, "no folder of gn.scaleout.write")):
        with pytest.raises((FileNotFoundError, ValueError), match=told):
            gn.scaleout.open(path)
    with pytest.raises(TypeError, match=r"folder = None must be a folder that gn\.scaleout"):
        gn.scaleout.open(None)
    record = json.loads((folder / "origin.json").read_text())
    for text, told in (
        (json.dumps({**record, "form": 7}), "has the form 7"),
        ("{", "is damaged"),
        ("[]", "no folder of"),
    ):
        (folder / "origin.json").write_text(text)
        with pytest.raises(ValueError, match=told):
            gn.scaleout.open(folder)
    (folder / "origin.json").write_text(json.dumps(record))
    (folder / "train.jsonl").unlink()
    with pytest.raises(ValueError, match=r"train.jsonl' is missing or damaged"):
        gn.scaleout.open(folder)
    shutil.rmtree(folder)
