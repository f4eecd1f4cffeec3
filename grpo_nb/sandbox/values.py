"""Plain data across the wall: Python values to JSON with their types, and back, trusting nothing. Written inside, read outside.

Pickle would run code of the other side's choice, `ast.literal_eval` can be made to crash by a short text (its own
documentation says so), and plain JSON loses tuples, sets, bytes, NaN and large integers.
"""

from __future__ import annotations

# Without the rest of collections and json, which a candidate would wait for.
from _collections import deque
from _json import encode_basestring_ascii

LONGEST_ERROR = 300
_MAX_DEPTH = 50
# Python's dict and set slow down to quadratic time on keys of equal hash, and a candidate can choose its integers so.
_MAX_EQUAL_HASHES = 64


class NotPlainData(ValueError):
    """A value that is no None, bool, number, text, bytes, container or iterator, or is nested too deeply."""


_SCALARS = {"int": int, "float": float, "complex": complex, "bytes": bytes.fromhex}
_CONTAINERS = {kind.__name__: kind for kind in (list, tuple, set, frozenset, deque)}


def encode(value: object, depth: int = 0) -> str:
    """Return `value` as JSON: None, bools and texts as they are, all else as `[type, content]`.

    An object of a subclass becomes what it holds, whatever its own methods say. Raises `NotPlainData`.

    >>> encode((1, "a"))
    '["tuple",[["int","1"],"a"]]'
    """
    if depth > _MAX_DEPTH:
        raise NotPlainData(f"nested more than {_MAX_DEPTH} deep")
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    for kind in (int, float, complex):
        if isinstance(value, kind):
            return f'["{kind.__name__}","{kind.__repr__(value)}"]'
    if isinstance(value, (bytes, bytearray)):
        return f'["bytes","{bytes(value).hex()}"]'
    if hasattr(type(value), "__float__"):  # Decimal and Fraction
        return f'["float","{float(value)!r}"]'
    if isinstance(value, dict):
        pairs = [f"[{encode(k, depth + 1)},{encode(v, depth + 1)}]" for k, v in dict.items(value)]
        return f'["dict",[{",".join(pairs)}]]'
    if not hasattr(type(value), "__iter__"):
        raise NotPlainData(f"a value of type {type(value).__name__}, which is not plain data")
    # Out of a range or a view comes a deque, out of what has no length an iterator: as those, equal to no list.
    name = "deque" if hasattr(type(value), "__len__") else "iter"
    kind = next((kind for kind in _CONTAINERS.values() if isinstance(value, kind)), None)
    items = [encode(item, depth + 1) for item in (kind.__iter__(value) if kind else value)]
    return f'["{kind.__name__ if kind else name}",[{",".join(items)}]]'


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
            case ["iter", list(content)]:
                return iter([decode(item, depth + 1) for item in content])
    except (TypeError, ValueError, ArithmeticError) as error:
        raise NotPlainData(f"not an encoded {data[0]}") from error
    raise NotPlainData("not an encoded value")


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
