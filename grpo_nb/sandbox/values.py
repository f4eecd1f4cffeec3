"""Plain data across the wall: Python values to JSON with their types, and back, trusting nothing. Written inside, read outside.

Pickle would run code of the other side's choice, `ast.literal_eval` can be made to crash by a short text (its own
documentation says so), and plain JSON loses tuples, sets, bytes, NaN and large integers.
"""

from __future__ import annotations

from itertools import islice

_MAX_DEPTH = 50
_MOST_ITEMS = 100_000
# Python's dict and set slow down to quadratic time on keys of equal hash, and a candidate can choose its integers so.
_MAX_EQUAL_HASHES = 64


class NotPlainData(ValueError):
    """A value that is no None, bool, number, text, bytes, container or iterator, or is nested too deeply."""


class Items:
    """What an iterator gave, in order; equal to nothing else, as those are."""

    def __init__(self, held: list[object]) -> None:
        self._held = held

    def __iter__(self) -> object:
        return iter(self._held)


class SizedItems(Items):
    """The same of what has a length: a range, a deque, a view."""

    def __len__(self) -> int:
        return len(self._held)


_SCALARS = {"int": int, "float": float, "complex": complex, "bytes": bytes.fromhex}
_CONTAINERS = {kind.__name__: kind for kind in (list, tuple, set, frozenset, Items, SizedItems)}


def encode(value: object, depth: int = 0) -> object:
    """Return `value` as what JSON has: None, bools and texts as they are, all else as `[type, content]`.

    An object of a subclass becomes what it holds, whatever its own methods say. Raises `NotPlainData`.

    >>> encode((1, "a"))
    ['tuple', [['int', '1'], 'a']]
    """
    if depth > _MAX_DEPTH:
        raise NotPlainData(f"nested more than {_MAX_DEPTH} deep")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    for kind in (int, float, complex):
        if isinstance(value, kind):
            return [kind.__name__, kind.__repr__(value)]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", bytes(value).hex()]
    if hasattr(type(value), "__float__"):  # Decimal and Fraction
        return ["float", repr(float(value))]
    if isinstance(value, dict):
        return ["dict", [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in dict.items(value)]]
    for name, kind in _CONTAINERS.items():
        if isinstance(value, kind):
            return [name, [encode(item, depth + 1) for item in kind.__iter__(value)]]
    if not hasattr(type(value), "__iter__"):
        raise NotPlainData(f"a value of type {type(value).__name__}, which is not plain data")
    items = list(islice(iter(value), _MOST_ITEMS + 1))
    if len(items) > _MOST_ITEMS:
        raise NotPlainData(f"an iterator of more than {_MOST_ITEMS} items")
    name = "SizedItems" if hasattr(type(value), "__len__") else "Items"
    return [name, [encode(item, depth + 1) for item in items]]


def decode(data: object, depth: int = 0) -> object:
    """Return the value that `encode` described. Raises `NotPlainData` on anything that `encode` cannot have written."""
    if depth > _MAX_DEPTH:
        raise NotPlainData(f"nested more than {_MAX_DEPTH} deep")
    try:
        match data:
            case None | bool() | str():
                return data
            case [str(kind), str(text)] if kind in _SCALARS:
                return _SCALARS[kind](text)
            case ["dict", list(content)]:
                pairs = [(decode(k, depth + 1), decode(v, depth + 1)) for k, v in content]
                refuse_equal_hashes([k for k, _ in pairs])
                return dict(pairs)
            case [str(kind), list(content)] if kind in _CONTAINERS:
                items = [decode(item, depth + 1) for item in content]
                if kind in ("set", "frozenset"):
                    refuse_equal_hashes(items)
                return _CONTAINERS[kind](items)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise NotPlainData(f"not an encoded {data[0]}") from error
    raise NotPlainData("not an encoded value")


def loads(line: bytes) -> object:
    """Parse one line of JSON from inside, in which no number stands bare. Raises `NotPlainData`."""
    import json

    try:
        return json.loads(line.decode("ascii"), parse_int=_refuse, parse_float=_refuse, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise NotPlainData("not a line of the protocol") from error


def _refuse(number: str) -> object:
    raise ValueError(f"{number:.20} is not part of the protocol")


def is_same_value(given: object, expected: object, *, exact_types: bool = True) -> bool:
    """Compare plain data, by value and type at every level, or as Python's `==` does (`exact_types=False`).

    NaN is the same as NaN if types are exact: else no answer could ever match it.

    >>> is_same_value([1, 2], [1, True]), is_same_value(1, True, exact_types=False)
    (False, True)
    """
    return bool(_typed(given) == _typed(expected) if exact_types else given == expected)


def _typed(value: object) -> object:
    """A hashable form that is equal for values of the same types and content, at every level."""
    kind = type(value)
    if kind is float and value != value:
        return (kind, "nan")
    if kind in (list, tuple):
        return (kind, tuple(map(_typed, value)))
    if kind in (set, frozenset, dict):
        return (kind, frozenset(map(_typed, value.items() if kind is dict else value)))
    return (kind, value)


def refuse_equal_hashes(keys: list[object]) -> None:
    """Raise ValueError if a set of these untrusted values would take quadratic time to build."""
    # Equal hashes fold into one element here, so this check itself is linear whatever the keys.
    if len(keys) - len(set(map(hash, keys))) > _MAX_EQUAL_HASHES:
        raise ValueError("too many keys of equal hash")
