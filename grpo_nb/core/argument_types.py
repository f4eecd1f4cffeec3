"""Refuse arguments of a wrong type at public functions, with the line to write instead.

A public function first calls `require_types` for arguments whose wrong type would otherwise raise
late, or without naming the argument. Classes are recognised by name, because a notebook may have
reloaded the module of a class. Models and tokenizers are recognised by a method, so that a stand-in
is accepted too. No class of the kit is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ArgumentRule:
    """Values that an argument accepts."""

    accepted: str
    """Description of the accepted values."""
    example: str
    """Line of code that makes such a value, or the value itself."""
    classes: Iterable[str] = ()
    """Names of the accepted classes. Their subclasses are accepted too."""
    method: str = ""
    """Method that an accepted object has; empty if `classes` decides."""


_PATH = ("str", "PurePath")
_LOAD_MODEL = "model, tokenizer = gn.load_model(settings)"
_RUN_OR_MODEL = ArgumentRule(
    "a run, a pair of model and tokenizer, or the folder of a model",
    "(model, tokenizer)",
    ("Run", "tuple", *_PATH),
)
_RULES = {
    "settings": ArgumentRule(
        "gn.Settings", 'settings = gn.preset("auto", max_steps=100)', ("Settings",)
    ),
    "task": ArgumentRule("a Task", "task = gn.load_task(rows, settings)", ("Task",)),
    "model": ArgumentRule("a model", _LOAD_MODEL, method="generate"),
    "tokenizer": ArgumentRule("a tokenizer", _LOAD_MODEL, method="apply_chat_template"),
    "run": ArgumentRule("a run or its folder", 'run = gn.open_run("runs/name")', ("Run", *_PATH)),
    "run_or_model": _RUN_OR_MODEL,
    "against": _RUN_OR_MODEL,
    "merged": ArgumentRule(
        "a merged export", 'merged = gn.export_merged(run, "exports/name")', ("Export",)
    ),
}


def require_types(signature: str, /, *, optional: Iterable[str] = (), **values: Any) -> None:
    """Raise if an argument of a public function has a wrong type.

    Args:
        signature: The call as it should be written, such as
            `gn.score(rewards, completions, rows)`.
        optional: Arguments that may be None.
        **values: The arguments by name.

    Raises:
        TypeError: An argument has a wrong type.

    >>> require_types("gn.plan(settings)", settings=3)
    Traceback (most recent call last):
    TypeError: settings is of type int, but gn.plan(settings) takes gn.Settings. Write ...
    """
    for name, value in values.items():
        if value is None and name in optional:
            continue
        rule = _RULES[name]
        class_names = {parent.__name__ for parent in type(value).__mro__}
        # Some objects, such as mocks, have every attribute, even one with an empty name.
        has_method = bool(rule.method) and hasattr(value, rule.method)
        if not has_method and class_names.isdisjoint(rule.classes):
            # The value itself is not shown: its text can be long, and its `repr` slow.
            raise TypeError(
                f"{name} is of type {type(value).__name__}, but {signature} takes "
                f"{rule.accepted}. Write {rule.example}."
            )
