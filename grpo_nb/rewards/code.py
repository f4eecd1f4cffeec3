"""A reward for code that passes hidden tests.

The tests run in the sandbox, and their results are compared here.

The generated code never sees an expected value and never runs in this process. See
`grpo_nb.sandbox.candidates`.
"""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.rewards.base import Reward
from grpo_nb.rewards.hidden_tests import CodeTest, read_tests
from grpo_nb.sandbox.candidates import run_untrusted_batch
from grpo_nb.sandbox.jobs import Candidate, Limits, Outcome
from grpo_nb.tasks.formats import AnswerFormat

_PYTHON = ("", "python", "python3", "py")
"""Languages after the opening fence of a block that count as Python."""
# ```x``` on one line is no fence.
_FENCE = re.compile(r"^[ \t]*```([^`\n]*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class code_tests(Reward):
    r"""The share of hidden tests that the completion's code passes, 0.0 to 1.0.

    The code is found by `extract_code`. It runs in the sandbox, all completions of a batch at a
    time. Only the inputs of the tests go in. The results come out as plain data and are compared
    here. So code cannot win by exiting with 0, by returning an object that equals everything, or by
    printing a verdict.

    The same code always gets the same score: random numbers and the order of sets are fixed, and
    time is measured as processor time. The score is None if the sandbox itself failed twice.

    Args:
        column: The data column with the tests; `read_tests` describes its cells.
        all_or_nothing: Score 1.0 if every test passes, else 0.0. Partial credit (the default) gives
            a model smaller steps to learn, but can reward code for a special case only.
        limits: Time, memory and output for each completion. Each test through standard input is a
            process of its own. These processes share the time: if one runs out of it, the tests
            after it fail too.

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

    def check(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Check that the tests of every row can be read.

        Raises:
            ValueError: A test cannot be read. The message names the first row with such a test.
        """
        for number, row in enumerate(rows):
            try:
                read_tests(self.column_of(row, self.column))
            except ValueError as error:
                raise ValueError(
                    f"the reward {self.__name__!r} cannot read the data: row {number}: {error}"
                ) from error

    def score_batch(self, texts: list[str], rows: list[dict[str, Any]]) -> list[float | None]:
        tests_of_rows = [read_tests(self.column_of(row, self.column)) for row in rows]
        runs_of_texts: list[list[_TestRun]] = []
        for text, tests in zip(texts, tests_of_rows, strict=True):
            code = extract_code(text, self.format)
            runs_of_texts.append([] if code is None else _plan_runs(code, tests))
        # One batch for all completions, so that several endless loops run out of time together.
        outcomes_of_texts = run_untrusted_batch(
            [[run.candidate for run in runs] for runs in runs_of_texts], limits=self.limits
        )
        scores: list[float | None] = []
        for tests, runs, outcomes in zip(
            tests_of_rows, runs_of_texts, outcomes_of_texts, strict=True
        ):
            passed = 0
            for run, outcome in zip(runs, outcomes, strict=True):
                passed += _count_passed(run.tests, outcome)
            if any(outcome.status == "lost" for outcome in outcomes):
                # The machine failed, which says nothing about the code: TRL leaves a None out.
                scores.append(None)
            elif self.all_or_nothing:
                scores.append(float(passed == len(tests)))
            else:
                scores.append(passed / len(tests))
        return scores


@dataclass(frozen=True)
class _TestRun:
    """One process in the sandbox, and the tests that its outcome decides."""

    candidate: Candidate
    tests: list[CodeTest]


def _plan_runs(code: str, tests: Sequence[CodeTest]) -> list[_TestRun]:
    """Return one run for all tests that call a function, and one for each with standard input."""
    runs = []
    call_tests = [test for test in tests if test.call is not None]
    if call_tests:
        candidate = Candidate(code=code, calls=[test.call for test in call_tests])
        runs.append(_TestRun(candidate, call_tests))
    for test in tests:
        if test.call is None:
            runs.append(_TestRun(Candidate(code=code, stdin=test.stdin), [test]))
    return runs


def _count_passed(tests: Sequence[CodeTest], outcome: Outcome) -> int:
    if tests[0].call is None:
        return int(outcome.status == "ok" and tests[0].prints(outcome.stdout))
    passed = 0
    for test, answer in zip(tests, outcome.answers, strict=True):
        if answer.is_value and test.passes(answer.value):
            passed += 1
    return passed


def extract_code(text: str, format: AnswerFormat) -> str | None:
    """Return the code of a completion; None if there is none.

    The code is the last ```python block of the answer slot, or the whole slot if it has no block.
    Without a slot, the last closed Python block of the completion counts, as many models write it.
    A slot that is open or comes twice gives None.

    >>> from grpo_nb.tasks import xml
    >>> extract_code("<answer>\\n```python\\nx = 1\\n```\\n</answer>", xml())
    'x = 1\\n'
    """
    slot = format.extract(text)
    if slot is None:
        for mark in (format.answer_open, format.answer_close):
            # A single character, such as the brace of `\boxed{}`, may be part of any code.
            if len(mark.strip()) > 1 and mark in text:
                return None
    blocks = _python_blocks(text if slot is None else slot)
    if blocks:
        return blocks[-1]
    return slot if slot is not None and "```" not in slot else None


def _python_blocks(text: str) -> list[str]:
    """Return the closed blocks of Python in a text.

    It walks from fence to fence. One pattern for a whole block would take quadratic time on a text
    of fences that are never closed.
    """
    blocks = []
    opening = None
    for fence in _FENCE.finditer(text):
        language = fence[1].strip().lower()
        if opening is None:
            opening = fence
        elif not language:
            if opening[1].strip().lower() in _PYTHON:
                # A block in a list is indented as a whole.
                blocks.append(textwrap.dedent(text[opening.end() + 1 : fence.start()]))
            opening = None
    return blocks
