"""The code of one reward and every value that it computes with, as text on which two processes agree.

The source of a reward says nothing of its parameters: `number(tolerance=0.1)` and `number(tolerance=0.5)` have one source, and
so have two closures of one factory. Read here are fields of dataclasses, arguments of `functools.partial`, defaults, closures,
rewards inside of rewards, and, for code of the user's own, attributes and the globals that it uses, among them other functions.

Left out, so that two equal rewards are never taken for different ones: addresses, the order of sets, fields that are marked
`compare=False` (the kit's mark for what a reward learns), what `state_dict` says that a reward remembers, and the inside of
objects of installed packages, such as models and tokenizers, of which only the type counts. Texts that the user's own code
holds stand here as hashes: what is written into a run is shared, and one of them may be a key.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import enum
import functools
import hashlib
import inspect
import json
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import PurePath
from typing import Any

_NUMBERS = (bool, int, float, complex, type(None))
_PLAIN = (*_NUMBERS, str, bytes, range, PurePath)
# Of the standard library, and equal when they are written the same.
_WRITTEN_AS = ("datetime", "decimal", "fractions", "uuid", "zoneinfo")
_LONGEST, _DEEPEST, _MOST, _TOLD = 80, 24, 2000, 4
_MAY_BE_MEMORY = ("closure ", "global ", "attribute ")
_MAY_BE_SECRET = (*_MAY_BE_MEMORY, "argument ", "default ", "field ")


def parts_of(reward: Callable[..., Any]) -> dict[str, str]:
    """Return every part of a reward by its path, as text from which one of the kit can be made again.

    >>> from grpo_nb.rewards import length
    >>> parts = parts_of(length(5, 9))
    >>> parts["kind"], parts["high"], parts["format"]
    ('length', '9', 'AnswerFormat')
    """
    reader = _Reader()
    reader.read("", reward, 0)
    return reader.parts


def identity_of(reward: Callable[..., Any]) -> str:
    """Return a hash of a reward's code and parameters, the same in every process.

    >>> from grpo_nb.rewards import correctness
    >>> identity_of(correctness()) == identity_of(correctness()) != identity_of(correctness(tolerance=0.5))
    True
    """
    return hash_of_parts(parts_of(reward))


def hash_of_parts(parts: Mapping[str, str]) -> str:
    """The hash that `identity_of` gives for these parts."""
    short = {path: _short(text) for path, text in parts.items()}
    return hashlib.sha256(json.dumps(sorted(short.items())).encode()).hexdigest()


def differing_parts(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The paths of the parts that differ, without those inside of something that is another thing altogether."""
    # Records of older versions have long texts in their short form only, which shortened again stays what it is.
    changed = [path for path in sorted({*before, *now}) if _short(before.get(path, "")) != _short(now.get(path, ""))]
    if "kind" in changed:
        return ["kind"]
    return [path for path in changed if not any(path.startswith(tuple(outer + c for c in ". [")) for outer in changed)]


def may_be_memory(path: str) -> bool:
    """Whether a part can be something that a reward of the user's own keeps between its calls, such as a cache."""
    return path.rpartition(".")[2].startswith(_MAY_BE_MEMORY) and not path.endswith(" code")


def describe_difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Say how two rewards differ, in words: each part with both values.

    >>> describe_difference({"tolerance": "0.1"}, {"tolerance": "0.5"})
    'tolerance was 0.1, is 0.5'
    """
    paths = differing_parts(before, now)
    said = [_describe(path, before.get(path), now.get(path)) for path in paths[:_TOLD]]
    if len(paths) > _TOLD:
        said.append(f"and {len(paths) - _TOLD} more")
    return ", ".join(said)


def _describe(path: str, before: str | None, now: str | None) -> str:
    if path == "code" or path.endswith(" code"):
        return f"other {path}" if path == "code" else f"other code in {path.removesuffix(' code')}"
    if before is None or now is None:
        return f"{path} is {'gone' if now is None else f'{_short(now)}, was not there'}"
    return f"{path} was {_short(before)}, is {_short(now)}"


class _Reader:
    """Walks through a value and notes its parts. Each function and class is read once: they refer to each other in circles."""

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}
        self._codes: dict[int, str] = {}
        self._inside: set[int] = set()

    def read(self, path: str, value: Any, depth: int) -> None:
        """Note a value under its path."""
        text = _plain_text(value, 0)
        if text is not None:
            is_shown = isinstance(value, _NUMBERS) or not any(word in path for word in _MAY_BE_SECRET)
            self._note(path, text if is_shown else f"{type(value).__name__} {_digest(text)}")
            return
        if id(value) in self._inside or depth > _DEEPEST or len(self.parts) > _MOST:  # objects may refer to each other
            self._note(path, "itself" if id(value) in self._inside else f"{type(value).__name__}, not looked into")
            return
        self._inside.add(id(value))
        try:
            self._read_made(path, value, depth + 1)
        finally:
            self._inside.discard(id(value))

    def _note(self, path: str, text: str) -> None:
        self.parts[path or "kind"] = text

    def _read_made(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, functools.partial):
            self._note(path, "partial")
            self.read(_join(path, "function"), value.func, depth)
            self._read_all(path, "argument ", {**dict(enumerate(value.args)), **value.keywords}, depth)
        elif isinstance(value, types.MethodType):
            self._note(path, f"method {value.__name__}")
            self.read(_join(path, "object"), value.__self__, depth)
        elif isinstance(value, types.FunctionType):
            self._note(path, f"function {value.__name__}")
            self._read_code(path, value, lambda: _code_text(value.__code__), [value], depth)
        elif isinstance(value, functools._lru_cache_wrapper):
            self.read(path, value.__wrapped__, depth)
        elif inspect.isroutine(value) or isinstance(value, types.ModuleType):
            self._note(path, f"{type(value).__name__} {getattr(value, '__qualname__', value.__name__)}")
        elif isinstance(value, type):
            self._note(path, f"class {value.__name__}")
            self._read_class(path, value, depth)
        elif isinstance(value, Mapping):
            self._note(path, f"{type(value).__name__} of {len(value)}")
            entries = {_plain_text(key, 0) or type(key).__name__: held for key, held in value.items()}
            self._read_all(path, "", {f"[{key}]": entries[key] for key in sorted(entries)}, depth)
        elif isinstance(value, Set):
            self._note(path, f"{type(value).__name__} of {sorted(identity_of(held) for held in value)}")
        elif isinstance(value, Sequence):
            self._note(path, f"{type(value).__name__} of {len(value)}")
            self._read_all(path, "", {f"[{number}]": held for number, held in enumerate(value)}, depth)
        else:
            self._read_object(path, value, depth)

    def _read_object(self, path: str, value: Any, depth: int) -> None:
        kind = type(value)
        self._note(path, kind.__name__)
        is_own = is_own_module(kind.__module__)
        if dataclasses.is_dataclass(value):
            if is_own or callable(value):
                self._read_class(path, kind, depth)
            names = [f.name for f in dataclasses.fields(value) if f.compare and hasattr(value, f.name)]
            fields = {name: getattr(value, name) for name in names}
            self._read_all(path, "field " if is_own else "", fields, depth)
        elif is_own:
            self._read_class(path, kind, depth)
            self._read_all(path, "attribute ", _attributes(value), depth)

    def _read_class(self, path: str, kind: type, depth: int) -> None:
        bases = [kind, *(base for base in kind.__mro__[1:] if is_own_module(base.__module__))]
        functions = [function for base in bases if is_own_module(base.__module__) for function in _functions_of(base)]
        self._read_code(path, kind, lambda: "\n".join(map(_class_text, bases)), functions, depth)

    def _read_code(
        self, path: str, of: Any, text: Callable[[], str], functions: Sequence[types.FunctionType], depth: int
    ) -> None:
        if id(of) in self._codes:
            self.parts[f"{path} code".strip()] = f"that of {self._codes[id(of)]}"
            return
        self._codes[id(of)] = path or "itself"
        self.parts[f"{path} code".strip()] = _digest(text())
        for function in functions:
            self._read_surroundings(path, function, depth)

    def _read_surroundings(self, path: str, function: types.FunctionType, depth: int) -> None:
        parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._read_all(path, "default ", defaults, depth)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        self._read_all(path, "closure ", {n: c.cell_contents for n, c in cells.items() if _is_filled(c)}, depth)
        if is_own_module(function.__module__):
            held = function.__globals__
            used = sorted(name for name in globals_used(function.__code__) if name in held)
            self._read_all(path, "global ", {name: held[name] for name in used}, depth)

    def _read_all(self, path: str, kind: str, values: Mapping[Any, Any], depth: int) -> None:
        for name, value in values.items():
            self.read(f"{path}{name}" if str(name).startswith("[") else _join(path, f"{kind}{name}"), value, depth)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST - 40]}... ({len(text)} characters, {_digest(text)})"


def _digest(content: str | bytes) -> str:
    content = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return hashlib.sha256(content).hexdigest()[:16]


def _plain_text(value: Any, depth: int) -> str | None:
    """Text for what is plain data through and through, with sets and mappings in a fixed order; None for anything else."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, _PLAIN) or type(value).__module__ in _WRITTEN_AS:
        return repr(value)
    if isinstance(value, re.Pattern):
        return f"pattern {value.pattern!r} {int(value.flags)}"
    if type(value).__module__.partition(".")[0] in ("numpy", "pandas", "torch") and hasattr(value, "shape"):
        return _array_text(value)
    if depth > _DEEPEST or not isinstance(value, (list, tuple, Set, Mapping)) or dataclasses.is_dataclass(value):
        return None
    texts = [_plain_text(held, depth + 1) for held in value]
    if isinstance(value, Mapping):
        held_texts = [_plain_text(held, depth + 1) for held in value.values()]
        texts = [None if None in pair else ": ".join(pair) for pair in zip(texts, held_texts, strict=True)]
    if None in texts:
        return None
    if isinstance(value, Set | Mapping):
        return "{" + ", ".join(sorted(texts)) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"  # what is read back must be a tuple again
    return f"[{', '.join(texts)}]"


def _array_text(value: Any) -> str | None:
    """Shape and content of an array of numpy, a tensor of torch, or a table or column of pandas."""
    package, content, shape = type(value).__module__.partition(".")[0], b"", tuple(value.shape)
    if package == "torch":
        torch = sys.modules["torch"]
        if value.layout is torch.strided and not value.is_meta:  # else it has no bytes in a row, or none at all
            flat = value.detach().cpu().contiguous().flatten()
            content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    elif package == "numpy":
        if value.dtype.hasobject:
            return _plain_text(value.tolist(), 1)
        content = value.tobytes()
    else:
        with contextlib.suppress(TypeError):  # cells that cannot be hashed
            content = sys.modules["pandas"].util.hash_pandas_object(value).to_numpy().tobytes()
    return f"{type(value).__name__} {getattr(value, 'dtype', '')} {shape} {_digest(content)}"


def is_own_module(module: str | None) -> bool:
    """Whether a module is the user's own: a notebook, or a file that is neither of the kit nor installed."""
    top = (module or "__main__").partition(".")[0]
    if top == "__main__":
        return True
    if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return False
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return file is None or not {"site-packages", "dist-packages"} & set(PurePath(file).parts)


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object of the user's own, but for those that it says it remembers."""
    state = object.__getstate__(value)  # what pickle takes: the attributes, or those and what is in slots
    held, in_slots = state if isinstance(state, tuple) else (state, None)
    held = {**(held or {}), **(in_slots or {})}
    remembers = callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
    remembered = {str(name).lstrip("_") for name in value.state_dict()} if remembers else set()
    names = (name for name in sorted(held) if name.lstrip("_") not in remembered and name != "__name__")
    return {name: held[name] for name in names}


def _functions_of(kind: type) -> Iterator[types.FunctionType]:
    for member in vars(kind).values():
        if isinstance(member, property):
            candidates = [member.fget, member.fset]
        else:
            candidates = [getattr(member, "__func__", None) or getattr(member, "func", None) or member]
        # What dataclasses and named tuples write into a class has no file, and follows from the source.
        yield from (f for f in candidates if isinstance(f, types.FunctionType) and f.__code__.co_filename != "<string>")


def _class_text(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # of a notebook: the class has no file there, but its methods have
        held = vars(kind)
        plain = {name: _plain_text(value, 0) for name, value in held.items() if not name.startswith("__")}
        return "\n".join([kind.__name__, repr(plain), *(_code_text(f.__code__) for f in _functions_of(kind))])


def _code_text(code: types.CodeType) -> str:
    """The source of a function, and where there is none what it was compiled to."""
    try:
        source = inspect.getsource(code)
    except (OSError, TypeError):
        return _compiled_text(code, with_instructions=True)
    # Two of these can stand on one line, and have the same source then.
    return source + _compiled_text(code, with_instructions=False) if code.co_name == "<lambda>" else source


def _compiled_text(code: types.CodeType, *, with_instructions: bool) -> str:
    constants = [
        _compiled_text(held, with_instructions=with_instructions)
        if isinstance(held, types.CodeType)
        else _plain_text(held, 0)
        for held in code.co_consts
    ]
    names = [code.co_names, code.co_varnames, code.co_freevars]
    return repr([code.co_code.hex() if with_instructions else "", *names, constants])


def globals_used(code: types.CodeType) -> set[str]:
    used = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for held in code.co_consts:
        if isinstance(held, types.CodeType):
            used |= globals_used(held)
    return used


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # a name that is bound only after the function was made
        return False
    return True
