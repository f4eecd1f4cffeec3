"""Refuse arguments of a wrong type at public functions, with the line to write instead.

A public function calls `require` first. The message names the value, why it cannot be used, and
what to write. Types are recognised by class names and attributes, so that nothing is imported here,
and so that a stand-in with the methods of a model or a tokenizer is accepted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from grpo_nb.core.words import in_line

# Kind of an unrecognised value, perhaps a stand-in for a model or for data.
_OTHER = ""
# Kinds of the kit's own classes. A kind is the name that messages use, such as "a Task".
_OWN_CLASSES = {
    "grpo_nb.config.settings.Settings": "gn.Settings",
    "grpo_nb.tasks.task.Task": "a Task",
    "grpo_nb.runs.run_folder.Run": "a Run",
    "grpo_nb.evaluation.comparison.Comparison": "a Comparison",
    "grpo_nb.evaluation.results.Evaluation": "an Evaluation",
    "grpo_nb.evaluation.heldout.HeldOut": "a set of held-out questions",
    "grpo_nb.export.result.Export": "an Export",
}
_DATA = {"a DataFrame", "a datasets.Dataset", "a list", "a list of texts", "a text", "a path"}
# Kinds that many arguments accept, so that they do not show that two arguments are swapped.
_COMMON = {_OTHER, "None", "a class", "a dict", "a list", "a text", "a path"}


@dataclass(frozen=True)
class Role:
    """Rule for an argument: the kinds of values that it can be."""

    takes: str
    """The values that are accepted, in words."""
    accepts: set[str]
    """The kinds that are accepted."""
    write: str
    """A line that makes such a value."""


_LOAD_TASK = "task = gn.load_task(...)"
_LOAD_MODEL = "model, tokenizer = gn.load_model(settings)"
_OPEN_RUN = 'run = gn.open_run("runs/name")'
_ROLES = {
    "settings": Role("gn.Settings", {"gn.Settings"}, 'settings = gn.preset("auto", max_steps=100)'),
    "task": Role("a Task", {"a Task"}, _LOAD_TASK),
    "rows": Role("a Task or rows", {"a Task", "a dict", _OTHER, *_DATA}, _LOAD_TASK),
    "model": Role("a model", {"a model", _OTHER}, _LOAD_MODEL),
    "tokenizer": Role("a tokenizer", {"a tokenizer", _OTHER}, _LOAD_MODEL),
    "run": Role("a run or its folder", {"a Run", "a text", "a path"}, _OPEN_RUN),
    "exported": Role(
        "a run, its folder, or an export", {"a Run", "a text", "a path", "an Export"}, _OPEN_RUN
    ),
    "questions": Role(
        "a Task or held-out questions",
        {"a Task", "a set of held-out questions", "a dict", "None", _OTHER, *_DATA},
        _LOAD_TASK,
    ),
    "completions": Role(
        "a list of completions", {_OTHER, *_DATA}, 'completions=["<answer>7</answer>"]'
    ),
    "source": Role(
        "rows, a file or the name of a data set",
        {"a dict", _OTHER, *_DATA},
        'task = gn.load_task("rows.csv", settings)',
    ),
    "subject": Role(
        "a run, a model or its folder",
        {"a Run", "a text", "a path", "a pair of model and tokenizer", _OTHER},
        'gn.evaluate(gn.open_run("runs/name"))',
    ),
    "adapter": Role(
        "the folder or the Hub id of a LoRA",
        {"a text", "a path"},
        'gn.load_model(settings, adapter="a/folder")',
    ),
    # Modules are callable, so a model or a pair of modules may be rewards. `scoring` refuses a
    # class, and names the call that makes a reward of it. In a list, `scoring` names the wrong
    # entry.
    "rewards": Role(
        "reward functions",
        {
            "a list of reward functions",
            "a function",
            "a class",
            "a list",
            "a model",
            "a pair of model and tokenizer",
            _OTHER,
        },
        "rewards = [gn.rewards.correctness()]",
    ),
}
_ROWS_OF_FILE = ("its rows have to be read first", "task = gn.load_task({value!r}, settings)")
_NAME_OF_REWARD = ("a name is not a function", "rewards=[gn.rewards.correctness()]")
# Advice for frequent mistakes: (role, kind) -> why the value cannot be used, and what to write.
_OFTEN: dict[tuple[str, str], tuple[str, str]] = {
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
    ("task", "a text"): _ROWS_OF_FILE,
    ("task", "a path"): _ROWS_OF_FILE,
    ("task", "a list"): ("the rows have no prompts yet", "task = gn.load_task(rows, settings)"),
    ("model", "a text"): (
        "the model has to be loaded first",
        'model, tokenizer = gn.load_model(gn.preset("auto", model={value!r}))',
    ),
    ("model", "a pair of model and tokenizer"): (
        "model and tokenizer are two arguments",
        _LOAD_MODEL,
    ),
    ("model", "a Run"): ("a run has a model", "run.model"),
    ("adapter", "a Run"): ("a run holds more than its LoRA", "adapter=run.adapter_path"),
    ("adapter", "a model"): (
        "the LoRA is read from files",
        'model.save_pretrained("lora"), then adapter="lora"',
    ),
    ("source", "a Task"): ("it is loaded already", "task, not gn.load_task(task)"),
    ("rewards", "a text"): _NAME_OF_REWARD,
    ("rewards", "a list of texts"): _NAME_OF_REWARD,
    ("subject", "a model"): (
        "a model answers with its tokenizer",
        "gn.evaluate((model, tokenizer), task)",
    ),
    ("subject", "an Export"): (
        "an export is read from its folder",
        "gn.evaluate(export.path, task)",
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
    role_names = {name: name for name in values} | dict(roles or {})
    wrong = []
    for name, value in values.items():
        is_omitted = value is None and name in optional
        if not is_omitted and _kind_of(value) not in _ROLES[role_names[name]].accepts:
            wrong.append(name)
    if not wrong:
        return
    function = call.partition("(")[0]
    swapped = []
    for name in wrong:
        others = [_ROLES[role_names[other]] for other in wrong if other != name]
        kind = _kind_of(values[name])
        if kind not in _COMMON and any(kind in other.accepts for other in others):
            swapped.append(name)
    if wrong[0] in swapped and len(swapped) > 1:
        found = " and ".join(f"{name} is {described(values[name])}" for name in swapped)
        order = f"arguments are swapped, and {function} reads them in this order"
        raise TypeError(f"{found}: {order}. Write {call}.")
    name = wrong[0]
    raise TypeError(f"{name} = {_mistake(role_names[name], values[name], function)}")


def _mistake(role_name: str, value: Any, function: str) -> str:
    """Return a description of a value, why the function cannot use it, and what to write."""
    role = _ROLES[role_name]
    often = _OFTEN.get((role_name, _kind_of(value)))
    if often is None:
        return f"{described(value)}, but {function} takes {role.takes}. Write {role.write}."
    reason, write = often
    # Only the entries for texts and paths have a place for the value, because `repr` of a large
    # object can be slow or fail.
    if "{value!r}" in write:
        write = write.replace("{value!r}", repr(str(value)))
    return f"{described(value)}, but {function} takes {role.takes} ({reason}). Write {write}."


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
    return kind or f"{in_line(value)} ({class_name})"


def _kind_of(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return "a class"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, PathLike):
        return "a path"
    if isinstance(value, Mapping) and type(value).__module__ == "builtins":
        return "a dict"
    if isinstance(value, (list, tuple)):
        return _kind_of_list(value)
    return _kind_of_class(type(value)) or _kind_by_attributes(value)


@functools.cache
def _kind_of_class(cls: type) -> str:
    # Classes are compared by name, because a notebook may have reloaded the module of a class.
    for parent in cls.__mro__:
        package = parent.__module__.partition(".")[0]
        own_kind = _OWN_CLASSES.get(f"{parent.__module__}.{parent.__qualname__}")
        if own_kind is not None:
            return own_kind
        if parent.__name__ in ("TrainingArguments", "GRPOConfig", "UnslothGRPOConfig"):
            return "a configuration of TRL"
        if parent.__name__ == "DataFrame":
            return "a DataFrame"
        if package == "datasets" and "Dataset" in parent.__name__:
            return "a datasets.Dataset"
        if parent.__name__ in ("PreTrainedTokenizerBase", "ProcessorMixin"):
            return "a tokenizer"
        if package == "torch" and parent.__name__ == "Module":
            return "a model"
    return _OTHER


def _kind_by_attributes(value: Any) -> str:
    if hasattr(value, "apply_chat_template"):
        return "a tokenizer"
    if hasattr(value, "generate") and hasattr(value, "parameters"):
        return "a model"
    return "a function" if callable(value) else _OTHER


def _kind_of_list(values: list | tuple) -> str:
    if not values:
        return "a list"
    if all(isinstance(value, str) for value in values):
        return "a list of texts"
    if len(values) == 2 and _is_pair(*values):
        return "a pair of model and tokenizer"
    return "a list of reward functions" if all(callable(value) for value in values) else "a list"


def _is_pair(first: Any, second: Any) -> bool:
    """Return True for a model and its tokenizer, or stand-ins for both."""
    if isinstance(first, (list, tuple)) or isinstance(second, (list, tuple)):
        return False
    kinds = {_kind_of(first), _kind_of(second)}
    if "a model" in kinds or "a tokenizer" in kinds:
        return True
    # A number is not a stand-in.
    return kinds == {_OTHER} and not isinstance(first, (int, float))
