"""What a run keeps of a reward, how two records differ, and a reward made again from one. Nothing that a record holds is run.

A reward of the kit is its class and parameters, a function of the user's its source. What such a function uses from outside
(constants, other functions, a closure) is kept as hashes beside it: it may be a key, and it may be a cache, so that another
value there is told and refuses nothing. Of objects that are neither plain data nor functions only the type counts.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import re
import types
from collections.abc import Mapping
from typing import Any

from grpo_nb.core.own_code import globals_used, is_own_module
from grpo_nb.rewards.base import Reward, RewardFunction, kinds, unwrapped
from grpo_nb.sandbox.jobs import Limits
from grpo_nb.tasks.formats import AnswerFormat

_HELD = {"format": AnswerFormat, "limits": Limits}


def source_of(reward: RewardFunction) -> str:
    """Return the source text of a reward: of the function, of what a `functools.partial` wraps, or of the object's class."""
    function = unwrapped(reward)
    target = function if inspect.isroutine(function) or isinstance(function, type) else type(function)
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):
        # A class of a notebook has no file there, but its methods have.
        methods = [held for held in vars(target).values() if isinstance(held, types.FunctionType)]
        return "\n".join(map(source_of, methods)) or "source not available (defined interactively without a file)"


def record_of(reward: RewardFunction) -> dict[str, Any]:
    """Return what a run keeps of a reward, as JSON has it: `kind`, `parameters`, `source`, `uses` and `hash`.

    >>> from grpo_nb.rewards import length
    >>> record = record_of(length(5, 9))
    >>> record["kind"], record["parameters"]["high"], rebuilt(record) == length(5, 9)
    ('length', 9, True)
    """
    is_kits = type(reward) in kinds().values()
    given = [reward.args, reward.keywords] if isinstance(reward, functools.partial) else _fields_of(reward)
    source = source_of(reward)
    return {
        "kind": type(reward).__name__ if is_kits else "",
        # Not of the user's own: what is written into a run is shared, and one of them may be a key.
        "parameters": json.loads(json.dumps(given, default=_written)) if is_kits else {},
        "source": source,
        "uses": {} if is_kits else _used_by(reward),
        "hash": _digest([type(reward).__name__, given, "" if is_kits else source]),
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say how two records of a reward differ, in words; empty where they do not.

    >>> from grpo_nb.rewards import correctness
    >>> differences(record_of(correctness()), record_of(correctness(tolerance=0.5)))
    'tolerance was 0.0, is 0.5'
    """
    if before["kind"] != now["kind"]:
        return f"it was {before['kind'] or 'a function'}, is {now['kind'] or 'a function'}"
    old, new = before["parameters"], now["parameters"]
    said = [
        f"{key} was {old.get(key)!r}, is {new.get(key)!r}" for key in {**old, **new} if old.get(key) != new.get(key)
    ]
    if not now["kind"] and before["source"] != now["source"]:
        said.append("its source is another")
    used = {**before["uses"], **now["uses"]}
    if changed := [name for name in used if before["uses"].get(name) != now["uses"].get(name)]:
        said.append(f"other values of {', '.join(changed)}")
    return ", ".join(said) or ("" if before["hash"] == now["hash"] else "its arguments are others")


def rebuilt(record: Mapping[str, Any]) -> Reward | None:
    """Make a reward of the kit again from what was recorded of it; None for others, and where the record does not fit."""
    kind = kinds().get(record.get("kind", ""))
    if kind is None:
        return None
    try:
        parameters = {
            name: _HELD[name](**value) if name in _HELD and isinstance(value, Mapping) else value
            for name, value in record["parameters"].items()
        }
        return kind(**parameters)
    except (TypeError, ValueError, AttributeError):  # a damaged record, or one made up by somebody
        return None


def _used_by(reward: RewardFunction) -> dict[str, str]:
    """What a function takes from outside of it, and what those functions of the user's take, by name: a hash of each."""
    found: dict[str, str] = {}
    waiting: list[Any] = [unwrapped(reward)]
    if isinstance(reward, functools.partial):
        found = {name: _digest(value) for name, value in reward.keywords.items()}
    while waiting:
        for name, value in _names_in(waiting.pop()).items():
            if name not in found and not isinstance(value, types.ModuleType):
                found[name] = _digest(value)
                if isinstance(value, (types.FunctionType, type)) and is_own_module(value.__module__):
                    waiting.append(value)
    return found


def _names_in(target: Any) -> dict[str, Any]:
    """What a function looks up outside of itself, or the methods of a class do; of an object its attributes, too."""
    if isinstance(target, type):
        methods = [held for held in vars(target).values() if isinstance(held, types.FunctionType)]
        return {name: value for method in methods for name, value in _names_in(method).items()}
    if not isinstance(target, types.FunctionType):
        return {**_names_in(type(target)), **getattr(target, "__dict__", {})}
    used = inspect.getclosurevars(target).nonlocals
    return used | {name: target.__globals__[name] for name in globals_used(target.__code__) & target.__globals__.keys()}


def _fields_of(value: Any) -> dict[str, Any]:
    fields = dataclasses.fields(value) if isinstance(value, (Reward, *_HELD.values())) else ()
    return {field.name: getattr(value, field.name) for field in fields if field.compare}


def _digest(value: Any) -> str:
    try:
        text = json.dumps(value, sort_keys=True, default=_written)
    except (TypeError, ValueError, RecursionError):  # keys of several types, or what refers to itself
        text = type(value).__name__
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _written(value: Any) -> Any:
    """What stands for a value that JSON has not."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, re.Pattern):
        return [value.pattern, int(value.flags)]
    if isinstance(value, (types.FunctionType, type)) and is_own_module(value.__module__):
        return source_of(value)
    return _fields_of(value) or type(value).__name__
