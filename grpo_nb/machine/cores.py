"""The cores that this process may compute with."""

from __future__ import annotations

import os
from pathlib import Path


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
