"""The record that a run keeps of a reward, and a reward rebuilt from a record.

The record of a kit reward has its class and parameters, and that of a user's function its source.
What else a function or an object holds (attributes, a closure, arguments) is in `state` as a hash,
see `grpo_nb.scoring.held_values`. Global variables and the functions that a reward calls are not
recorded. Nothing in a record is ever executed.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import types
from collections.abc import Mapping
from typing import Any

from grpo_nb import rewards
from grpo_nb.rewards.base import Reward, RewardFunction, unwrapped
from grpo_nb.sandbox.jobs import Limits
from grpo_nb.scoring.held_values import are_same_values, hash_of_values
from grpo_nb.tasks.formats import AnswerFormat

#: The public reward classes of `grpo_nb.rewards`, by name. Their base classes are capitalised.
_KIT_REWARDS: dict[str, type[Reward]] = {
    name: value
    for name, value in vars(rewards).items()
    if isinstance(value, type) and issubclass(value, Reward) and name.islower()
}
# Parameters of kit rewards that are objects; a record has their fields.
_OBJECTS = {"format": AnswerFormat, "limits": Limits}


def source_of(reward: RewardFunction) -> str:
    """Return the source text of a function, of a wrapped function, or of an object's class."""
    function = unwrapped(reward)
    has_source = inspect.isroutine(function) or isinstance(function, type)
    target = function if has_source else type(function)
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):
        # A class that was defined in a notebook has no file, but its methods have one.
        methods = [
            value
            for value in getattr(target, "__dict__", {}).values()
            if isinstance(value, types.FunctionType)
        ]
        sources = [source_of(method) for method in methods]
        return "\n".join(sources) or "source not available (defined interactively without a file)"


def record_of(reward: RewardFunction) -> dict[str, Any]:
    """Return the record of a reward: `kind`, `parameters`, `source`, `hash` and `state`.

    All values can be written as JSON.

    >>> from grpo_nb.rewards import length
    >>> record = record_of(length(5, 9))
    >>> record["kind"], record["parameters"]["high"], rebuilt(record) == length(5, 9)
    ('length', 9, True)
    """
    source = source_of(reward)
    kind = type(reward).__name__
    is_from_kit = type(reward) in _KIT_REWARDS.values()
    arguments = None
    if isinstance(reward, functools.partial):
        arguments = [reward.args, reward.keywords]
    elif isinstance(reward, Reward):
        arguments = _fields_of(reward)
    written = json.dumps(arguments, default=_as_data, skipkeys=True)
    identity = kind + written + ("" if is_from_kit else source)
    return {
        "kind": kind if is_from_kit else "",
        # Not of a user's own reward: runs are shared, and a parameter may be a key.
        "parameters": json.loads(written) if is_from_kit else {},
        "source": source,
        # Of source and parameters. A reward has changed if its hash or its state differs.
        "hash": hashlib.sha256(identity.encode()).hexdigest()[:16],
        "state": hash_of_values(reward, source_of),
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how two records of a reward differ, in words; an empty text if they do not.

    >>> from grpo_nb.rewards import correctness
    >>> differences(record_of(correctness()), record_of(correctness(tolerance=0.5)))
    'tolerance was 0.0, is 0.5'
    """
    if before["hash"] == now["hash"]:
        if are_same_values(before.get("state"), now.get("state")):
            return ""
        return "it holds other values now (attributes, closure or arguments)"
    old = {"kind": before["kind"] or "a function", **before["parameters"]}
    new = {"kind": now["kind"] or "a function", **now["parameters"]}
    changes = []
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            changes.append(f"{name} was {old.get(name)!r}, is {new.get(name)!r}")
    return ", ".join(changes) or "its source or its arguments changed"


def rebuilt(record: Mapping[str, Any]) -> Reward | None:
    """Return the kit reward that a record describes.

    None for the record of a user's own reward, for that of a `judge`, whose `ask` function is not
    recorded, and for a record that cannot be used.
    """
    try:
        parameters = {}
        for name, value in record["parameters"].items():
            is_object = name in _OBJECTS and value is not None
            parameters[name] = _OBJECTS[name](**value) if is_object else value
        return _KIT_REWARDS[record["kind"]](**parameters)
    except Exception:
        # A damaged or made-up record can fail in any way.
        return None


def _fields_of(value: Any) -> dict[str, Any]:
    # A field that is not compared does not affect a score, such as the `ask` function of a judge.
    fields = [field.name for field in dataclasses.fields(value) if field.compare]
    return {name: getattr(value, name) for name in fields}


def _as_data(value: Any) -> Any:
    """Return the fields of a kit object, and only the type of any other: it may hold anything."""
    if isinstance(value, (Reward, *_OBJECTS.values())):
        return _fields_of(value)
    return type(value).__name__
