"""The cores that this process may compute with, and whether it gets them: threads that wait for each other are slow."""

from __future__ import annotations

import os
from pathlib import Path

_MUCH = 0.3


def usable_cores() -> int:
    """How many cores this process may use: those it is bound to, or what a container's limit leaves of them.

    From Linux, Documentation/admin-guide/cgroup-v2.rst, `cpu.max`.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(bound, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such limit
        return bound


def ran_and_waited() -> tuple[float, float] | None:
    """Seconds that the threads of this process ran, and that they were ready to run and had no core; None where unknown.

    From Linux, Documentation/scheduler/sched-stats.rst: the first two numbers of each thread's `schedstat`.
    """
    ran = waited = 0.0
    try:
        for thread in Path("/proc/self/task").iterdir():
            first, second, *_ = (thread / "schedstat").read_text().split()
            ran, waited = ran + int(first) / 1e9, waited + int(second) / 1e9
    except (OSError, ValueError):
        return None
    return ran, waited


def busy_sentence(before: tuple[float, float] | None, now: tuple[float, float] | None, threads: int) -> str:
    """Say that other work holds the cores, and the line to write; empty where it does not, or nobody knows.

    Args:
        before, now: From `ran_and_waited`.
        threads: That torch computes with.

    >>> busy_sentence((0.0, 0.0), (9.0, 0.2), 2)
    ''
    """
    if before is None or now is None:
        return ""
    ran, waited = now[0] - before[0], now[1] - before[1]
    if waited < _MUCH * (ran + waited) or ran + waited < 1:
        return ""
    said = f"Other work holds the cores: this process waited {waited / (ran + waited):.0%} of the time it could have computed."
    if threads == 1:
        return f"{said} Steps take that much longer until it ends."
    return (
        f"{said} Its {threads} threads wait for each other besides, so that a step can take ten times as long. End the other "
        "work, or write torch.set_num_threads(1); in a terminal, OMP_NUM_THREADS=1 make run."
    )
