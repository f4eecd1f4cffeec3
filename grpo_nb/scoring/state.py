"""The state of a reward as a hash, the same in every process.

Two rewards of one source can still score differently: `get_soft_overlong_punishment(512, 128)` and
`get_soft_overlong_punishment(64, 8)` are objects of one class. The hash covers attributes, slots,
closures, defaults and the arguments of a `functools.partial`. An object that is not data, such as a
client or a lock, counts by its type alone, because its content differs between two processes.
Global variables are not covered.
"""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import inspect
import json
import pathlib
import re
import types
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

SCHEME = 2
"""Version of the hash. Only hashes of one scheme can be compared."""
# A user's reward may contain a reward of these packages.
_REWARD_PACKAGES = ("grpo_nb", "trl")
_KIT = "grpo_nb"
_MOST_LEVELS = 20
# Python refuses to write an int of more than 4,300 digits in decimal form.
_LARGE = 10**1000
# Types whose `repr` shows the whole value, and no address.
_SHOWN_BY_REPR = (
    float,
    complex,
    range,
    slice,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
)
# Attributes that have a record of their own, or do not affect a score.
_NOT_STATE = (
    "weight",
    "__name__",
    "__wrapped__",
    "__doc__",
    "__module__",
    "__qualname__",
    "__dict__",
    "__weakref__",
)
# Classes that moved to another file. The hash keeps their former name, so that runs from before the
# move can be resumed.
_FORMER_NAMES = {
    "grpo_nb.rewards.math_answers.maths": "grpo_nb.rewards.maths.maths",
    "grpo_nb.rewards.format_and_length.length": "grpo_nb.rewards.length.length",
    "grpo_nb.rewards.format_and_length.xml_format": "grpo_nb.rewards.xml_format.xml_format",
    "grpo_nb.rewards.format_and_length.xml_tags": "grpo_nb.rewards.xml_format.xml_tags",
}
_MISSING = object()


def state_of(reward: Callable[..., Any], source_of: Callable[[Any], str]) -> str:
    """Return the hash of a reward's state, with the scheme in front of it.

    Args:
        reward: A reward function or object.
        source_of: Returns the source text of a function that the reward holds.

    >>> from functools import partial
    >>> one, same, other = (partial(round, ndigits=n) for n in (1, 1, 2))
    >>> state_of(one, str) == state_of(same, str), state_of(one, str) == state_of(other, str)
    (True, False)
    """
    description = _Describer(reward, source_of).describe(reward, (), is_reward=True)
    digest = hashlib.sha256(json.dumps(description).encode()).hexdigest()
    return f"{SCHEME}:{digest[:16]}"


def is_same_state(before: str | None, now: str | None) -> bool:
    """Return True if two states are equal, or cannot be compared.

    A run of an earlier version has no state, or one of another scheme.
    """
    if before is None or now is None:
        return True
    is_comparable = before.partition(":")[0] == now.partition(":")[0]
    return before == now or not is_comparable


class _Describer:
    """Turns values into lists and texts that are the same JSON in every process.

    Each description starts with the name of the value's type.
    """

    def __init__(self, reward: Any, source_of: Callable[[Any], str]) -> None:
        while isinstance(reward, functools.partial):
            reward = reward.func
        owner = reward if inspect.isroutine(reward) else type(reward)
        self.packages = {_package_of(owner), "__main__", *_REWARD_PACKAGES}
        """Packages whose objects are described by their attributes."""
        self.source_of = source_of

    def describe(self, value: Any, holders: tuple[int, ...], *, is_reward: bool = False) -> list:
        """Return the description of a value.

        Args:
            value: Anything.
            holders: The ids of the objects that contain the value, so that a cycle ends.
            is_reward: True for the reward itself, whose attributes are always described.
        """
        name = _name_of(type(value))
        scalar = _describe_scalar(value)
        if scalar is not None:
            return [name, *scalar]
        if id(value) in holders or len(holders) > _MOST_LEVELS:
            return [name]
        inner = (*holders, id(value))
        content = self._describe_array(value, inner)
        if content is None:
            content = self._describe_container(value, inner)
        if content is None:
            content = self._describe_callable(value, inner, is_reward)
        if content is not None:
            return [name, *content]
        is_known = _package_of(type(value)) in self.packages or dataclasses.is_dataclass(value)
        if is_reward or is_known:
            return [name, self._mapping(_attributes(value), inner)]
        return [name]

    def _describe_array(self, value: Any, holders: tuple[int, ...]) -> list | None:
        """Return the content of an array, tensor or table; None for other values."""
        import numpy

        if isinstance(value, numpy.ndarray):
            return [self._array(value, holders)]
        is_tensor = _name_of(type(value)) == "torch.Tensor"
        if is_tensor and value.device.type != "meta" and not value.is_sparse:
            numbers = value.detach().cpu()
            if not numbers.is_complex():
                # numpy has no bfloat16, and every real dtype fits into float64.
                numbers = numbers.double()
            return [str(value.dtype), self._array(numbers.numpy(), holders)]
        if _package_of(type(value)) == "pandas" and hasattr(value, "to_dict"):
            frame = value if hasattr(value, "columns") else value.to_frame()
            return [self.describe(frame.to_dict("split"), holders)]
        return None

    def _describe_container(self, value: Any, holders: tuple[int, ...]) -> list | None:
        """Return the content of a list, set or mapping; None for other values."""
        if isinstance(value, (list, tuple, collections.deque)):
            return [[self.describe(item, holders) for item in value]]
        if isinstance(value, (set, frozenset)):
            return [sorted(json.dumps(self.describe(item, holders)) for item in value)]
        if isinstance(value, Mapping):
            return [self._mapping(value, holders)]
        if isinstance(value, types.SimpleNamespace):
            return [self._mapping(vars(value), holders)]
        return None

    def _describe_callable(
        self, value: Any, holders: tuple[int, ...], is_reward: bool
    ) -> list | None:
        """Return what a function, method or wrapper holds; None for other values."""
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords)
            return [self.describe(part, holders) for part in parts]
        if isinstance(value, types.MethodType):
            owner = self.describe(value.__self__, holders, is_reward=is_reward)
            return [self.describe(value.__func__, holders), owner]
        if isinstance(value, types.FunctionType):
            return [self._function(value, holders, is_reward)]
        if hasattr(value, "__wrapped__") and callable(value):
            # functools.lru_cache, or a decorator of the user's.
            return [self.describe(value.__wrapped__, holders)]
        return None

    def _array(self, array: numpy.ndarray, holders: tuple[int, ...]) -> list:
        if array.dtype.hasobject:
            return self.describe(array.tolist(), holders)
        return [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]

    def _mapping(self, mapping: Mapping[Any, Any], holders: tuple[int, ...]) -> list[str]:
        pairs = []
        for key, value in mapping.items():
            pair = [self.describe(key, holders), self.describe(value, holders)]
            pairs.append(json.dumps(pair))
        return sorted(pairs)

    def _function(
        self, function: types.FunctionType, holders: tuple[int, ...], is_reward: bool
    ) -> list[str]:
        closure = {}
        cells = function.__closure__ or ()
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            try:
                closure[name] = cell.cell_contents
            except ValueError:
                # A variable that has no value yet.
                closure[name] = None
        attributes = {
            name: value for name, value in vars(function).items() if name not in _NOT_STATE
        }
        parts = {
            "closure": closure,
            "defaults": function.__defaults__,
            "keyword defaults": function.__kwdefaults__,
            "attributes": attributes,
            # The source of the reward itself is in its record.
            "source": "" if is_reward else self.source_of(function),
        }
        return self._mapping(parts, holders)


def _describe_scalar(value: Any) -> list | None:
    """Return the content of a value that holds no other value; None for other values."""
    import numpy

    is_plain = isinstance(value, (bool, int, str)) and not isinstance(value, enum.Enum)
    if is_plain and isinstance(value, int) and abs(value) >= _LARGE:
        return [hex(value)]
    if value is None or is_plain:
        # An object of a subclass of int or str counts as its int or str.
        return [json.loads(json.dumps(value))]
    if isinstance(value, numpy.generic):
        return [repr(value.item())]
    if isinstance(value, re.Pattern):
        return [str(value.pattern), value.flags]
    for kinds, text_of in _TEXT_OF_KINDS:
        if isinstance(value, kinds):
            return [text_of(value)]
    return None


def _digest(buffer: Any) -> str:
    return hashlib.sha256(memoryview(buffer).tobytes()).hexdigest()


def _enum_name(member: enum.Enum) -> str:
    return member.name


def _package_of(owner: Any) -> str:
    return (getattr(owner, "__module__", None) or "").partition(".")[0]


def _name_of(owner: Any) -> str:
    name = getattr(owner, "__qualname__", getattr(owner, "__name__", ""))
    full_name = f"{getattr(owner, '__module__', '')}.{name}"
    return _FORMER_NAMES.get(full_name, full_name)


# The first entry that fits decides: an enum of floats is a float here.
_TEXT_OF_KINDS: list[tuple[Any, Callable[[Any], str]]] = [
    (_SHOWN_BY_REPR, repr),
    (enum.Enum, _enum_name),
    ((bytes, bytearray, array.array, memoryview), _digest),
    (pathlib.PurePath, str),
    ((type, types.ModuleType, types.BuiltinFunctionType), _name_of),
]


def _attributes(owner: Any) -> dict[str, Any]:
    """Return an object's attributes and slots, without what its own `state_dict` saves."""
    is_kits = type(owner).__module__.partition(".")[0] == _KIT
    if is_kits and dataclasses.is_dataclass(owner):
        # Only the fields of a kit reward affect its scores.
        names = [field.name for field in dataclasses.fields(owner)]
    else:
        names = []
        for kind in type(owner).__mro__:
            names += _slots_of(kind)
        names += list(getattr(owner, "__dict__", ()))
    saved = {str(name).strip("_") for name in _saved_names(owner)}
    attributes = {}
    for name in names:
        definition = inspect.getattr_static(type(owner), name, None)
        is_cached = isinstance(definition, functools.cached_property)
        if name in _NOT_STATE or is_cached or name.strip("_") in saved:
            continue
        value = getattr(owner, name, _MISSING)
        if value is not _MISSING:
            attributes[name] = value
    return attributes


def _slots_of(kind: type) -> list[str]:
    slots = kind.__dict__.get("__slots__", ())
    names = []
    for name in [slots] if isinstance(slots, str) else slots:
        is_private = name.startswith("__") and not name.endswith("__")
        # Python puts the name of the class in front of a private name.
        names.append(f"_{kind.__name__.lstrip('_')}{name}" if is_private else name)
    return names


def _saved_names(owner: Any) -> list[Any]:
    """Return the names that an object's `state_dict` saves: a checkpoint has their values."""
    can_save = callable(getattr(owner, "state_dict", None))
    can_load = callable(getattr(owner, "load_state_dict", None))
    return list(owner.state_dict()) if can_save and can_load else []
