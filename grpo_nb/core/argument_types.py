"""Usual mistakes at public functions: an argument of another kind, or two arguments that are swapped.

`require` is called first in each public function. It names what came, why it cannot be used, and the line to write.
Kinds are told from names of classes and from attributes, so that nothing is imported here, and a stand-in that
has the methods of a model or a tokenizer passes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

_OWN_CLASSES = {
    "grpo_nb.config.settings.Settings": "settings",
    "grpo_nb.tasks.task.Task": "task",
    "grpo_nb.runs.run_folder.Run": "run",
    "grpo_nb.evaluation.comparison.Comparison": "comparison",
    "grpo_nb.evaluation.results.Evaluation": "evaluation",
    "grpo_nb.evaluation.heldout.HeldOut": "held-out set",
    "grpo_nb.export.result.Export": "export",
}
_WORDS = {
    "settings": "gn.Settings",
    "task": "a Task",
    "run": "a Run",
    "comparison": "a Comparison",
    "evaluation": "an Evaluation",
    "held-out set": "a set of held-out questions",
    "export": "an Export",
    "model": "a model",
    "tokenizer": "a tokenizer",
    "pair": "a pair of model and tokenizer",
    "frame": "a DataFrame",
    "dataset": "a datasets.Dataset",
    "rewards": "a list of reward functions",
    "function": "a function",
    "path": "a path",
    "dict": "a dict",
    "texts": "a list of texts",
    "list": "a list",
    "None": "None",
}
_TAKES = {
    "settings": "gn.Settings",
    "task": "a Task",
    "rows": "a Task or rows",
    "model": "a model",
    "tokenizer": "a tokenizer",
    "run": "a run or its folder",
    "exported": "a run, its folder, or an export",
    "questions": "a Task or held-out questions",
    "completions": "a list of completions",
    "source": "rows, a file or the name of a data set",
    "subject": "a run, a model or its folder",
    "adapter": "the folder or the Hub id of a LoRA",
    "rewards": "reward functions",
}
_WRITE = {
    "settings": 'settings = gn.preset("auto", max_steps=100)',
    "task": "task = gn.load_task(...)",
    "rows": "task = gn.load_task(...)",
    "model": "model, tokenizer = gn.load_model(settings)",
    "tokenizer": "model, tokenizer = gn.load_model(settings)",
    "run": 'run = gn.open_run("runs/name")',
    "exported": 'run = gn.open_run("runs/name")',
    "questions": "task = gn.load_task(...)",
    "completions": 'completions=["<answer>7</answer>"]',
    "source": 'task = gn.load_task("rows.csv", settings)',
    "subject": 'gn.evaluate(gn.open_run("runs/name"))',
    "adapter": 'gn.load_model(settings, adapter="a/folder")',
    "rewards": "rewards = [gn.rewards.correctness()]",
}
# Kinds of values that stand in the place of another often enough for a line of their own.
_INSTEAD: dict[tuple[str, str], tuple[str, str]] = {
    ("settings", "trl"): (
        "a run has more settings than a trainer, such as those that load the model",
        'settings = gn.preset("auto", learning_rate=5e-6, num_generations=8), with the names of TRL',
    ),
    ("settings", "dict"): (
        "the names in it have not been checked",
        'settings = gn.preset("auto", **settings)',
    ),
    ("settings", "text"): (
        "the text may be the name of a preset or of a model",
        'settings = gn.preset({value!r}), or settings = gn.preset("auto", model={value!r})',
    ),
    ("task", "frame"): (
        "a Task also has the prompts, the answer format and held-out questions",
        'task = gn.load_task(data, settings, columns={"question": "...", "answer": "..."})',
    ),
    ("task", "dataset"): (
        "a Task also has the answer format and held-out questions",
        "the task itself where this is its task.train; else task = gn.load_task(dataset, settings)",
    ),
    ("task", "text"): (
        "its rows have to be read first",
        "task = gn.load_task({value!r}, settings)",
    ),
    ("task", "path"): (
        "its rows have to be read first",
        "task = gn.load_task({value!r}, settings)",
    ),
    ("task", "list"): ("the rows have no prompts yet", "task = gn.load_task(rows, settings)"),
    ("model", "text"): (
        "the model has to be loaded first",
        'model, tokenizer = gn.load_model(gn.preset("auto", model={value!r}))',
    ),
    ("model", "pair"): (
        "model and tokenizer are two arguments",
        "model, tokenizer = gn.load_model(settings)",
    ),
    ("model", "run"): (
        "a run holds its model",
        "run.model, or gn.evaluate(run) and gn.compare(run)",
    ),
    ("adapter", "run"): ("a run holds more than its LoRA", "adapter=run.adapter_path"),
    ("adapter", "model"): (
        "the LoRA is read from files",
        'model.save_pretrained("lora"), then adapter="lora"',
    ),
    ("source", "task"): ("it is loaded already", "the task itself"),
    ("rewards", "text"): ("its name is no function", "rewards=[gn.rewards.correctness()]"),
    ("rewards", "texts"): ("their names are no functions", "rewards=[gn.rewards.correctness()]"),
    ("subject", "model"): (
        "a model answers with its tokenizer",
        "gn.evaluate((model, tokenizer), task)",
    ),
    ("subject", "export"): ("an export is asked from its folder", "gn.evaluate(export.path, task)"),
    ("subject", "task"): ("somebody has to answer its questions", "gn.evaluate(run, task)"),
}


def kind_of(value: Any) -> str:
    """Return the kind of a value in one word, `""` for a kind that is not known here.

    >>> kind_of("first"), kind_of({"a": 1}), kind_of(None), kind_of(3)
    ('text', 'dict', 'None', '')
    """
    if value is None:
        return "None"
    if isinstance(value, type):
        return "class"
    if isinstance(value, str):
        return "text"
    if isinstance(value, PathLike):
        return "path"
    if isinstance(value, Mapping) and type(value).__module__ == "builtins":
        return "dict"
    if isinstance(value, (list, tuple)):
        return _kind_of_list(value)
    return _kind_of_class(type(value)) or _kind_by_attributes(value)


@functools.cache
def _kind_of_class(kind: type) -> str:
    """Return what the classes that a class derives from say; by name, for a module may have been reloaded."""
    for parent in kind.__mro__:
        package = parent.__module__.partition(".")[0]
        own = _OWN_CLASSES.get(f"{parent.__module__}.{parent.__qualname__}")
        if own is not None:
            return own
        if parent.__name__ in ("TrainingArguments", "GRPOConfig", "UnslothGRPOConfig"):
            return "trl"
        if parent.__name__ == "DataFrame":
            return "frame"
        if package == "datasets" and "Dataset" in parent.__name__:
            return "dataset"
        if parent.__name__ in ("PreTrainedTokenizerBase", "ProcessorMixin"):
            return "tokenizer"
        if package == "torch" and parent.__name__ == "Module":
            return "model"
    return ""


def _kind_by_attributes(value: Any) -> str:
    if hasattr(value, "apply_chat_template"):
        return "tokenizer"
    if hasattr(value, "generate") and hasattr(value, "parameters"):
        return "model"
    return "function" if callable(value) else ""


def _kind_of_list(value: list | tuple) -> str:
    if not value:
        return "list"
    if len(value) == 2 and not any(isinstance(held, (list, tuple)) for held in value):
        first, second = kind_of(value[0]), kind_of(value[1])
        # A stand-in for either is of no known kind, but numbers are no stand-ins.
        is_unknown = first == second == "" and not isinstance(value[0], (int, float))
        if "model" in (first, second) or "tokenizer" in (first, second) or is_unknown:
            return "pair"
    if all(isinstance(held, str) for held in value):
        return "texts"
    return "rewards" if all(callable(held) for held in value) else "list"


def described(value: Any) -> str:
    """Return a value in words, with its class where that says more.

    >>> described("correctness"), described(3), described([max])
    ("the text 'correctness'", '3 (int)', 'a list of reward functions')
    """
    kind = kind_of(value)
    if kind == "class":
        return f"the class {value.__name__}"
    if kind == "text":
        return f"the text {value!r:.60}"
    if kind == "trl":
        return f"a {type(value).__name__} of TRL"
    if kind == "function":
        return f"the function {getattr(value, '__name__', type(value).__name__)}"
    if kind == "dataset":
        return f"a datasets.{type(value).__name__}"
    return _WORDS.get(kind) or f"{value!r:.60} ({type(value).__name__})"


_OF_THE_KIT = {
    "settings",
    "task",
    "run",
    "comparison",
    "evaluation",
    "held-out set",
    "export",
    "trl",
}
_OF_DATA = {"frame", "dataset", "dict", "list", "texts", "text", "path"}
_OF_A_MODEL = {"model", "tokenizer", "pair"}
_OF_CODE = {"rewards", "function", "class"}
# The kinds that an argument cannot be. Where a stand-in may come, only what is known to be something else is refused.
_REFUSED: dict[str, set[str]] = {
    "model": {*_OF_THE_KIT, *_OF_DATA, *_OF_CODE, "tokenizer", "pair", "None"},
    "tokenizer": {*_OF_THE_KIT, *_OF_DATA, *_OF_CODE, "model", "pair", "None"},
    "rewards": {*_OF_THE_KIT, *_OF_DATA - {"list"}, "tokenizer", "None"},
    "rows": {*_OF_THE_KIT - {"task"}, *_OF_A_MODEL, *_OF_CODE, "None"},
    "questions": {*_OF_THE_KIT - {"task", "held-out set"}, *_OF_A_MODEL, *_OF_CODE},
    "completions": {*_OF_THE_KIT, *_OF_A_MODEL, *_OF_CODE, "dict", "None"},
    "source": {*_OF_THE_KIT, *_OF_A_MODEL, *_OF_CODE, "None"},
    "subject": {*_OF_THE_KIT - {"run"}, *_OF_CODE, *_OF_DATA - {"text", "path"}, "model", "tokenizer", "None"},
}  # fmt: skip
# The kinds that an argument can be, where nothing stands in for them.
_ACCEPTED: dict[str, set[str]] = {
    "settings": {"settings"},
    "task": {"task"},
    "run": {"run", "text", "path"},
    "exported": {"run", "text", "path", "export"},
    "adapter": {"text", "path"},
}
# The arguments in which a kind belongs, to see that two are swapped.
_ROLES_OF = {
    "settings": {"settings"},
    "trl": {"settings"},
    "task": {"task", "rows", "questions"},
    "frame": {"rows", "questions"},
    "dataset": {"rows", "questions"},
    "run": {"run", "exported", "subject"},
    "pair": {"subject"},
    "model": {"model"},
    "tokenizer": {"tokenizer"},
    "rewards": {"rewards"},
    "function": {"rewards"},
    "texts": {"completions"},
}


def _is_fit(role: str, kind: str) -> bool:
    """Return whether an argument can be of a kind."""
    return kind in _ACCEPTED[role] if role in _ACCEPTED else kind not in _REFUSED[role]


def require(
    call: str,
    /,
    *,
    optional: Iterable[str] = (),
    roles: Mapping[str, str] | None = None,
    **values: Any,
) -> None:
    """Refuse arguments of another kind than a public function takes.

    Args:
        call: The call as it should be written, such as `gn.score(rewards, completions, rows)`.
        optional: The arguments that may be None.
        roles: What an argument must be, where its name does not say so.
        **values: The arguments by name.

    Raises:
        TypeError: An argument is of another kind: what came, why it cannot be used, and the line to write.

    >>> require("gn.open_run(path)", run=3)
    Traceback (most recent call last):
    TypeError: run = 3 (int), but gn.open_run takes a run or its folder. Write run = gn.open_run("runs/name").
    """
    roles = {name: (roles or {}).get(name, name) for name in values}
    wrong = {
        name: value
        for name, value in values.items()
        if not (_is_fit(roles[name], kind_of(value)) or (value is None and name in optional))
    }
    if not wrong:
        return
    function = call.partition("(")[0]
    swapped = [
        name for name, value in values.items() if _belongs_elsewhere(name, value, values, roles)
    ]
    name, value = next(iter(wrong.items()))
    if len(swapped) > 1 and name in swapped:
        told = " and ".join(f"{name} is {described(values[name])}" for name in swapped)
        raise TypeError(
            f"{told}: arguments are swapped, and {function} reads them in this order. Write {call}."
        )
    role = roles[name]
    why, write = _INSTEAD.get((role, kind_of(value)), ("", _WRITE[role]))
    if "{value!r}" in write:  # a text or a path
        write = write.replace("{value!r}", repr(str(value)))
    because = f" ({why})" if why else ""
    raise TypeError(
        f"{name} = {described(value)}, but {function} takes {_TAKES[role]}{because}. Write {write}."
    )


def _belongs_elsewhere(
    name: str, value: Any, values: Mapping[str, Any], roles: Mapping[str, str]
) -> bool:
    """Return whether a value is no fit for its argument, and of the kind of another argument that is no fit either."""
    kind = kind_of(value)
    if _is_fit(roles[name], kind):
        return False
    others = [
        other for other in values if other != name and roles[other] in _ROLES_OF.get(kind, ())
    ]
    return any(not _is_fit(roles[other], kind_of(values[other])) for other in others)
