"""What a run keeps of a reward, how two records differ, and a reward made again from one. Nothing that a record holds is run.

A reward of the kit is its class and parameters, a function of the user's its source. What a function or an object holds beside
that (attributes, a closure, arguments) is in `state` as a hash: `grpo_nb.scoring.state`. Global variables and other functions
that it calls are not looked at: another value there is the user's to know.
"""

import functools
import hashlib
import inspect
import json
import types
from collections.abc import Mapping
from typing import Any

from grpo_nb.rewards.base import Reward, RewardFunction, kinds, unwrapped
from grpo_nb.sandbox.jobs import Limits
from grpo_nb.scoring.state import is_same_state, state_of
from grpo_nb.tasks.formats import AnswerFormat

_HELD = {"format": AnswerFormat, "limits": Limits}


def source_of(reward: RewardFunction) -> str:
    """Return the source text of a reward: of the function, of what a `functools.partial` wraps, or of the object's class."""
    function = unwrapped(reward)
    target = (
        function if inspect.isroutine(function) or isinstance(function, type) else type(function)
    )
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):
        # A class of a notebook has no file there, but its methods have.
        methods = [held for held in vars(target).values() if isinstance(held, types.FunctionType)]
        return (
            "\n".join(map(source_of, methods))
            or "source not available (defined interactively without a file)"
        )


def record_of(reward: RewardFunction) -> dict[str, Any]:
    """Return what a run keeps of a reward, as JSON has it: `kind`, `parameters`, `source`, `hash` and `state`.

    >>> from grpo_nb.rewards import length
    >>> record = record_of(length(5, 9))
    >>> record["kind"], record["parameters"]["high"], rebuilt(record) == length(5, 9)
    ('length', 9, True)
    """
    is_kits, source = type(reward) in kinds().values(), source_of(reward)
    is_partial = isinstance(reward, functools.partial)
    given = (
        [reward.args, reward.keywords]
        if is_partial
        else vars(reward)
        if isinstance(reward, Reward)
        else None
    )
    written = json.dumps(given, default=_as_data, skipkeys=True)
    identity = type(reward).__name__ + written + ("" if is_kits else source)
    return {
        "kind": type(reward).__name__ if is_kits else "",
        # Not of the user's own: what is written into a run is shared, and one of them may be a key.
        "parameters": json.loads(written) if is_kits else {},
        "source": source,
        # As in earlier versions: `state` came later, so that the hashes of old runs still hold.
        "hash": hashlib.sha256(identity.encode()).hexdigest()[:16],
        "state": state_of(reward, source_of),
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say how two records of a reward differ, in words; empty where they do not.

    >>> from grpo_nb.rewards import correctness
    >>> differences(record_of(correctness()), record_of(correctness(tolerance=0.5)))
    'tolerance was 0.0, is 0.5'
    """
    if before["hash"] == now["hash"]:
        if is_same_state(before.get("state"), now.get("state")):
            return ""
        return "it holds other values now (attributes, closure or arguments)"
    old, new = (
        {"kind": record["kind"] or "a function", **record["parameters"]} for record in (before, now)
    )
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    told = [f"{key} was {old.get(key)!r}, is {new.get(key)!r}" for key in changed]
    return ", ".join(told) or "its source or its arguments are others"


def rebuilt(record: Mapping[str, Any]) -> Reward | None:
    """Make a reward of the kit again from what was recorded of it; None for others, and where the record does not fit."""
    kind = kinds().get(record.get("kind", ""))
    try:
        parameters = {
            name: _HELD[name](**value) if name in _HELD and value is not None else value
            for name, value in record["parameters"].items()
        }
        return kind(**parameters) if kind else None
    except (TypeError, ValueError, AttributeError):  # a damaged record, or one made up by somebody
        return None


def _as_data(value: Any) -> Any:
    """What stands for a value that JSON has not; of an object that is no data only its type, for it may hold anything."""
    return vars(value) if isinstance(value, (Reward, *_HELD.values())) else type(value).__name__
