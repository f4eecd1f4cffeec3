"""CPU time per step of the health monitor at 100, 1,000 and 10,000 steps, beside rldoctor's live monitor on the same rows.

    pip install --no-deps --target PEERS rldoctor==0.2.0
    PYTHONPATH=PEERS python benchmarks/health_rate.py [--log NAME] [--steps 100 1000 10000]

Claim: a step costs the same however long the run is. rldoctor looks again at the whole log every
25 steps, as it is set by default; its time is spread over those 25 steps. Rows are those of a
real log (tests/data/logs), over and over with new step numbers. CPU time of this process, so that
other work on the machine does not count. Without rldoctor, the kit alone is shown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

# _measure puts this checkout first on the path, so it is imported before the kit.
from _measure import print_header, print_row

from grpo_nb.health.monitor import HealthMonitor
from tests.support.health_logs import real_logs

PERIOD = 25
LOG = "gpt_oss_20B_Reinforcement_Learning_2048_Game_DGX_Spark_17ac67"


def endless_rows(name: str, count: int) -> list[dict[str, Any]]:
    """The log's rows, repeated with ascending step numbers."""
    log = real_logs()[name]
    return [{**log[i % len(log)], "step": i + 1} for i in range(count)]


def seconds_per_step(update: Callable[[dict[str, Any]], Any], rows: list[dict[str, Any]]) -> float:
    """Mean CPU seconds per row over whole periods."""
    begun = time.process_time()
    for row in rows:
        update(row)
    return (time.process_time() - begun) / len(rows)


def measure_kit(rows: list[dict[str, Any]], marks: list[int]) -> dict[int, float]:
    """One monitor over all rows; the last two periods before each mark are timed."""
    monitor = HealthMonitor()
    found = {}
    done = 0
    for mark in marks:
        for row in rows[done : mark - 2 * PERIOD]:
            monitor.update(row)
        found[mark] = seconds_per_step(monitor.update, rows[mark - 2 * PERIOD : mark])
        done = mark
    return found


def measure_rldoctor(rows: list[dict[str, Any]], marks: list[int]) -> dict[int, float]:
    """Time two periods of rldoctor's monitor after placing the earlier rows directly."""
    from rl_doctor.live import LiveMonitor

    found = {}
    for mark in marks:
        monitor = LiveMonitor(check_every=PERIOD, on_finding=lambda finding: None)
        monitor.records.extend(dict(row) for row in rows[: mark - 2 * PERIOD])
        found[mark] = seconds_per_step(monitor.log, rows[mark - 2 * PERIOD : mark])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", choices=sorted(real_logs()), default=LOG)
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 1000, 10_000])
    arguments = parser.parse_args()
    rows = endless_rows(arguments.log, max(arguments.steps))
    measured = {"kit": measure_kit(rows, arguments.steps)}
    try:
        measured["rldoctor 0.2.0"] = measure_rldoctor(rows, arguments.steps)
    except ImportError:
        print("rldoctor is not installed: only the kit is measured.\n")
    print_header("side", *(f"ms per step at {count:,}" for count in arguments.steps))
    for side, times in measured.items():
        print_row(side, *(f"{1000 * times[count]:.2f}" for count in arguments.steps))
    if len(measured) == 2:
        ours, theirs = measured.values()
        ratios = [theirs[count] / ours[count] for count in arguments.steps]
        print_row("rldoctor / kit", *(f"{ratio:.1f}" for ratio in ratios))


if __name__ == "__main__":
    main()
