"""Refuse arguments of a wrong type at public functions, with the line to write instead.

A public function calls `require` first. The message names the value, why it cannot be used, and
what to write. Types are recognised by names and attributes: nothing is imported, and a stand-in
with the methods of a model or a tokenizer is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from grpo_nb.core.words import in_line

# Kind of an unrecognised value, perhaps a stand-in for a model or for data.
_UNKNOWN = "an object"
# Kind of each known class and its subclasses, by package and name: a notebook may have reloaded the
# module of a class. A kind is the name that messages use.
_KINDS = {
    "grpo_nb.Settings": "gn.Settings",
    "grpo_nb.Task": "a Task",
    "grpo_nb.Run": "a Run",
    "grpo_nb.Comparison": "a Comparison",
    "grpo_nb.Evaluation": "an Evaluation",
    "grpo_nb.HeldOut": "a set of held-out questions",
    "grpo_nb.Export": "an Export",
    "transformers.TrainingArguments": "a configuration of TRL",
    "transformers.PreTrainedTokenizerBase": "a tokenizer",
    "transformers.ProcessorMixin": "a tokenizer",
    "torch.Module": "a model",
    "pandas.DataFrame": "a DataFrame",
    "polars.DataFrame": "a DataFrame",
    "datasets.Dataset": "a datasets.Dataset",
    "datasets.DatasetDict": "a datasets.Dataset",
    "datasets.IterableDataset": "a datasets.Dataset",
    "datasets.IterableDatasetDict": "a datasets.Dataset",
}
_DATA = {"a DataFrame", "a datasets.Dataset", "a list", "a list of texts", "a text", "a path"}
# Kinds too common to show that two arguments are swapped.
_COMMON = {_UNKNOWN, "None", "a class", "a dict", "a list", "a text", "a path"}


@dataclass(frozen=True)
class Role:
    """Rule for an argument: the kinds of values that it can be."""

    takes: str
    """The values that are accepted, in words."""
    accepts: set[str]
    """The kinds that are accepted."""
    example: str
    """A line that makes such a value."""


_LOAD_TASK = "task = gn.load_task(...)"
_LOAD_MODEL = "model, tokenizer = gn.load_model(settings)"
_OPEN_RUN = 'run = gn.open_run("runs/name")'
_ROLES = {
    "settings": Role("gn.Settings", {"gn.Settings"}, 'settings = gn.preset("auto", max_steps=100)'),
    "task": Role("a Task", {"a Task"}, _LOAD_TASK),
    "rows": Role("a Task or rows", {"a Task", "a dict", _UNKNOWN, *_DATA}, _LOAD_TASK),
    "model": Role("a model", {"a model", _UNKNOWN}, _LOAD_MODEL),
    "tokenizer": Role("a tokenizer", {"a tokenizer", _UNKNOWN}, _LOAD_MODEL),
    "run": Role("a run or its folder", {"a Run", "a text", "a path"}, _OPEN_RUN),
    "merged": Role(
        "a merged export or its folder",
        {"a text", "a path", "an Export"},
        'merged = gn.export_merged(run, "exports/name")',
    ),
    "questions": Role(
        "a Task or held-out questions",
        {"a Task", "a set of held-out questions", "a dict", "None", _UNKNOWN, *_DATA},
        _LOAD_TASK,
    ),
    "completions": Role(
        "a list of completions", {_UNKNOWN, *_DATA}, 'completions=["<answer>7</answer>"]'
    ),
    "source": Role(
        "rows, a file or the name of a data set",
        {"a dict", _UNKNOWN, *_DATA},
        'task = gn.load_task("rows.csv", settings)',
    ),
    "subject": Role(
        "a run, a model or its folder",
        {"a Run", "a text", "a path", "a pair of model and tokenizer", _UNKNOWN},
        'gn.evaluate(gn.open_run("runs/name"))',
    ),
    "adapter": Role(
        "the folder or the Hub id of a LoRA",
        {"a text", "a path"},
        'gn.load_model(settings, adapter="a/folder")',
    ),
    # Accepted on purpose: a torch module is callable and can be a reward. For a class, or a wrong
    # entry of a list, `scoring` has a better error.
    "rewards": Role(
        "reward functions",
        {
            "a list of reward functions",
            "a function",
            "a class",
            "a list",
            "a model",
            "a pair of model and tokenizer",
            _UNKNOWN,
        },
        "rewards=[gn.rewards.correctness()]",
    ),
}
# Advice for frequent mistakes: (role, kind) -> why the value cannot be used, and what to write.
_ADVICE = {
    ("settings", "a configuration of TRL"): (
        "a run has more settings than a trainer, such as those that load the model",
        'settings = gn.preset("auto", learning_rate=5e-6, num_generations=8), with TRL\'s names',
    ),
    ("settings", "a dict"): (
        "the names in it have not been checked",
        'settings = gn.preset("auto", **settings)',
    ),
    ("settings", "a text"): (
        "the text may be the name of a preset or of a model",
        'settings = gn.preset({value!r}), or settings = gn.preset("auto", model={value!r})',
    ),
    ("task", "a DataFrame"): (
        "a Task also has the prompts, the answer format and held-out questions",
        'task = gn.load_task(data, settings, columns={"question": "...", "answer": "..."})',
    ),
    ("task", "a datasets.Dataset"): (
        "a Task also has the answer format and held-out questions",
        "task, not task.train; for another data set, task = gn.load_task(dataset, settings)",
    ),
    ("task", "a text"): (
        "its rows have to be read first",
        "task = gn.load_task({value!r}, settings)",
    ),
    ("task", "a path"): (
        "its rows have to be read first",
        "task = gn.load_task({value!r}, settings)",
    ),
    ("task", "a list"): ("the rows have no prompts yet", "task = gn.load_task(rows, settings)"),
    ("model", "a text"): (
        "the model has to be loaded first",
        'model, tokenizer = gn.load_model(gn.preset("auto", model={value!r}))',
    ),
    ("model", "a pair of model and tokenizer"): (
        "model and tokenizer are two arguments",
        _LOAD_MODEL,
    ),
    ("adapter", "a Run"): ("a run holds more than its LoRA", "adapter=run.adapter_path"),
    ("adapter", "a model"): (
        "the LoRA is read from files",
        'model.save_pretrained("lora"), then adapter="lora"',
    ),
    ("source", "a Task"): ("it is loaded already", "task, not gn.load_task(task)"),
    ("subject", "a model"): (
        "a model answers with its tokenizer",
        "gn.evaluate((model, tokenizer), task)",
    ),
    ("subject", "a Task"): ("a model has to answer its questions", "gn.evaluate(run, task)"),
}


def require(
    call: str,
    /,
    *,
    optional: Iterable[str] = (),
    roles: Mapping[str, str] | None = None,
    **values: Any,
) -> None:
    """Raise if an argument has a type that a public function does not take.

    Args:
        call: The call as it should be written, such as `gn.score(rewards, completions, rows)`.
        optional: Arguments that may be None.
        roles: Role of each argument whose name is not the name of its role.
        **values: The arguments by name.

    Raises:
        TypeError: An argument has a wrong type, or two arguments are swapped.

    >>> require("gn.plan(settings)", settings=3)
    Traceback (most recent call last):
    TypeError: settings = 3 (int), but gn.plan takes gn.Settings. Write settings = gn.preset(...).
    """
    roles_of = {name: _ROLES[(roles or {}).get(name, name)] for name in values}
    kinds = {name: _kind_of(value) for name, value in values.items()}
    wrong = []
    for name, kind in kinds.items():
        is_omitted = kind == "None" and name in optional
        if not is_omitted and kind not in roles_of[name].accepts:
            wrong.append(name)
    if not wrong:
        return
    function = call.partition("(")[0]
    swapped = []
    for name in wrong:
        others = [roles_of[other] for other in wrong if other != name]
        is_accepted = any(kinds[name] in other.accepts for other in others)
        if is_accepted and kinds[name] not in _COMMON:
            swapped.append(name)
    if len(swapped) > 1:
        given = " and ".join(f"{name} is {described(values[name])}" for name in swapped)
        order = f"arguments are swapped, and {function} reads them in this order"
        raise TypeError(f"{given}: {order}. Write {call}.")
    name = wrong[0]
    role = roles_of[name]
    reason, example = _ADVICE.get(((roles or {}).get(name, name), kinds[name]), ("", role.example))
    # Only the advice on texts and paths shows the value: `repr` of a large object can be slow or
    # fail.
    if "{value!r}" in example:
        example = example.replace("{value!r}", repr(str(values[name])))
    why = f" ({reason})" if reason else ""
    problem = f"{described(values[name])}, but {function} takes {role.takes}{why}"
    raise TypeError(f"{name} = {problem}. Write {example}.")


def described(value: Any) -> str:
    """Return a value in words, with its name or class if it has one.

    >>> described("correctness"), described(3), described([max])
    ("the text 'correctness'", '3 (int)', 'a list of reward functions')
    """
    kind = _kind_of(value)
    class_name = type(value).__name__
    if kind == "a class":
        return f"the class {value.__name__}"
    if kind == "a text":
        return f"the text {in_line(value)}"
    if kind == "a configuration of TRL":
        return f"a {class_name} of TRL"
    if kind == "a function":
        return f"the function {getattr(value, '__name__', class_name)}"
    if kind == "a datasets.Dataset":
        return f"a datasets.{class_name}"
    return f"{in_line(value)} ({class_name})" if kind == _UNKNOWN else kind


def _kind_of(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return "a class"
    for parent in type(value).__mro__:
        package = parent.__module__.partition(".")[0]
        kind = _KINDS.get(f"{package}.{parent.__name__}")
        if kind is not None:
            return kind
    return _kind_of_other(value)


def _kind_of_other(value: Any) -> str:
    """Return the kind of an object of no known class."""
    if isinstance(value, str):
        return "a text"
    if isinstance(value, PathLike):
        return "a path"
    if isinstance(value, Mapping):
        return "a dict"
    if isinstance(value, (list, tuple)):
        return _kind_of_list(value)
    if hasattr(value, "apply_chat_template"):
        return "a tokenizer"
    if hasattr(value, "generate") and hasattr(value, "parameters"):
        return "a model"
    return "a function" if callable(value) else _UNKNOWN


def _kind_of_list(values: list | tuple) -> str:
    if not values:
        return "a list"
    if all(isinstance(value, str) for value in values):
        return "a list of texts"
    if len(values) == 2:
        kinds = {_kind_of(value) for value in values}
        # Two rows of data can be unknown objects too, but then they are in a list.
        is_pair_of_stand_ins = isinstance(values, tuple) and kinds == {_UNKNOWN}
        if is_pair_of_stand_ins or kinds & {"a model", "a tokenizer"}:
            return "a pair of model and tokenizer"
    return "a list of reward functions" if all(callable(value) for value in values) else "a list"
