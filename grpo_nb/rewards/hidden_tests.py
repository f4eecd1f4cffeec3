"""The hidden tests of a data row: read from data or asserts, never run, and applied to what came out of the sandbox."""

from __future__ import annotations

import ast
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from grpo_nb.sandbox.jobs import Call
from grpo_nb.sandbox.values import is_same_value, refuse_equal_hashes

_MOST_FRACTIONS, _MOST = 100, 1_000_000
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow}


def _as_set(value: Any) -> set[Any]:
    items = list(value)
    refuse_equal_hashes(items)
    return set(items)


def _sum(value: Any) -> Any:
    items = list(value)
    # A sum of many fractions has the product of all their denominators.
    if sum(isinstance(item, Fraction) for item in items) > _MOST_FRACTIONS:
        raise ValueError(f"more than {_MOST_FRACTIONS} fractions to add")
    return sum(items)


# What may stand around the call in an assert; applied here, to the plain data that came back.
_WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "set": _as_set, "sorted": sorted, "list": list, "tuple": tuple, "len": len, "str": str, "float": float, "int": int,
    "bool": bool, "sum": _sum, "min": min, "max": max,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CodeTest:
    """One hidden test: a call with the value that it must return, or standard input with what must be printed."""

    call: Call | None = None
    expected: Any = None
    tolerance: float = 0.0
    """Largest difference that still passes, for numbers."""
    relative_tolerance: float = 0.0
    """The same, as a share of the larger of the two (`math.isclose`)."""
    wrappers: tuple[str, ...] = ()
    """Functions applied to the answer before it is compared, as in `assert sorted(f(x)) == [1, 2]`."""
    has_exact_types: bool = True
    """Whether `1`, `1.0` and `True` differ: they do in tests given as data, and do not under the `==` of an assert."""
    is_negated: bool = False
    """Whether the value must differ from `expected`, as after `!=`."""
    stdin: str | None = None
    stdout: str = ""

    def __post_init__(self) -> None:
        is_number = isinstance(self.expected, (int, float)) and not isinstance(self.expected, bool)
        if (self.tolerance or self.relative_tolerance) and not is_number:
            raise ValueError(f"a tolerance needs a number in expected, which is {self.expected!r:.60}.")

    def passes(self, value: Any) -> bool:
        """Say whether `value`, plain data from the sandbox, is what this test wants."""
        try:
            for name in reversed(self.wrappers):
                value = _WRAPPERS[name](value)
            if self.tolerance or self.relative_tolerance:
                is_number = isinstance(value, (int, float, Decimal, Fraction)) and not isinstance(value, bool)
                limits = {"rel_tol": self.relative_tolerance, "abs_tol": self.tolerance}
                return is_number and math.isclose(value, self.expected, **limits)
        except (TypeError, ValueError, OverflowError):
            return False
        return is_same_value(value, self.expected, exact_types=self.has_exact_types) is not self.is_negated

    def prints(self, stdout: str) -> bool:
        """Say whether `stdout` is what must be printed, but for white space at the ends of lines and of the text."""
        return _lines(stdout) == _lines(self.stdout)


def read_tests(value: Any) -> tuple[CodeTest, ...]:
    """Return the hidden tests that one cell of a data set holds.

    A cell is a list of tests or one test, also as JSON text. A test is
    `{"call": "f", "args": [...], "kwargs": {...}, "expected": ...}`, `{"stdin": "...", "stdout": "..."}`, or an assert
    as in MBPP: `assert f(1) == 2`, `is`, `!=`, `not f(x)`, `f(x)`, `math.isclose(f(x), 2.5)`, `abs(f(x) - 2.5) < 0.01`, with
    `sorted`, `set`, `len` and the like around the call. Asserts are read, never run.

    Raises:
        ValueError: Anything else, with what to write instead. Call this (or `check`) on the data before training.

    >>> [test.expected for test in read_tests(["assert add(1, 2) == 3"])]
    [3]
    """
    if isinstance(value, str):
        text = value.strip()
        if text.startswith(("[", "{")):
            try:
                value = json.loads(text)
            except ValueError as error:
                try:
                    value = ast.literal_eval(text)  # keys that are no texts, which JSON does not have
                except (ValueError, SyntaxError, RecursionError, MemoryError):
                    raise ValueError(f"the tests {text!r:.80} look like JSON but are not ({error}).") from error
        else:
            return _checked(_read_asserts(text))
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Iterable):
        raise ValueError(f"the tests are {value!r:.80}: write a list of tests, or a text of asserts.")
    tests: list[CodeTest] = []
    for one in value:
        if isinstance(one, str):
            tests += _read_asserts(one)
        elif isinstance(one, CodeTest):
            tests.append(one)
        elif isinstance(one, Mapping):
            tests.append(_read_mapping(one))
        else:
            raise ValueError(
                f'the test {one!r:.80} is no assert and no {{"call": ..., "args": [...], "expected": ...}}.'
            )
    return _checked(tests)


def _checked(tests: list[CodeTest]) -> tuple[CodeTest, ...]:
    if not tests:
        raise ValueError("a row has no tests: code without a test cannot earn anything. Remove the row or add a test.")
    return tuple(tests)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _read_mapping(test: Mapping[str, Any]) -> CodeTest:
    # Arrow fills the keys that other rows have with None, so a key that is None counts as missing, but for `expected`.
    given = {key for key, value in test.items() if value is not None or key == "expected"}
    if "stdin" in given and "call" not in given:
        if not {"stdin", "stdout"} <= given <= {"stdin", "stdout", "expected"}:
            raise ValueError(f'the test {dict(test)!r:.120} must be {{"stdin": "...", "stdout": "..."}}.')
        return CodeTest(stdin=str(test["stdin"]), stdout=str(test["stdout"]))
    if not {"call", "expected"} <= given <= {"call", "args", "kwargs", "expected", "tolerance"}:
        raise ValueError(
            f"the test {dict(test)!r:.120} has the keys {sorted(given)}, but a test is "
            '{"call": "f", "args": [1, 2], "expected": 3} (with "kwargs" and "tolerance" if need be) or '
            '{"stdin": "...", "stdout": "..."}.'
        )
    return CodeTest(
        call=Call(test["call"], tuple(test.get("args") or ()), dict(test.get("kwargs") or {})),
        expected=test["expected"],
        tolerance=float(test.get("tolerance") or 0.0),
    )


def _read_asserts(text: str) -> list[CodeTest]:
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the test {text!r:.120} is not Python ({error}).") from error
    tests = []
    for statement in statements:
        try:
            if not isinstance(statement, ast.Assert):
                raise ValueError("it is no assert")
            tests.append(_read_condition(statement.test))
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            source = ast.get_source_segment(text, statement) or text
            raise ValueError(
                f"the test {source!r:.200} cannot be split into a call and the expected value ({error}). Write both out: "
                '"assert f(1, [2]) == 3", or {"call": "f", "args": [1, [2]], "expected": 3}; or drop this row.'
            ) from error
    return tests


def _read_condition(node: ast.expr) -> CodeTest:
    match node:
        case ast.Compare(
            left=ast.Call(func=ast.Name("abs"), args=[ast.BinOp(left=left, op=ast.Sub(), right=right)]),
            ops=[ast.Lt() | ast.LtE()],
            comparators=[limit],
        ):
            return _make_test(*_call_and_value(left, right), tolerance=float(ast.literal_eval(limit)))
        case ast.Compare(
            left=left, ops=[ast.Eq() | ast.Is() | ast.NotEq() | ast.IsNot() as operator], comparators=[right]
        ):
            call, value = _call_and_value(left, right)
            is_identity = isinstance(operator, (ast.Is, ast.IsNot))
            if is_identity and not (value is None or isinstance(value, bool)):
                raise ValueError("`is` compares identity, which does not cross the wall; write ==")
            is_negated = isinstance(operator, (ast.NotEq, ast.IsNot))
            return _make_test(call, value, is_negated=is_negated, has_exact_types=is_identity)
        case ast.Call(
            func=ast.Attribute(value=ast.Name("math"), attr="isclose"), args=[left, right], keywords=keywords
        ):
            given = {"rel_tol": 1e-9, "abs_tol": 0.0} | {k.arg: float(ast.literal_eval(k.value)) for k in keywords}
            return _make_test(
                *_call_and_value(left, right), tolerance=given["abs_tol"], relative_tolerance=given["rel_tol"]
            )
        case ast.UnaryOp(op=ast.Not(), operand=call):
            return _make_test(call, False, wrappers=("bool",))
        case _:
            return _make_test(node, True, wrappers=("bool",))


def _make_test(
    node: ast.expr, expected: Any, *, wrappers: tuple[str, ...] = (), has_exact_types: bool = False, **more: Any
) -> CodeTest:
    while (name := _wrapper(node)) is not None:
        if len(node.args) != 1 or node.keywords:
            raise ValueError(f"{name} is wanted with one argument")
        wrappers, node = (*wrappers, name), node.args[0]
    if not isinstance(node, ast.Call):
        raise ValueError("there is no call of the candidate's function where one is expected")
    args = tuple(_constant(argument) for argument in node.args)
    kwargs = {keyword.arg: _constant(keyword.value) for keyword in node.keywords}
    if None in kwargs:
        raise ValueError("** is not a value")
    call = Call(_path(node.func), args, kwargs)
    return CodeTest(call=call, expected=expected, wrappers=wrappers, has_exact_types=has_exact_types, **more)


def _wrapper(node: ast.expr) -> str | None:
    """The name of the function that a node calls, if it is one that may stand around the candidate's."""
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in _WRAPPERS:
            return name
    return None


def _call_and_value(left: ast.expr, right: ast.expr) -> tuple[ast.expr, Any]:
    """The candidate's call, on whichever side it stands, and the value of the other side."""
    call, expected = (left, right) if _is_candidate_call(left) else (right, left)
    return call, _constant(expected)


def _is_candidate_call(node: ast.expr) -> bool:
    """Whether the node is a call of something other than a literal's constructor, as in `set([1])`."""
    while _wrapper(node) is not None and node.args:
        node = node.args[0]
    return isinstance(node, ast.Call) and _wrapper(node) is None


def _constant(node: ast.expr) -> Any:
    """Return the value of a literal, also of `set([1, 2])`, `float("inf")`, `list(range(9))`, `"ab" * 3`, `10**9 + 7`."""
    match node:
        case ast.Call(func=ast.Name("range"), args=args, keywords=[]):
            return _bounded(range(*map(_constant, args)))
        case ast.Call(args=args, keywords=[]) if (name := _wrapper(node)) is not None:
            return _WRAPPERS[name](*map(_constant, args))
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            one, other = _constant(left), _constant(right)
            if isinstance(operation, ast.Pow):
                _bounded(range(abs(other) * abs(int(one)).bit_length()))
            elif isinstance(operation, ast.Mult):
                items, times = (other, one) if isinstance(one, int) else (one, other)
                _bounded(range(0 if isinstance(items, (int, float)) else len(items) * times))
            return _OPERATIONS[type(operation)](one, other)
        case ast.List(elts=items):
            return [*map(_constant, items)]
        case ast.Tuple(elts=items):
            return tuple(map(_constant, items))
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ValueError(f"{ast.unparse(node):.60} is no value") from error


def _bounded(values: range) -> range:
    if len(values) > _MOST:
        raise ValueError(f"a value of more than {_MOST:,} items or bits")
    return values


def _path(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{_path(value)}.{attr}"
        case ast.Call(func=function, args=[], keywords=[]):
            return f"{_path(function)}()"
    raise ValueError("the call is not of a name, a Class().method or a Class.method")
