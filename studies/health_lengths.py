"""Count simulated R1-like runs that get a warning of longer completions.

    python studies/health_lengths.py

The reward rises from 0.2 to 0.66 on three courses while the completions grow from 300 to 1,200
tokens, half of the runs with a sudden growth on the way. Rewards are 0 or 1, so short runs of small
batches are noisy. Each log is read row by row, as `stop_on_alert` reads it.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics

from grpo_nb.health import check_health

COURSES = {
    "linear": lambda at: at,
    "slows down": lambda at: 1 - math.exp(-4 * at),
    "starts late": lambda at: 1 / (1 + math.exp(-10 * (at - 0.5))),
}
STEPS = (150, 300, 600)
BATCHES = ((1, 8), (4, 8), (8, 4))
LOGGING_STEPS = (1, 5)
SEEDS = (0, 1)


def group_of(chance: random.Random, mean_reward: float, size: int) -> list[int]:
    """Return the rewards of one group: the difficulty of its prompt is drawn first."""
    share = min(0.99, max(0.01, mean_reward + chance.gauss(0, 0.25)))
    return [int(chance.random() < share) for _ in range(size)]


def log_of(
    course: str, steps: int, batch: tuple[int, int], jumps: bool, logging_steps: int, seed: int
) -> list[dict[str, float]]:
    """Return the rows of one simulated run, each the mean of `logging_steps` steps."""
    chance = random.Random(f"{course} {steps} {batch} {seed}")
    prompts, completions = batch
    rows: list[dict[str, float]] = []
    metrics: list[dict[str, float]] = []
    for step in range(1, steps + 1):
        at = step / steps
        mean_reward = 0.2 + 0.46 * COURSES[course](at)
        groups = [group_of(chance, mean_reward, completions) for _ in range(prompts)]
        growth = 1.8 if jumps and 0.3 < at < 0.45 else 1.0
        metrics.append(
            {
                "reward": statistics.fmean(itertools.chain(*groups)),
                "reward_std": statistics.fmean(map(statistics.stdev, groups)),
                "frac_reward_zero_std": sum(len(set(group)) == 1 for group in groups) / prompts,
                "completions/mean_length": (300 + 900 * at) * growth * chance.gauss(1, 0.06),
                "grad_norm": 0.2 * chance.gauss(1, 0.2),
                "kl": 0.05 * at,
                "entropy": 0.4 - 0.2 * at,
            }
        )
        if len(metrics) == logging_steps:
            logged = {"step": step}
            for name in metrics[0]:
                logged[name] = statistics.fmean([row[name] for row in metrics])
            rows.append(logged)
            metrics = []
    return rows


def main() -> None:
    """Print how many runs get a warning at some time, and how many still have it at the end."""
    runs = warned = warned_at_end = 0
    cases = itertools.product(COURSES, STEPS, BATCHES, (False, True), LOGGING_STEPS, SEEDS)
    for case in cases:
        alerts = check_health(log_of(*case)).alerts
        warnings = [
            alert for alert in alerts if alert.rule == "length" and alert.severity != "info"
        ]
        runs += 1
        warned += bool(warnings)
        warned_at_end += any(alert.withdrawn_step is None for alert in warnings)
    print(f"{runs} runs: {warned} with a warning at some time, {warned_at_end} at the end")


if __name__ == "__main__":
    main()
