"""Running model-written code where it can do no harm: inputs go in, values come out, expected values never enter.

Every candidate is a fork of a small clean process (`zygote.py`), behind the strongest isolation that passes its
self-test on this machine. `docs/reference/sandbox.md` says what each level promises, and what none does.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace

from grpo_nb.core.tables import Html, Part, Shown, Table, bold
from grpo_nb.core.words import EnvironmentProblem, require_number
from grpo_nb.machine.checks import Check
from grpo_nb.machine.host import usable_cores
from grpo_nb.sandbox.jobs import Call, Candidate, Limits, Outcome, job_of, outcome_of
from grpo_nb.sandbox.pool import Pool
from grpo_nb.sandbox.self_test import run_self_test


@dataclass(frozen=True)
class Level:
    """A way to isolate: what it is made of, what to do where it cannot be used, and what its self-test found here."""

    name: str
    summary: str
    fix: str
    checks: tuple[Check, ...] = ()

    @property
    def reason(self) -> str:
        """Why the level cannot be used; empty if it can."""
        bad = [check for check in self.checks if check.status == "problem"]
        return "; ".join(check.found if check.what == "start" else f"{check.what}: {check.found}" for check in bad[:3])

    @property
    def is_usable(self) -> bool:
        """Whether it was tried, everything forbidden was refused, and honest code ran."""
        return bool(self.checks) and not self.reason


LEVELS = (
    Level(
        "namespaces",
        "own users, mounts, network and IPC; own process ids for each candidate; Landlock, seccomp, limits",
        "Allow user namespaces (docker run --security-opt seccomp=unconfined; "
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0), or use another level.",
    ),
    Level(
        "landlock",
        "Landlock for files, seccomp for everything else, limits; an unprivileged user if started as root",
        "Use a Linux kernel of 5.13 or newer with Landlock, and a container runtime that lets it through "
        "(Docker 23 or newer).",
    ),
)
"""Strongest first. Each stands on the inner wall (no capabilities, seccomp, limits) and on Landlock where there is one."""


@dataclass(frozen=True, repr=False)
class SandboxReport(Shown):
    """The self-test as a table: every level, every try. Shows itself in a notebook."""

    levels: tuple[Level, ...]

    @property
    def level(self) -> str | None:
        """The strongest level that holds here, None if none does."""
        return next((level.name for level in self.levels if level.is_usable), None)

    def _parts(self) -> Iterator[Part]:
        head = ("", "level", "made of", "self-test", "what to do")
        yield Table([self._row(level) for level in self.levels], head, narrow=(0, 1))
        yield f"Level: {self.level}." if self.level else bold("No level holds: code is not run on this machine.")

    def _row(self, level: Level) -> tuple[str | Html, ...]:
        if not level.is_usable:
            return "\u2717 not usable", level.name, level.summary, level.reason, level.fix
        mark = bold("\u2713 used") if level.name == self.level else "\u2713 ok"
        return mark, level.name, level.summary, f"{len(level.checks)} of {len(level.checks)} tries as they must be", ""


def try_level(level: Level, pool: Pool) -> Level:
    """Return the level with what its self-test found in this pool of it."""
    try:
        if not sys.platform.startswith("linux"):
            raise EnvironmentProblem(f"needs Linux, this is {sys.platform} (on Windows, WSL 2 is Linux)")
        return replace(level, checks=tuple(run_self_test(pool)))
    except (EnvironmentProblem, OSError) as error:
        return replace(level, checks=(Check("start", "problem", str(error), level.fix),))


class Sandbox(AbstractContextManager):
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
        workers = min(2 * usable_cores(), 32) if workers is None else workers
        require_number("workers", workers, 1)
        reports = []
        for one in LEVELS:
            if level in (None, one.name):
                pool = Pool(one.name, workers=workers)
                reports.append(try_level(one, pool))
                if reports[-1].is_usable:
                    self._pool, self.level, self.workers = pool, one.name, workers
                    self.report = SandboxReport(tuple(reports))
                    return
                pool.close()
        reasons = "\n".join(f"- {tried.name}: {tried.reason}. {tried.fix}" for tried in reports)
        raise EnvironmentProblem(
            "model-written code is not run on this machine, because no isolation holds here, and without it the code could "
            f"read your files and fool its reward:\n{reasons}"
        )

    def __repr__(self) -> str:
        return f"Sandbox(level={self.level!r}, workers={self.workers})"

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
        finished = self._pool.run([job_of(candidate, limits or Limits()) for candidate in candidates])
        return [outcome_of(candidate, one) for candidate, one in zip(candidates, finished, strict=True)]


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
        with closing(Pool(level.name, workers=2)) as pool:
            reports.append(try_level(level, pool))
    return SandboxReport(tuple(reports))


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
