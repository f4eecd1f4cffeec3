"""What a run keeps of a reward, how two records differ, and a reward made again from one. Nothing that a record holds is run.

A reward of the kit is its class and parameters, a function of the user's its source. What such a function uses from outside of
it (constants, other functions, a closure) is not looked at: another value there is the user's to know.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import types
from collections.abc import Mapping
from typing import Any

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
    """Return what a run keeps of a reward, as JSON has it: `kind`, `parameters`, `source` and `hash`.

    >>> from grpo_nb.rewards import length
    >>> record = record_of(length(5, 9))
    >>> record["kind"], record["parameters"]["high"], rebuilt(record) == length(5, 9)
    ('length', 9, True)
    """
    is_kits = type(reward) in kinds().values()
    given = [reward.args, reward.keywords] if isinstance(reward, functools.partial) else _fields_of(reward)
    written, source = json.dumps(given, default=_fields_of, skipkeys=True), source_of(reward)
    identity = type(reward).__name__ + written + ("" if is_kits else source)
    return {
        "kind": type(reward).__name__ if is_kits else "",
        # Not of the user's own: what is written into a run is shared, and one of them may be a key.
        "parameters": json.loads(written) if is_kits else {},
        "source": source,
        "hash": hashlib.sha256(identity.encode()).hexdigest()[:16],
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
    if old or new:
        keys = {**old, **new}
        return ", ".join(
            f"{key} was {old.get(key)!r}, is {new.get(key)!r}" for key in keys if old.get(key) != new.get(key)
        )
    if before["source"] != now["source"]:
        return "its source is another"
    return "" if before["hash"] == now["hash"] else "its arguments are others"


def rebuilt(record: Mapping[str, Any]) -> Reward | None:
    """Make a reward of the kit again from what was recorded of it; None for others, and where the record does not fit."""
    kind = kinds().get(record.get("kind", ""))
    try:
        parameters = {
            name: _HELD[name](**value) if name in _HELD and isinstance(value, Mapping) else value
            for name, value in record["parameters"].items()
        }
        return kind(**parameters) if kind else None
    except (TypeError, ValueError, AttributeError):  # a damaged record, or one made up by somebody
        return None


def _fields_of(value: Any) -> Any:
    """What stands for a value that JSON has not; of an object that is no data only its type, for it may hold anything."""
    if isinstance(value, (Reward, *_HELD.values())):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.compare}
    return type(value).__name__
