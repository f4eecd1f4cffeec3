"""Refuse arguments of a wrong type at public functions, with the line to write instead.

A public function calls `require` first. Types are recognised by names and attributes: nothing is
imported, and a stand-in with the methods of a model or a tokenizer is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.words import in_line

# Kind of an unrecognised value, perhaps a stand-in for a model or for data.
_UNKNOWN = "an object"
# Kind of each known class and its subclasses, by name: a notebook may have reloaded the module of a
# class. A kind is the name that messages use.
_KINDS = {
    "NoneType": "None",
    "type": "a class",
    "str": "a text",
    "PurePath": "a path",
    "Mapping": "a dict",
    "dict": "a dict",
    "list": "a list",
    "tuple": "a list",
    "Settings": "gn.Settings",
    "Task": "a Task",
    "Run": "a Run",
    "Comparison": "a Comparison",
    "Evaluation": "an Evaluation",
    "Holdout": "a set of held-out questions",
    "Export": "an Export",
    "TrainingArguments": "a configuration of TRL",
    "DataFrame": "a DataFrame",
    "Dataset": "a datasets.Dataset",
    "DatasetDict": "a datasets.Dataset",
    "IterableDataset": "a datasets.Dataset",
}
_PATH = {"a text", "a path"}
_RUN = {"a Run", *_PATH}
_DATA = {"a DataFrame", "a datasets.Dataset", "a list", "a dict", _UNKNOWN, *_PATH}


@dataclass(frozen=True)
class Role:
    """Rule for an argument: the kinds of values that it can be."""

    takes: str
    """The values that are accepted, in words."""
    accepts: set[str]
    """The kinds that are accepted."""
    example: str
    """A line that makes such a value."""


_LOAD_TASK = "task = gn.load_task(rows, settings)"
_LOAD_MODEL = "model, tokenizer = gn.load_model(settings)"
_OPEN_RUN = 'run = gn.open_run("runs/name")'
_ROLES = {
    "settings": Role("gn.Settings", {"gn.Settings"}, 'settings = gn.preset("auto", max_steps=100)'),
    "task": Role("a Task", {"a Task"}, _LOAD_TASK),
    "rows": Role("a Task or rows", {"a Task", *_DATA}, _LOAD_TASK),
    "model": Role("a model", {"a model", _UNKNOWN}, _LOAD_MODEL),
    "tokenizer": Role("a tokenizer", {"a tokenizer", _UNKNOWN}, _LOAD_MODEL),
    "run": Role("a run or its folder", _RUN, _OPEN_RUN),
    "merged": Role(
        "a merged export",
        {"an Export"},
        'merged = gn.export_merged(run, "exports/name"), or '
        'gn.export.open("exports/name", run=run)',
    ),
    "questions": Role(
        "a Task or held-out questions",
        {"a Task", "a set of held-out questions", "None", *_DATA},
        _LOAD_TASK,
    ),
    "completions": Role("a list of completions", _DATA, 'completions=["<answer>7</answer>"]'),
    "source": Role(
        "rows, a file or the name of a data set", _DATA, 'task = gn.load_task("rows.csv", settings)'
    ),
    "subject": Role(
        "a run, a pair of model and tokenizer, or the folder of a model",
        {"a list", _UNKNOWN, *_RUN},
        "gn.evaluate((model, tokenizer), task)",
    ),
    "adapter": Role("the folder of a LoRA", _PATH, "adapter=run.adapter_path"),
    # For a class, or a wrong entry of a list, `scoring` has a better error. A torch module is
    # callable and can be a reward.
    "rewards": Role(
        "reward functions",
        {"a list", "a function", "a class", "a model", _UNKNOWN},
        "rewards=[gn.rewards.correctness()]",
    ),
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
        TypeError: An argument has a wrong type.

    >>> require("gn.plan(settings)", settings=3)
    Traceback (most recent call last):
    TypeError: settings = 3 (int), but gn.plan(settings) takes gn.Settings. Write settings = ...
    """
    for name, value in values.items():
        role = _ROLES[(roles or {}).get(name, name)]
        kind = _kind_of(value)
        is_omitted = kind == "None" and name in optional
        if not is_omitted and kind not in role.accepts:
            problem = f"{describe_value(value)}, but {call} takes {role.takes}"
            raise TypeError(f"{name} = {problem}. Write {role.example}.")


def describe_value(value: Any) -> str:
    """Return a value in words, with its name or class if it has one.

    >>> describe_value(3), describe_value(max), describe_value([max])
    ('3 (int)', 'a function max', 'a list')
    """
    kind = _kind_of(value)
    if kind in ("a function", "a class"):
        return f"{kind} {getattr(value, '__name__', type(value).__name__)}"
    # The text of another object can be long, and its `repr` slow.
    return f"{in_line(value)} ({type(value).__name__})" if kind in ("a text", _UNKNOWN) else kind


def _kind_of(value: Any) -> str:
    for parent in type(value).__mro__:
        if parent.__name__ in _KINDS:
            return _KINDS[parent.__name__]
    if hasattr(value, "apply_chat_template"):
        return "a tokenizer"
    if hasattr(value, "generate") and hasattr(value, "parameters"):
        return "a model"
    return "a function" if callable(value) else _UNKNOWN
