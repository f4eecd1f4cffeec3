"""The state of a reward as a hash, the same in every process.

Two rewards of one source can still score differently: `get_soft_overlong_punishment(512, 128)` and
`get_soft_overlong_punishment(64, 8)` are objects of one class. The hash covers attributes, slots,
closures, defaults and the arguments of a `functools.partial`. An object that is not data, such as a
client or a lock, counts by its type alone, because its content differs between two processes.
Global variables are not covered.
"""

import copyreg
import dataclasses
import functools
import hashlib
import inspect
import json
import types
from collections.abc import Callable, Mapping
from typing import Any

SCHEME = 3
"""Version of the hash. Only hashes of one scheme can be compared."""
# Packages whose objects are data. A clock or a random generator is not: its module is not here.
_DATA_PACKAGES = {
    "array",
    "builtins",
    "collections",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "numpy",
    "operator",
    "pathlib",
    "re",
    "types",
    "uuid",
}
# A user's reward may contain a reward of these packages.
_REWARD_PACKAGES = {"grpo_nb", "trl"}
_MOST_LEVELS = 20
# Each has a record of its own, or does not affect a score.
_NOT_STATE = {"__name__", "__wrapped__", "__doc__", "__module__", "__qualname__"}


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
    is_same_scheme = before.partition(":")[0] == now.partition(":")[0]
    return before == now or not is_same_scheme


class _Describer:
    """Turns values into lists and texts that are the same JSON in every process.

    Each description starts with the name of the value's type.
    """

    def __init__(self, reward: Any, source_of: Callable[[Any], str]) -> None:
        while isinstance(reward, functools.partial):
            reward = reward.func
        owner = reward if inspect.isroutine(reward) else type(reward)
        own_packages = {_package_of(owner), "__main__"}
        self.packages = own_packages | _REWARD_PACKAGES | _DATA_PACKAGES
        """Packages whose objects are described by their content."""
        self.source_of = source_of

    def describe(self, value: Any, ids_above: tuple[int, ...], *, is_reward: bool = False) -> list:
        """Return the description of a value.

        Args:
            value: Anything.
            ids_above: The ids of the objects that contain the value, so that a cycle ends.
            is_reward: True for the reward itself, whose attributes are always described.
        """
        name = _name_of(type(value))
        if isinstance(value, (bytes, bytearray, memoryview)):
            return [name, hashlib.sha256(value).hexdigest()]
        if type(value) is int:
            # In hexadecimal: Python refuses to write more than 4,300 decimal digits.
            return [name, hex(value)]
        if value is None or type(value) in (bool, float, complex, str):
            return [name, repr(value)]
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
            return [name, _name_of(value)]
        if id(value) in ids_above or len(ids_above) > _MOST_LEVELS:
            return [name]
        content = self._content_of(value, is_reward)
        if content is None:
            return [name]
        inner = (*ids_above, id(value))
        if isinstance(content, Mapping):
            pairs = []
            for key, item in content.items():
                # A bound method may be the reward, and then its object is.
                is_owner = is_reward and isinstance(value, types.MethodType)
                described = self.describe(item, inner, is_reward=is_owner)
                pairs.append(json.dumps([self.describe(key, inner), described]))
            return [name, sorted(pairs)]
        items = [self.describe(item, inner) for item in content]
        if isinstance(value, (set, frozenset)):
            items.sort(key=json.dumps)
        return [name, items]

    def _content_of(self, value: Any, is_reward: bool) -> Mapping[Any, Any] | list[Any] | None:
        """Return the values that a value holds; None if it is not data."""
        if isinstance(value, Mapping):
            return value
        if isinstance(value, (list, tuple, set, frozenset)):
            return list(value)
        if isinstance(value, functools.partial):
            return [value.func, value.args, value.keywords]
        if isinstance(value, types.MethodType):
            return {"function": value.__func__, "object": value.__self__}
        if isinstance(value, types.FunctionType):
            return self._parts_of_function(value, is_reward)
        if hasattr(value, "__wrapped__") and callable(value):
            # functools.lru_cache, or a decorator of the user's.
            return [value.__wrapped__]
        if _name_of(type(value)) == "torch.Tensor":
            # numpy has no bfloat16. A list has the numbers of every dtype.
            return [str(value.dtype), value.to_dense().tolist()] if not value.is_meta else None
        if _package_of(type(value)) == "pandas" and hasattr(value, "to_dict"):
            frame = value if hasattr(value, "columns") else value.to_frame()
            return frame.to_dict("split")
        is_known = _package_of(type(value)) in self.packages or dataclasses.is_dataclass(value)
        return _parts_of_object(value, is_reward) if is_reward or is_known else None

    def _parts_of_function(
        self, function: types.FunctionType, is_reward: bool
    ) -> Mapping[str, Any]:
        closure = {}
        cells = function.__closure__ or ()
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            try:
                closure[name] = cell.cell_contents
            except ValueError:
                # A variable that has no value yet.
                closure[name] = None
        skipped = {*_NOT_STATE, "weight"}
        return {
            "closure": closure,
            "defaults": function.__defaults__,
            "keyword defaults": function.__kwdefaults__,
            "attributes": {k: v for k, v in vars(function).items() if k not in skipped},
            # The source of the reward itself is in its record.
            "source": "" if is_reward else self.source_of(function),
        }


def _parts_of_object(value: Any, is_reward: bool) -> list[Any] | None:
    """Return what `pickle` would write of an object; None if it cannot be pickled.

    Without what its own `state_dict` saves, because a checkpoint has that, and without the weight
    of the reward itself, which the record has.
    """
    is_from_kit = _package_of(type(value)) == "grpo_nb"
    if is_from_kit and dataclasses.is_dataclass(value):
        # Only the compared fields of a kit reward affect its scores.
        names = [field.name for field in dataclasses.fields(value) if field.compare]
        fields = {name: getattr(value, name) for name in names}
        return [_without_known_names(fields, value, is_reward)]
    try:
        # Types such as re.Pattern have their function in this table.
        reduce = copyreg.dispatch_table.get(type(value))
        reduced = reduce(value) if reduce else value.__reduce_ex__(2)
    except Exception:
        # A lock, a socket, or an object of which a part is missing.
        return None
    if isinstance(reduced, str):
        return [reduced]
    # The first is the function that would make the object again; the type's name is enough.
    _, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    attributes = {}
    # An object with slots has two mappings: its attributes, and the values of the slots.
    for part in state if isinstance(state, tuple) else [state]:
        if isinstance(part, Mapping):
            attributes.update(part)
            state = None
    known = _without_known_names(attributes, value, is_reward)
    return [arguments, state, known, list(items or ()), list(pairs or ())]


def _without_known_names(
    attributes: Mapping[str, Any], owner: Any, is_reward: bool
) -> dict[str, Any]:
    skipped = {*_NOT_STATE, "weight"} if is_reward else _NOT_STATE
    saved = set()
    if callable(getattr(owner, "state_dict", None)) and hasattr(owner, "load_state_dict"):
        # `_count` may be saved as `count`.
        saved = {str(name).strip("_") for name in owner.state_dict()}
    kept = {}
    for name, value in attributes.items():
        definition = inspect.getattr_static(type(owner), name, None)
        is_cached = isinstance(definition, functools.cached_property)
        if name not in skipped and name.strip("_") not in saved and not is_cached:
            kept[name] = value
    return kept


def _package_of(owner: Any) -> str:
    return (getattr(owner, "__module__", None) or "").partition(".")[0]


def _name_of(owner: Any) -> str:
    name = getattr(owner, "__qualname__", getattr(owner, "__name__", ""))
    return f"{getattr(owner, '__module__', '')}.{name}"
