"""Shared parts of the benchmarks: a process per measurement, peak memory, machine, tables."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

_MARK = "RESULT "


def tell(result: Mapping[str, Any]) -> None:
    """Print a result for the process that asked for it."""
    print(_MARK + json.dumps(result), flush=True)


def ask(
    file: str,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    python: str | Path = sys.executable,
    **more: Any,
) -> dict[str, Any]:
    """Run a script in another process, and return the result that it gave to `tell`.

    Args:
        file: The script, mostly `__file__` itself, or `-c`.
        arguments: Its command line.
        env: Environment variables to add.
        python: Interpreter.
        more: Further arguments of `subprocess.run`.

    Raises:
        SystemExit: The script failed. The message ends with its output.
    """
    command = [str(python), file, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **(env or {})}, **more
    )
    told = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode != 0 or not told:
        output = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{output}")
    return json.loads(told[-1].removeprefix(_MARK))


def print_header(*names: str) -> None:
    """Print the first two lines of a Markdown table."""
    print_row(*names)
    print_row(*("---" for _ in names))


def print_row(*cells: object) -> None:
    """Print one line of a Markdown table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def peak_gb() -> float:
    """Return the peak memory of this process so far, 10^9 bytes. `ru_maxrss` is in KiB on Linux."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def has_bfloat16_instructions() -> bool:
    """Return True if the CPU has bfloat16 instructions, as Unsloth asks on x86.

    Source: `cpu_bf16_supported` in unsloth_zoo/cpu/runtime.py.
    """
    listing = Path("/proc/cpuinfo")
    return listing.is_file() and bool(
        {"amx_bf16", "avx512_bf16"} & set(listing.read_text().split())
    )


def machine() -> str:
    """Return a few words on this machine, for the text above a table."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.is_file() else []
    name = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
    kind = "with" if has_bfloat16_instructions() else "without"
    return f"{name}, {os.cpu_count()} cores, {kind} bfloat16 instructions, {platform.system()}"
