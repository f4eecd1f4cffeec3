"""Compare spin counts of torch's threads beside one busy process.

Products of the small model's size are computed with two threads for some seconds at a time, in
turns, each in a process of its own. `low` shows that a smaller count would help more beside other
work.

    python benchmarks/spin_count.py --rounds 3
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

SIDES = {"libgomp's own": "300000", "kit": "20000", "low": "1000"}
SECONDS = 4
CODE = f"""
import time, torch
torch.set_num_threads(2)
x, up, down = torch.randn(256, 576), torch.randn(576, 1536), torch.randn(1536, 576)
def step():
    for _ in range(30):
        torch.layer_norm(torch.nn.functional.silu(x @ up) @ down, (576,))
step()
count, start = 0, time.perf_counter()
while time.perf_counter() - start < {SECONDS}:
    step()
    count += 1
print(count / (time.perf_counter() - start))
"""


def measure(spin_count: str) -> float:
    """Return the steps per second of a new process."""
    environment = {**os.environ, "GOMP_SPINCOUNT": spin_count}
    output = subprocess.check_output([sys.executable, "-c", CODE], env=environment, text=True)
    return float(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for _ in range(rounds):
            for side, spin_count in SIDES.items():
                rates[side].append(measure(spin_count))
    finally:
        busy.kill()
    print("| side | spin count | steps per second | median |\n| --- | --- | --- | --- |")
    for side, values in rates.items():
        shown = ", ".join(f"{value:.2f}" for value in values)
        print(f"| {side} | {SIDES[side]} | {shown} | {statistics.median(values):.2f} |")


if __name__ == "__main__":
    main()
