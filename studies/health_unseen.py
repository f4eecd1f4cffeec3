"""Check the health rules on simulated runs that no rule was written from, logged as TRL logs them.

    python studies/health_unseen.py [--half seen|aside] [--rows]

Each run has prompts of different difficulty, completions that are right by chance, and a skill
that grows by the groups with a learning signal. `logging_steps` is 1, 5, 10 or 25: a row has the
mean of most metrics, but the gradient norm and the learning rate of its last step, as in
transformers. Without a KL penalty (beta 0) a step in which no group has a signal has a gradient of
exactly 0. Every third run has its numbers as text with four digits, as transformers prints them.

Counted are faults that a warning names at the end, healthy runs that end with a warning (from the
log alone, and with weights, ranges and group size), and learning runs that
`stop_on_alert="critical"` would stop. One half, by seed, may be looked at while rules are written;
the other only at the end.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pandas

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from grpo_nb.health.history import duplicates_entry
from grpo_nb.health.monitor import HealthMonitor, check_health

Row = dict[str, Any]
Curve = Callable[[float], float]
LABELS = ("billing", "delivery", "login", "refund", "other")


@dataclass(frozen=True)
class Run:
    """One simulated run. A curve is a function of the progress from 0 to 1."""

    steps: int = 300
    prompts: int = 4
    size: int = 8
    logging_steps: int = 1
    seed: str = ""
    start: float = -1.5
    """Logit of the pass rate on a prompt of mean difficulty, at the start."""
    speed: float = 5.0
    """Logits that a run gains in all if every group has a signal."""
    highest: float = 1.5
    spread: float = 1.0
    """Standard deviation of the difficulties."""
    shift: Curve = lambda at: 0.0
    """Skill that is lost without any learning."""
    beta: float = 0.0
    score: float = 1.0
    """Score of a right completion."""
    form: Curve | None = None
    """Pass rate of a format reward."""
    labels: int = 0
    """Number of one-word answers; 0 for free text."""
    length: Curve = lambda at: 200.0
    truncated: Curve = lambda at: 0.01
    entropy: Curve = lambda at: 1.0 - 0.4 * at
    rate: Curve = lambda at: 1e-6 * (1 - at)
    has_lora: bool = True
    evaluation: Curve | None = None
    """Held-out pass rate; `eval_reward` is logged every 25 steps."""
    kl_factor: Curve = lambda at: 1.0
    unscored: bool = False
    """True if one more reward never gives a score."""


def simulate(run: Run) -> list[Row]:
    """Return the rows of a run as TRL logs them."""
    chance = random.Random(run.seed)
    skill = run.start
    rows: list[Row] = []
    block: list[Row] = []
    for step in range(1, run.steps + 1):
        at = step / run.steps
        row, signal = simulate_step(run, chance, at, skill + run.shift(at), skill - run.start)
        skill = min(run.highest, skill + run.speed * signal / run.steps * (run.has_lora))
        block.append(row)
        if step % run.logging_steps == 0:
            names = dict.fromkeys(name for each in block for name in each)
            logged = {name: fmean(each[name] for each in block if name in each) for name in names}
            # The Trainer logs these two as they are at the last step.
            logged |= {"grad_norm": row["grad_norm"], "learning_rate": row["learning_rate"]}
            rows.append(logged | {"step": step})
            block = []
        if run.evaluation and step % 25 == 0:
            score = fmean(chance.random() < run.evaluation(at) for _ in range(96)) * run.score
            rows.append({"step": step, "eval_loss": 0.0, "eval_reward": score})
    return rows


def simulate_step(
    run: Run, chance: random.Random, at: float, skill: float, gained: float
) -> tuple[Row, float]:
    """Return the metrics of one step, and the share of its groups with a signal."""
    rights: list[float] = []
    forms: list[float] = []
    groups: list[list[float]] = []
    texts: list[str] = []
    prompts: list[int] = []
    for prompt in range(run.prompts):
        pass_rate = 1 / (1 + math.exp(-(skill - chance.gauss(0, run.spread))))
        gold = chance.choice(LABELS[: run.labels] or LABELS)
        wrong = chance.choice(LABELS)
        right = [float(chance.random() < pass_rate) for _ in range(run.size)]
        form = [float(chance.random() < run.form(at)) if run.form else 0.0 for _ in right]
        rights += right
        forms += form
        groups.append([run.score * r + 0.5 * f for r, f in zip(right, form, strict=True)])
        free = [f"{prompt} {number} {chance.random()}" for number in range(run.size)]
        words = [gold if r else wrong for r in right]
        texts += words if run.labels else free
        prompts += [prompt] * run.size
    totals = [total for group in groups for total in group]
    silent = fmean(float(max(group) - min(group) < 1e-9) for group in groups)
    signal = 1 - silent
    norm = (0.05 + signal) * chance.lognormvariate(-1, 0.4)
    if not run.has_lora or (silent == 1 and run.beta == 0):
        norm = 0.0
    row = {
        "reward": fmean(totals),
        "reward_std": stdev(totals),
        "frac_reward_zero_std": silent,
        "rewards/right/mean": run.score * fmean(rights),
        "rewards/right/std": run.score * stdev(rights),
        "grad_norm": norm,
        "learning_rate": run.rate(at),
        "loss": chance.gauss(0, 0.01),
        "entropy": run.entropy(at) * chance.gauss(1, 0.05),
        "completions/mean_length": run.length(at) * chance.gauss(1, 0.06),
        "completions/clipped_ratio": min(1.0, max(0.0, run.truncated(at) * chance.gauss(1, 0.1))),
        "step_time": chance.lognormvariate(2, 0.1),
        **duplicates_entry(pandas.Series(texts), pandas.Series(prompts)),
    }
    if run.form:
        row |= {"rewards/form/mean": fmean(forms), "rewards/form/std": stdev(forms)}
    if run.unscored:
        row |= {"rewards/pattern/mean": 0.0, "rewards/pattern/std": 0.0}
    if run.beta:
        kl = 0.03 * (0.1 + abs(gained)) * chance.lognormvariate(0, 0.3)
        row["kl"] = kl * run.kl_factor(at)
    return row, signal


def line(first: float, last: float, begin: float = 0.0, end: float = 1.0) -> Curve:
    """Return a curve that goes from one value to another between two points."""
    return lambda at: first + (last - first) * min(1.0, max(0.0, (at - begin) / (end - begin)))


HEALTHY: dict[str, dict[str, Any]] = {
    "right or wrong": {},
    "format and answer": {"form": line(0.3, 0.95, 0, 0.3)},
    "sparse at first": {"start": -3.5, "speed": 12.0, "steps": 500},
    "thinks longer": {
        "start": -1.4,
        "highest": 0.8,
        "speed": 3.5,
        "spread": 0.7,
        "length": lambda at: 300 + 900 * (1 - math.exp(-3 * at)),
        "steps": 500,
    },
    "five labels": {
        "labels": 5,
        "length": lambda at: 2.0,
        "start": -0.5,
        "highest": 2.5,
        "entropy": line(0.9, 0.1),
    },
    "tagged labels": {
        "labels": 5,
        "length": lambda at: 9.0,
        "start": 0.0,
        "highest": 3.0,
        "form": line(0.5, 1.0, 0, 0.2),
        "entropy": line(0.6, 0.08),
    },
    "late": {"speed": 8.0, "rate": line(0, 2e-6, 0, 0.3), "steps": 500},
    "twenty points": {"score": 20.0, "beta": 0.04},
    "truncated at first": {"truncated": line(0.85, 0.05, 0, 0.4), "length": line(480, 250, 0, 0.4)},
    "with a KL penalty": {"beta": 0.04, "evaluation": line(0.2, 0.6)},
    "reaches the top": {"highest": 4.0, "speed": 12.0, "spread": 0.5},
    "hard and easy prompts": {"spread": 2.5, "speed": 8.0},
}
# Fault -> the rules that name it, and what makes it.
FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "never right": ("zero_variance", {"start": -12.0}),
    "no trainable weights": ("gradient", {"has_lora": False, "start": -0.5, "spread": 0.5}),
    "learning rate 0": ("gradient", {"rate": lambda at: 0.0, "speed": 0.0}),
    "all truncated": ("truncation", {"truncated": lambda at: 0.96, "speed": 0.5}),
    "skill is lost": ("reward_falling zero_variance", {"shift": line(0, -7, 0.5, 0.7)}),
    "falls from the start": ("reward_falling", {"start": 1.0, "speed": 0.0, "shift": line(0, -4)}),
    "longer for nothing": (
        "length",
        {"start": -0.5, "speed": 0.0, "length": line(200, 700, 0.2, 0.8)},
    ),
    "longer after the rise": (
        "length",
        {"highest": 0.0, "speed": 20.0, "length": line(250, 900, 0.35, 1.0)},
    ),
    "format alone": ("format_only", {"start": -2.0, "speed": 0.0, "form": line(0.1, 1.0, 0, 0.3)}),
    "a reward without a score": ("constant_reward", {"unscored": True}),
    "KL runs away": (
        "kl_drift reward_falling",
        {"beta": 0.04, "kl_factor": line(1, 200, 0.4, 0.8), "shift": line(0, -3, 0.4, 0.8)},
    ),
    "eval_reward falls": (
        "holdout",
        {"evaluation": lambda at: line(0.3, 0.75, 0, 0.5)(at) - line(0, 0.45, 0.5, 0.9)(at)},
    ),
    "eval_reward stays": ("holdout", {"evaluation": lambda at: 0.35}),
    "stands still": ("reward_flat gradient", {"speed": 0.0, "start": -0.5, "steps": 500}),
    "always one label": (
        "zero_variance",
        {"labels": 5, "length": lambda at: 2.0, "start": -12.0, "speed": 0.0},
    ),
}
# logging_steps, prompts, completions per prompt
VARIANTS = (
    (1, 4, 8),
    (1, 1, 8),
    (1, 2, 4),
    (5, 2, 4),
    (10, 2, 4),
    (10, 8, 2),
    (10, 4, 16),
    (25, 4, 8),
)


def make_run(kind: str, variant: int, half: str) -> Run:
    """Return the run of a kind and a variant."""
    logging_steps, prompts, size = VARIANTS[variant]
    own = FAULTS[kind][1] if kind in FAULTS else HEALTHY[kind]
    run = replace(Run(), prompts=prompts, size=size, logging_steps=logging_steps)
    run = replace(run, seed=f"unseen {half} {kind} {variant}", **own)
    # The steps grow with logging_steps, as people choose them.
    return replace(run, steps=run.steps * {1: 1, 5: 1, 10: 2, 25: 4}[logging_steps])


def as_text(rows: list[Row]) -> list[Row]:
    """Return the rows with their numbers as transformers prints them."""
    return [
        {name: value if name == "step" else f"{value:.4g}" for name, value in row.items()}
        for row in rows
    ]


def known(run: Run) -> dict[str, Any]:
    """Return what a run of the kit knows about itself."""
    return {
        "weights": {"right": 1.0, "form": 0.5, "pattern": 0.5},
        "group_size": run.size,
        "ranges": {"right": (0.0, run.score), "form": (0.0, 1.0), "pattern": (0.0, 1.0)},
    }


def loud_rules(rows: list[Row], **told: Any) -> set[str]:
    """Return the rules that warn at the end of a log."""
    alerts = check_health(rows, **told).alerts
    return {alert.rule for alert in alerts if alert.state in ("warning", "critical")}


def is_stopped(rows: list[Row], **told: Any) -> bool:
    """Return True if `stop_on_alert="critical"` would have ended the run."""
    monitor = HealthMonitor(**told)
    for row in rows:
        monitor.update(row)
        if monitor.is_critical:
            return True
    return False


def main() -> None:
    """Print the counts, and with --rows what was found in each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("seen", "aside"), default="seen")
    parser.add_argument("--rows", action="store_true", help="print what was found in each run")
    arguments = parser.parse_args()
    counts: Counter[tuple[str, int]] = Counter()
    lines = []
    for kind in (*FAULTS, *HEALTHY):
        cells = []
        for variant, (logging_steps, _, _) in enumerate(VARIANTS):
            run = make_run(kind, variant, arguments.half)
            rows = simulate(run)
            if variant % 3 == 2:
                rows = as_text(rows)
            alone = loud_rules(rows)
            told = loud_rules(rows, **known(run))
            cells.append(f"{', '.join(sorted(alone)) or '-'} / {', '.join(sorted(told)) or '-'}")
            if kind in FAULTS:
                names = set(FAULTS[kind][0].split())
                counts["named, log alone", logging_steps] += bool(names & alone)
                counts["named, with weights", logging_steps] += bool(names & told)
            else:
                counts["warned, log alone", logging_steps] += bool(alone)
                counts["warned, with weights", logging_steps] += bool(told)
                counts["stopped, log alone", logging_steps] += is_stopped(rows)
                counts["stopped, with weights", logging_steps] += is_stopped(rows, **known(run))
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    variants = Counter(logging_steps for logging_steps, _, _ in VARIANTS)
    print(
        f"| half: {arguments.half} | "
        + " | ".join(f"logging_steps={k}" for k in variants)
        + " | all |"
    )
    print("| --- |" + " --- |" * (len(variants) + 1))
    for what in dict.fromkeys(name for name, _ in counts):
        kinds = len(FAULTS) if what.startswith("named") else len(HEALTHY)
        cells = [f"{counts[what, k]} of {kinds * n}" for k, n in variants.items()]
        total = f"{sum(counts[what, k] for k in variants)} of {kinds * len(VARIANTS)}"
        print(f"| {what} | " + " | ".join([*cells, total]) + " |")
    if arguments.rows:
        print("\n| kind | " + " | ".join(map(str, VARIANTS)) + " |")
        print("| --- |" + " --- |" * len(VARIANTS))
        print("\n".join(lines))


if __name__ == "__main__":
    main()
