"""The hidden tests of a data row: how they are read and compared with the sandbox's results.

Asserts are parsed and never run.
"""

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


# Functions that an assert may apply to the call. They are applied here, to plain data.
_WRAPPERS = {
    "set": _as_set,
    "sorted": sorted,
    "list": list,
    "tuple": tuple,
    "len": len,
    "bool": bool,
}
_FORMS = '{"call": "f", "args": [1, 2], "expected": 3}, {"stdin": "...", "stdout": "..."}'


@dataclass(frozen=True, kw_only=True)
class CodeTest:
    """One hidden test: a call and its expected value, or standard input and the expected output."""

    call: Call | None = None
    expected: Any = None
    tolerance: float = 0.0
    """Largest accepted difference of numbers."""
    wrapper: str = ""
    """Function that is applied to the result first, as in `assert sorted(f(x)) == [1, 2]`."""
    compares_types: bool = True
    """True if `1`, `1.0` and `True` differ. The `==` of an assert does not tell them apart."""
    stdin: str | None = None
    stdout: str = ""

    def passes(self, value: Any) -> bool:
        """Return True if `value`, plain data from the sandbox, is the expected value."""
        try:
            if self.wrapper:
                value = _WRAPPERS[self.wrapper](value)
            if self.tolerance:
                return not isinstance(value, bool) and abs(value - self.expected) <= self.tolerance
        except (TypeError, ValueError, OverflowError):
            return False
        return is_same_value(value, self.expected, exact_types=self.compares_types)

    def prints(self, stdout: str) -> bool:
        """Return True if `stdout` is the expected output, apart from trailing white space."""
        return _lines(stdout) == _lines(self.stdout)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def read_tests(value: Any) -> tuple[CodeTest, ...]:
    """Return the hidden tests in one cell of a data set.

    A cell is one test or a list of tests, also as JSON text. A test is one of:

    * `{"call": "f", "args": [...], "kwargs": {...}, "expected": ..., "tolerance": 0.1}`;
    * `{"stdin": "...", "stdout": "..."}`;
    * an assert as in MBPP: `assert f(1) == 2`, `assert f(x) is None`, `assert not f(x)` or
      `assert f(x)`, with `sorted`, `set`, `list`, `tuple` or `len` around the call.

    A dict with `call` compares types too: 3 is not 3.0, and a list is not a tuple. An assert
    compares as Python does.

    Raises:
        ValueError: Anything else. The message shows what to write instead.

    >>> [test.expected for test in read_tests(["assert add(1, 2) == 3"])]
    [3]
    """
    is_json = isinstance(value, str) and value.strip().startswith(("[", "{"))
    try:
        cells = json.loads(value) if is_json else value
    except ValueError as error:
        raise ValueError(
            f"the tests {value!r:.120} are not valid JSON ({error}): write them with "
            "json.dumps(tests), or as a list."
        ) from error
    if isinstance(cells, (str, Mapping)):
        cells = [cells]
    if not isinstance(cells, Iterable):
        raise ValueError(
            f"the tests are {cells!r:.80}: write a list of tests, or a text of asserts."
        )
    tests: list[CodeTest] = []
    for cell in cells:
        if isinstance(cell, str):
            tests += _read_asserts(cell)
        else:
            tests.append(_read_mapping(cell, may_hold_none=is_json))
    if not tests:
        raise ValueError(
            "a row has no tests, so no code could score there. Remove the row or add a test."
        )
    return tuple(tests)


def _holds_none(value: Any) -> bool:
    """Say whether a dict at any depth of a value holds None."""
    if isinstance(value, Mapping):
        return any(item is None or _holds_none(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(map(_holds_none, value))


def _read_mapping(test: Any, *, may_hold_none: bool) -> CodeTest:
    fields = {}
    if isinstance(test, Mapping):
        for key, value in test.items():
            # Arrow fills keys that only other rows have with None. `expected` may really be None.
            if value is not None or key == "expected":
                fields[key] = value
    values = [fields.get("args"), fields.get("kwargs"), fields.get("expected")]
    if not may_hold_none and any(map(_holds_none, values)):
        raise ValueError(
            f"the test {test!r:.120} has None inside a dict. `datasets` writes None for keys that "
            "only other rows have, so the two cannot be told apart: write the tests as text, "
            "json.dumps(tests)."
        )
    is_program = isinstance(fields.get("stdin"), str) and isinstance(fields.get("stdout"), str)
    if is_program and fields.keys() <= {"stdin", "stdout", "expected"}:
        return CodeTest(stdin=fields["stdin"], stdout=fields["stdout"])
    is_call = isinstance(fields.get("call"), str) and "expected" in fields
    if is_call and fields.keys() <= {"call", "args", "kwargs", "expected", "tolerance"}:
        args = fields.get("args", ())
        kwargs = fields.get("kwargs", {})
        expected = fields["expected"]
        tolerance = fields.get("tolerance", 0)
        has_arguments = isinstance(args, (list, tuple)) and isinstance(kwargs, Mapping)
        has_limit = isinstance(tolerance, (int, float)) and tolerance >= 0
        has_limit = has_limit and (not tolerance or isinstance(expected, (int, float)))
        if has_arguments and has_limit:
            call = Call(fields["call"], tuple(args), dict(kwargs))
            return CodeTest(call=call, expected=expected, tolerance=tolerance)
    raise ValueError(
        f"the test {test!r:.120} must be {_FORMS} or an assert; "
        "gn.rewards.read_tests describes the other fields."
    )


def _read_asserts(text: str) -> list[CodeTest]:
    try:
        return [_read_assert(statement) for statement in ast.parse(text).body]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"the test {text!r:.160} cannot be read ({error}). Write call and value out, "
            '"assert f(1) == 3", or as data, with "tolerance": 0.01 for inexact numbers.'
        ) from error


def _read_assert(statement: ast.stmt) -> CodeTest:
    match statement:
        case ast.Assert(
            test=ast.Compare(left=node, ops=[ast.Eq() | ast.Is() as operator], comparators=[right])
        ):
            return _read_call(node, _literal(right), compares_types=isinstance(operator, ast.Is))
        case ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=ast.Call() as node)):
            return _read_call(node, False, wrapper="bool")
        case ast.Assert(test=ast.Call() as node):
            return _read_call(node, True, wrapper="bool")
    raise ValueError(
        "it is not an assert of a call, with == or `is` and a value, or with `not` before the call"
    )


def _read_call(
    node: ast.expr, expected: Any, *, wrapper: str = "", compares_types: bool = False
) -> CodeTest:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if (
            name in _WRAPPERS and not wrapper
        ):
            wrapper = name
            node = argument
    if not isinstance(node, ast.Call):
        raise ValueError("there is no call of the candidate's function")
    kwargs = {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
    if None in kwargs:
        raise ValueError("** is not a value")
    call = Call(ast.unparse(node.func), tuple(map(_literal, node.args)), kwargs)
    return CodeTest(call=call, expected=expected, wrapper=wrapper, compares_types=compares_types)


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal, or of a literal in `set([1, 2])` and the like."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _WRAPPERS:
            return _WRAPPERS[name](ast.literal_eval(argument))
    return ast.literal_eval(node)
