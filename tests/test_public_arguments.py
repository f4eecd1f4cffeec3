"""Usual mistakes at public functions end in one sentence with the line to write."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest
from datasets import Dataset

import grpo_nb as gn


def shortness(completions: list, **columns: object) -> list[float]:
    return [1 / (1 + len(str(completion))) for completion in completions]


ROWS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(8)]
SETTINGS = gn.preset("cpu")
REWARDS = [gn.rewards.correctness(), shortness]
FRAME = pandas.DataFrame(ROWS)
DATASET = Dataset.from_list(ROWS)
# Stand-ins: nothing is loaded before the arguments are checked.
MODEL = SimpleNamespace(generate=None, parameters=None, peft_config={})
TOKENIZER = SimpleNamespace(apply_chat_template=None)
TASK = gn.load_task(ROWS, holdout=2)


def trl_config() -> object:
    from trl import GRPOConfig

    return GRPOConfig.__new__(GRPOConfig)


TRAIN_ARGUMENTS = {
    "model": MODEL,
    "tokenizer": TOKENIZER,
    "task": TASK,
    "rewards": REWARDS,
    "settings": SETTINGS,
}
COMPARE_ARGUMENTS = {
    "run_or_model": (MODEL, TOKENIZER),
    "against": (MODEL, TOKENIZER),
    "task": TASK,
}
# Public functions with right arguments. `gn.train` imports unsloth, so it is looked up in the call.
CALLS = {
    "train": (lambda **arguments: gn.train(**arguments), TRAIN_ARGUMENTS),
    "dry_run": (lambda **arguments: gn.dry_run(**arguments), TRAIN_ARGUMENTS),
    "baseline": (gn.baseline, TRAIN_ARGUMENTS),
    "check_rewards": (gn.check_rewards, {"rewards": REWARDS, "task": TASK}),
    "RewardLab": (gn.RewardLab, {"rewards": REWARDS, "task": TASK}),
    "score": (gn.score, {"rewards": REWARDS, "completions": ["7"], "rows": {"answer": "7"}}),
    "evaluate": (gn.evaluate, {"run_or_model": (MODEL, TOKENIZER), "task": TASK}),
    "compare": (gn.compare, COMPARE_ARGUMENTS),
    "ask": (gn.ask, {"run": "runs/none", "questions": ["Why?"]}),
    "export_merged": (gn.export_merged, {"run": "runs/none", "path": "there"}),
    "export_adapter": (gn.export.export_adapter, {"run": "runs/none", "path": "there"}),
    "export_gguf": (gn.export_gguf, {"merged": "exports/none", "path": "there"}),
    "load_task": (gn.load_task, {"source": ROWS}),
    "load_model": (gn.load_model, {"settings": SETTINGS}),
    "plan": (gn.plan, {"settings": SETTINGS, "task": TASK}),
    "open_run": (gn.open_run, {"run": "runs/none"}),
}
VALUES = {
    "a GRPOConfig": trl_config,
    "settings": lambda: SETTINGS,
    "a dict": lambda: {"max_steps": 4},
    "a DataFrame": lambda: FRAME,
    "a Dataset": lambda: DATASET,
    "task.train": lambda: TASK.train,
    "a task": lambda: TASK,
    "a text": lambda: "correctness",
    "a file": lambda: "rows.csv",
    "rows": lambda: ROWS,
    "None": lambda: None,
    "a class": lambda: gn.rewards.correctness,
    "a model": lambda: MODEL,
    "a tokenizer": lambda: TOKENIZER,
    "a pair": lambda: (MODEL, TOKENIZER),
    "a number": lambda: 3,
}
TRAINING = ("train", "baseline")
WITH_SETTINGS = (*TRAINING, "plan", "load_model")
WITH_TASK = (*TRAINING, "plan")
SCORING = ("check_rewards", "RewardLab", "score")
WITH_REWARDS = (*TRAINING, "dry_run", *SCORING)
# Functions, argument, wrong value, and what the error says.
MISTAKES = [
    (WITH_SETTINGS, "settings", "a GRPOConfig", "of type GRPOConfig, .*settings = gn.preset"),
    (WITH_SETTINGS, "settings", "a dict", "of type dict, .*settings = gn.preset"),
    (WITH_TASK, "task", "a DataFrame", "of type DataFrame, .*task = gn.load_task"),
    (TRAINING, "task", "a Dataset", "of type Dataset, .*task = gn.load_task"),
    (TRAINING, "task", "task.train", "of type Dataset, .*takes a Task"),
    (TRAINING, "task", "a file", "of type str, but .* takes a Task.*gn.load_task"),
    (TRAINING, "task", "rows", r"of type list, .*gn.load_task\(rows, settings\)"),
    (TRAINING, "task", "None", r"of type NoneType, .*gn.load_task\("),
    (TRAINING, "model", "a text", "of type str, but .* takes a model.*gn.load_model"),
    (TRAINING, "model", "a pair", "model, tokenizer = gn.load_model"),
    (TRAINING, "tokenizer", "None", "model, tokenizer = gn.load_model"),
    (
        WITH_REWARDS,
        "rewards",
        "a text",
        r"'correctness' is not a reward function: write rewards=\[gn.rewards.correctness\(\)\]",
    ),
    (["evaluate", "compare"], "grader", "a text", "'correctness' is not a reward function"),
    (SCORING, "rewards", "a class", r"class .*correctness.* is not a reward function"),
    (SCORING, "rewards", "None", "None is not a reward function"),
    (["score"], "rewards", "rows", "is not a reward function: write rewards="),
    (["train"], "settings", "None", "of type NoneType, .*gn.preset"),
    (["load_model"], "settings", "a text", "of type str.*takes gn.Settings.*gn.preset"),
    (["check_rewards"], "task", "settings", "load_task takes .*a list of dicts"),
    (["RewardLab"], "task", "None", "None: load_task takes .*a list of dicts"),
    (["score"], "completions", "a text", "'correctness' must be a list of texts"),
    (["score"], "completions", "a dict", "must be a list of texts"),
    (["evaluate"], "run_or_model", "a model", r"Write \(model, tokenizer\)\."),
    (["evaluate"], "run_or_model", "a task", "of type Task, but .* takes a run"),
    (
        ["compare"],
        "run_or_model",
        "settings",
        "of type Settings, but .*takes a run, a pair of model",
    ),
    (["compare"], "against", "a tokenizer", "of type SimpleNamespace, but gn.compare"),
    (["ask"], "run", "a pair", "^run is of type tuple, but .*takes a run or its folder"),
    (["export_merged", "export_adapter"], "run", "a pair", "^run is .*gn.open_run"),
    (
        ["export_gguf"],
        "merged",
        "a model",
        "of type SimpleNamespace, but .*takes a merged export",
    ),
    (["load_task"], "source", "settings", "load_task takes .*a list of dicts"),
    (["load_task"], "source", "a task", "load_task takes .*a list of dicts"),
    (["load_task"], "settings", "a GRPOConfig", "of type GRPOConfig"),
    (["plan"], "model", "a pair", "model, tokenizer = gn.load_model"),
    (["plan"], "task", "settings", "of type Settings, but .*takes a Task"),
    (["open_run"], "run", "a number", "of type int, but .*takes a run or its folder"),
]


def mistake_cases() -> list:
    """Return one case for each function of each row of `MISTAKES`."""
    cases = []
    for functions, argument, value, sentence in MISTAKES:
        for function in functions:
            name = f"{function}-{argument}={value}"
            cases.append(pytest.param(function, argument, value, sentence, id=name))
    return cases


@pytest.mark.parametrize(("function", "argument", "value", "sentence"), mistake_cases())
def test_wrong_argument_is_named_with_the_line_to_write(
    function: str, argument: str, value: str, sentence: str
) -> None:
    call, arguments = CALLS[function]
    with pytest.raises((TypeError, ValueError), match=sentence) as error:
        call(**{**arguments, argument: VALUES[value]()})
    assert len(str(error.value).splitlines()) == 1


SWAPPED = [
    ("train", "task", "rewards", "gn.train(model, tokenizer, task, rewards, settings)"),
    ("train", "model", "tokenizer", "gn.train(model, tokenizer, task, rewards, settings)"),
    ("baseline", "task", "settings", "gn.baseline(model, tokenizer, task, rewards, settings)"),
    ("evaluate", "run_or_model", "task", "gn.evaluate(run_or_model, task)"),
    ("plan", "settings", "task", "gn.plan(settings, task, model=model, tokenizer=tokenizer)"),
]


@pytest.mark.parametrize(
    ("function", "first", "second", "line"), SWAPPED, ids=[f"{row[0]}-{row[1]}" for row in SWAPPED]
)
def test_swapped_arguments_show_the_right_order(
    function: str, first: str, second: str, line: str
) -> None:
    call, arguments = CALLS[function]
    with pytest.raises(TypeError) as error:
        call(**{**arguments, first: arguments[second], second: arguments[first]})
    message = str(error.value)
    assert message.startswith((f"{first} is of type ", f"{second} is of type "))
    assert f"but {line} takes" in message


@pytest.mark.parametrize(
    "path", ["./no/such/model", "/no/such/model", "../no such", "C:\\no\\model"]
)
def test_compare_with_missing_path_is_one_line(path: str) -> None:
    with pytest.raises(FileNotFoundError, match="is not a folder here") as error:
        gn.compare((MODEL, TOKENIZER), TASK, against=path)
    assert len(str(error.value).splitlines()) == 1
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


def test_run_folder_as_adapter_names_its_adapter(tiny_run: gn.runs.Run) -> None:
    with pytest.raises(FileNotFoundError, match=r"is not a LoRA.*folder of a run, it is adapter/"):
        gn.load_model(tiny_run.settings, adapter=tiny_run.path)


def test_missing_adapter_path_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a LoRA: it has no adapter_model") as error:
        gn.load_model(SETTINGS, adapter=tmp_path / "none")
    assert len(str(error.value).splitlines()) == 1
