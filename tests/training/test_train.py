"""A run writes down everything, and starts nothing on bad input."""

import copy
import datetime
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest
from transformers import TrainerState

import grpo_nb as gn
from grpo_nb.config.planning import Plan, plan
from grpo_nb.scoring.scores import RewardError
from grpo_nb.training import new_run, prepare
from tests.run_fixtures import brevity
from tests.support.adapters import way_back
from tests.support.tiny import load_tiny


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path):
    """Model, tokenizer and task; tests that train take the adapter back to zero first."""
    return load_tiny(tiny_folder, 20, 6)[:3]


@pytest.fixture
def fresh(tiny):
    back = way_back(tiny[0])
    yield tiny
    back()


def test_run_folder_is_complete(tiny_run: gn.runs.Run) -> None:
    path = tiny_run.path
    assert tiny_run.status == "finished"
    info = json.loads((path / "run.json").read_text())
    assert info["settings"] == tiny_run.settings.to_dict()
    assert info["engine"] == "the kit's CPU engine"
    assert [r["name"] for r in info["rewards"]] == ["brevity", "partial_format"]
    assert "def brevity" in info["rewards"][0]["source"]
    assert len(info["rewards"][0]["hash"]) == 16
    assert {"torch", "trl", "unsloth"} <= set(info["versions"])
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 15))
    measured = {"reward", "kl", "step_time", "rewards/brevity/mean", "frac_reward_zero_std"}
    assert all(measured <= set(row) for row in rows)
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert all(row["kl"] > 0 for row in rows[6:])
    assert (path / "adapter" / "adapter_model.safetensors").is_file()
    assert not (path / "adapter" / "ref").exists()
    assert set(tiny_run.model.peft_config) == {"default"}, "the model is left as it was found"
    assert (path / "figures" / "training.png").read_bytes().startswith(b"\x89PNG")
    assert len(tiny_run.holdout) == 10
    card = (path / "README.md").read_text()
    assert "brevity" in card
    assert "base_model:" not in card, "a folder of this machine is no name on the Hub"


def test_completions_hold_scores_and_advantages(tiny_run: gn.runs.Run) -> None:
    table = tiny_run.completions(3)
    assert list(table.columns) == [
        "step",
        "group",
        "prompt",
        "completion",
        "brevity",
        "partial_format",
        "total",
        "advantage",
    ]
    assert len(table) == 16
    assert set(table["group"]) == {0, 1}
    for _, group in table.groupby("group"):
        assert group["prompt"].nunique() == 1
        scores = pandas.Series(
            brevity([[{"content": text}] for text in group["completion"]]), index=group.index
        )
        assert group["brevity"].tolist() == pytest.approx(scores.tolist(), abs=1e-6)
        expected = (group["total"] - group["total"].mean()) / (group["total"].std() + 1e-4)
        assert group["advantage"].tolist() == pytest.approx(expected.tolist(), abs=1e-2)
    assert table["total"].mean() == pytest.approx(tiny_run.rows[2]["reward"], abs=1e-5)
    with pytest.raises(FileNotFoundError, match=r"no completions of step 99"):
        tiny_run.completions(99)


def returning(score: object, name: str = "reward", count: int = 1):
    """A reward of this name, which gives each completion so many times this score."""

    def reward(completions: list, **columns: object) -> list:
        return [score] * (count * len(completions))

    reward.__name__ = name
    return reward


plain = returning(0.0, "plain")


@pytest.mark.parametrize(
    ("rewards", "changes", "told"),
    [
        ([], {}, "rewards is empty"),
        ([plain, plain], {}, "two rewards are named 'plain'"),
        (
            [returning(0.0, "too_few", 0)],
            {},
            "'too_few' failed: it returned 0 scores for 1 completions",
        ),
        (
            [returning(1e39, "infinite")],
            {},
            r"'infinite' failed: a score is 1e\+39; it must be a finite .*on row 0",
        ),
        (
            [returning(0.0, "total")],
            {},
            "no reward can be called 'total', because the record of completions has a column",
        ),
        ([gn.rewards.correctness(column="gold")], {}, "needs the data column 'gold'"),
        ([plain], {"max_prompt_length": 5}, "longer than max_prompt_length = 5"),
        ([plain], {"seed": -1}, "(?i)seed"),
        ([plain], {"extra": {"logging_steps": 0}}, "logging_steps"),
        *(
            ([plain], {"extra": {"generation_kwargs": {name: ["</answer>"]}}}, told)
            for name, told in [
                ("stop", r"generation_kwargs has \['stop'\].*does not generate here: "),
                ("stop_strings", r"generation_kwargs has \['stop_strings'\]"),
            ]
        ),
        *(
            ([plain], {"extra": {"generation_kwargs": {name: 0.9}}}, f"{name}.*would not use")
            for name in ("top_p", "min_p", "max_new_tokens")
        ),
        *(
            ([plain], {"extra": {name: value}}, told)
            for name, value, told in [
                ("save_strategy", "nope", "save_strategy"),
                ("eval_strategy", "steps", "eval"),
                ("report_to", ["wandbb"], "wandbb"),
                ("hub_strategy", "sometimes", "hub_strategy"),
                ("unsloth_num_chunks", 4, "unsloth_num_chunks"),
            ]
        ),
    ],
)
def test_refused_training_leaves_no_files(
    fresh, tiny_settings, rewards, changes: dict, told: str
) -> None:
    with pytest.raises((ValueError, TypeError, RewardError), match=told):
        gn.train(*fresh, rewards, tiny_settings.replace(**changes))
    assert not Path(tiny_settings.run_root).exists()
    assert set(fresh[0].peft_config) == {"default"}, (
        "the trainer that was half built left its adapter"
    )


def test_taken_name_is_refused(tiny_run: gn.runs.Run, fresh, tiny_settings) -> None:
    calls = []

    def charged(completions: list, **columns: object) -> list[float]:
        calls.append(completions)
        return brevity(completions)

    settings = tiny_settings.replace(run_root=str(tiny_run.path.parent))
    with pytest.raises(FileExistsError, match="exists, and a new run overwrites nothing"):
        gn.train(*fresh, [charged], settings, name=tiny_run.name)
    assert not calls, "a reward was tried first, which may ask a paid judge"


def test_folder_of_an_interrupted_start_may_be_deleted(fresh, tiny_settings) -> None:
    (Path(tiny_settings.run_root) / "a").mkdir(parents=True)
    with pytest.raises(FileExistsError, match=r"without run.json is no run.*you may delete it"):
        gn.train(*fresh, [brevity], tiny_settings, name="a", resume="auto")


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"texts": {"a", "b"}}, id="a set"),
        pytest.param({"means": {3: 0.2}}, id="a number as key, which would come back as a text"),
    ],
)
def test_state_that_json_cannot_hold_names_its_reward(fresh, tiny_settings, state: dict) -> None:
    def seen(completions: list, **columns: object) -> list[float]:
        return brevity(completions)

    seen.state_dict = lambda: state
    seen.load_state_dict = lambda state: None
    with pytest.raises(TypeError, match=r"state_dict\(\) of 'seen' cannot be saved as JSON"):
        gn.train(*fresh, [seen], tiny_settings)


def test_new_run_expands_the_home_folder(fresh, tiny_settings, monkeypatch) -> None:
    home = Path(tiny_settings.run_root)
    monkeypatch.setenv("HOME", str(home))
    settings = tiny_settings.replace(run_root="~/mine", max_steps=1)
    run = gn.train(*fresh, [brevity], settings, name="a")
    assert run.path == home / "mine" / "a"
    with pytest.raises(FileExistsError, match="exists, and a new run overwrites nothing"):
        gn.train(*fresh, [brevity], settings, name="a")


def test_prompts_that_are_too_long_are_counted(tiny, tiny_settings) -> None:
    _, tokenizer, task = tiny
    parts = (task.train, task.holdout)
    most = max(max(task.prompt_lengths(part, tokenizer)) for part in parts)
    said = rf" are left out: .*\(max_prompt_length={most}\) keeps all"
    with (
        pytest.warns(UserWarning, match=said),
        pytest.raises(RewardError, match="needs the data column 'gold'"),
    ):
        gn.train(
            *tiny,
            [gn.rewards.correctness(column="gold")],
            tiny_settings.replace(max_prompt_length=most - 1),
        )


def test_other_architecture_trains_on_the_stock_path(fresh, tiny_settings, monkeypatch) -> None:
    monkeypatch.setattr(
        prepare.CpuEngine, "model_obstacle", lambda model, longest: "this model is odd"
    )
    planned = []

    def recorded(settings: gn.Settings, *arguments: object, **keywords: object) -> Plan:
        planned.append(settings.shared_prompts)
        return plan(settings, *arguments, **keywords)

    monkeypatch.setattr("grpo_nb.training.train.plan", recorded)
    run = gn.train(*fresh, [brevity], tiny_settings.replace(max_steps=1), name="stock")
    assert planned == [False], "the plan counts no copies of the weights, as none are made"
    assert run.info["engine"] == "transformers' own generation"
    assert run.info["effective"]["changed"]["shared_prompts"]["reason"] == "this model is odd"
    assert math.isfinite(run.rows[0]["reward"])


def test_trial_before_training_has_the_state_of_transformers(fresh, tiny_settings) -> None:
    states = []

    def scheduled(completions: list, trainer_state, **columns: object) -> list[float]:
        assert trainer_state.is_world_process_zero
        states.append(copy.copy(trainer_state))
        share_done = trainer_state.global_step / (trainer_state.max_steps - 1)
        return [score * (1 - share_done) for score in brevity(completions)]

    gn.train(*fresh, [scheduled], tiny_settings.replace(max_steps=2))
    assert states[0].is_trial
    assert [(type(state), state.max_steps) for state in states] == [(TrainerState, 2)] * len(states)
    assert not any(getattr(state, "is_trial", False) for state in states[1:])


def test_run_beyond_memory_is_refused(fresh, tiny_settings: gn.Settings, monkeypatch) -> None:
    monkeypatch.setattr("grpo_nb.config.planning.free_memory_bytes", lambda: 1.5e8)
    with pytest.raises(
        gn.machine.EnvironmentProblem,
        match=r"needs about .* These settings fit: settings = settings.replace\(",
    ):
        gn.train(*fresh, [brevity], tiny_settings.replace(per_device_train_batch_size=64))
    assert not Path(tiny_settings.run_root).exists()


def test_run_without_a_name_never_overwrites_one(fresh, tiny_settings, monkeypatch) -> None:
    settings = tiny_settings.replace(max_steps=1)
    first = gn.train(*fresh, [brevity], settings)
    assert gn.train(*fresh, [brevity], settings).path != first.path

    start = datetime.datetime.strptime(first.name, "%Y-%m-%d_%H-%M-%S-%f")
    clock = SimpleNamespace(datetime=SimpleNamespace(now=lambda: start))
    monkeypatch.setattr("grpo_nb.training.train.datetime", clock)
    rows = first.rows
    with pytest.raises(FileExistsError):
        gn.train(*fresh, [brevity], settings)
    assert gn.open_run(first.path).rows == rows


def test_taken_name_says_how_to_resume(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.json").touch()
    with pytest.raises(
        FileExistsError,
        match=r"a' exists, and a new run overwrites nothing. Give .* or pass resume='auto'",
    ):
        new_run.require_free_path(tmp_path / "a")


@pytest.mark.parametrize("name", ["auto", "", "../a", "a" * 101, 3])
def test_run_name_of_other_characters_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match=r"cannot be the name of a run.*letters, digits"):
        new_run.require_valid_name(name)
