"""What is asked of written code and what came of it: calls with their limits into the sandbox, answers out of it.

What comes out is data that is parsed and compared; nothing of it is ever run, unpickled or believed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_nb.core.words import require_number
from grpo_nb.sandbox import values

_FUNCTION = re.compile(r"[^\W\d]\w*(\(\))?(\.[^\W\d]\w*(\(\))?)*")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one candidate may use. Beyond any of these it is ended, and its neighbours notice nothing.

    >>> Limits(cpu_seconds=1).wall_seconds
    10.0
    """

    cpu_seconds: float = 2.0
    """Processor time, not time on the clock: a slow or busy machine must not turn right answers into wrong ones. Code that
    ignores signals gets up to two seconds more."""
    wall_seconds: float = 0.0
    """Time on the clock, against sleepers; 5 s and five times `cpu_seconds` if 0, to leave room on a busy machine."""
    memory_mib: int = 512
    """Address space, of which the interpreter itself takes about 50."""
    output_kib: int = 256
    """Of answers and of printed text, each."""

    def __post_init__(self) -> None:
        for name, least in {
            "cpu_seconds": 0.01,
            "wall_seconds": 0,
            "memory_mib": 64,
            "output_kib": 1,
        }.items():
            require_number(
                name, getattr(self, name), least, 1 << 20, is_whole=not name.endswith("_seconds")
            )
        if self.wall_seconds == 0:
            object.__setattr__(self, "wall_seconds", 5.0 + 5.0 * self.cpu_seconds)


@dataclass(frozen=True)
class Call:
    """One call of a function that the candidate defines: `Call("add", (1, 2))`; `Class().method` works as well."""

    function: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _FUNCTION.fullmatch(self.function):
            raise ValueError(
                f"Call({self.function!r:.60}): not a function; write its name, as 'add' or 'A().add'."
            )


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Code with what to do with it: calls, or (if `stdin` is given) a run as a program that reads this text."""

    code: str
    calls: Sequence[Call] = ()
    stdin: str | None = None


@dataclass(frozen=True)
class Answer:
    """What one call gave: a value of plain data, or an error. Both were made by model-written code."""

    value: Any = None
    error: str | None = "no answer"

    @property
    def is_value(self) -> bool:
        """Whether the call returned plain data."""
        return self.error is None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one candidate. `answers` has one entry for each call, always."""

    status: str
    """`ok`; `error` (the code itself failed); `limit` (time or output); `exit` (it ended early, or its answers are not what
    the protocol allows); `lost` (the machine's fault: this says nothing about the code)."""
    answers: tuple[Answer, ...] = ()
    stdout: str = ""
    """What a program printed; empty for calls."""
    error: str = ""
    """Why it is not `ok`, in part in the candidate's own words."""
    cpu_seconds: float = 0.0


def no_outcome(candidate: Candidate, status: str, error: str) -> Outcome:
    """The outcome of a candidate that gave no answer."""
    return Outcome(status=status, answers=(Answer(),) * len(candidate.calls), error=error)


def outcome_of(
    candidate: Candidate,
    stdout: bytes,
    report: bytes,
    limit: str,
    exit_code: int,
    cpu_seconds: float,
) -> Outcome:
    """Turn bytes that a candidate could choose into answers: one for each call, in order, or none at all.

    Args:
        candidate: What was run.
        stdout: What it printed.
        report: The lines of the protocol, behind the first of which written code may have written.
        limit: The limit at which it was ended; empty if it was at none.
        exit_code: Of its process.
        cpu_seconds: That the process took, its start included.
    """
    # The first line, the end of the code, the answers, and one too many: what follows these changes nothing.
    most_lines = len(candidate.calls) + 3
    reported = report.split(b"\n")[:-1][:most_lines]
    (kind, start), *lines = [_read(line) for line in reported] or [
        ("", "its process did not start")
    ]
    # Written before the first line of the code ran, so that no code can make its end look like the machine's fault.
    if kind != "wall":
        return no_outcome(candidate, "lost", start)
    kinds = [kind for kind, _ in lines]
    answers = [
        Answer(content, None) if kind == "value" else Answer(None, content)
        for kind, content in lines[1:]
    ]
    status, error = "ok", ""
    if (
        kinds[:1] not in ([], ["end"])
        or not {*kinds[1:]} <= {"value", "error"}
        or len(answers) > len(candidate.calls)
    ):
        status, error, answers = "exit", "its report is not what the protocol allows", []
    elif lines and lines[0][1] is not None:
        status, error = "error", lines[0][1]
    elif limit:
        status, error = "limit", f"ended by its limit of {limit}"
    elif exit_code != 0 or len(lines) <= len(candidate.calls):
        status, error = "exit", f"its process ended early, exit code {exit_code}"
    missing = [Answer()] * (len(candidate.calls) - len(answers))
    printed = stdout.decode("utf-8", "replace")
    seconds = cpu_seconds - start
    return Outcome(
        status=status,
        answers=(*answers, *missing),
        stdout=printed,
        error=error,
        cpu_seconds=seconds,
    )


def _read(line: bytes) -> tuple[str, Any]:
    """Kind and content of one line of a report; of no kind if it is none."""
    try:
        match json.loads(line.decode("ascii")):
            case ["wall" | "value" as kind, content]:
                return kind, values.decode(content)
            case ["no wall" | "end" | "error" as kind, None | str() as text]:
                return kind, text and text[: values.LONGEST_ERROR]
    except (ValueError, RecursionError):  # no line of the protocol, or no plain data
        pass
    return "", None
