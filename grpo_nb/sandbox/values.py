"""Plain data across the wall: Python values to JSON with their types, and back, trusting nothing.

Pickle would run code of the other side's choice, and plain JSON loses tuples, sets, bytes, NaN and large integers. Here
every value is rebuilt from its base type, so an object that claims to equal everything arrives as the number, text or
container that it really holds, or not at all.
"""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any

MAX_DEPTH = 50
_MOST_ITEMS = 100_000
# Of numbers that the reader compares or makes whole: as many as Python itself writes out.
_MOST_DIGITS = 4300
_SMALL = 10**15
# Python's dict and set slow down to quadratic time on keys of equal hash, and a candidate can choose its integers so.
_MAX_EQUAL_HASHES = 64
_CONTAINERS = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}


class NotPlainData(ValueError):
    """A value that is no None, bool, number, text, bytes, container or iterator, or is nested too deeply."""


class Items:
    """What an iterator, a range, a deque or a view gave, in order; equal to nothing else, as those are."""

    def __init__(self, held: list[Any]) -> None:
        self._held = held

    def __iter__(self) -> Any:
        return iter(self._held)

    def __repr__(self) -> str:
        return f"<an iterable of {self._held!r}>"


class SizedItems(Items):
    """The same of what has a length."""

    def __len__(self) -> int:
        return len(self._held)


_ITEMS = {kind.__name__: kind for kind in (Items, SizedItems)}


def encode(value: Any, depth: int = 0) -> Any:
    """Return `value` as what `json.dumps` can write: itself if JSON keeps its type, else `[type, content]`.

    Methods of the base types are called by name, so that overridden ones of a subclass have no say.

    >>> encode((1, 2.5))
    ['tuple', [1, ['float', '0x1.4000000000000p+1']]]
    """
    if depth > MAX_DEPTH:
        raise NotPlainData(f"nested more than {MAX_DEPTH} deep")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        number = int.__int__(value)
        # Decimal digits of a large integer cost quadratic time and are refused beyond 4300; hexadecimal ones do not.
        return number if -_SMALL < number < _SMALL else ["int", hex(number)]
    if isinstance(value, float):
        return ["float", float.hex(value)]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, complex):
        return ["complex", [float.hex(value.real), float.hex(value.imag)]]
    if isinstance(value, Decimal):
        return ["Decimal", Decimal.__str__(value)]
    if isinstance(value, Fraction):
        return ["Fraction", [hex(value.numerator), hex(value.denominator)]]
    if isinstance(value, dict):
        return ["dict", [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in dict.items(value)]]
    for name, kind in _CONTAINERS.items():
        if isinstance(value, kind):
            return [name, [encode(item, depth + 1) for item in kind.__iter__(value)]]
    if hasattr(type(value), "__iter__"):
        items = list(islice(iter(value), _MOST_ITEMS + 1))
        if len(items) > _MOST_ITEMS:
            raise NotPlainData(f"an iterator of more than {_MOST_ITEMS} items")
        kind = SizedItems if hasattr(type(value), "__len__") else Items
        return [kind.__name__, [encode(item, depth + 1) for item in items]]
    raise NotPlainData(f"a value of type {type(value).__name__}, which is not plain data")


def decode(data: Any, depth: int = 0) -> Any:
    """Return the value that `encode` described. Raises `NotPlainData` on anything that `encode` cannot have written."""
    if depth > MAX_DEPTH:
        raise NotPlainData(f"nested more than {MAX_DEPTH} deep")
    try:
        match data:
            case None | bool() | int() | str():
                return data
            case ["int", str(digits)]:
                return int(digits, 16)
            case ["float", str(digits)]:
                return float.fromhex(digits)
            case ["bytes", str(digits)]:
                return bytes.fromhex(digits)
            case ["complex", [str(real), str(imaginary)]]:
                return complex(float.fromhex(real), float.fromhex(imaginary))
            case ["Decimal", str(digits)]:
                number = Decimal(digits)
                if not number.is_finite() or abs(number.adjusted()) > _MOST_DIGITS:
                    raise ValueError("a number that arithmetic stumbles over")
                return number
            case ["Fraction", [str(above), str(below)]] if max(len(above), len(below)) <= _MOST_DIGITS:
                return Fraction(int(above, 16), int(below, 16))
            case ["Items" | "SizedItems" as kind, list(content)]:
                return _ITEMS[kind]([decode(item, depth + 1) for item in content])
            case ["dict", list(content)]:
                pairs = [(decode(k, depth + 1), decode(v, depth + 1)) for k, v in content]
                refuse_equal_hashes([k for k, _ in pairs])
                return dict(pairs)
            case ["list" | "tuple" | "set" | "frozenset" as kind, list(content)]:
                items = [decode(item, depth + 1) for item in content]
                if kind in ("set", "frozenset"):
                    refuse_equal_hashes(items)
                return _CONTAINERS[kind](items)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise NotPlainData(f"not an encoded {data[0]}") from error
    raise NotPlainData("not an encoded value")


def dumps(value: Any) -> str:
    """Return one line of ASCII JSON; lone surrogates are escaped."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def loads(line: bytes) -> Any:
    """Parse one line of `dumps`, with integers of any cost and constants outside JSON refused."""
    try:
        return json.loads(line.decode("ascii"), parse_int=_short_integer, parse_float=_refuse, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise NotPlainData("not a line of the protocol") from error


def canonical(value: Any) -> Any:
    """Return a hashable form that is equal for values of the same types and content, at every level.

    >>> canonical([1]) == canonical([True]) or canonical([1]) == canonical((1,))
    False
    """
    kind = type(value)
    if kind is float and value != value:
        return ("float", "nan")
    if kind in (list, tuple):
        return (kind.__name__, tuple(canonical(item) for item in value))
    if kind in (set, frozenset, dict):
        return (kind.__name__, frozenset(map(canonical, value.items() if kind is dict else value)))
    return (kind.__name__, value)


def is_same_value(given: Any, expected: Any, *, exact_types: bool = True) -> bool:
    """Compare plain data, by value and type at every level, or as Python's `==` does (`exact_types=False`).

    NaN is the same as NaN if types are exact: else no answer could ever match it.

    >>> is_same_value([1, 2], [1, True]), is_same_value(1, True, exact_types=False)
    (False, True)
    """
    return bool(canonical(given) == canonical(expected) if exact_types else given == expected)


def refuse_equal_hashes(keys: list[Any]) -> None:
    """Raise ValueError if a set of these untrusted values would take quadratic time to build."""
    # Equal hashes fold into one element here, so this check itself is linear whatever the keys.
    if len(keys) - len(set(map(hash, keys))) > _MAX_EQUAL_HASHES:
        raise ValueError("too many keys of equal hash")


def _short_integer(digits: str) -> int:
    if len(digits) > 17:
        raise ValueError("a large integer not in hexadecimal")
    return int(digits)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text:.20} is not part of the protocol")
