"""The record that a run keeps of a reward, and a reward rebuilt from a record.

The record of a kit reward (a reward class of grpo_nb) has its class and parameters, and the record
of a user's function has its source. Two rewards with the same source can still score differently,
as TRL's `get_soft_overlong_punishment(512, 128)` and `get_soft_overlong_punishment(64, 8)` do. So
`state` is a hash of the values that a function or an object holds: its attributes, closure,
defaults and the arguments of a `functools.partial`. A bound method holds the values of its object.

Global variables are not recorded. An object among these values is recorded as its `repr`, and a
function among them as its name. Nothing in a record is ever executed.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import numbers
import pprint
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
# Some objects write their state after their address: <threading.Event at 0x7f6b: unset>.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+[^>\n]*| with id=\d+")


def is_from_kit(reward: RewardFunction) -> bool:
    """Return True for a reward of the kit, and False for a function or subclass of a user."""
    return type(reward) in _KIT_REWARDS.values()


def source_of(reward: RewardFunction) -> str:
    """Return the source text of a function, of a wrapped function, or of an object's class."""
    target = unwrap_partial(reward)
    members = {}
    if not inspect.isroutine(target):
        target = type(target)
        members = vars(target)
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):
        # A class that was defined in a notebook has no file, but its methods have one.
        sources = []
        for name, value in members.items():
            if inspect.isroutine(value):
                sources.append(source_of(value))
            elif not name.startswith("__"):
                # Only a hash, because runs are shared and the value may be a secret key.
                sources.append(f"{name} = {_short_hash(_ADDRESS.sub('', repr(value)))}")
        return "\n".join(sources) or "source not available (defined interactively without a file)"


def record_of(reward: RewardFunction) -> dict[str, Any]:
    """Return the record of a reward, whose values can all be written as JSON.

    A reward has changed if its `hash` or its `state` differs. `hash` covers the source, or the
    parameters of a kit reward. `state` covers the values that a user's reward holds.

    >>> from grpo_nb.rewards import correctness
    >>> record = record_of(correctness(tolerance=0.1))
    >>> record["kind"], record["parameters"]["tolerance"], rebuild_reward(record)
    ('correctness', 0.1, correctness(tolerance=0.1))
    """
    if isinstance(reward, RecordedReward):
        return dict(reward.record)
    source = source_of(reward)
    class_name = type(reward).__name__
    record = {
        "kind": "",
        "call": "a function",
        # Parameters of a user's reward are left out: runs are shared, and one may be a secret key.
        "parameters": {},
        "source": source,
        # Earlier versions had "null" in place of the parameters, and their records are compared.
        "hash": _short_hash(f"{class_name}null{source}"),
        "state": "",
        "is_relative": is_relative(reward),
    }
    if not is_from_kit(reward):
        return record | {"state": _hash_of_state(reward)}
    # The parameters are all that a kit reward holds. Its source is not hashed: a new version of the
    # package must not look like a changed reward. JSON cannot write the reward itself, so it passes
    # the reward to `_number_or_fields` first, and then each field that it cannot write either.
    parameters = json.dumps(reward, default=_number_or_fields)
    return record | {
        "kind": class_name,
        "call": repr(reward),
        "parameters": json.loads(parameters),
        "hash": _short_hash(class_name + parameters),
    }


def difference_in_words(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how two records of a reward differ, in words; an empty text if they do not.

    >>> from grpo_nb.rewards import correctness
    >>> difference_in_words(record_of(correctness()), record_of(correctness(tolerance=0.5)))
    'it was correctness() and is correctness(tolerance=0.5)'
    """
    if before["hash"] != now["hash"]:
        if before["kind"] or now["kind"]:
            return f"it was {before['call']} and is {now['call']}"
        return "its source changed"
    # Records of the first versions have no state, and only their source is compared.
    if before.get("state", now["state"]) != now["state"]:
        return "it holds other values now (attributes, closure or arguments)"
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


@dataclass(frozen=True, kw_only=True)
class RecordedReward(Reward):
    """A reward of which only the record is known, such as a user's function."""

    record: Mapping[str, Any]

    @property
    def is_relative(self) -> bool:
        """True for a reward that must not decide which answers are correct.

        These are a reward that was marked with `relative`, and a judge, because its `ask` function
        is not recorded.
        """
        return self.record.get("is_relative", False) or self.record["kind"] == "judge"


def rewards_from_records(records: Iterable[Mapping[str, Any]]) -> list[Reward]:
    """Return the rewards of a run from their records. Those of a user are `RecordedReward`s.

    Args:
        records: Entries of `rewards` in `run.json`: records with the `name` and `weight` of each
            reward.
    """
    return [
        rebuild_reward(record)
        or RecordedReward(name=record["name"], weight=record["weight"], record=record)
        for record in records
    ]


def _number_or_fields(value: Any) -> Any:
    """Return a numpy number as a Python number, and another object as its fields."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    # A field that is not compared does not affect a score, such as the `ask` function of a judge.
    fields = dataclasses.fields(value)
    return {field.name: getattr(value, field.name) for field in fields if field.compare}


def _hash_of_state(reward: RewardFunction) -> str:
    """Return the hash of the values that a reward holds, written as text; empty if this fails.

    An object whose text contains an address, such as a client, a lock or a function, is hashed by
    its type or name only.
    """
    try:
        # With this width, pformat writes each value on a line and sorts dicts and sets, whose order
        # changes from process to process.
        text = pprint.pformat(_held_values(reward), width=1)
    except Exception:
        # An object can fail in any way when it writes itself as text.
        return ""
    return _short_hash(_ADDRESS.sub("", text))


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _held_values(reward: RewardFunction) -> Any:
    """Return the values that a reward holds.

    They are the arguments of a partial, the closure and the defaults of a function, and the
    attributes of a function or an object. A bound method holds the values of its object.
    """
    if isinstance(reward, functools.partial):
        return [_held_values(reward.func), reward.args, reward.keywords]
    reward = getattr(reward, "__self__", reward)
    saved = set()
    if hasattr(reward, "load_state_dict"):
        # These values change from call to call, and are in the checkpoints. The attribute `_count`
        # may be saved as `count`.
        saved = {str(name).strip("_") for name in reward.state_dict()}
    # A run records the name and the weight separately.
    attributes = {
        name: value
        for name, value in vars(reward).items()
        if name not in ("__name__", "weight") and name.strip("_") not in saved
    }
    if not isinstance(reward, types.FunctionType):
        return attributes
    closure = inspect.getclosurevars(reward).nonlocals
    # A record of an earlier version is compared with this list, so its order stays.
    return [closure, reward.__defaults__, reward.__kwdefaults__, attributes]
