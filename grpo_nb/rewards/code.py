"""Rewards for code that works: hidden tests, run in the sandbox, compared here.

The model-written code never sees what is expected, and never runs in this process. See `grpo_nb.sandbox.candidates`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.rewards.base import Reward
from grpo_nb.rewards.hidden_tests import CodeTest, read_tests
from grpo_nb.sandbox.candidates import run_untrusted_batch
from grpo_nb.sandbox.jobs import Candidate, Limits, Outcome
from grpo_nb.tasks.formats import AnswerFormat

_PYTHON = ("", "python", "python3", "py")
_FENCE = re.compile(r"^[ \t]*```(.*)$", re.MULTILINE)


def extract_code(text: str, format: AnswerFormat) -> str | None:
    """Return the code of a completion: the last ```python block of the answer slot, or the whole slot if it has none.

    Where the completion has no answer slot at all, the last block of the text counts, since many models answer with a block and
    nothing else. A slot that is there twice, or is not closed, is not an answer, and neither is a block without an end.

    >>> from grpo_nb.tasks import xml
    >>> extract_code("<answer>\\n```python\\nx = 1\\n```\\n</answer>", xml())
    'x = 1\\n'
    """
    slot = format.extract(text)
    if slot is None and any(
        mark in text for mark in (format.answer_open, format.answer_close) if mark.strip()
    ):
        return None
    if blocks := _python_blocks(text if slot is None else slot):
        return blocks[-1]
    return slot if slot is not None and "```" not in slot else None


@dataclass(frozen=True, kw_only=True)
class code_tests(Reward):
    r"""The share of hidden tests that the completion's code passes, 0.0 to 1.0.

    The code is taken as `extract_code` says and runs in the sandbox, all completions of a batch at a time. Only inputs go in;
    values come out as plain data and are compared here, so that ending with code 0, objects equal to everything and printed
    verdicts earn nothing. The same code always gets the same score: random numbers and the order of sets are fixed, and time is
    counted as processor time. None, TRL's word for no score, where the sandbox itself broke down twice.

    Args:
        column: The data column with the tests; `read_tests` says what a cell may hold.
        all_or_nothing: 1.0 if every test passes, else 0.0. Partial credit (the default) gives a slope to climb but can
            pay for a special case alone.
        limits: Time, memory, threads and output for each completion. Tests through standard input are a process each: they
            share the time, and one that overruns it ends the completion's others with it.

    Raises:
        ValueError: When called, if the column is missing or holds what is no test: a mistake in the data, not in a
            completion. `code_tests().check(task.train)` finds it before training.
        EnvironmentProblem: When called, if no isolation holds on this machine.

    Source: partial credit over hidden unit tests as in APPS (arXiv:2105.09938); asserts as in MBPP (arXiv:2108.07732).

    >>> reward = code_tests()
    >>> reward(completions=["<answer>def f(x): return x + 1</answer>"], tests=[["assert f(1) == 2", "assert f(1) == 3"]])
    [0.5]
    """

    weight: float = 2.0
    column: str = "tests"
    all_or_nothing: bool = False
    limits: Limits | None = None

    def check(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Read the tests of every row and return how many there are. Raises ValueError with the first that cannot be read."""
        count = 0
        for number, row in enumerate(rows):
            try:
                count += len(read_tests(self.column_of(row, self.column)))
            except ValueError as error:
                raise ValueError(
                    f"the reward {self.__name__!r} cannot read the data: row {number}: {error}"
                ) from error
        return count

    def score_batch(self, texts: list[str], rows: list[dict[str, Any]]) -> list[float | None]:
        all_tests = [read_tests(self.column_of(row, self.column)) for row in rows]
        codes = [extract_code(text, self.format) for text in texts]
        asked = [
            [] if code is None else _of_one(code, tests)
            for code, tests in zip(codes, all_tests, strict=True)
        ]
        # One batch for all completions: an endless loop in one of them costs its limit once.
        groups = [[candidate for candidate, _ in group] for group in asked]
        outcomes = run_untrusted_batch(groups, limits=self.limits)
        return [
            self._score(*completion) for completion in zip(all_tests, asked, outcomes, strict=True)
        ]

    def _score(
        self,
        tests: Sequence[CodeTest],
        asked: list[tuple[Candidate, list[CodeTest]]],
        outcomes: list[Outcome],
    ) -> float | None:
        # A breakdown of the machine is no verdict on the code: None tells TRL that there is no score.
        if any(outcome.status == "lost" for outcome in outcomes):
            return None
        passed = sum(
            _count_passed(part, outcome) for (_, part), outcome in zip(asked, outcomes, strict=True)
        )
        return float(passed == len(tests)) if self.all_or_nothing else passed / len(tests)


def _of_one(code: str, tests: Sequence[CodeTest]) -> list[tuple[Candidate, list[CodeTest]]]:
    """What is run of one completion, with the tests that each judges: all calls in one process, each program in its own."""
    calls = [test for test in tests if test.call is not None]
    asked = [(Candidate(code=code, calls=[test.call for test in calls]), calls)] if calls else []
    return asked + [
        (Candidate(code=code, stdin=test.stdin), [test]) for test in tests if test.call is None
    ]


def _count_passed(tests: Sequence[CodeTest], outcome: Outcome) -> int:
    if tests[0].call is None:
        return int(outcome.status == "ok" and tests[0].prints(outcome.stdout))
    return sum(
        a.is_value and test.passes(a.value) for test, a in zip(tests, outcome.answers, strict=True)
    )


def _python_blocks(text: str) -> list[str]:
    """The closed blocks of Python, fence by fence: one pattern for a block takes quadratic time on fences that never close."""
    blocks, opened = [], None
    for mark in _FENCE.finditer(text):
        if opened is None:
            opened = mark
        elif not mark[1].strip():
            if opened[1].strip().lower() in _PYTHON:
                blocks.append(text[opened.end() + 1 : mark.start()])
            opened = None
    return blocks
