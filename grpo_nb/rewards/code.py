"""Rewards for code that works: hidden tests, run in the sandbox, compared here.

The model-written code never sees what is expected, and never runs in this process. See `grpo_nb.sandbox`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from grpo_nb.formats import AnswerFormat, xml
from grpo_nb.rewards.base import Completion, Reward, completion_text
from grpo_nb.rewards.cases_code import CASES as CASES
from grpo_nb.rewards.cases_code import Case as Case
from grpo_nb.rewards.hidden_tests import CodeTest, read_tests
from grpo_nb.sandbox import Candidate, Limits, Outcome, run_untrusted_batch

if TYPE_CHECKING:
    from grpo_nb.rewards.cases import CaseTable


_PYTHON = ("", "python", "python3", "py")


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


@dataclass(frozen=True, repr=False)
class _CodeTests(Reward):
    source: ClassVar[str] = (
        "partial credit over hidden tests as in APPS (arXiv:2105.09938), asserts as in MBPP (arXiv:2108.07732)"
    )
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
