"""The record that a run keeps of a reward, and a reward rebuilt from a record.

A resumed run compares `hash`, `state` and `is_relative` of its records with those of the earlier
run, so that a changed reward is noticed. The record of a kit reward (a reward class of grpo_nb) is
compared by its parameters, and the record of a user's reward by its source and by the values that
it holds. The table shows which of these three fields notices a change of a part of the reward; `-`
means none:

| part of a reward | kit reward | user's reward |
| --- | --- | --- |
| class name | `hash` | `hash` |
| source of the function, or of the class of an object | - | `hash` |
| parameters | `hash` | - |
| attributes, closure, defaults, arguments of a `functools.partial` | - | `state` |
| weight, `__name__` | `hash` (they are parameters) | - (a run compares them itself) |
| mark of `relative` | `is_relative` | `is_relative` |
| values that `state_dict` saves | - | - |
| base classes, global variables, called functions, `__slots__` | - | - |

Values that a user's reward holds are stored as hashes only, because runs are shared, and a value
may be a secret key. The source is stored as it is: do not write a key into it, not even as a
default. A long array is hashed as numpy shows it, without its middle. Nothing in a record is ever
executed.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import pprint
import re
import types
from collections.abc import Mapping
from typing import Any

from grpo_nb import rewards
from grpo_nb.rewards.base import Reward, RewardFunction, is_relative, relative, unwrap_partial
from grpo_nb.sandbox.outcomes import Limits
from grpo_nb.tasks.formats import AnswerFormat

# The public reward classes of `grpo_nb.rewards`, by name, without their base classes.
_KIT_REWARDS = {
    name: value
    for name, value in vars(rewards).items()
    if isinstance(value, type)
    and issubclass(value, Reward)
    and value not in (Reward, rewards.SlotReward)
}
# Parameters of kit rewards that are objects; a record has their fields.
_OBJECT_PARAMETERS = {"format": AnswerFormat, "limits": Limits}
# Attributes that are not part of `state`, because a run compares them by themselves.
_COMPARED_ELSEWHERE = ("__name__", "weight", "is_relative")
_NO_SOURCE = "source not available (defined interactively without a file)"
# An address changes from process to process. Some objects write their state after it, up to the >,
# which changes too: <threading.Event at 0x7f6b: unset>.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+[^>\n]*| with id=\d+")


def is_from_kit(reward: RewardFunction) -> bool:
    """Return True for a reward of the kit, and False for a function or subclass of a user."""
    return type(reward) in _KIT_REWARDS.values()


def _source_of(target: Any) -> str:
    """Return the source of a function, or of a class."""
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):
        if not isinstance(target, type):
            return _NO_SOURCE
    # A class that was defined in a notebook has no file, but its methods have one. So its source is
    # put together from its members.
    sources = []
    for name, member in vars(target).items():
        if isinstance(member, property):
            member = member.fget
        elif isinstance(member, functools.cached_property):
            member = member.func
        if inspect.isroutine(member):
            sources.append(_source_of(member))
        elif not name.startswith("__"):
            # A hash, because the value may be secret.
            sources.append(f"{name} = {_hash_of_value(member)}")
    return "\n".join(sources) or _NO_SOURCE


def record_of(reward: RewardFunction) -> dict[str, Any]:
    """Return the record of a reward, whose values can all be written as JSON.

    The docstring of this module lists what `hash`, `state` and `is_relative` cover.

    >>> from grpo_nb.rewards import correctness
    >>> record = record_of(correctness(tolerance=0.1))
    >>> record["kind"], record["parameters"]["tolerance"], rebuild_reward(record)
    ('correctness', 0.1, correctness(tolerance=0.1))
    """
    target = unwrap_partial(reward)
    source = _source_of(target if inspect.isroutine(target) else type(target))
    class_name = type(reward).__name__
    record = {"source": source, "is_relative": is_relative(reward)}
    if is_from_kit(reward):
        # The parameters are all that a kit reward holds. Its source is not hashed: a new version of
        # the package must not look like a changed reward.
        parameters = json.dumps(reward, default=_plain_value)
        return record | {
            "kind": class_name,
            "call": repr(reward),
            "parameters": json.loads(parameters),
            "hash": _short_hash(class_name + parameters),
            "state": "",
        }
    return record | {
        "kind": "",
        "call": "a function",
        "parameters": {},
        "hash": _short_hash(class_name + source),
        "state": _hash_of_state(reward),
    }


def difference_in_words(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how two records of a reward differ, in words; an empty text if they do not.

    >>> from grpo_nb.rewards import correctness
    >>> difference_in_words(record_of(correctness()), record_of(correctness(tolerance=0.5)))
    'it was correctness() and is correctness(tolerance=0.5)'
    """
    if before["hash"] != now["hash"]:
        if before["call"] != now["call"]:
            return f"it was {before['call']} and is {now['call']}"
        # `call` shows only the name of a format, so two formats may look the same.
        return "its parameters changed" if now["kind"] else "its source changed"
    if before.get("state", "") != now["state"]:
        return "it holds other values now (attributes, closure or arguments)"
    if bool(before.get("is_relative")) != bool(now.get("is_relative")):
        return "only one of the two is marked as relative"
    return ""


def rebuild_reward(record: Mapping[str, Any]) -> Reward | None:
    """Return the kit reward that a record describes.

    None for a user's own reward, for a `judge` (its `ask` function is not recorded), and for a
    record that cannot be used.
    """
    try:
        parameters = {**record["parameters"]}
        for name, parameter_class in _OBJECT_PARAMETERS.items():
            if parameters.get(name) is not None:
                parameters[name] = parameter_class(**parameters[name])
        reward = _KIT_REWARDS[record["kind"]](**parameters)
    except Exception:
        # A damaged or made-up record can fail in any way.
        return None
    return relative(reward) if record.get("is_relative") else reward


def _plain_value(value: Any) -> Any:
    """Return a value of numpy as one of Python, and an object as its fields, for `json`."""
    if hasattr(value, "item"):
        return value.item()
    # A field that is not compared does not affect a score, such as the `ask` function of a judge.
    fields = dataclasses.fields(value)
    return {field.name: getattr(value, field.name) for field in fields if field.compare}


def _hash_of_state(reward: RewardFunction) -> str:
    """Return the hash of the values that a reward holds; empty if they cannot be found."""
    try:
        return _hash_of_value(_held_values(reward))
    except Exception:
        # An object can fail in any way when it writes itself as text.
        return ""


def _hash_of_value(value: Any) -> str:
    """Return the hash of the text of a value.

    An object whose text contains an address, such as a client, a lock or a function, is hashed by
    its type or name only.
    """
    # pformat sorts sets, whose order changes from process to process, only if they do not fit into
    # the width.
    return _short_hash(_ADDRESS.sub("", pprint.pformat(value, width=1)))


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _held_values(reward: RewardFunction) -> Any:
    """Return the values that a user's reward holds, without those that are stored elsewhere."""
    if isinstance(reward, functools.partial):
        return [_held_values(reward.func), reward.args, reward.keywords]
    # A bound method holds the values of its object.
    reward = getattr(reward, "__self__", reward)
    names_in_state_dict = set()
    if hasattr(reward, "load_state_dict"):
        # What `state_dict` saves changes with each call. It may save `_count` as `count`, so names
        # are compared without underscores.
        names_in_state_dict = {str(name).strip("_") for name in reward.state_dict()}
    attributes = {
        name: value
        for name, value in vars(reward).items()
        if name not in _COMPARED_ELSEWHERE and name.strip("_") not in names_in_state_dict
    }
    if not isinstance(reward, types.FunctionType):
        return attributes
    closure = inspect.getclosurevars(reward).nonlocals
    return [closure, reward.__defaults__, reward.__kwdefaults__, attributes]
