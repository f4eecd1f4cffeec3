"""Input of the sandbox (candidates, calls, limits) and its output (outcomes).

An outcome is data that is parsed and compared. It is never run, unpickled or trusted.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_nb.core.words import require_number, require_whole_number
from grpo_nb.sandbox import values

Status = Literal["ok", "error", "limit", "exit", "lost"]
# `add`, `A().add`, `math.floor`. Other expressions are refused, because `(lambda: f(1) == 3)()`
# would carry the expected 3 into the sandbox.
_FUNCTION_NAME = re.compile(r"[^\W\d]\w*(\(\))?(\.[^\W\d]\w*(\(\))?)*")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one candidate. A candidate that reaches one is ended; the others are not affected.

    Raises:
        ValueError: A limit is too small or too large.
    """

    cpu_seconds: float = 2.0
    """Limit of processor time: a limit on the clock would fail right answers on a busy machine.

    Code that ignores SIGPROF is killed up to two seconds later.
    """
    wall_seconds: float | None = None
    """Limit of time on the clock, which ends code that sleeps.

    None means `5 + 5 * cpu_seconds`: much more than the processor time, because the machine may be
    busy.
    """
    memory_mib: int = 512
    """Address space, at least 128 MiB.

    The interpreter and the imports of the code take up to 65 MiB. With less than 128 MiB, code
    with many imports could make the isolation fail, and would be `lost` in place of wrong.
    """
    output_kib: int = 256
    """Size of the report of all results. 256 KiB hold about 20,000 small integers."""

    def __post_init__(self) -> None:
        upper_bound = 1 << 20
        require_number("cpu_seconds", self.cpu_seconds, 0.02, upper_bound)
        if self.wall_seconds is not None:
            require_number("wall_seconds", self.wall_seconds, 0.02, upper_bound)
        require_whole_number("memory_mib", self.memory_mib, 128, upper_bound)
        require_whole_number("output_kib", self.output_kib, 1, upper_bound)


@dataclass(frozen=True)
class Call:
    """One call of a function that the candidate defines: `Call("add", (1, 2))`.

    The name can be a method: `Class().method`.

    Raises:
        ValueError: The name is not that of a function, or an argument is not plain data.
        TypeError: The arguments are not in a tuple or list, or a keyword is not a text.
    """

    function: str
    args: list[Any] | tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _FUNCTION_NAME.fullmatch(self.function):
            raise ValueError(
                f"Call({self.function!r:.60}) is not a function name: "
                "write a name such as 'add' or 'A().add'."
            )
        # A text such as ("abc") would become one argument for each character, and the check below
        # would use up an iterator.
        if not isinstance(self.args, (list, tuple)):
            raise TypeError(
                f"Call({self.function!r}) has the arguments {self.args!r:.60}: write a tuple, such "
                'as ("abc",) for one text.'
            )
        # `dict` raises TypeError for keywords that are not texts.
        for value in [*self.args, *dict(**self.kwargs).items()]:
            try:
                is_plain = _is_plain(value)
            except RecursionError:
                # A list that contains itself, or hundreds of lists in each other.
                is_plain = False
            if not is_plain:
                raise ValueError(
                    f"an argument of Call({self.function!r}) is not plain data, so the sandbox "
                    f"cannot pass it on: {reprlib.repr(value)}. Give None, bools, numbers, texts, "
                    "bytes, and lists, tuples, sets or dicts of them. For values of numpy, write "
                    "value.tolist()."
                )


def _is_plain(value: Any) -> bool:
    """Return True if a value has only types that marshal can write and read unchanged.

    marshal refuses most others, but it writes the numbers and arrays of numpy as bytes.
    """
    kind = type(value)
    if kind is dict:
        value = value.items()
    if kind in (dict, list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    return value is None or kind in (bool, int, float, complex, str, bytes)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Untrusted code, and calls of its functions."""

    code: str
    calls: Sequence[Call] = ()


@dataclass(frozen=True)
class CallResult:
    """The result of one call: a value of plain data, or an error. Both come from untrusted code."""

    value: Any = None
    error: str | None = None
    """Text of the error; None if the call returned a value."""

    @property
    def is_value(self) -> bool:
        """True if the call returned plain data."""
        return self.error is None


NO_RESULT = CallResult(error="no result")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one candidate."""

    status: Status
    """The end of the run:

    - `ok`: all calls ended, with values or errors.
    - `error`: the code itself failed.
    - `limit`: the code reached a limit.
    - `exit`: the process ended early, or its report breaks the protocol.
    - `lost`: the machine failed, which says nothing about the code.
    """
    results: tuple[CallResult, ...] = ()
    """One result for each call, always."""
    reason: str = ""
    """Reason for another status than `ok`; it may contain text of the candidate."""


def make_outcome(
    candidate: Candidate, status: Status, reason: str, results: Sequence[CallResult] = ()
) -> Outcome:
    """Return an outcome with one result for each call: `NO_RESULT` for each that did not arrive."""
    missing = [NO_RESULT] * (len(candidate.calls) - len(results))
    return Outcome(status=status, results=(*results, *missing), reason=reason)


def parse_report(
    candidate: Candidate, report: bytes, reached_limit: str, exit_code: int
) -> Outcome:
    """Turn bytes that a candidate could choose into an outcome.

    Args:
        candidate: The candidate that was run.
        report: The lines of the protocol. All but the first may have been written by generated
            code.
        reached_limit: Name of the limit that the candidate reached; empty if none.
        exit_code: Exit code of the candidate's process.
    """
    expected_tags = ["isolated", "loaded", *["result"] * len(candidate.calls)]
    # The text after the last newline is not a complete line. One line more than expected is kept,
    # so that a report that is too long is noticed.
    lines = report.split(b"\n", len(expected_tags) + 1)[:-1]
    messages = list(map(_read_line, lines))
    tags = [tag for tag, _ in messages]
    # `child.py` writes the first line before the code runs, so the code cannot fake a failure of
    # the machine. Without this line, a reached limit is the fault of the code,
    # which chooses the imports.
    if tags[:1] != ["isolated"] and not reached_limit:
        reason = report.decode("utf-8", "replace")[-values.MAX_ERROR_CHARACTERS :].strip()
        return make_outcome(candidate, "lost", reason or "its process did not start")
    # The report may stop after any line, because the code can end its process. It may not differ
    # from the expected lines, and may not be longer.
    if tags != expected_tags[: len(tags)]:
        return make_outcome(candidate, "exit", "its report is not what the protocol allows")
    contents = [content for _, content in messages]
    load_error = contents[1] if len(contents) > 1 else None
    results = contents[2:]
    status: Status = "ok"
    reason = ""
    if load_error is not None:
        status = "error"
        reason = load_error[: values.MAX_ERROR_CHARACTERS]
    elif reached_limit:
        status = "limit"
        reason = f"ended by its limit of {reached_limit}"
    elif exit_code != 0 or len(tags) < len(expected_tags):
        status = "exit"
        reason = f"its process ended early, exit code {exit_code}"
    return make_outcome(candidate, status, reason, results)


def _read_line(line: bytes) -> tuple[str, Any]:
    """Return tag and content of one line of a report; an invalid line has an empty tag.

    A line with a value or an error has the tag `result`, and its content is a `CallResult`.
    """
    try:
        match json.loads(line.decode("ascii")):
            case ["value", content]:
                return "result", CallResult(values.decode(content))
            case ["error", str(text)]:
                return "result", CallResult(error=text[: values.MAX_ERROR_CHARACTERS])
            case ["isolated" | "loaded" as tag, None | str() as text]:
                return tag, text
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        # Not a line of the protocol, or not plain data.
        pass
    return "", None
