"""The reward for code that passes hidden tests, and functions that read the tests and the code.

The generated code runs in the sandbox (`grpo_nb.sandbox.runner`). It never sees an expected
value and never runs in this process: results come back as plain data and are compared here. Asserts
are parsed and never run.
"""

import ast
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from grpo_nb.rewards.base import Completion, Reward, completion_text, rows_of
from grpo_nb.sandbox.outcomes import Call, CallResult, Candidate, Limits
from grpo_nb.sandbox.runner import run_untrusted_batch
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.read_rows import Row

_PYTHON_LABELS = ("", "python", "python3", "py")
"""Languages after the opening fence of a block that count as Python."""
# The start or end of a block. Next to a quotation mark, three backticks are part of a string in the
# code, as in text.strip("```").
_FENCE = re.compile("(?<![\"'])```(?![\"'])")


@dataclass(frozen=True, kw_only=True)
class CodeTest:
    """One hidden test: a call and its expected value."""

    call: Call
    expected: Any
    compares_truth: bool = False
    """True for `assert f(x)` and `assert not f(x)`, where only the truth of the result counts."""

    def accepts(self, result: CallResult) -> bool:
        """Return True if a call gave the expected value."""
        if not result.is_value:
            return False
        value = bool(result.value) if self.compares_truth else result.value
        return value == self.expected


def read_tests(cell: Any) -> tuple[CodeTest, ...]:
    """Return the hidden tests in one cell of a data set.

    A cell is one test or a list of tests. A test is an assert: `assert f(1) == 2`, `assert f(1)` or
    `assert not f(1)`. Arguments and expected value must be literals. The result is compared with
    the expected value by `==`. The result must be plain data: a `Decimal` or `Fraction` does not
    count as a float, and `d.keys()` does not count as a set.

    Raises:
        ValueError: The cell holds anything else. The message shows what to write instead.

    >>> [test.expected for test in read_tests(["assert add(1, 2) == 3"])]
    [3]
    """
    # Anything but a list is one test. The loop refuses a test that is no text.
    is_list = isinstance(cell, Iterable) and not isinstance(cell, (str, Mapping))
    tests = []
    for test in cell if is_list else [cell]:
        if not isinstance(test, str):
            raise ValueError(
                f"the test {test!r:.80} must be an assert such as "
                '"assert f(1) == 2". For programs that read standard input, '
                "docs/reference/sandbox.md has a reward."
            )
        try:
            tests += [_read_assert(statement) for statement in ast.parse(test).body]
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(
                f"the test {test!r:.80} cannot be read ({error}). Write call and value out: "
                '"assert f(1) == 3". If the column holds JSON text, convert it first: '
                "json.loads(text)."
            ) from error
    if not tests:
        raise ValueError(
            "a row has no tests, so no code could score there. Remove the row or add a test."
        )
    return tuple(tests)


def _read_assert(statement: ast.stmt) -> CodeTest:
    condition = statement.test if isinstance(statement, ast.Assert) else None
    match condition:
        # assert f(1) == 2
        case ast.Compare(left=ast.Call() as node, ops=[ast.Eq()], comparators=[right]):
            expected = ast.literal_eval(right)
        # assert not f(1)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call() as node):
            expected = False
        # assert f(1)
        case ast.Call() as node:
            expected = True
        case _:
            raise ValueError(
                "it is not an assert of a call, with == and a value, or with `not` before the call"
            )
    args = [ast.literal_eval(argument) for argument in node.args]
    kwargs = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
    return CodeTest(
        call=Call(ast.unparse(node.func), args, kwargs),
        expected=expected,
        # Without ==, the result need not be a bool.
        compares_truth=not isinstance(condition, ast.Compare),
    )


@dataclass(frozen=True, kw_only=True)
class code_tests(Reward):
    r"""The share of hidden tests that the completion's code passes, 0.0 to 1.0.

    The code is found by `extract_code`. It runs in the sandbox, together with the code of all other
    completions of the batch. Only the inputs of the tests go in. The results come out as plain data
    and are compared here. So code cannot win by exiting with 0, by returning an object that equals
    everything, or by printing a verdict.

    The same code always gets the same score: random numbers and the order of sets are fixed, and
    time is measured as processor time. The score is None if the sandbox itself failed.

    Args:
        column: The data column with the tests; `read_tests` describes its cells.
        all_or_nothing: Score 1.0 if every test passes, else 0.0. Partial credit (the default) gives
            a model smaller steps to learn, but can reward code for a special case only.
        limits: Time, memory and output for all tests of a completion together.

    Raises:
        ValueError: When called, if the column is missing or a test cannot be read. This is a
            mistake in the data. `code_tests().check(task.train)` finds it before training.
        EnvironmentProblem: When called, if this machine cannot isolate the code.

    Source: partial credit over hidden unit tests as in APPS (arXiv:2105.09938); asserts as in MBPP
    (arXiv:2108.07732).

    >>> reward = code_tests()
    >>> completion = "<answer>def f(x): return x + 1</answer>"
    >>> reward(completions=[completion], tests=[["assert f(1) == 2", "assert f(1) == 3"]])
    [0.5]
    """

    weight: float = 2.0
    column: str = "tests"
    all_or_nothing: bool = False
    limits: Limits | None = None
    range = (0.0, 1.0)

    def check(self, rows: Iterable[Row]) -> None:
        """Check that the tests of every row can be read.

        Raises:
            ValueError: The column is missing, or a test cannot be read. The message names the first
                row with such a test.
        """
        for index, row in enumerate(rows):
            self.require_column(row, self.column)
            try:
                read_tests(row[self.column])
            except ValueError as error:
                raise ValueError(
                    f"the reward {self.__name__!r} cannot read the data: row {index}: {error}"
                ) from error

    def __call__(self, *, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        rows = rows_of(columns, len(completions))
        for row in rows:
            self.require_column(row, self.column)
        tests_of_rows = [read_tests(row[self.column]) for row in rows]
        # A completion without code stays at 0.0.
        scores: list[float | None] = [0.0] * len(completions)
        candidates = {}
        for index, completion in enumerate(completions):
            code = extract_code(completion_text(completion), self.format)
            if code is not None:
                calls = [test.call for test in tests_of_rows[index]]
                candidates[index] = Candidate(code=code, calls=calls)
        # One batch for all completions, so that endless loops run, and time out, in parallel.
        outcomes = run_untrusted_batch(list(candidates.values()), limits=self.limits)
        for index, outcome in zip(candidates, outcomes, strict=True):
            if outcome.status == "lost":
                # The machine failed, which says nothing about the code: TRL leaves a None out.
                scores[index] = None
                continue
            results = zip(tests_of_rows[index], outcome.results, strict=True)
            share = fmean(test.accepts(result) for test, result in results)
            scores[index] = float(share == 1.0) if self.all_or_nothing else share
        return scores


def extract_code(text: str, answer_format: AnswerFormat) -> str | None:
    """Return the code of a completion: the last Python block of the answer slot, or the whole slot.

    None without a slot, or if its only blocks are unclosed, empty or in another language.

    >>> from grpo_nb.tasks import xml
    >>> extract_code("<answer>\\n```python\\nx = 1\\n```\\n</answer>", xml())
    'x = 1\\n'
    """
    slot = answer_format.extract(text)
    if slot is None or not _FENCE.search(slot):
        return slot
    last_code = None
    # Text and blocks in turn. The last part is text, or an unclosed block.
    for block in _FENCE.split(slot)[1:-1:2]:
        language, _, code = block.partition("\n")
        if language.strip().lower() in _PYTHON_LABELS and code.strip():
            # A block in a list is indented as a whole.
            last_code = textwrap.dedent(code)
    return last_code
