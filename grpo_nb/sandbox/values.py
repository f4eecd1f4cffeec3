"""Plain data between the sandbox and its caller: Python values as JSON with their types, and back.

The sandbox encodes. The caller decodes, and does not trust the data. Pickle would run code that
the other side chooses. `ast.literal_eval` crashes on some short texts, as its documentation warns.
Plain JSON has no tuples, sets, bytes or NaN. An integer of more than 4,300 digits is refused,
because Python would raise an error as soon as the caller shows it.
"""

from __future__ import annotations

import sys

# From the C modules: importing collections and json would delay the start of each candidate.
from _collections import deque
from _json import encode_basestring_ascii

MAX_ERROR_CHARACTERS = 300
# A dict is three levels: itself, the list of its pairs, and a pair.
_MAX_DEPTH = 100
_MAX_KEYS_OF_ONE_HASH = 256


class NotPlainData(ValueError):
    """A value that is not plain data, or is nested too deeply.

    Plain data are None, bools, numbers, texts, bytes, containers and iterators of plain data.
    """


_SCALARS = {
    "int": int,
    "float": float,
    "complex": complex,
    "bytes": bytes.fromhex,
}
_CONTAINERS = {kind.__name__: kind for kind in (list, tuple, set, frozenset, deque)}
_HASHABLE = (str, bytes, int, float, complex, type(None))


def encode(value: object, depth: int = 0) -> str:
    """Return a value as JSON: None, bools and texts as they are, all else as `[type, content]`.

    An object of a subclass is encoded as its base class, whatever its own methods return.

    Raises:
        NotPlainData: The value cannot be encoded, or is nested too deeply.

    >>> encode((1, "a"))
    '["tuple",[["int","1"],"a"]]'
    """
    if depth > _MAX_DEPTH:
        # `decode` would refuse it, and with it the whole report.
        raise NotPlainData(f"nested more than {_MAX_DEPTH} deep (a dict is three levels)")
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    for kind in (int, float, complex):
        if isinstance(value, kind):
            text = kind.__repr__(value)
            # The code can raise this limit for its own process, but not for the caller.
            if kind is int and len(text.lstrip("-")) > sys.int_info.default_max_str_digits:
                raise NotPlainData("an integer of too many digits")
            return f'["{kind.__name__}","{text}"]'
    for kind in (bytes, bytearray):
        if isinstance(value, kind):
            return f'["bytes","{kind.hex(value)}"]'
    if isinstance(value, dict):
        pairs = list(dict.items(value))
        _require_hashable([key for key, _ in pairs])
        content = encode(pairs, depth + 1)
        return f'["dict",{content}]'
    return _encode_items(value, depth)


def _encode_items(value: object, depth: int) -> str:
    """Return an iterable as JSON: a list, tuple, set or frozenset as such, all else as a deque.

    A deque equals no list, so a range or generator is no right answer where a list is expected.
    """
    if not hasattr(type(value), "__iter__"):
        raise NotPlainData(f"a value of type {type(value).__name__}, which is not plain data")
    for kind in _CONTAINERS.values():
        if isinstance(value, kind):
            # A subclass may have another `__iter__`.
            items = list(kind.__iter__(value))
            break
    else:
        kind = deque
        items = list(value)
    if kind in (set, frozenset):
        _require_hashable(items)
    content = ",".join(encode(item, depth + 1) for item in items)
    return f'["{kind.__name__}",[{content}]]'


def _require_hashable(keys: list[object]) -> None:
    """Refuse keys that `decode` could not hash, such as a range, which arrives as a deque.

    `decode` would refuse the line, and with it the whole report: the results of all calls.
    """
    for key in keys:
        if isinstance(key, (tuple, frozenset)):
            _require_hashable(list(key))
        elif not isinstance(key, _HASHABLE):
            raise NotPlainData(f"a key of type {type(key).__name__}, which is not plain data")


def decode(data: object, depth: int = 0) -> object:
    """Return the value that `encode` wrote.

    Raises:
        ValueError, TypeError, LookupError, ArithmeticError: `encode` does not write such data, or
            the data is nested more than `_MAX_DEPTH` deep.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if data is None or isinstance(data, (bool, str)):
        return data
    kind, content = data
    if isinstance(content, str):
        return _SCALARS[kind](content)
    if kind == "dict":
        pairs = decode(content, depth + 1)
        _require_few_keys_of_one_hash([key for key, _ in pairs])
        return dict(pairs)
    items = [decode(item, depth + 1) for item in content]
    if kind in ("set", "frozenset"):
        _require_few_keys_of_one_hash(items)
    return _CONTAINERS[kind](items)


def _require_few_keys_of_one_hash(keys: list[object]) -> None:
    """Raise ValueError if a set of these values would take quadratic time to build.

    Attack: a dict or set takes quadratic time on keys with one hash, and such integers are easy to
    find. Honest keys share a hash too, but only a few of them: -1 and -2 have the same hash, and so
    have (-1, 5) and (-2, 5).
    """
    # The dict holds hashes, not keys, so this check itself takes linear time.
    counts = {}
    for key_hash in map(hash, keys):
        counts[key_hash] = counts.get(key_hash, 0) + 1
        if counts[key_hash] > _MAX_KEYS_OF_ONE_HASH:
            raise ValueError("too many keys of one hash")
