"""What a redraw of the live figure costs after 100, 1,000 and 10,000 steps.

    python benchmarks/redraw.py [--rounds 7]

Everything a redraw does is counted: reading the rows, drawing, rendering to PNG. It grows slowly with the run, and `LivePlot`
waits in proportion to it. CPU time, as other programs on the machine would disturb the time of day; the three lengths take
turns in one process, medians.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

import _measure  # noqa: F401  # the kit of this checkout

LENGTHS = (100, 1_000, 10_000)
WEIGHTS = {"correctness": 2.0, "xml_format": 1.0, "xml_tags": 0.5}


def make_rows(count: int) -> list[dict[str, Any]]:
    """Rows of a run with every metric the figure draws, a held-out score every 50 steps."""
    chance, rows = random.Random(0), []
    for step in range(1, count + 1):
        row = {
            "step": step, "max_steps": count, "reward": chance.gauss(2, 0.5), "reward_std": 0.6,
            "kl": abs(chance.gauss(0, 0.1)), "completions/mean_length": chance.gauss(40, 5), "completions/clipped_ratio": 0.1,
            "frac_reward_zero_std": 0.25, "grad_norm": abs(chance.gauss(0.4, 0.1)), "entropy": chance.gauss(0.5, 0.05),
            "learning_rate": 1e-5, "step_time": 8.0,
            **{f"rewards/{name}/mean": chance.random() for name in WEIGHTS},
            **{f"rewards/{name}/std": 0.3 for name in WEIGHTS},
        }  # fmt: skip
        if step % 50 == 0:
            row["holdout/accuracy"] = chance.random()
        rows.append(row)
    return rows


class Handle:
    """In place of a notebook's: takes the figure."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    import IPython.display

    from grpo_nb.runs.alert import Alert
    from grpo_nb.runs.figure import LivePlot

    IPython.display.display = lambda *args, **kwargs: Handle()
    alerts = [Alert(rule="kl_spike", severity="warning", step=60, message="KL went from 0.1 to 0.9.", advice="")]
    runs = {}
    for count in LENGTHS:
        rows = make_rows(count + rounds)
        live = LivePlot(WEIGHTS, 0.04)
        live.update(rows[:count], alerts=alerts, is_last=True)
        runs[count] = (live, rows[:count], rows[count:])
    took: dict[int, list[float]] = {count: [] for count in LENGTHS}
    for i in range(rounds):
        for count, (live, rows, more) in runs.items():
            start = time.process_time()
            rows.append(more[i])
            live.update(rows, alerts=alerts, is_last=True)
            took[count].append(time.process_time() - start)
    medians = {count: statistics.median(times) for count, times in took.items()}
    print("| steps so far | CPU s per redraw | ratio |\n| --- | --- | --- |")
    for count, median in medians.items():
        print(f"| {count:,} | {median:.3f} | {median / medians[LENGTHS[0]]:.2f} |")
    print(f"\n{rounds} redraws each; all CPU seconds: { ({k: [round(t, 3) for t in v] for k, v in took.items()}) }")


if __name__ == "__main__":
    main()
