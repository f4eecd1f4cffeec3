"""A bundle gives back what a run was made of, runs no code of others unless told to, and says what is different here."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.rewards.identity import identity_of
from grpo_nb.settings.number_types import number_type
from tests.support.written_run import PRIVATE, write_private_run, write_run

OWN = '''def short(completions, **columns):
    """Fewer words are better."""
    return [1 / (1 + len(c[-1]["content"].split())) for c in completions]
'''


def own_reward(folder: Path, source: str = OWN) -> object:
    """A reward of the user's own, from a file as in a project."""
    import importlib.util

    file = folder / "my_rewards.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("my_rewards", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.short


@pytest.fixture(scope="module")
def task() -> gn.tasks.Task:
    rows = [
        {"question": f"What is {n} plus 1?", "answer": n + 1, "level": float(n), "tests": ["a", str(n)]}
        for n in range(9)
    ]
    return gn.load_task(rows, format=gn.tasks.xml(), holdout=3)


@pytest.fixture
def rewards() -> list:
    number = gn.rewards.number(tolerance=0.25, units={"m": 1, "cm": 0.01}, weight=1.25)
    return [
        gn.rewards.correctness(format=gn.tasks.boxed()), gn.rewards.clipped(number, 0.0, 0.5), gn.rewards.xml_tags(),
        gn.rewards.banned_phrases(["as an AI", "sorry"]),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["bundle.zip", "bundle"])
def test_it_gives_back_settings_data_and_rewards(tmp_path: Path, task: gn.tasks.Task, rewards: list, name: str) -> None:
    extra = {"adam_beta2": 0.95, "hub_token": "secret-of-mine"}
    run = write_run(tmp_path / "runs" / "a", task=task, rewards=rewards, learning_rate=3e-5, extra=extra)
    path = gn.scaleout.write_bundle(run, tmp_path / "out" / name, task=task)
    bundle = gn.scaleout.open_bundle(path)
    assert bundle.differences == () and bundle.is_complete and "Nothing was found" in repr(bundle)
    assert bundle.settings == run.settings.replace(extra={"adam_beta2": 0.95}, run_root="runs")
    assert bundle.task.fingerprint == task.fingerprint and bundle.task.format == task.format
    assert bundle.task.train[0] == task.train[0] and bundle.task.holdout.to_list() == task.holdout.to_list()
    assert [identity_of(r) for r in bundle.rewards] == [identity_of(r) for r in rewards]
    columns = {"completions": [[{"role": "assistant", "content": "<answer>\n300 cm\n</answer>"}]], "answer": ["3.1 m"]}
    assert bundle.rewards[1](**columns) == rewards[1](**columns) == [0.5]
    assert [p.name for p in (tmp_path / "out").iterdir()] == [name], "nothing half-made stays"
    everything = _everything(path)
    assert "secret-of-mine" not in everything and str(tmp_path) not in everything and "/home/somebody" not in everything


def _everything(path: Path) -> str:
    if path.is_dir():
        return "".join(f.read_bytes().decode("latin1") for f in path.iterdir())
    with zipfile.ZipFile(path) as archive:
        return "".join(archive.read(name).decode("latin1") for name in archive.namelist())


def test_nothing_private_of_a_record_is_in_it(tmp_path: Path) -> None:
    run = write_private_run(tmp_path / "runs" / "first")
    path = gn.scaleout.write_bundle(run, tmp_path / "out", rows=False)
    everything = _everything(path)
    assert not [word for word in PRIVATE if word in everything] and str(tmp_path) not in everything
    bundle = gn.scaleout.open_bundle(path)
    assert bundle.settings.extra["vllm_server_base_url"] == "http://host:8000/v1?api_key=***"
    assert bundle.recorded["task"]["name"] == "train.csv" and bundle.settings.model == "my-model"


def test_code_of_others_runs_only_when_it_is_asked_for(tmp_path: Path, task: gn.tasks.Task) -> None:
    mark = tmp_path / "was-run"
    source = OWN.replace("def short(completions,", f"def short(completions, mark=open({str(mark)!r}, 'a').close(),")
    reward = own_reward(tmp_path, source)
    mark.unlink()
    path = gn.scaleout.write_bundle(
        write_run(tmp_path / "a", task=task, rewards=[reward]), tmp_path / "b.zip", task=task
    )
    bundle = gn.scaleout.open_bundle(path)
    assert not mark.exists() and bundle.rewards == [] and not bundle.is_complete
    assert "trust_code=True" in bundle.missing_rewards["short"] and "not made again" in bundle._repr_html_()
    trusted = gn.scaleout.open_bundle(path, trust_code=True)
    assert mark.exists() and trusted.is_complete and trusted.differences == ()
    assert trusted.rewards[0](completions=[[{"content": "a b c"}]]) == [0.25] and trusted.rewards[0].weight == 1.0


def test_source_that_is_not_the_function_alone_is_not_run(tmp_path: Path, task: gn.tasks.Task) -> None:
    run = write_run(tmp_path / "a", task=task, rewards=[own_reward(tmp_path)])
    path = gn.scaleout.write_bundle(run, tmp_path / "b", task=task)
    record = json.loads((path / "bundle.json").read_text())
    for source, why in (
        (OWN + "\nimport os\n", "not one function of its name"),
        ("short = lambda completions, **c: [0.0]", "not one function"),
        ("def short(:", "cannot be run by itself"),
        ("def short(completions, x=1 / 0):\n    return []", "could not be run .ZeroDivisionError"),
    ):
        record["rewards"][0]["source"] = source
        (path / "bundle.json").write_text(json.dumps(record))
        bundle = gn.scaleout.open_bundle(path, trust_code=True)
        assert bundle.rewards == []
        assert __import__("re").search(why, bundle.missing_rewards["short"]), bundle.missing_rewards


@pytest.mark.parametrize("value", ["Fraction(1, 0)", "__import__('os').getcwd()", "tuple of 9", "AnswerFormat", "open"])
def test_a_record_made_up_by_somebody_runs_nothing(tmp_path: Path, task: gn.tasks.Task, value: str) -> None:
    path = gn.scaleout.write_bundle(
        write_run(tmp_path / "a", task=task, rewards=[gn.rewards.number()]), tmp_path / "b", task=task
    )
    record = json.loads((path / "bundle.json").read_text())
    record["rewards"][0]["parts"]["units"] = value
    (path / "bundle.json").write_text(json.dumps(record))
    bundle = gn.scaleout.open_bundle(path)
    assert bundle.rewards == [] and "do not fit this version" in bundle.missing_rewards["number"]


def test_what_differs_here_is_said(tmp_path: Path, task: gn.tasks.Task, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "a", task=task, rewards=[gn.rewards.number(tolerance=0.5), gn.rewards.xml_tags()])
    path = gn.scaleout.write_bundle(run, tmp_path / "b", task=task)
    record = json.loads((path / "bundle.json").read_text())
    record["versions"]["trl"] = "0.9.9"
    record["versions"]["pyarrow"] = "1.0"
    record["number_type"] = "float16"
    record["machine"]["gpu"] = {"name": "Tesla T4", "memory_gib": 15.0, "compute_capability": [7, 5]}
    record["rewards"][0]["parts"]["code"] = "0123456789abcdef"
    record["rewards"][1]["parts"]["no_such_field"] = "1"
    record["rewards"][1]["weight"] = 3.0
    record["task"]["fingerprint"] = "0" * 16
    (path / "bundle.json").write_text(json.dumps(record))
    bundle = gn.scaleout.open_bundle(path)
    found = {d.what: d for d in bundle.differences}
    assert (found["trl"].then, found["trl"].changes_results) == ("0.9.9", True)
    assert found["device"].then == "Tesla T4" and (found["number type"].then, found["number type"].now) == (
        "float16",
        number_type(gn.preset("cpu"), None).name,
    )
    assert "other code" in found["reward number"].now and "no_such_field" in found["reward xml_tags"].now
    assert (found["weight of xml_tags"].then, found["weight of xml_tags"].now) == ("3", "1")
    assert found["data"].now == f"fingerprint {task.fingerprint}"
    assert "trl" in bundle.sentence.split("expected from")[1] and "Tesla T4" in bundle._repr_html_()
    for name in ("train", "holdout"):
        (path / f"{name}.parquet").unlink()
    assert gn.scaleout.open_bundle(path).task is None


def test_rows_only_where_they_may_go(tmp_path: Path, task: gn.tasks.Task, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "a", task=task)
    assert (
        gn.scaleout.open_bundle(gn.scaleout.write_bundle(run, tmp_path / "none.zip", task=task, rows=False)).task
        is None
    )
    only_held = gn.scaleout.write_bundle(run, tmp_path / "held")
    assert (only_held / "holdout.parquet").is_file() and gn.scaleout.open_bundle(only_held).task is None
    monkeypatch.setattr("grpo_nb.scaleout.bundle._MOST_BYTES", 100)
    assert "parquet" not in str(list(gn.scaleout.write_bundle(run, tmp_path / "large", task=task).iterdir()))
    assert (
        gn.scaleout.open_bundle(gn.scaleout.write_bundle(run, tmp_path / "forced", task=task, rows=True)).task
        is not None
    )
    other = gn.load_task([{"question": "1?", "answer": 1}, {"question": "2?", "answer": 2}], holdout=1)
    with pytest.raises(ValueError, match="give the task that it was trained on"):
        gn.scaleout.write_bundle(run, tmp_path / "wrong", task=other)
    assert not (tmp_path / "wrong").exists()


def test_nothing_is_overwritten_and_no_key_goes_out(tmp_path: Path, task: gn.tasks.Task) -> None:
    run = write_run(tmp_path / "a", task=task)
    path = gn.scaleout.write_bundle(run, tmp_path / "b")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        gn.scaleout.write_bundle(run, path)
    assert gn.scaleout.write_bundle(run, path, overwrite=True) == path
    key = "hf_" + "k" * 34
    leaky = own_reward(tmp_path, OWN.replace("Fewer words", f"token {key}: fewer words"))
    run = write_run(tmp_path / "leaky", task=task, rewards=[leaky])
    with pytest.raises(
        ValueError, match=r"bundle.json, rewards.py would hold what looks like an access token"
    ) as caught:
        gn.scaleout.write_bundle(run, tmp_path / "leak")
    assert not (tmp_path / "leak").exists() and key not in str(caught.value)


def test_what_is_no_bundle(tmp_path: Path, task: gn.tasks.Task) -> None:
    with pytest.raises(FileNotFoundError, match="there is no bundle"):
        gn.scaleout.open_bundle(tmp_path / "nothing.zip")
    (tmp_path / "x.zip").write_bytes(b"PK\3\4 and then nothing")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "x.zip", tmp_path / "folder"):
        with pytest.raises(ValueError, match="is no bundle"):
            gn.scaleout.open_bundle(path)
    path = gn.scaleout.write_bundle(write_run(tmp_path / "a", task=task), tmp_path / "b")
    record = json.loads((path / "bundle.json").read_text())
    (path / "bundle.json").write_text(json.dumps({**record, "form": 7}))
    with pytest.raises(ValueError, match="has the form 7"):
        gn.scaleout.open_bundle(path)


def test_nothing_but_a_bundle_is_replaced(tmp_path: Path, task: gn.tasks.Task, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "runs" / "a", task=task)
    for target in (run.path, run.path.parent, tmp_path):
        with pytest.raises(FileExistsError, match="which would be gone with it"):
            gn.scaleout.write_bundle(run, target, task=task, overwrite=True)
    assert (run.path / "run.json").is_file()
    (tmp_path / "bundle.zip").write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(OSError, match="No space left"):
            gn.scaleout.write_bundle(run, tmp_path / "bundle.zip", task=task, overwrite=True)
    assert (tmp_path / "bundle.zip").read_text() == "old"
    gn.scaleout.write_bundle(run, tmp_path / "bundle.zip", task=task, overwrite=True)
    assert gn.scaleout.open_bundle(tmp_path / "bundle.zip").task is not None
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
