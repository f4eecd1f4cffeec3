"""The values that a reward holds, as a hash that is the same in every process.

Two rewards of one source can still score differently: `get_soft_overlong_punishment(512, 128)` and
`get_soft_overlong_punishment(64, 8)` are objects of one class. The hash covers attributes, slots,
closures, defaults and the arguments of a `functools.partial`. An object that is not data, such as a
client or a lock, counts by its type alone, because its content differs between two processes.
Global variables are not covered.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import re
import types
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from grpo_nb.rewards.base import unwrapped

SCHEME = 4
"""Version of the hash. Only hashes of one scheme can be compared."""
# Packages whose objects show all that they hold in their `repr`.
_DATA_PACKAGES = {
    "builtins",
    "datetime",
    "decimal",
    "fractions",
    "operator",
    "pathlib",
    "uuid",
}
_ARRAY_PACKAGES = {"array", "builtins", "numpy", "torch"}
# A user's reward may contain a reward of these packages.
_REWARD_PACKAGES = {"__main__", "grpo_nb", "trl", "types"}
_MOST_LEVELS = 20
# Each has a record of its own, or does not affect a score.
_NOT_HELD = {
    "__name__",
    "__wrapped__",
    "__doc__",
    "__module__",
    "__qualname__",
    "weight",
}


def hash_of_values(reward: Callable[..., Any], source_of: Callable[[Any], str]) -> str:
    """Return the hash of the values that a reward holds, with the scheme in front of it.

    Args:
        reward: A reward function or object.
        source_of: Returns the source text of a function that the reward holds.

    >>> from functools import partial
    >>> one, same, other = (partial(round, ndigits=n) for n in (1, 1, 2))
    >>> hash_of_values(one, str) == hash_of_values(same, str)
    True
    >>> hash_of_values(one, str) == hash_of_values(other, str)
    False
    """
    function = unwrapped(reward)
    owner = function if inspect.isroutine(function) else type(function)
    packages = {_package_of(owner), *_REWARD_PACKAGES} - _DATA_PACKAGES
    description = _Describer(packages, source_of).describe(reward, (), is_reward=True)
    digest = hashlib.sha256(json.dumps(description).encode()).hexdigest()
    return f"{SCHEME}:{digest[:16]}"


def are_same_values(before: str | None, now: str | None) -> bool:
    """Return True if two hashes are equal, or cannot be compared.

    A run of an earlier version has no hash, or one of another scheme.
    """
    if before is None or now is None:
        return True
    scheme_before, _, _ = before.partition(":")
    scheme_now, _, _ = now.partition(":")
    return before == now or scheme_before != scheme_now


@dataclasses.dataclass(frozen=True)
class _Describer:
    """Turns values into lists and texts that are the same JSON in every process.

    Each description starts with the name of the value's type.
    """

    packages: set[str]
    """Packages whose objects are described by their attributes."""
    source_of: Callable[[Any], str]

    def describe(self, value: Any, ids_above: tuple[int, ...], *, is_reward: bool = False) -> Any:
        """Return the description of a value.

        Args:
            value: Anything.
            ids_above: The ids of the objects that contain the value, so that a cycle ends.
            is_reward: True for the reward itself, whose attributes are always described.
        """
        name = _name_of(type(value))
        if id(value) in ids_above or len(ids_above) > _MOST_LEVELS:
            return name
        inner = (*ids_above, id(value))
        if isinstance(value, (list, tuple, set, frozenset, deque)):
            items = [self.describe(item, inner) for item in value]
            if isinstance(value, (set, frozenset)):
                items.sort(key=json.dumps)
            return [name, items]
        parts = value if isinstance(value, Mapping) else self._parts_of(value, is_reward)
        if parts is None:
            return [name, _content_of(value)]
        # A bound method may be the reward, and then its object is.
        is_method = isinstance(value, types.MethodType)
        pairs = []
        for key, item in parts.items():
            described = self.describe(item, inner, is_reward=is_reward and is_method)
            pairs.append([self.describe(key, inner), described])
        return [name, sorted(pairs, key=json.dumps)]

    def _parts_of(self, value: Any, is_reward: bool) -> Mapping[str, Any] | None:
        """Return the values that a function or an object holds; None for data and strangers."""
        if isinstance(value, functools.partial):
            return {
                "function": value.func,
                "arguments": value.args,
                "keywords": value.keywords,
            }
        if isinstance(value, types.MethodType):
            return {"function": value.__func__, "object": value.__self__}
        if isinstance(value, types.FunctionType):
            return {
                "closure": inspect.getclosurevars(value).nonlocals,
                "defaults": [value.__defaults__, value.__kwdefaults__],
                "attributes": _without(_NOT_HELD, vars(value)),
                # The source of the reward itself is in its record.
                "source": "" if is_reward else self.source_of(value),
            }
        if isinstance(value, (type, types.BuiltinFunctionType)):
            return None
        is_known = _package_of(type(value)) in self.packages or dataclasses.is_dataclass(value)
        if not is_known and not is_reward:
            return None
        attributes = _attributes_of(value)
        return _without(_NOT_HELD, attributes) if is_reward else attributes


def _attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that affect a score, without those that it saves."""
    if dataclasses.is_dataclass(value):
        # A field that is not compared does not affect a score.
        names = [field.name for field in dataclasses.fields(value) if field.compare]
        return {name: getattr(value, name) for name in names}
    state = object.__getstate__(value)
    # An object with slots has a pair: its attributes, and the values of the slots.
    attributes = {}
    for part in state if isinstance(state, tuple) else [state]:
        attributes.update(part or {})
    if not hasattr(value, "load_state_dict"):
        return attributes
    # A checkpoint has what `state_dict` returns. `_count` may be saved as `count`.
    saved = {str(name).strip("_") for name in value.state_dict()}
    return _without({name for name in attributes if name.strip("_") in saved}, attributes)


def _content_of(value: Any) -> str:
    """Return the content of plain data as a text; an empty text for any other object."""
    if type(value) is int:
        # In hexadecimal: Python refuses to write more than 4,300 decimal digits.
        return hex(value)
    if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        return _name_of(value)
    if isinstance(value, re.Pattern):
        return f"{value.flags} {value.pattern}"
    package = _package_of(type(value))
    if package == "pandas" and hasattr(value, "to_csv"):
        return value.to_csv()
    if package in _ARRAY_PACKAGES and hasattr(value, "tolist"):
        return f"{getattr(value, 'dtype', '')} {value.tolist()}"
    if package in _DATA_PACKAGES:
        # Some objects show their address, which differs between two processes.
        return re.sub(" at 0x[0-9a-f]+", "", repr(value))
    return ""


def _without(names: set[str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _package_of(owner: Any) -> str:
    return (getattr(owner, "__module__", None) or "").partition(".")[0]


def _name_of(owner: Any) -> str:
    name = getattr(owner, "__qualname__", getattr(owner, "__name__", ""))
    return f"{getattr(owner, '__module__', '')}.{name}"
