"""Running model-written code where it can do no harm: inputs go in, values come out, expected values never enter.

Every candidate is a fork of a small clean process (`_sandbox/zygote.py`), behind the strongest isolation that passes its
self-test on this machine. What it answers is data that the parent parses and compares; nothing of it is ever run,
unpickled or believed. `docs/sandbox.md` says what each level promises, what none does, and which attacks were tried.
"""

from __future__ import annotations

import functools
import html
import math
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_nb._sandbox import values
from grpo_nb._sandbox.levels import LEVELS, SandboxReport, is_linux, try_level
from grpo_nb._sandbox.pool import Finished
from grpo_nb.environment import EnvironmentProblem

_FUNCTION = re.compile(r"[^\W\d]\w*(\(\))?(\.[^\W\d]\w*(\(\))?)*")


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
        for name in ("cpu_seconds", "wall_seconds", "memory_mib", "threads", "output_kib"):
            value = getattr(self, name)
            least = 0 if name in ("wall_seconds", "threads") else 64 if name == "memory_mib" else 0.01
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < math.inf:
                raise ValueError(f"Limits({name}={value!r}): {name} must be a finite number of at least {least}.")
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


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Code with what to do with it: calls, or (if `stdin` is given) a run as a program that reads this text."""

    code: str
    calls: Sequence[Call] = ()
    stdin: str | None = None

    def __post_init__(self) -> None:
        if self.stdin is not None and self.calls:
            raise ValueError("a candidate is called or run with stdin, not both: make two of it.")


@dataclass(frozen=True)
class Answer:
    """What one call gave: a value of plain data, or an error. Both were made by model-written code."""

    value: Any = None
    error: str | None = None

    @property
    def is_value(self) -> bool:
        """Whether the call returned plain data."""
        return self.error is None


@dataclass(frozen=True, kw_only=True)
class Outcome:
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

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{i}</td><td style='text-align:left'><code>{html.escape(_shorten(a))}</code></td></tr>"
            for i, a in enumerate(self.answers)
        )
        text = f"<pre>{html.escape(self.stdout[:2000])}</pre>" if self.stdout else ""
        return f"<p><b>{self.status}</b> {html.escape(self.error)}</p>{text}<table>{rows}</table>"


class Sandbox:
    """A warm pool at one isolation level. Most users need only `run_untrusted`, which keeps one for the process.

    Args:
        level: Name of a level; the strongest that passes its self-test if None.
        workers: Candidates at a time; twice the number of cores if None, so that a sleeper does not idle a core.

    Raises:
        EnvironmentProblem: No level (or not the one asked for) holds on this machine; the message has each reason.

    >>> with Sandbox() as sandbox:
    ...     sandbox.run([Candidate(code="def f(x): return x + 1", calls=[Call("f", (41,))])])[0].answers[0].value
    42
    """

    def __init__(self, *, level: str | None = None, workers: int | None = None) -> None:
        names = [one.name for one in LEVELS]
        if level is not None and level not in names:
            raise ValueError(f"level={level!r}: the levels are {names}.")
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            raise ValueError(f"workers={workers!r}: must be a whole number of at least 1.")
        workers = workers or min(2 * len(os.sched_getaffinity(0) if is_linux() else (0,)), 32)
        reports = []
        for one in LEVELS:
            if level in (None, one.name):
                report, pool = try_level(one, workers)
                reports.append(report)
                if pool is not None:
                    self._pool, self.level, self.workers = pool, one.name, workers
                    self.report = SandboxReport(reports)
                    return
        reasons = "\n".join(f"- {r.level.name}: {r.reason}. {r.level.fix}" for r in reports)
        raise EnvironmentProblem(
            "model-written code is not run on this machine, because no isolation holds here, and without it the code could "
            f"read your files and fool its reward:\n{reasons}"
        )

    def __repr__(self) -> str:
        return f"Sandbox(level={self.level!r}, workers={self.workers})"

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the pool."""
        self._pool.close()

    def run(self, candidates: Sequence[Candidate], limits: Limits | None = None) -> list[Outcome]:
        """Run candidates, several at a time, each in a fresh process; return their outcomes in order.

        An endless loop costs its own processor time and a worker, nothing else: with `n` of them the batch takes about
        `n * cpu_seconds / cores`, and the others still get their full time.
        """
        limits = limits or Limits()
        jobs = [_job(candidate, limits) for candidate in candidates]
        finished = self._pool.run(jobs)
        return [_outcome(candidate, one) for candidate, one in zip(candidates, finished, strict=True)]


def run_untrusted(
    code: str, calls: Sequence[Call] = (), *, stdin: str | None = None, limits: Limits | None = None
) -> Outcome:
    """Run model-written Python against some calls, or as a program with standard input, and return what came out.

    Never raises on any code. Files, network, environment, new processes and programs are closed to it; the standard
    library is open. Compare the answers here, in the caller, with `is_same_value`: what the code cannot see, it cannot
    copy.

    Args:
        code: Python source. Untrusted.
        calls: Functions of it to call, in one process, in order.
        stdin: Run it as a program that reads this text instead.
        limits: Time, memory, threads, output.

    Raises:
        EnvironmentProblem: No isolation holds on this machine.
        ValueError: An argument of a call is not plain data.

    >>> run_untrusted("def add(a, b): return a + b", [Call("add", (2, 3))]).answers[0].value
    5
    """
    return run_untrusted_batch([Candidate(code=code, calls=calls, stdin=stdin)], limits=limits)[0]


def run_untrusted_batch(candidates: Sequence[Candidate], *, limits: Limits | None = None) -> list[Outcome]:
    """As `run_untrusted`, for many at once; see `Sandbox.run` for what a batch costs."""
    return _default_sandbox().run(candidates, limits)


def sandbox_level() -> str:
    """Name of the isolation in use on this machine. Raises `EnvironmentProblem` where none holds."""
    return _default_sandbox().level


def check_sandbox() -> SandboxReport:
    """Run the self-test of every level, in about a second each, and show what was tried and what came of it."""
    reports = []
    for level in LEVELS:
        report, pool = try_level(level, workers=2)
        if pool is not None:
            pool.close()
        reports.append(report)
    return SandboxReport(reports)


def is_same_value(given: Any, expected: Any, *, exact_types: bool = True) -> bool:
    """Compare plain data, by value and type at every level, or as Python's `==` does (`exact_types=False`).

    NaN is the same as NaN if types are exact: else no answer could ever match it.

    >>> is_same_value([1, 2], [1, True]), is_same_value(1, True, exact_types=False)
    (False, True)
    """
    if exact_types:
        return bool(values.canonical(given) == values.canonical(expected))
    return bool(given == expected)


_lock = threading.Lock()
_default: Sandbox | None = None


def _default_sandbox() -> Sandbox:
    global _default
    with _lock:
        if _default is None:
            _default = Sandbox()
        return _default


def _forget() -> None:
    # A forked worker must neither use its parent's zygote nor end it, and the lock may have been held by a thread that
    # does not exist here.
    global _default, _lock
    _default, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _job(candidate: Candidate, limits: Limits) -> dict[str, Any]:
    try:
        calls = [
            [
                call.function,
                [values.encode(a) for a in call.args],
                {k: values.encode(v) for k, v in call.kwargs.items()},
            ]
            for call in candidate.calls
        ]
    except values.NotPlainData as error:
        raise ValueError(f"a call cannot be sent to the sandbox: its argument holds {error}.") from error
    job = {
        "code": candidate.code, "calls": calls, "cpu_seconds": limits.cpu_seconds, "threads": int(limits.threads),
        "wall_seconds": limits.wall_seconds, "memory_mib": int(limits.memory_mib), "output_kib": int(limits.output_kib),
    }  # fmt: skip
    return job if candidate.stdin is None else {**job, "stdin": candidate.stdin}


def _outcome(candidate: Candidate, finished: Finished) -> Outcome:
    """Turn bytes that a candidate could choose into answers: one for each call, in order, or none at all."""
    seconds = round(finished.seconds, 3)
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
            case {"end": None} if is_program and len(lines) == 1 and len(words) == 1:
                return None, []
            case {"end": str(error)} if is_program and len(lines) == 1 and len(words) == 1:
                return error, []
            case {"load": str(error)} if not is_program and len(lines) == 1 and len(words) == 1:
                return error, []
            case {"call": int(call), "error": str(error)} if call == number < count and len(words) == 2:
                answers.append(Answer(error=error))
            case {"call": int(call), "value": value} if call == number < count and len(words) == 2:
                answers.append(Answer(value=values.decode(value)))
            case _:
                raise values.NotPlainData("not a line of the protocol")
    return None, answers


def _shorten(answer: Answer) -> str:
    text = f"error: {answer.error}" if answer.error is not None else repr(answer.value)
    return text if len(text) <= 200 else text[:200] + "..."
