"""The record that a run keeps of a reward, and a reward rebuilt from a record.

The record of a kit reward has its class and parameters, and that of a user's function its source.
Two rewards of one source can still score differently, as `get_soft_overlong_punishment(512, 128)`
and `get_soft_overlong_punishment(64, 8)` of TRL do. So `state` is a hash of the values that a
function or an object holds: its attributes, closure, defaults and the arguments of a
`functools.partial`. Global variables are not recorded. Nothing in a record is ever executed.
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
from grpo_nb.rewards.base import Reward, RewardFunction, unwrap_partial
from grpo_nb.sandbox.jobs import Limits
from grpo_nb.tasks.formats import AnswerFormat

#: The public reward classes of `grpo_nb.rewards`, by name. Their base classes are capitalised.
_KIT_REWARDS: dict[str, type[Reward]] = {
    name: value
    for name, value in vars(rewards).items()
    if isinstance(value, type) and issubclass(value, Reward) and name.islower()
}
# Parameters of kit rewards that are objects; a record has their fields.
_OBJECTS = {"format": AnswerFormat, "limits": Limits}
_STATE_SCHEME = "7:"
"""Start of each hash of a state. Only hashes with the same start can be compared."""


def source_of(reward: RewardFunction) -> str:
    """Return the source text of a function, of a wrapped function, or of an object's class."""
    function = unwrap_partial(reward)
    target = function
    if not inspect.isroutine(function) and not isinstance(function, type):
        target = type(function)
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):
        # A class that was defined in a notebook has no file, but its methods have one.
        sources = []
        for value in getattr(target, "__dict__", {}).values():
            if isinstance(value, types.FunctionType):
                sources.append(source_of(value))
        return "\n".join(sources) or "source not available (defined interactively without a file)"


def record_of(reward: RewardFunction) -> dict[str, Any]:
    """Return the record of a reward: `kind`, `parameters`, `source`, `hash` and `state`.

    All values can be written as JSON.

    >>> from grpo_nb.rewards import correctness
    >>> record = record_of(correctness(tolerance=0.1))
    >>> record["kind"], record["parameters"]["tolerance"], rebuild_reward(record)
    ('correctness', 0.1, correctness(tolerance=0.1))
    """
    source = source_of(reward)
    # Kit rewards are identified by their parameters and not by their source: a new version of the
    # package must not look like a changed reward.
    kind = type(reward).__name__
    is_from_kit = type(reward) in _KIT_REWARDS.values()
    # A user's reward has no recorded parameters: runs are shared, and a parameter may be a key.
    parameters = json.dumps(_fields_of(reward) if is_from_kit else None, default=_fields_of)
    identity = kind + parameters
    if not is_from_kit:
        identity += source
    return {
        "kind": kind if is_from_kit else "",
        "parameters": json.loads(parameters) or {},
        "source": source,
        # A reward has changed if its hash or its state differs.
        "hash": hashlib.sha256(identity.encode()).hexdigest()[:16],
        # The parameters of a kit reward are all that it holds.
        "state": "" if is_from_kit else _hash_of_state(reward),
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how two records of a reward differ, in words; an empty text if they do not.

    >>> from grpo_nb.rewards import correctness
    >>> differences(record_of(correctness()), record_of(correctness(tolerance=0.5)))
    'tolerance was 0.0, is 0.5'
    """
    if before["hash"] == now["hash"]:
        # A run of an earlier version has no state, or another kind of hash.
        states = {before.get("state") or "", now["state"]}
        are_comparable = all(state.startswith(_STATE_SCHEME) for state in states)
        if are_comparable and len(states) > 1:
            return "it holds other values now (attributes, closure or arguments)"
        return ""
    old = {"kind": before["kind"] or "a function", **before["parameters"]}
    new = {"kind": now["kind"] or "a function", **now["parameters"]}
    changes = [
        f"{name} was {old.get(name)!r}, is {new.get(name)!r}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    return ", ".join(changes) or "its source changed"


def rebuild_reward(record: Mapping[str, Any]) -> Reward | None:
    """Return the kit reward that a record describes.

    None for the record of a user's own reward, for that of a `judge`, whose `ask` function is not
    recorded, and for a record that cannot be used.
    """
    try:
        parameters = {}
        for name, value in record["parameters"].items():
            if name in _OBJECTS and value is not None:
                value = _OBJECTS[name](**value)
            parameters[name] = value
        return _KIT_REWARDS[record["kind"]](**parameters)
    except Exception:
        # A damaged or made-up record can fail in any way.
        return None


def _fields_of(value: Any) -> dict[str, Any]:
    # A field that is not compared does not affect a score, such as the `ask` function of a judge.
    values = {}
    for field in dataclasses.fields(value):
        if field.compare:
            values[field.name] = getattr(value, field.name)
    return values


def _hash_of_state(reward: RewardFunction) -> str:
    """Return the hash of the values that a reward holds; empty if they cannot be written as JSON.

    An object that contains itself cannot. Entries of a dict with other keys than texts and numbers
    are left out.
    """
    function = unwrap_partial(reward)
    owner = function if inspect.isroutine(function) else type(function)
    to_json = functools.partial(_as_json, packages={"__main__", _package_of(owner)})
    held = to_json(reward)
    if isinstance(held, dict):
        # A run records these two on their own.
        held = {name: value for name, value in held.items() if name not in ("__name__", "weight")}
    try:
        content = json.dumps(held, default=to_json, skipkeys=True, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return ""
    digest = hashlib.sha256(content.encode()).hexdigest()
    return f"{_STATE_SCHEME}{digest[:16]}"


def _as_json(value: Any, packages: set[str]) -> Any:
    """Return what `json.dumps` writes for a value that JSON does not know.

    The result is the same in every process. An object of another package than the reward's own
    counts by its `repr`, of a large array the ends. If the `repr` has an address, as that of a
    client or a lock, the object counts by its type.
    """
    if isinstance(value, functools.partial):
        return {"function": value.func, "arguments": value.args, "keywords": value.keywords}
    if isinstance(value, types.MethodType):
        return {"function": value.__func__, "object": value.__self__}
    if isinstance(value, types.FunctionType):
        return {
            "source": source_of(value),
            "closure": inspect.getclosurevars(value).nonlocals,
            "defaults": [value.__defaults__, value.__kwdefaults__],
            **vars(value),
        }
    if isinstance(value, type):
        return repr(value)
    if isinstance(value, (set, frozenset)):
        # The order of a set changes from process to process.
        return sorted(map(repr, value))
    if dataclasses.is_dataclass(value):
        return _fields_of(value)
    if _package_of(type(value)) in packages and hasattr(value, "__dict__"):
        return _attributes_of(value)
    shown = repr(value)
    return str(type(value)) if " at 0x" in shown else shown


def _attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, without those that its `state_dict` saves.

    A checkpoint has the saved ones. The attribute `_count` may be saved as `count`.
    """
    saved = set()
    if hasattr(value, "load_state_dict"):
        saved = {str(name).strip("_") for name in value.state_dict()}
    return {name: held for name, held in vars(value).items() if name.strip("_") not in saved}


def _package_of(owner: Any) -> str:
    return (getattr(owner, "__module__", None) or "").partition(".")[0]
