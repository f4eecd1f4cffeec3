"""Do the health rules hold on logs they were not set on? Copies of the ten logs, thinned, shaken and cut; and healthy runs.

    python studies/health_robustness.py [--copies 20] [--healthy 100] [--faults 3]

A copy keeps the course of its log: every second row, one half of the rows drawn at random, the order shaken within blocks of
five, noise of a twentieth of its spread on the reward, or the start cut off. Counted: how many copies of the logs that plainly
learn have a critical alert or more than one warning; how many copies of the others lose an alert that the whole log has though
the copy's own numbers still deserve it; how many of the simulated healthy runs have any warning; and of the made-up runs of
`tests/support/faulty_runs.py`, of each kind some that no test looks at, how many have a warning of the right rule at the end.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from grpo_nb.health.monitor import check_health
from tests.support.faulty_runs import ASIDE, FAULTS, HEALTHY, SEEN, TRIES, judged
from tests.support.health_logs import Rows, healthy_log, real_logs

LEARNING = ("AMD_Llama3.1", "AMD_Ministral", "AMD_Qwen2.5_3B", "gpt_oss_20B_Reinforcement")


def every_second(rows: Rows, choose: random.Random) -> Rows:
    return rows[choose.randrange(2) :: 2]


def random_half(rows: Rows, choose: random.Random) -> Rows:
    return [row for row in rows if choose.random() < 0.5]


def shaken(rows: Rows, choose: random.Random) -> Rows:
    result = []
    for start in range(0, len(rows), 5):
        block = rows[start : start + 5]
        result += choose.sample(block, len(block))
    return result


def with_noise(rows: Rows, choose: random.Random) -> Rows:
    scale = statistics.pstdev(row["reward"] for row in rows) / 20
    return [{**row, "reward": row["reward"] + choose.gauss(0, scale)} for row in rows]


def cut_start(rows: Rows, choose: random.Random) -> Rows:
    return rows[choose.randrange(1, max(2, len(rows) // 10)) :]


CHANGES: tuple[Callable[[Rows, random.Random], Rows], ...] = (
    every_second,
    random_half,
    shaken,
    with_noise,
    cut_start,
)


def deserved(rows: Rows) -> set[str]:
    """What the numbers of a copy say, counted without the rules; with a margin, since at the threshold it may go either way."""
    said = set()
    if sum(row["reward_std"] == 0 for row in rows) >= 0.6 * len(rows):
        said.add("no_spread")
    clipped = [
        row["completions/clipped_ratio"] for row in rows if "completions/clipped_ratio" in row
    ]
    if clipped and sum(clipped) >= 0.3 * len(rows):
        said.add("truncation")
    names = [key for key in rows[0] if key.startswith("rewards/") and not key.endswith("/std")]
    if any(len({row[name] for row in rows}) == 1 for name in names):
        said.add("constant_reward")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--copies", type=int, default=20)
    parser.add_argument("--healthy", type=int, default=100)
    parser.add_argument("--faults", type=int, default=3, help="runs of each kind")
    arguments = parser.parse_args()
    print(
        "| log | copies | critical | more than one warning | deserved, not said | warnings by rule |\n"
        "| --- | --- | --- | --- | --- | --- |"
    )
    for name, rows in real_logs().items():
        choose = random.Random(name)
        critical = crowded = lost = count = 0
        rules: Counter[str] = Counter()
        for change in CHANGES:
            for _ in range(arguments.copies // len(CHANGES)):
                copy = [{**row, "step": i} for i, row in enumerate(change(rows, choose), 1)]
                if len(copy) < 10:
                    continue
                count += 1
                report = check_health(copy)
                severities = Counter(alert.severity for alert in report.alerts)
                critical += severities["critical"] > 0
                crowded += severities["warning"] > 1
                lost += bool(deserved(copy) - {alert.rule for alert in report.alerts})
                rules.update({alert.rule for alert in report.alerts if alert.severity != "info"})
        learns = " (learns)" if name.startswith(LEARNING) else ""
        said = ", ".join(f"{rule} {n}" for rule, n in rules.most_common())
        print(
            f"| {name}{learns} | {count} | {critical} | {crowded} | {lost} | {said} |", flush=True
        )
    print(
        "\n| healthy runs | steps | with a warning | critical | rules |\n| --- | --- | --- | --- | --- |"
    )
    for steps, groups in ((30, 4), (100, 2), (200, 4), (500, 1)):
        warned = critical = 0
        rules = Counter()
        for seed in range(arguments.healthy):
            report = check_health(
                healthy_log(steps, seed, groups=groups), weights={"right": 2.0, "form": 1.0}
            )
            warned += not report.ok
            critical += any(alert.severity == "critical" for alert in report.alerts)
            rules.update({alert.rule for alert in report.alerts if alert.severity != "info"})
        said = ", ".join(f"{rule} {n}" for rule, n in rules.most_common())
        print(
            f"| {arguments.healthy} of {groups} groups of 8 | {steps} | {warned} | {critical} | {said} |",
            flush=True,
        )
    print(
        "\n| made-up runs | faulty | named | healthy | accused |\n| --- | --- | --- | --- | --- |"
    )
    more = [f"{kind} #{TRIES + i}" for kind in (*FAULTS, *HEALTHY) for i in range(arguments.faults)]
    for words, names in (("seen", SEEN), ("set aside", sorted(ASIDE)), ("further ones", more)):
        faulty = sum(name.partition(" #")[0] in FAULTS for name in names)
        missed, accused = judged(names, check_health)
        print(
            f"| {words} | {faulty} | {faulty - len(missed)} | {len(names) - faulty} | {len(accused)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
