"""Rewards for code that works: hidden tests, run in the sandbox, compared here.

The model-written code never sees what is expected, and never runs in this process. See `grpo_nb.sandbox`.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grpo_nb._sandbox.values import refuse_equal_hashes
from grpo_nb.formats import AnswerFormat, xml
from grpo_nb.rewards.base import Completion, Reward, completion_text
from grpo_nb.sandbox import Call, Candidate, Limits, Outcome, is_same_value, run_untrusted_batch

if TYPE_CHECKING:
    from grpo_nb.rewards.cases import CaseTable


def _as_set(value: Any) -> set[Any]:
    items = list(value)
    refuse_equal_hashes(items)
    return set(items)


# What may stand around the call in an assert; applied here, to the plain data that came back.
_WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "set": _as_set, "sorted": sorted, "list": list, "tuple": tuple, "len": len, "str": str, "float": float, "int": int,
    "bool": bool, "sum": sum, "min": min, "max": max,
}  # fmt: skip
_PYTHON = ("", "python", "python3", "py")


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

    def passes(self, value: Any) -> bool:
        """Say whether `value`, plain data from the sandbox, is what this test wants."""
        try:
            for name in reversed(self.wrappers):
                value = _WRAPPERS[name](value)
        except (TypeError, ValueError, OverflowError):
            return False
        if self.tolerance or self.relative_tolerance:
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number:
                return False
            try:
                return math.isclose(value, self.expected, rel_tol=self.relative_tolerance, abs_tol=self.tolerance)
            except OverflowError:
                return False
        return is_same_value(value, self.expected, exact_types=self.has_exact_types) is not self.is_negated

    def prints(self, stdout: str) -> bool:
        """Say whether `stdout` is what must be printed, but for white space at the ends of lines and of the text."""
        return _lines(stdout) == _lines(self.stdout)


def extract_code(text: str, format: AnswerFormat) -> str | None:
    """Return the code of a completion: the last ```python block of the answer slot, or the whole slot if it has none.

    Where the completion has no answer slot at all, the last block of the text counts, since many models answer with
    a block and nothing else; `code_tests(needs_slot=True)` does not want that. A slot that is there twice, or is not
    closed, is not an answer, and neither is a block without an end.

    >>> extract_code("<answer>\\n```python\\nx = 1\\n```\\n</answer>", xml())
    'x = 1\\n'
    """
    slot = format.extract(text)
    if slot is None and any(mark in text for mark in (format.answer_open, format.answer_close) if mark.strip()):
        return None
    source = text if slot is None else slot
    blocks = _python_blocks(source)
    if blocks:
        return blocks[-1]
    return slot if slot is not None and "```" not in slot else None


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


@dataclass(frozen=True, repr=False)
class _CodeTests(Reward):
    column: str = "tests"
    is_all_or_nothing: bool = False
    needs_slot: bool = False
    limits: Limits = field(default_factory=Limits)

    @property
    def cases(self) -> CaseTable:
        """The cases below, as the table that every reward has."""
        from grpo_nb.rewards import cases

        made = [
            cases.Case(label=c.kind, completion=c.completion, expected=c.score, columns={self.column: c.tests})
            for c in CASES
        ]
        return cases.CaseTable(self, tuple(made))

    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        return self._score([text], [row])[0]

    def __call__(self, *, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        per_row = {k: v for k, v in columns.items() if isinstance(v, (list, tuple)) and len(v) == len(completions)}
        rows = [{key: values[i] for key, values in per_row.items()} for i in range(len(completions))]
        return self._score([completion_text(completion) for completion in completions], rows)

    def check(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Read the tests of every row and return how many there are. Raises ValueError with the row that cannot be read."""
        count = 0
        for number, row in enumerate(rows):
            try:
                count += len(self._tests(row))
            except ValueError as error:
                raise ValueError(f"row {number}: {error}") from error
        return count

    def _tests(self, row: Mapping[str, Any]) -> tuple[CodeTest, ...]:
        if self.column not in row:
            raise ValueError(
                f"the reward {self.__name__!r} needs the data column {self.column!r}, but the data has "
                f"{sorted(row) or 'no columns'}; write code_tests(column=...) or rename the column."
            )
        return read_tests(row[self.column])

    def _score(self, texts: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
        all_tests = [self._tests(row) for row in rows]
        candidates: list[Candidate] = []
        owners: list[tuple[int, list[CodeTest]]] = []
        for number, (text, tests) in enumerate(zip(texts, all_tests, strict=True)):
            code = self._extract(text)
            if code is None:
                continue
            called = [test for test in tests if test.call is not None]
            if called:
                candidates.append(Candidate(code=code, calls=[test.call for test in called if test.call is not None]))
                owners.append((number, called))
            for test in tests:
                if test.call is None:
                    candidates.append(Candidate(code=code, stdin=test.stdin))
                    owners.append((number, [test]))
        passed, lost = [0] * len(texts), set()
        if candidates:
            # One batch for all completions: an endless loop in one of them costs its limit once.
            outcomes = run_untrusted_batch(candidates, limits=self.limits)
            for (number, tests), outcome in zip(owners, outcomes, strict=True):
                passed[number] += _count_passed(tests, outcome)
                if outcome.status == "lost":
                    lost.add(number)
        shares = [done / len(tests) for done, tests in zip(passed, all_tests, strict=True)]
        # A breakdown of the machine is no verdict on the code: None tells TRL that there is no score.
        return [
            None if number in lost else float(share == 1.0) if self.is_all_or_nothing else share
            for number, share in enumerate(shares)
        ]

    def _extract(self, text: str) -> str | None:
        if self.needs_slot and self.format.extract(text) is None:
            return None
        return extract_code(text, self.format)


def code_tests(
    *,
    weight: float = 2.0,
    format: AnswerFormat | None = None,
    column: str = "tests",
    all_or_nothing: bool = False,
    needs_slot: bool = False,
    limits: Limits | None = None,
    name: str = "code_tests",
) -> Reward:
    r"""The share of hidden tests that the completion's code passes, 0.0 to 1.0.

    The code is taken as `extract_code` says and runs in the sandbox, all completions of a batch at a time. Only inputs go
    in; values come out as plain data and are compared here by value and type, so that ending with code 0, objects equal
    to everything and printed verdicts earn nothing. The same code always gets the same score: random numbers and the
    order of sets are fixed, and time is counted as processor time. None, TRL's word for no score, where the sandbox
    itself broke down twice.

    Args:
        weight: Of the total reward; the largest, so that working pays more than looking right.
        format: Where the answer stands; `xml()` if not given.
        column: The data column with the tests; `read_tests` says what a cell may hold.
        all_or_nothing: 1.0 if every test passes, else 0.0. Partial credit (the default) gives a slope to climb but can
            pay for a special case alone.
        needs_slot: Whether code outside the answer slot earns nothing.
        limits: Time, memory, threads and output for each completion (for each test, where it reads standard input).

    Raises:
        ValueError: When called, if the column is missing or holds what is no test: a mistake in the data, not in a
            completion. `code_tests().check(task.train)` finds it before training.
        EnvironmentProblem: When called, if no isolation holds on this machine.

    Source: partial credit over hidden unit tests as in APPS (arXiv:2105.09938); asserts as in MBPP (arXiv:2108.07732).

    >>> reward = code_tests()
    >>> reward(completions=["<answer>def f(x): return x + 1</answer>"], tests=[["assert f(1) == 2", "assert f(1) == 3"]])
    [0.5]
    """
    return _CodeTests(
        weight=weight, format=format or xml(), column=column, is_all_or_nothing=all_or_nothing, needs_slot=needs_slot,
        limits=limits or Limits(), name=name,
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A completion, the tests of its row, and the score that it must get."""

    kind: str
    completion: str
    tests: Any
    score: float


_ADD = [{"call": "add", "args": [1, 2], "expected": 3}, {"call": "add", "args": [-1, 1], "expected": 0}]

CASES = (
    Case("valid", "<reasoning>r</reasoning>\n<answer>\ndef add(a, b):\n    return a + b\n</answer>", _ADD, 1.0),
    Case("valid, in a block", "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.", _ADD, 1.0),
    Case(
        "valid, a program",
        "<answer>print(sum(map(int, input().split())))</answer>",
        [{"stdin": "1 2\n", "stdout": "3\n"}],
        1.0,
    ),
    Case("invalid", "<answer>def add(a, b) return a + b</answer>", _ADD, 0.0),
    Case("wrong", "<answer>def add(a, b): return a - b</answer>", _ADD, 0.0),
    Case("mixed: half of the tests", "<answer>def add(a, b): return 3</answer>", _ADD, 0.5),
    Case(
        "mixed: right, then retracted",
        "<answer>def add(a, b): return a + b</answer> no: <answer>pass</answer>",
        _ADD,
        0.0,
    ),
    Case("empty", "", _ADD, 0.0),
    Case("empty slot", "<answer></answer>", _ADD, 0.0),
    Case("unicode", "<answer>def größe(text): return text[::-1]</answer>", ["assert größe('añ🎈') == '🎈ña'"], 1.0),
    Case("lone surrogate and NUL", "<answer>def add(a, b): return '\ud800\0'</answer>", _ADD, 0.0),
    Case("hostile: ends with code 0", "<answer>import sys; sys.exit(0)</answer>", _ADD, 0.0),
    Case(
        "hostile: equal to everything",
        "<answer>class Yes:\n    def __eq__(self, other): return True\ndef add(a, b): return Yes()</answer>",
        _ADD,
        0.0,
    ),
    Case("hostile: endless", "<answer>def add(a, b):\n    while True: pass</answer>", _ADD, 0.0),
    Case("very long", "<answer>\ndef add(a, b): return a + b\n" + "# padding\n" * 20_000 + "</answer>", _ADD, 1.0),
    Case("very long, no code", "word " * 40_000, _ADD, 0.0),
    Case("prefilled tag", "thinking</reasoning>\n<answer>\ndef add(a, b): return a + b\n</answer>", _ADD, 1.0),
    Case("unclosed block", "```python\ndef add(a, b):\n    return a + b", _ADD, 0.0),
)
"""What the reward pays for what; the tests and the notebook both show it."""


def _count_passed(tests: Sequence[CodeTest], outcome: Outcome) -> int:
    if tests[0].call is None:
        return int(outcome.status == "ok" and tests[0].prints(outcome.stdout))
    return sum(a.is_value and test.passes(a.value) for test, a in zip(tests, outcome.answers, strict=True))


def _python_blocks(text: str) -> list[str]:
    """The closed blocks of Python, by lines: a pattern would take quadratic time on many fences that never close."""
    blocks: list[str] = []
    language, held = None, []
    for line in text.split("\n"):
        mark = line.strip()
        if language is None and mark.startswith("```"):
            language, held = mark[3:].strip().lower(), []
        elif language is not None and mark == "```":
            if language in _PYTHON:
                blocks.append("".join(held))
            language = None
        else:
            held.append(line + "\n")
    return blocks


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
            call, expected = (left, right) if _is_candidate_call(left) else (right, left)
            return _make_test(call, ast.literal_eval(expected), tolerance=float(ast.literal_eval(limit)))
        case ast.Compare(
            left=left, ops=[ast.Eq() | ast.Is() | ast.NotEq() | ast.IsNot() as operator], comparators=[right]
        ):
            call, expected = (left, right) if _is_candidate_call(left) else (right, left)
            value = _constant(expected)
            if isinstance(operator, (ast.Is, ast.IsNot)) and not (value is None or isinstance(value, bool)):
                raise ValueError("`is` compares identity, which does not cross the wall; write ==")
            return _make_test(
                call, value, is_negated=isinstance(operator, (ast.NotEq, ast.IsNot)),
                has_exact_types=isinstance(operator, (ast.Is, ast.IsNot)),
            )  # fmt: skip
        case ast.Call(
            func=ast.Attribute(value=ast.Name("math"), attr="isclose"), args=[left, right], keywords=keywords
        ):
            call, expected = (left, right) if _is_candidate_call(left) else (right, left)
            given = {keyword.arg: float(ast.literal_eval(keyword.value)) for keyword in keywords}
            return _make_test(
                call, ast.literal_eval(expected), tolerance=given.get("abs_tol", 0.0),
                relative_tolerance=given.get("rel_tol", 1e-9),
            )  # fmt: skip
        case ast.UnaryOp(op=ast.Not(), operand=call):
            return _make_test(call, False, wrappers=("bool",))
        case _:
            return _make_test(node, True, wrappers=("bool",))


def _make_test(node: ast.expr, expected: Any, *, wrappers: tuple[str, ...] = (), **more: Any) -> CodeTest:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _WRAPPERS:
        if len(node.args) != 1 or node.keywords:
            raise ValueError(f"{node.func.id} is wanted with one argument")
        wrappers, node = (*wrappers, node.func.id), node.args[0]
    if not isinstance(node, ast.Call):
        raise ValueError("there is no call of the candidate's function where one is expected")
    args = tuple(_constant(argument) for argument in node.args)
    kwargs = {keyword.arg: _constant(keyword.value) for keyword in node.keywords if keyword.arg is not None}
    if len(kwargs) != len(node.keywords):
        raise ValueError("** is not a value")
    more.setdefault("has_exact_types", False)
    return CodeTest(call=Call(_path(node.func), args, kwargs), expected=expected, wrappers=wrappers, **more)


def _is_candidate_call(node: ast.expr) -> bool:
    """Whether the node is a call of something other than a literal's constructor, as in `set([1])`."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name) and node.func.id in _WRAPPERS:
        return bool(node.args) and _is_candidate_call(node.args[0])
    return True


def _constant(node: ast.expr) -> Any:
    """Return the value of a literal, also of `set([1, 2])`, `float("inf")` and the like."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _WRAPPERS
        and not node.keywords
    ):
        return _WRAPPERS[node.func.id](*[_constant(argument) for argument in node.args])
    return ast.literal_eval(node)


def _path(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{_path(value)}.{attr}"
        case ast.Call(func=function, args=[], keywords=[]):
            return f"{_path(function)}()"
    raise ValueError("the call is not of a name, a Class().method or a Class.method")
