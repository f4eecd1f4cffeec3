"""The ways to isolate, strongest first, and what the self-test of each found on this machine."""

from __future__ import annotations

import html
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_nb._sandbox.pool import Pool
from grpo_nb._sandbox.self_test import run_self_test
from grpo_nb.environment import Check, EnvironmentProblem


@dataclass(frozen=True)
class Level:
    """A way to isolate: what it is made of, and what to do where it cannot be used."""

    name: str
    summary: str
    fix: str


LEVELS = (
    Level(
        "namespaces",
        "own users, mounts, network and IPC; own process ids for each candidate; Landlock, seccomp, limits",
        "Allow user namespaces (docker run --security-opt seccomp=unconfined; "
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0), or use another level.",
    ),
    Level(
        "bubblewrap",
        "the pool inside bubblewrap: own processes, mounts, network and IPC; Landlock, seccomp, limits",
        "apt-get install -y bubblewrap",
    ),
    Level(
        "landlock",
        "Landlock for files, seccomp for everything else, limits; an unprivileged user if started as root",
        "Use a Linux kernel of 5.13 or newer with Landlock, and a container runtime that lets it through "
        "(Docker 23 or newer).",
    ),
)
"""Strongest first. Each stands on the inner wall (no capabilities, seccomp, limits) and on Landlock where there is one."""


@dataclass(frozen=True)
class LevelReport:
    """What the self-test of one level found."""

    level: Level
    checks: tuple[Check, ...]

    @property
    def reason(self) -> str:
        """Why the level cannot be used; empty if it can."""
        bad = [check for check in self.checks if check.status == "problem"]
        return "; ".join(check.found if check.what == "start" else f"{check.what}: {check.found}" for check in bad[:3])

    @property
    def is_usable(self) -> bool:
        """Whether everything forbidden was refused, and honest code ran."""
        return not self.reason


class SandboxReport:
    """The self-test as a table: every level, every try. Shows itself in a notebook."""

    def __init__(self, levels: Sequence[LevelReport]) -> None:
        self.levels = tuple(levels)

    @property
    def level(self) -> str | None:
        """The strongest level that holds here, None if none does."""
        return next((report.level.name for report in self.levels if report.is_usable), None)

    def __repr__(self) -> str:
        lines = [f"{'used' if r.level.name == self.level else 'ok' if r.is_usable else 'no':<5} {r.level.name:<11} "
                 f"{r.reason or r.level.summary}" for r in self.levels]  # fmt: skip
        return "\n".join([*lines, f"Level: {self.level}." if self.level else "No level holds: code is not run here."])

    def _repr_html_(self) -> str:
        body = ""
        for report in self.levels:
            mark = "&#10003; ok" if report.is_usable else "&#10007; not usable"
            mark = "<b>&#10003; used</b>" if report.level.name == self.level else mark
            passed = sum(check.status != "problem" for check in report.checks)
            found = report.reason or f"{passed} of {len(report.checks)} tries as they must be"
            body += (
                f"<tr><td>{mark}</td><td>{report.level.name}</td><td style='text-align:left'>{report.level.summary}"
                f"</td><td style='text-align:left'>{html.escape(found)}</td>"
                f"<td style='text-align:left'>{'' if report.is_usable else html.escape(report.level.fix)}</td></tr>"
            )
        verdict = f"Level: {self.level}." if self.level else "<b>No level holds</b>: code is not run on this machine."
        head = "<tr><th></th><th>level</th><th>made of</th><th>self-test</th><th>what to do</th></tr>"
        return f"<table><thead>{head}</thead>{body}</table><p>{verdict}</p>"


def is_linux() -> bool:
    """Whether this is a Linux system, also under WSL 2."""
    return sys.platform.startswith("linux")


def try_level(level: Level, workers: int) -> tuple[LevelReport, Pool | None]:
    """Start a pool at this level and run its self-test; return what was found, and the pool if the level holds."""

    def refuse(reason: str) -> tuple[LevelReport, None]:
        return LevelReport(level, (Check("start", "problem", reason, level.fix),)), None

    if not is_linux():
        return refuse(f"needs Linux, this is {sys.platform} (on Windows, WSL 2 is Linux)")
    bubblewrap = shutil.which("bwrap") or ""
    if level.name == "bubblewrap" and not bubblewrap:
        return refuse("the program bwrap is not installed")
    pool = Pool(level.name, workers=workers, bubblewrap=bubblewrap)
    try:
        report = LevelReport(level, tuple(run_self_test(pool)))
    except (EnvironmentProblem, OSError) as error:
        pool.close()
        return refuse(str(error))
    if not report.is_usable:
        pool.close()
        return report, None
    return report, pool
