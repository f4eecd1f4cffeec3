"""The state of a reward as a hash: what the object, the closure or the arguments hold, the same in every process.

Two rewards of one source can still score differently: `get_soft_overlong_punishment(512, 128)` and
`get_soft_overlong_punishment(64, 8)` are objects of one class. The hash covers attributes, slots, closures, defaults and the
arguments of a `functools.partial`. Values that are no data, such as a client or a lock, count by their type alone: what they
hold is not the same in two processes. Global variables are not looked at.
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
"""Version of what the hash covers. Only hashes of one scheme can be compared."""
# A reward of these packages may stand inside one of the user's own.
_REWARD_PACKAGES = ("grpo_nb", "trl")
_KIT = "grpo_nb"
_MOST_LEVELS = 20
# Python writes no whole number of more than 4,300 digits in decimal form.
_LARGE = 10**1000
# Values whose `repr` holds everything in them, and no address.
_SHOWN_WHOLE = (
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
# They have a record of their own, or say nothing about the scores.
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


def state_of(reward: Callable[..., Any], source_of: Callable[[Any], str]) -> str:
    """Return the hash of what a reward holds, with the scheme in front of it.

    Args:
        reward: A reward function or object.
        source_of: Returns the source text of a function that the reward holds.

    >>> from functools import partial
    >>> low, again, high = (partial(round, ndigits=n) for n in (1, 1, 2))
    >>> state_of(low, str) == state_of(again, str), state_of(low, str) == state_of(high, str)
    (True, False)
    """
    description = _Describer(reward, source_of).describe(reward, (), is_reward=True)
    written = json.dumps(description)
    return f"{SCHEME}:{hashlib.sha256(written.encode()).hexdigest()[:16]}"


def is_same_state(before: str | None, now: str | None) -> bool:
    """Return whether two states are equal, or cannot be compared: a run of an earlier version recorded none."""
    if before is None or now is None:
        return True
    is_comparable = before.partition(":")[0] == now.partition(":")[0]
    return before == now or not is_comparable


class _Describer:
    """Turns values into lists and texts that JSON writes the same in every process."""

    def __init__(self, reward: Any, source_of: Callable[[Any], str]) -> None:
        while isinstance(reward, functools.partial):
            reward = reward.func
        owner = reward if inspect.isroutine(reward) else type(reward)
        own = _package_of(owner)
        self.packages = {own, "__main__", *_REWARD_PACKAGES}
        self.source_of = source_of

    def describe(self, value: Any, holders: tuple[int, ...], *, is_reward: bool = False) -> Any:
        """Return a value as JSON has it.

        Args:
            value: Anything.
            holders: The ids of the objects around it, so that a circle ends.
            is_reward: Whether the value is the reward itself, which is looked into whatever it is.
        """
        import numpy

        name = _name_of(type(value))
        is_plain = isinstance(value, (bool, int, str)) and not isinstance(value, enum.Enum)
        if isinstance(value, int) and is_plain and abs(value) >= _LARGE:
            return [name, hex(value)]
        if value is None or is_plain:
            # An int subclass or str subclass of the user's is written as the value that it is.
            return [name, json.loads(json.dumps(value))]
        if isinstance(value, numpy.generic):
            return [name, repr(value.item())]
        if isinstance(value, _SHOWN_WHOLE):
            return [name, repr(value)]
        if isinstance(value, enum.Enum):
            return [name, value.name]
        if isinstance(value, (bytes, bytearray, array.array)):
            return [name, hashlib.sha256(value).hexdigest()]
        if isinstance(value, memoryview):
            return [name, hashlib.sha256(value.tobytes()).hexdigest()]
        if isinstance(value, pathlib.PurePath):
            return [name, str(value)]
        if isinstance(value, re.Pattern):
            return [name, str(value.pattern), value.flags]
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
            return [name, _name_of(value)]
        if id(value) in holders or len(holders) > _MOST_LEVELS:
            return [name]
        inner = (*holders, id(value))
        if isinstance(value, numpy.ndarray):
            return [name, self._array(value, inner)]
        if name == "torch.Tensor" and value.device.type != "meta" and not value.is_sparse:
            # As 64-bit floats: numpy has no bfloat16.
            numbers = value.detach().cpu()
            numbers = numbers if numbers.is_complex() else numbers.double()
            return [name, str(value.dtype), self._array(numbers.numpy(), inner)]
        if _package_of(type(value)) == "pandas" and hasattr(value, "to_dict"):
            frame = value if hasattr(value, "columns") else value.to_frame()
            return [name, self.describe(frame.to_dict("split"), inner)]
        if isinstance(value, (list, tuple, collections.deque)):
            return [name, [self.describe(item, inner) for item in value]]
        if isinstance(value, (set, frozenset)):
            return [name, sorted(json.dumps(self.describe(item, inner)) for item in value)]
        if isinstance(value, Mapping):
            return [name, self._mapping(value, inner)]
        if isinstance(value, types.SimpleNamespace):
            return [name, self._mapping(vars(value), inner)]
        if isinstance(value, functools.partial):
            return [
                name,
                *(self.describe(part, inner) for part in (value.func, value.args, value.keywords)),
            ]
        if isinstance(value, types.MethodType):
            holder = self.describe(value.__self__, inner, is_reward=is_reward)
            return [name, self.describe(value.__func__, inner), holder]
        if isinstance(value, types.FunctionType):
            return [name, self._function(value, inner, is_reward)]
        if hasattr(value, "__wrapped__") and callable(
            value
        ):  # of functools.lru_cache, or a decorator of the user's
            return [name, self.describe(value.__wrapped__, inner)]
        if (
            is_reward
            or _package_of(type(value)) in self.packages
            or dataclasses.is_dataclass(value)
        ):
            return [name, self._mapping(_attributes(value), inner)]
        return [name]

    def _array(self, array: numpy.ndarray, holders: tuple[int, ...]) -> Any:
        if array.dtype.hasobject:
            return self.describe(array.tolist(), holders)
        return [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]

    def _mapping(self, mapping: Mapping[Any, Any], holders: tuple[int, ...]) -> list[str]:
        pairs = (
            [self.describe(key, holders), self.describe(held, holders)]
            for key, held in mapping.items()
        )
        return sorted(map(json.dumps, pairs))

    def _function(
        self, function: types.FunctionType, holders: tuple[int, ...], is_reward: bool
    ) -> Any:
        closure = {}
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                closure[name] = cell.cell_contents
            except ValueError:  # a variable that has no value yet
                closure[name] = None
        held = {
            "closure": closure,
            "defaults": function.__defaults__,
            "keyword defaults": function.__kwdefaults__,
            "attributes": {
                name: held for name, held in vars(function).items() if name not in _NOT_STATE
            },
            # The record has the source of the reward itself.
            "source": "" if is_reward else self.source_of(function),
        }
        return self._mapping(held, holders)


def _attributes(holder: Any) -> dict[str, Any]:
    """Return what an object holds in attributes and slots, without what it remembers by its own `state_dict`."""
    is_kits = type(holder).__module__.partition(".")[0] == _KIT
    if is_kits and dataclasses.is_dataclass(
        holder
    ):  # the fields of the kit's rewards are all that changes a score
        names = [field.name for field in dataclasses.fields(holder)]
    else:
        names = [name for kind in type(holder).__mro__ for name in _slots_of(kind)]
        names += list(getattr(holder, "__dict__", ()))
    remembered = {str(name).strip("_") for name in _remembered(holder)}
    held = {}
    for name in names:
        is_cached = isinstance(
            inspect.getattr_static(type(holder), name, None), functools.cached_property
        )
        if name in _NOT_STATE or is_cached or name.strip("_") in remembered:
            continue
        if (value := getattr(holder, name, _NOTHING)) is not _NOTHING:
            held[name] = value
    return held


def _slots_of(kind: type) -> list[str]:
    slots = kind.__dict__.get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    # Python puts the name of the class in front of a private name.
    private = f"_{kind.__name__.lstrip('_')}"
    return [
        f"{private}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in names
    ]


_NOTHING = object()


def _remembered(holder: Any) -> list[Any]:
    """Return the names under which an object keeps what it remembers from call to call: a checkpoint has them."""
    has_memory = callable(getattr(holder, "state_dict", None)) and callable(
        getattr(holder, "load_state_dict", None)
    )
    return list(holder.state_dict()) if has_memory else []


def _package_of(owner: Any) -> str:
    return (getattr(owner, "__module__", None) or "").partition(".")[0]


def _name_of(owner: Any) -> str:
    return f"{getattr(owner, '__module__', '')}.{getattr(owner, '__qualname__', getattr(owner, '__name__', ''))}"
