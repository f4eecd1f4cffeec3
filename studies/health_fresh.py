"""Do the health rules name faults in runs that no rule was written from? Runs of a simulated policy, with one fault each.

    python studies/health_fresh.py [--half seen|aside] [--alone] [--rows]

A policy is a skill, prompts have difficulties, a completion is right with the probability of the difference, and the
skill grows by what groups with spread teach. So reward, spread, groups without spread, gradient and KL come from the
same completions. 23 faults and 14 healthy kinds, six variants each (seed, length, prompts, group size, `logging_steps`
1 or 10: a row is then the mean of ten steps, with the gradient norm and the learning rate of the last one, as TRL
writes it), and 180 runs that rise, for `stop_on_alert="critical"`. `--alone` gives the rules no weights, settings and
ranges, as of a stranger's log. One half, by seed, may be looked at while rules are written; the other at the end.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from grpo_nb.config.settings import Settings
from grpo_nb.health.monitor import HealthMonitor, check_health
from grpo_nb.runs.repetition import repetition_metrics

CAP = 512


@dataclass(frozen=True)
class Simulated:
    """What a run is simulated with. A course is a function of the progress from 0 to 1."""

    steps: int = 200
    groups: int = 4
    size: int = 8
    every: int = 1
    seed: str = ""
    begin: float = -1.5
    """Skill at the start: the logit of the pass rate on a prompt of difficulty 0."""
    speed: float = 4.0
    """How much skill a run with full spread gains."""
    most: float = 6.0
    hardness: float = 1.2
    """Standard deviation of the difficulties."""
    form: tuple[float, float] = (0.4, 0.95)
    weights: dict[str, float] = field(default_factory=lambda: {"right": 2.0, "form": 1.0})
    shift: Callable[[float], float] = lambda at: 0.0
    """Skill that is lost or won by no learning."""
    learns: Callable[[float], float] = lambda at: 1.0
    kl_scale: float = 0.03
    length: Callable[[float], float] = lambda at: 180.0
    cut: Callable[[float], float] = lambda at: 0.01
    same: Callable[[float], float] = lambda at: 0.0
    """Share of groups that are one text."""
    entropy: Callable[[float], float] = lambda at: 1.1 - 0.4 * at
    learning_rate: Callable[[float], float] = lambda at: 5e-6 * (1 - at)
    holdout: Callable[[float, float], float] | None = None
    """From progress and the true pass rate to the rate on held-out questions, of which 64 are asked every 20 steps."""
    change: Callable[[float, dict, random.Random], None] = lambda at, row, choose: None
    """The last word on a step's row."""


def simulated(run: Simulated) -> tuple[list[dict[str, Any]], list[list[list[str]]]]:
    """Rows as TRL logs them, and the texts of each row's last step."""
    choose = random.Random(run.seed)
    skill, rows, texts, block = run.begin, [], [], []
    for step in range(1, run.steps + 1):
        at = (step - 1) / run.steps
        row, step_texts, gained = _step(run, choose, step, at, skill + run.shift(at))
        skill = min(run.most, skill + run.speed * run.learns(at) * gained / run.steps * 2)
        row["kl"] = (
            run.kl_scale
            * (0.1 + abs(skill + run.shift(at) - run.begin))
            * choose.lognormvariate(0, 0.25)
        )
        run.change(at, row, choose)
        block.append({key: value for key, value in row.items() if value is not None})
        if step % run.every == 0:
            keys = dict.fromkeys(key for each in block for key in each)
            logged = {key: fmean(each[key] for each in block if key in each) for key in keys}
            # The Trainer logs these as they are at the last step.
            last = {
                key: row[key]
                for key in ("step", "grad_norm", "learning_rate")
                if row[key] is not None
            }
            rows.append(logged | last)
            texts.append(step_texts)
            block = []
    return rows, texts


def _step(
    run: Simulated, choose: random.Random, step: int, at: float, skill: float
) -> tuple[dict, list, float]:
    low, high = run.form
    form_rate = low + (high - low) * min(1.0, 3 * at)
    scores: dict[str, list[float]] = {"right": [], "form": []}
    totals, texts, spreads = [], [], []
    for group in range(run.groups):
        rate = 1 / (1 + math.exp(-(skill - choose.gauss(0, run.hardness))))
        is_one = choose.random() < run.same(at)
        pairs = [
            (float(choose.random() < rate), float(choose.random() < form_rate))
            for _ in range(run.size)
        ]
        pairs = [pairs[0]] * run.size if is_one else pairs
        for name, values in zip(scores, zip(*pairs, strict=True), strict=True):
            scores[name] += values
        totals.append(
            [
                sum(run.weights.get(n, 0) * v for n, v in zip(scores, pair, strict=True))
                for pair in pairs
            ]
        )
        spreads.append(len({right for right, _ in pairs}) > 1)
        texts.append([f"{step} {group} {0 if is_one else i}" for i in range(run.size)])
    every = [total for group in totals for total in group]
    row = {
        "step": step, "max_steps": run.steps, "reward": fmean(every), "reward_std": stdev(every),
        "frac_reward_zero_std": fmean(float(max(group) - min(group) < 1e-9) for group in totals),
        "grad_norm": (0.02 + 0.4 * fmean(spreads)) * choose.lognormvariate(0, 0.35),
        "completions/mean_length": run.length(at) * choose.gauss(1, 0.05),
        "completions/clipped_ratio": min(1.0, max(0.0, run.cut(at) * choose.gauss(1, 0.15))),
        "entropy": run.entropy(at) * choose.gauss(1, 0.05), "step_time": choose.lognormvariate(2, 0.08),
        "learning_rate": run.learning_rate(at), "loss": choose.gauss(0, 0.01), "clip_ratio/region_mean": 0.0,
    }  # fmt: skip
    for name, values in scores.items():
        row |= {f"rewards/{name}/mean": fmean(values), f"rewards/{name}/std": stdev(values)}
    if run.holdout and (step == 1 or step % 20 == 0):
        rate = run.holdout(at, 1 / (1 + math.exp(-skill)))
        row["holdout/accuracy"] = sum(choose.random() < rate for _ in range(64)) / 64
    return row, texts, fmean(spreads)


def after(point: float, before: float, then: float, width: float = 0.0) -> Callable[[float], float]:
    """Goes from one value to another at some progress, at once or over a width."""
    return lambda at: (
        before
        + (then - before)
        * min(1.0, max(0.0, (at - point) / width if width else float(at >= point)))
    )


def put(since: float = 0.0, **columns: Callable[[dict, random.Random], Any]) -> Callable[..., None]:
    """Set columns of a step's row from some progress on; `__` is a slash."""

    def change(at: float, row: dict, choose: random.Random) -> None:
        if at >= since:
            row.update(
                {name.replace("__", "/"): value(row, choose) for name, value in columns.items()}
            )

    return change


def rising_reward(name: str, weight: float, begin: float, end: float) -> Callable[..., None]:
    """One more reward, which rises whatever the policy learns."""

    def change(at: float, row: dict, choose: random.Random) -> None:
        value = begin + (end - begin) * min(1.0, 1.5 * at) + choose.gauss(0, 0.03)
        row.update(
            {
                f"rewards/{name}/mean": value,
                f"rewards/{name}/std": 0.15,
                "reward": row["reward"] + weight * value,
            }
        )

    return change


def never(row: dict, choose: random.Random) -> None:
    return None


def no_rewards(at: float, row: dict, choose: random.Random) -> None:
    if at >= 0.5:
        for key in [key for key in row if key.startswith("reward")]:
            row[key] = None


STILL: dict[str, Any] = {"speed": 0.0, "begin": -0.5, "form": (0.6, 0.6)}
# Fault -> the rules whose warning names it, and what makes it.
FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "too hard": ("no_spread", {"begin": -9.0, "speed": 0.0, "form": (0.0, 0.0)}),
    "too easy": ("no_spread reward_flat", {"begin": 6.0, "form": (1.0, 1.0)}),
    "one text a group after a rise": ("collapse no_spread", {"same": after(0.5, 0, 0.9)}),
    "entropy gone, stands still": ("collapse", {
        "learns": after(0.3, 1, 0), "most": 0.3, "entropy": after(0.4, 1.1, 0.08, 0.2)}),
    "cut from the start": ("truncation", {"cut": lambda at: 0.95, "speed": 1.0}),
    "length runs into the limit": ("truncation length reward_falling", {
        "length": after(0.4, 180, 480, 0.3), "cut": after(0.5, 0.01, 0.9, 0.2), "shift": after(0.5, 0, -4, 0.3)}),
    "slow fall": ("reward_falling", {"shift": lambda at: -4 * at, "begin": 1.0, "speed": 0.0}),
    "sudden drop in the last eight steps": ("reward_falling", {}),
    "dead from the middle on": ("reward_falling no_spread", {"shift": after(0.4, 0, -12), "change": put(
        0.4, reward=lambda r, c: 2 * r["rewards/right/mean"], rewards__form__mean=lambda r, c: 0.0)}),
    "KL drifts to 5": ("kl_drift", {**STILL, "change": lambda at, row, c: row.update(kl=5 * at * c.lognormvariate(0, 0.2))}),
    "KL breaks out, reward falls": ("kl_drift reward_falling", {
        "shift": after(0.5, 0, -6, 0.3),
        "change": lambda at, row, c: row.update(kl=row["kl"] * (1 if at < 0.5 else 3000 * (at - 0.5) + 1))}),
    "gradient stays 1,400 times as large": ("gradient", {**STILL, "change": put(
        0.4, grad_norm=lambda r, c: 1400 * r["grad_norm"])}),
    "gradient zero": ("gradient", {**STILL, "change": put(0.0, grad_norm=lambda r, c: 0.0)}),
    "learning rate zero": ("gradient", {**STILL, "learning_rate": lambda at: 0.0}),
    "NaN from some step on": ("not_finite", {"change": put(0.6, grad_norm=lambda r, c: math.nan, loss=lambda r, c: math.nan)}),
    "rewards say nothing": ("not_finite", {"change": no_rewards}),
    "a reward never paid": ("constant_reward", {"change": put(
        rewards__pattern__mean=lambda r, c: 0.0, rewards__pattern__std=lambda r, c: 0.0)}),
    "form alone": ("form_only", {"speed": 0.0, "begin": -0.8, "form": (0.1, 1.0)}),
    "a length reward alone": ("form_only", {**STILL, "change": rising_reward("brevity", 1.0, 0.1, 0.8)}),
    "longer for nothing": ("length", {**STILL, "length": after(0.2, 150, 420, 0.6)}),
    "length collapses": ("length reward_falling", {
        "speed": 0.0, "begin": 0.0, "length": after(0.3, 300, 12, 0.3), "shift": after(0.3, 0, -0.6, 0.3)}),
    "stuck after resuming": ("gradient reward_flat", {"learns": after(0.4, 1, 0), "learning_rate": after(0.4, 5e-6, 0.0)}),
    "held-out falls": ("holdout", {"holdout": lambda at, rate: 0.3 + 0.9 * at if at < 0.4 else 0.66 - 0.6 * (at - 0.4)}),
}  # fmt: skip
HEALTHY: dict[str, dict[str, Any]] = {
    "steady": {},
    "slow": {"speed": 1.5},
    "fast, then level at the top": {"speed": 14.0, "most": 3.5},
    "level at 0.6": {"speed": 10.0, "most": 0.8},
    "thinks longer": {"length": lambda at: 150 + 350 * at},
    "answers get shorter": {"length": lambda at: 300 - 190 * at},
    "KL at 0.4": {"kl_scale": 0.12},
    "no KL": {"change": put(kl=never)},
    "hard prompts": {"begin": -3.0, "hardness": 2.0, "speed": 6.0},
    "held-out rises": {"holdout": lambda at, rate: rate},
    "entropy falls with the rise": {"entropy": lambda at: 1.2 - 0.8 * at},
    "single spikes": {"change": lambda at, row, c: row.update(
        kl=row["kl"] * (40 if c.random() < 0.01 else 1), grad_norm=row["grad_norm"] * (15 if c.random() < 0.01 else 1))},
    "only right and wrong": {"weights": {"right": 1.0}, "change": put(rewards__form__mean=never, rewards__form__std=never)},
    "a tenth cut": {"cut": lambda at: 0.12},
}  # fmt: skip
# steps, groups, size, every
VARIANTS = (
    (200, 4, 8, 1),
    (120, 2, 8, 1),
    (400, 8, 4, 1),
    (300, 4, 8, 10),
    (250, 1, 16, 1),
    (500, 8, 2, 10),
)


def made(kind: str, variant: int, tag: str = "") -> Simulated:
    """One run by its kind and variant; `tag` draws another."""
    steps, groups, size, every = VARIANTS[variant]
    own = FAULTS[kind][1] if kind in FAULTS else HEALTHY[kind]
    run = replace(Simulated(steps, groups, size, every, f"{kind} {variant} {tag}"), **own)
    if kind == "sudden drop in the last eight steps":
        last = 1 - 8 * (every if every > 1 else 1) / steps
        run = replace(
            run, change=put(last, reward=lambda r, c: 0.015, rewards__right__mean=lambda r, c: 0.0)
        )
    return run


def told(run: Simulated) -> dict[str, Any]:
    return {
        "weights": run.weights,
        "settings": Settings(
            num_generations=run.size, max_completion_length=CAP, holdout_questions=64
        ),
        "ranges": {"right": (0.0, 1.0), "form": (0.0, 1.0), "brevity": (0.0, 1.0)},
    }


def rows_of(run: Simulated) -> list[dict[str, Any]]:
    """Its rows as a run has them: how alike its texts are is a metric like any other."""
    rows, texts = simulated(run)
    return [row | repetition_metrics(groups) for row, groups in zip(rows, texts, strict=True)]


def is_stopped(run: Simulated, is_alone: bool) -> bool:
    """Return True if `stop_on_alert="critical"` would have ended the run."""
    monitor = HealthMonitor(stop_on="critical", **({} if is_alone else told(run)))
    for row in rows_of(run):
        monitor.update(row)
    return monitor.should_stop


def rising(count: int, tag: str) -> Iterator[Simulated]:
    """Runs that rise, of many sizes, from slow to fast, some with a bad beginning or a hard stretch."""
    for i in range(count):
        choose = random.Random(f"rising {tag} {i}")
        steps, groups, size = (
            choose.choice((100, 200, 400, 800)),
            choose.choice((1, 2, 4, 8)),
            choose.choice((2, 4, 8, 16)),
        )
        every = choose.choice((1, 1, 10))
        dip = choose.choice((0.0, 0.0, choose.uniform(0.3, 1.5)))
        middle = choose.uniform(0.3, 0.7)
        yield Simulated(
            steps, groups, size, every, f"rising {tag} {i}", begin=choose.uniform(-3, 0), speed=choose.uniform(2, 10),
            hardness=choose.uniform(0.5, 2.5), most=choose.uniform(1, 4),
            shift=lambda at, dip=dip, middle=middle: -dip if abs(at - middle) < 0.1 else 0.0,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", choices=("seen", "aside"), default="seen")
    parser.add_argument("--alone", action="store_true", help="judge the log alone")
    parser.add_argument("--rows", action="store_true", help="say of each kind what was found")
    arguments = parser.parse_args()
    half, named, accused, lines = arguments.half, Counter(), Counter(), []
    for kind in (*FAULTS, *HEALTHY):
        cells = []
        for variant, (*_, every) in enumerate(VARIANTS):
            run = made(kind, variant, half)
            alerts = check_health(rows_of(run), **({} if arguments.alone else told(run))).alerts
            loud = {alert.rule for alert in alerts if alert.kind in ("warning", "critical")}
            cells.append(", ".join(sorted(loud)) or "-")
            if kind in FAULTS:
                found = any(rule.startswith(tuple(FAULTS[kind][0].split())) for rule in loud)
                named["all"] += found
                named["base"] += found and variant == 0
                named["logging_steps=10"] += found and every == 10
            else:
                ever = {alert.severity for alert in alerts}
                accused["warned at the end"] += bool(loud)
                accused["warned at some time"] += bool(ever - {"info"})
                accused["critical at some time"] += "critical" in ever
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    stopped = sum(is_stopped(run, arguments.alone) for run in rising(180, half))
    tenth = sum(every == 10 for *_, every in VARIANTS)
    print(f"| half | {half}{', the log alone' if arguments.alone else ''} |\n| --- | --- |")
    print(
        f"| faults named by a warning at the end, first variant | {named['base']} of {len(FAULTS)} |"
    )
    print(f"| all variants | {named['all']} of {len(FAULTS) * len(VARIANTS)} |")
    print(
        f"| of these with `logging_steps=10` | {named['logging_steps=10']} of {len(FAULTS) * tenth} |"
    )
    for words in ("warned at the end", "warned at some time", "critical at some time"):
        print(f"| healthy: {words} | {accused[words]} of {len(HEALTHY) * len(VARIANTS)} |")
    print(f"| rising runs stopped | {stopped} of 180 |")
    if arguments.rows:
        print(
            "\n| kind | "
            + " | ".join(map(str, VARIANTS))
            + " |\n"
            + "| --- " * (len(VARIANTS) + 1)
            + "|"
        )
        print("\n".join(lines))


if __name__ == "__main__":
    main()
