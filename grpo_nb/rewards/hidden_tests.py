"""The hidden tests of a data row: read from data or asserts, never run, and applied to what came out of the sandbox."""

import ast
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.sandbox.jobs import Call
from grpo_nb.sandbox.values import is_same_value, refuse_equal_hashes


def _as_set(value: Any) -> set[Any]:
    items = list(value)
    refuse_equal_hashes(items)
    return set(items)


# What may stand around the call in an assert; applied here, to the plain data that came back.
_AROUND = {"set": _as_set, "sorted": sorted, "list": list, "tuple": tuple, "len": len, "bool": bool}


@dataclass(frozen=True, kw_only=True)
class CodeTest:
    """One hidden test: a call with the value that it must return, or standard input with what must be printed."""

    call: Call | None = None
    expected: Any = None
    tolerance: float = 0.0
    """Largest difference that still passes, for numbers."""
    around: str = ""
    """A function applied to the answer before it is compared, as in `assert sorted(f(x)) == [1, 2]`."""
    has_exact_types: bool = True
    """Whether `1`, `1.0` and `True` differ: they do in tests given as data, and do not under the `==` of an assert."""
    stdin: str | None = None
    stdout: str = ""

    def passes(self, value: Any) -> bool:
        """Say whether `value`, plain data from the sandbox, is what this test wants."""
        try:
            value = _AROUND[self.around](value) if self.around else value
            if self.tolerance:
                return not isinstance(value, bool) and abs(value - self.expected) <= self.tolerance
        except (TypeError, ValueError, OverflowError):
            return False
        return is_same_value(value, self.expected, exact_types=self.has_exact_types)

    def prints(self, stdout: str) -> bool:
        """Say whether `stdout` is what must be printed, but for white space at the ends of lines and of the text."""
        printed, wanted = (
            [line.rstrip() for line in text.strip().splitlines()] for text in (stdout, self.stdout)
        )
        return printed == wanted


def read_tests(value: Any) -> tuple[CodeTest, ...]:
    """Return the hidden tests that one cell of a data set holds.

    A cell is a list of tests or one test, also as JSON text. A test is
    `{"call": "f", "args": [...], "kwargs": {...}, "expected": ..., "tolerance": 0.1}`, `{"stdin": "...", "stdout": "..."}`, or
    an assert as in MBPP: `assert f(1) == 2`, `is`, `not f(x)`, `f(x)`, with `sorted`, `set`, `list`, `tuple` or `len` around
    the call. Asserts are read, never run.

    Raises:
        ValueError: Anything else, with what to write instead. Call this (or `check`) on the data before training.

    >>> [test.expected for test in read_tests(["assert add(1, 2) == 3"])]
    [3]
    """
    is_json = isinstance(value, str) and value.strip().startswith(("[", "{"))
    cells = json.loads(value) if is_json else value
    cells = [cells] if isinstance(cells, (str, Mapping)) else cells
    if not isinstance(cells, Iterable):
        raise ValueError(
            f"the tests are {cells!r:.80}: write a list of tests, or a text of asserts."
        )
    tests: list[CodeTest] = []
    for cell in cells:
        tests += (
            _of_asserts(cell)
            if isinstance(cell, str)
            else [_of_mapping(cell, may_hold_none=is_json)]
        )
    if not tests:
        raise ValueError(
            "a row has no tests: code without a test cannot earn anything. Remove the row or add a test."
        )
    return tuple(tests)


def _of_mapping(test: Any, *, may_hold_none: bool) -> CodeTest:
    # Arrow fills the keys that other rows have with None, so a key that is None counts as missing, but for `expected`.
    items = test.items() if isinstance(test, Mapping) else ()
    given = {key: held for key, held in items if held is not None or key == "expected"}
    if not may_hold_none and any(
        map(_may_be_filled, (given.get("args"), given.get("kwargs"), given.get("expected")))
    ):
        raise ValueError(
            f"the test {test!r:.120} has None in a mapping, perhaps of datasets: write json.dumps(tests)."
        )
    match given:
        case {"stdin": str(stdin), "stdout": str(stdout), **rest} if not rest.keys() - {"expected"}:
            return CodeTest(stdin=stdin, stdout=stdout)
        case {"call": str(name), "expected": expected, **rest} if not rest.keys() - {
            "args",
            "kwargs",
            "tolerance",
        }:
            args, kwargs, tolerance = (
                rest.get("args", ()),
                rest.get("kwargs", {}),
                float(rest.get("tolerance", 0)),
            )
            is_near = not tolerance or isinstance(expected, (int, float))
            if isinstance(args, (list, tuple)) and isinstance(kwargs, Mapping) and is_near:
                call = Call(name, tuple(args), dict(kwargs))
                return CodeTest(call=call, expected=expected, tolerance=tolerance)
    forms = '{"call": "f", "args": [1, 2], "expected": 3}, {"stdin": "...", "stdout": "..."}'
    raise ValueError(
        f"the test {test!r:.120} must be {forms} or an assert; gn.rewards.read_tests has the other fields."
    )


def _may_be_filled(value: Any) -> bool:
    """Whether a mapping at any depth holds None."""
    if isinstance(value, Mapping):
        return any(held is None or _may_be_filled(held) for held in value.values())
    return isinstance(value, (list, tuple)) and any(map(_may_be_filled, value))


def _of_asserts(text: str) -> list[CodeTest]:
    try:
        return [_of_statement(statement) for statement in ast.parse(text).body]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        mended = 'Write call and value out, "assert f(1) == 3", or as data, with "tolerance": 0.01 if need be.'
        raise ValueError(f"the test {text!r:.160} cannot be read ({error}). {mended}") from error


def _of_statement(statement: ast.stmt) -> CodeTest:
    match statement:
        case ast.Assert(
            test=ast.Compare(left=node, ops=[ast.Eq() | ast.Is() as operator], comparators=[right])
        ):
            return _test(node, _value(right), has_exact_types=isinstance(operator, ast.Is))
        case ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=ast.Call() as node)):
            return _test(node, False, around="bool")
        case ast.Assert(test=ast.Call() as node):
            return _test(node, True, around="bool")
    raise ValueError("it is no assert of a call, with == or is and a value, or with not")


def _test(
    node: ast.expr, expected: Any, *, around: str = "", has_exact_types: bool = False
) -> CodeTest:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if (
            name in _AROUND and not around
        ):
            around, node = name, argument
    if not isinstance(node, ast.Call):
        raise ValueError("there is no call of the candidate's function where one is expected")
    kwargs = {keyword.arg: _value(keyword.value) for keyword in node.keywords}
    if None in kwargs:
        raise ValueError("** is not a value")
    call = Call(ast.unparse(node.func), tuple(map(_value, node.args)), kwargs)
    return CodeTest(call=call, expected=expected, around=around, has_exact_types=has_exact_types)


def _value(node: ast.expr) -> Any:
    """The value of a literal, also of `set([1, 2])` and the like."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _AROUND:
            return _AROUND[name](ast.literal_eval(argument))
    return ast.literal_eval(node)
