"""Measure how long `import grpo_nb` takes and what it loads. Claim: under 0.1 s, nothing heavy.

python benchmarks/import_time.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def seconds(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    return time.perf_counter() - started


def main() -> None:
    pairs = [(seconds("pass"), seconds("import grpo_nb")) for _ in range(21)]
    empty = statistics.median(a for a, _ in pairs)
    extra = statistics.median(b - a for a, b in pairs)
    print(
        f"empty interpreter {empty:.3f} s; import grpo_nb adds {extra:.3f} s "
        f"(median of {len(pairs)} pairs)"
    )


if __name__ == "__main__":
    main()
