"""What is asked of written code and what came of it: calls with their limits into the sandbox, answers out of it.

What comes out is data that is parsed and compared; nothing of it is ever run, unpickled or believed.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_nb.core.tables import Html, Part, Shown, Table, bold, code, escaped
from grpo_nb.core.words import displayable, require_number, shorten
from grpo_nb.sandbox import values
from grpo_nb.sandbox.pool import Finished

_FUNCTION = re.compile(r"[^\W\d]\w*(\(\))?(\.[^\W\d]\w*(\(\))?)*")


# Least and most of each limit: a day, a tebibyte, a gibibyte.
_BOUNDS = {
    "cpu_seconds": (0.01, 86_400), "wall_seconds": (0, 86_400), "memory_mib": (64, 1 << 20), "threads": (0, 4096),
    "output_kib": (1, 1 << 20),
}  # fmt: skip
_LONGEST_ERROR = 300


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one candidate may use. Beyond any of these it is ended, and its neighbours notice nothing.

    >>> Limits(cpu_seconds=1).wall_seconds
    10.0
    """

    cpu_seconds: float = 2.0
    """Processor time, not time on the clock: a slow or busy machine must not turn right answers into wrong ones."""
    wall_seconds: float = 0.0
    """Time on the clock, against sleepers; 5 s and five times `cpu_seconds` if 0, to leave room on a busy machine."""
    memory_mib: int = 512
    """Address space, of which the interpreter itself takes about 100."""
    threads: int = 16
    """Beside the main one. Processes: none."""
    output_kib: int = 256
    """Of answers and of printed text, each. A candidate that writes more is ended."""

    def __post_init__(self) -> None:
        for name, bounds in _BOUNDS.items():
            require_number(name, getattr(self, name), *bounds, is_whole=not name.endswith("_seconds"))
        if self.wall_seconds == 0:
            object.__setattr__(self, "wall_seconds", 5.0 + 5.0 * self.cpu_seconds)


@dataclass(frozen=True)
class Call:
    """One call of a function that the candidate defines: `Call("add", (1, 2))`; `Class().method` works as well."""

    function: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.function, str) or not _FUNCTION.fullmatch(self.function):
            raise ValueError(
                f"Call({self.function!r:.80}): not a function to call. Write its name, as 'add' or 'Solution().add'."
            )
        if isinstance(self.args, str):  # ("text") is no tuple, and each letter would be an argument
            raise TypeError(f"args = {self.args!r:.80} must be the arguments in order, as (1, 2) or ('text',).")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Code with what to do with it: calls, or (if `stdin` is given) a run as a program that reads this text."""

    code: str
    calls: Sequence[Call] = ()
    stdin: str | None = None
    group: int | str | None = None
    """Candidates of a group, as the tests of one completion, run one after the other and share the time of one."""

    def __post_init__(self) -> None:
        if self.stdin is not None and self.calls:
            raise ValueError("a candidate is called or run with stdin, not both: make two of it.")


@dataclass(frozen=True, repr=False)
class Answer:
    """What one call gave: a value of plain data, or an error. Both were made by model-written code."""

    value: Any = None
    error: str | None = None

    @property
    def is_value(self) -> bool:
        """Whether the call returned plain data."""
        return self.error is None

    @property
    def words(self) -> str:
        """The value as Python writes it, or the error; no longer than can be read."""
        try:
            text = repr(self.value) if self.is_value else f"error: {self.error}"
        except ValueError:  # an integer of more digits than Python writes
            text = f"a value of type {type(self.value).__name__}, too long to be written"
        return shorten(text, _LONGEST_ERROR)

    def __repr__(self) -> str:
        return f"Answer({displayable(self.words)})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Outcome(Shown):
    """What came of one candidate. `answers` has one entry for each call, always."""

    status: str
    """`ok`; `error` (the code itself failed); `cpu`, `wall`, `memory`, `threads`, `output` (a limit); `exit` (it ended
    its process early); `forged` (its answers were not what the protocol allows); `lost` (the machine's fault)."""
    answers: tuple[Answer, ...] = ()
    stdout: str = ""
    """What a program printed, capped; empty for calls."""
    error: str = ""
    """What failed, in the candidate's own words: show it escaped."""
    cpu_seconds: float = 0.0

    def _parts(self) -> Iterator[Part]:
        printed = shorten(self.stdout, 2000)
        yield bold(self.status)
        yield self.error
        yield Html(printed, f"<pre>{escaped(printed)}</pre>") if printed else ""
        yield Table([(number, code(answer.words)) for number, answer in enumerate(self.answers)])


def job_of(candidate: Candidate, limits: Limits) -> dict[str, Any]:
    """Return what the zygote is told. Raises ValueError if an argument is not plain data."""
    try:
        calls = [
            [call.function, [*map(values.encode, call.args)], {k: values.encode(v) for k, v in call.kwargs.items()}]
            for call in candidate.calls
        ]
    except values.NotPlainData as error:
        raise ValueError(f"a call cannot be sent to the sandbox: its argument holds {error}.") from error
    program = {} if candidate.stdin is None else {"stdin": candidate.stdin}
    return {"code": candidate.code, "calls": calls, "group": candidate.group, **dataclasses.asdict(limits), **program}


def outcome_of(candidate: Candidate, finished: Finished) -> Outcome:
    """Turn bytes that a candidate could choose into answers: one for each call, in order, or none at all."""
    seconds = round(finished.cpu, 3)
    make = functools.partial(Outcome, cpu_seconds=seconds, stdout=finished.output.decode("utf-8", "replace"))
    none = tuple(Answer(error="no answer") for _ in candidate.calls)
    if finished.reason in ("lost", "no_wall"):
        return make(status="lost", answers=none, error="the sandbox broke down twice; this says nothing about the code")
    is_cut = finished.reason != "done" or not finished.report.endswith(b"\n")
    lines = finished.report.split(b"\n")[:-1]
    try:
        load_error, given = _parse(lines, len(candidate.calls), is_program=candidate.stdin is not None)
    except values.NotPlainData as error:
        return make(status="forged", answers=none, error=f"its report is {error}")
    answers = tuple([*given, *none[len(given) :]])
    if load_error is not None:
        status = "memory" if load_error.startswith("MemoryError") else "error"
        return make(status=status, answers=answers, error=load_error)
    if finished.reason != "done":
        return make(status=finished.reason, answers=answers, error=f"ended by the {finished.reason} limit")
    is_complete = bool(lines) if candidate.stdin is not None else len(given) == len(candidate.calls)
    if finished.exit_code != 0 or not is_complete or (is_cut and candidate.calls):
        return make(status="exit", answers=answers, error=f"its process ended early, exit code {finished.exit_code}")
    return make(status="ok", answers=answers)


def _parse(lines: list[bytes], count: int, *, is_program: bool) -> tuple[str | None, list[Answer]]:
    answers: list[Answer] = []
    for number, line in enumerate(lines):
        words = values.loads(line)
        match words:
            case {"end": None | str() as error} if is_program and len(lines) == 1 and len(words) == 1:
                return error and shorten(error, _LONGEST_ERROR), []
            case {"load": str(error)} if not is_program and len(lines) == 1 and len(words) == 1:
                return shorten(error, _LONGEST_ERROR), []
            case {"call": int(call), "error": str(error)} if call == number < count and len(words) == 2:
                answers.append(Answer(error=shorten(error, _LONGEST_ERROR)))
            case {"call": int(call), "value": value} if call == number < count and len(words) == 2:
                answers.append(Answer(value=values.decode(value)))
            case _:
                raise values.NotPlainData("not a line of the protocol")
    return None, answers
