"""Run the parts of `make test-all` one after the other, and say how long each took.

With `--minutes`, a part is begun only if all up to it would end in time on the slowest machine: their `SECONDS`, times how much
slower than there the slowest was, or `make test` has just been here. What is left out is said.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.bootstrap import lacks_for_vllm  # noqa: E402

# Each a target of the Makefile, with its seconds on two cores where `test` takes 20 minutes: estimated from what its tests took
# one by one (docs/evidence/suite.md), rather too long than too short; bfloat16 took 17 minutes on 23 November 2026. The last
# makes an environment of its own besides.
SECONDS = {"bootstrap": 180, "test": 1200, "test-slow": 1200, "test-bfloat16": 1020, "test-vllm": 1500}
# Of two cores: the suite before its split took 74 minutes there, and 40 on that machine.
SLOWEST = 1.85


def run(part: str) -> int:
    return subprocess.run(["make", "--no-print-directory", part], cwd=ROOT).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing that would end later than this")
    limit = parser.parse_args(arguments).minutes
    slowness, told, status, known = SLOWEST, [], 0, 0
    for part, seconds in SECONDS.items():
        begun, expected = time.monotonic(), (known + seconds) * slowness / 60
        if status:
            told.append(f"{part:<14} not begun")
        elif part == "test-vllm" and (lacking := lacks_for_vllm()):
            told.append(f"{part:<14} left out: {' '.join(lacking.split())}")
        elif part not in ("bootstrap", "test") and expected > limit:
            told.append(f"{part:<14} left out: about {expected:.0f} minutes with it, and {limit:.0f} are given")
        else:
            status, known = run(part), known + seconds
            took = time.monotonic() - begun
            told.append(f"{part:<14} {took / 60:.1f} minutes{', failed' if status else ''}")
            slowness = max(SLOWEST, took / seconds) if part == "test" else slowness
    print("", *told, sep="\n", flush=True)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
