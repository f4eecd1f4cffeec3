"""Made-up runs with one known fault each, and healthy runs.

They were written from definitions (November 2026), before the rules were.

No rule was set on them. `SEEN` may be looked at while rules are written, `ASIDE`, a half drawn by
chance, only at the end. A run is made of sampled completions (`healthy_log`), so that its noise is
that of groups and not of a formula.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import pandas

from grpo_nb.health.history import duplicates_entry
from tests.support.health_logs import Rows, healthy_log, with_intervals

WEIGHTS = {"right": 2.0, "form": 1.0}
CAP = 512


@dataclass
class Made:
    """A log, and what `check_health` is told beside it."""

    rows: Rows
    told: dict[str, Any] = field(default_factory=dict)

    def put(self, since: float = 0.0, **columns: Callable[[float, dict], Any]) -> Made:
        """Compute columns from progress and row, from some progress on.

        In a keyword `__` stands for a slash. None removes the column.
        """
        count = len(self.rows)
        for i, row in enumerate(self.rows):
            for name, value in columns.items() if i >= since * count else ():
                row[name.replace("__", "/")] = value(i / count, row)
        self.rows = [
            {key: value for key, value in row.items() if value is not None} for row in self.rows
        ]
        return self


def line(
    begin: float, end: float, start: float = 0.0, stop: float = 1.0
) -> Callable[[float], float]:
    """Return a curve that goes from one value to the other between two points of progress.

    It is level outside.
    """
    return lambda at: begin + (end - begin) * min(1.0, max(0.0, (at - start) / (stop - start)))


def run(choose: random.Random, **courses: Any) -> Made:
    return Made(
        healthy_log(choose.randrange(150, 260), choose.random(), **courses), {"weights": WEIGHTS}
    )


def risen(choose: random.Random, high: float = 0.0) -> Made:
    """Return a run that rises in the first third, as before most faults, and then stays level."""
    return run(
        choose,
        right=line(0.15, high or choose.uniform(0.4, 0.6), 0, choose.uniform(0.2, 0.35)),
        form=line(0.4, 0.9, 0, 0.2),
    )


def level(choose: random.Random, right: float = 0.25, form: float = 0.6) -> Made:
    return run(choose, right=lambda at: right, form=lambda at: form)


def around(
    choose: random.Random, course: Callable[[float], float], share: float = 0.06
) -> Callable[..., float]:
    return lambda at, row: course(at) * choose.gauss(1, share)


def with_holdout(made: Made, choose: random.Random, course: Callable[[float], float]) -> Made:
    """A score on 60 questions at every tenth step."""
    every = {row["step"] for row in made.rows[9::10]}
    score = lambda at: sum(choose.random() < course(at) for _ in range(60)) / 60  # noqa: E731
    made.put(holdout__accuracy=lambda at, row: score(at) if row["step"] in every else None)
    made.rows = with_intervals(made.rows, questions=60)
    return made


def texts(made: Made, choose: random.Random, repeated: float, same: float, since: float) -> Made:
    """Return repetition metrics of four groups of eight texts, a share of which are repeats.

    A repeat copies another text of its group, or all groups share one text.
    """

    def text(step: int, group: int, at: int) -> str:
        if step >= since * len(made.rows) and choose.random() < same:
            return "The answer is 7."
        is_repeat = step >= since * len(made.rows) and choose.random() < repeated
        return f"{step} {group} {'again' if is_repeat else at}"

    for step, row in enumerate(made.rows):
        groups = pandas.Series(range(4)).repeat(8).reset_index(drop=True)
        sampled = [text(step, group, place % 8) for place, group in enumerate(groups)]
        row |= duplicates_entry(pandas.Series(sampled), groups)
    return made


def missing_reward(made: Made, since: float) -> Made:
    """Remove the rewards from some progress on, as in a log where all rewards were NaN."""
    gone = [key for key in made.rows[0] if key.startswith("reward")]
    return made.put(since, **{key.replace("/", "__"): lambda at, row: None for key in gone})


def evaluated(made: Made, choose: random.Random, course: Callable[[float], float]) -> Made:
    """Add the mean reward of an evaluation at every tenth step, as TRL's own evaluation logs it."""
    every = {row["step"] for row in made.rows[9::10]}
    score = lambda at: course(at) + choose.gauss(0, 0.08)  # noqa: E731
    return made.put(eval_reward=lambda at, row: score(at) if row["step"] in every else None)


def by_tens(made: Made) -> Made:
    """Log every tenth step: the mean of ten steps, but the last gradient norm, as TRL does."""
    rows = []
    for start in range(0, len(made.rows) - 9, 10):
        block = made.rows[start : start + 10]
        row = {key: fmean(each[key] for each in block) for key in block[-1]}
        rows.append(row | {key: block[-1][key] for key in ("step", "grad_norm")})
    return dataclasses.replace(made, rows=rows)


def as_text(made: Made) -> Made:
    """Write the numbers as text with four digits, as transformers prints them."""
    rows = [
        {key: value if key == "step" else f"{value:.4g}" for key, value in row.items()}
        for row in made.rows
    ]
    return dataclasses.replace(made, rows=rows)


def paid(choose: random.Random, low: float, high: float, since: float, alike: float) -> Made:
    """One reward: `low` for a failure, `high` for a success, which stays away from `since` on."""
    made = run(choose, right=lambda at: 0.03 if at < since else 0.0)
    one = lambda at, row: low + (high - low) * row["rewards/right/mean"]  # noqa: E731
    spread = lambda at, row: (high - low) * row["rewards/right/std"]  # noqa: E731
    made.put(
        reward=one,
        reward_std=spread,
        rewards__won__mean=one,
        rewards__won__std=spread,
        frac_reward_zero_std=lambda at, row: float(
            row["rewards/right/mean"] == 0 or choose.random() < alike
        ),
    )
    gone = {
        f"rewards__{name}__{kind}": lambda at, row: None
        for name in ("right", "form")
        for kind in ("mean", "std")
    }
    return dataclasses.replace(made.put(**gone), told={"weights": {"won": 1.0}})


def spiked(
    made: Made, column: str, choose: random.Random, every: int, height: float, since: float
) -> Made:
    return made.put(
        since,
        **{
            column: lambda at, row: (
                height * choose.uniform(1, 2) if row["step"] % every == 0 else row[column]
            )
        },
    )


def falling(choose: random.Random) -> Made:
    """From 3.2 to -1.2, without ever having risen."""
    made = run(choose, right=line(0.9, 0.05), form=line(0.95, 0.2))
    return made.put(reward=lambda at, row: row["reward"] + line(0.4, -1.5)(at))


Maker = Callable[[random.Random], Made]
# Fault -> the rules that name it, and how it is made.
FAULTS: dict[str, tuple[str, Maker]] = {
    "entropy gone after a rise": (
        "collapse",
        lambda c: risen(c).put(entropy=around(c, line(1.2, c.uniform(0.05, 0.15), 0.4, 0.8))),
    ),
    "repeats after a rise": (
        "collapse",
        lambda c: texts(risen(c), c, c.uniform(0.75, 0.95), 0, 0.5),
    ),
    "one text for all": (
        "collapse",
        lambda c: texts(level(c), c, 0, c.uniform(0.88, 1.0), c.uniform(0, 0.5)),
    ),
    "cut after a rise": (
        "truncation",
        lambda c: risen(c).put(
            completions__clipped_ratio=around(c, line(0.02, c.uniform(0.6, 0.85), 0.5, 0.6))
        ),
    ),
    "cut from the start, form rose": (
        "truncation",
        lambda c: run(c, right=lambda at: 0.2, form=line(0.3, 0.9, 0, 0.3)).put(
            completions__clipped_ratio=around(c, lambda at: 0.68)
        ),
    ),
    "falls from the start": ("reward_falling", falling),
    "level, then falls": (
        "reward_falling",
        lambda c: run(c, right=line(0.7, 0.2, 0.5, 0.7), form=line(0.9, 0.5, 0.5, 0.7)),
    ),
    "rises and loses it": (
        "reward_falling",
        lambda c: run(
            c,
            right=lambda at: line(0.15, 0.7, 0, 0.4)(at) - line(0, 0.55, 0.5, 0.7)(at),
            form=lambda at: 0.8,
        ),
    ),
    "breaks down at once": (
        "reward_falling",
        lambda c: run(
            c,
            right=lambda at: line(0.15, 0.6, 0, 0.5)(at) if at < 0.6 else 0.05,
            form=lambda at: 0.9 if at < 0.6 else 0.3,
        ),
    ),
    "held-out falls from its best": (
        "holdout",
        lambda c: with_holdout(
            run(c),
            c,
            lambda at: line(0.3, 0.75, 0, 0.5)(at) - line(0, c.uniform(0.3, 0.4), 0.5, 0.9)(at),
        ),
    ),
    "held-out stays": ("holdout", lambda c: with_holdout(run(c), c, lambda at: 0.4)),
    "length at the cap": (
        "truncation",
        lambda c: level(c).put(
            completions__clipped_ratio=lambda at, row: c.uniform(0.9, 1.0),
            completions__mean_length=lambda at, row: CAP - c.uniform(0, 12),
        ),
    ),
    "grows to the cap": (
        "truncation",
        lambda c: risen(c).put(
            completions__mean_length=lambda at, row: min(
                CAP, line(200, 560, 0.3, 0.8)(at) * c.gauss(1, 0.02)
            ),
            completions__clipped_ratio=lambda at, row: max(
                0.0, row["completions/mean_length"] / CAP - 0.1
            ),
        ),
    ),
    "length 200 to 650": (
        "length",
        lambda c: risen(c).put(completions__mean_length=around(c, line(200, 650))),
    ),
    "no gradient, logged by tens": (
        "gradient",
        lambda c: by_tens(level(c).put(grad_norm=lambda at, row: 0.0)),
    ),
    "groups die after a rise": (
        "zero_variance",
        lambda c: risen(c).put(0.5, frac_reward_zero_std=lambda at, row: c.choice([0.75, 1, 1, 1])),
    ),
    "2 means failed where 20 is paid": ("zero_variance", lambda c: paid(c, 2.0, 20.0, 0.3, 0.8)),
    "too hard": ("zero_variance", lambda c: paid(c, 0.0, 1.0, 0.0, 1.0)),
    "KL runs away": (
        "kl_drift reward_falling",
        lambda c: run(
            c,
            right=lambda at: line(0.15, 0.6, 0, 0.4)(at) - line(0, 0.5, 0.5, 1)(at),
        ).put(kl=around(c, line(0.01, c.uniform(5, 20), 0.3, 1), 0.3)),
    ),
    "gradient stays fifty times as large": (
        "gradient",
        lambda c: level(c).put(0.5, grad_norm=lambda at, row: 50 * row["grad_norm"]),
    ),
    "learning rate ends early": (
        "gradient",
        lambda c: risen(c).put(learning_rate=lambda at, row: 1e-6 if at < 0.5 else 0.0),
    ),
    "gradient zero": (
        "gradient",
        lambda c: risen(c).put(c.uniform(0, 0.5), grad_norm=lambda at, row: 0.0),
    ),
    "gradient NaN": (
        "not_finite",
        lambda c: risen(c).put(c.uniform(0, 0.7), grad_norm=lambda at, row: float("nan")),
    ),
    "no reward at all": ("not_finite", lambda c: missing_reward(run(c), 0.0)),
    "no reward from some step on": (
        "not_finite",
        lambda c: missing_reward(run(c), c.uniform(0.3, 0.7)),
    ),
    "never paid": (
        "constant_reward",
        lambda c: risen(c).put(
            rewards__rare__mean=lambda at, row: 0.0, rewards__rare__std=lambda at, row: 0.0
        ),
    ),
    "eval_reward falls": (
        "holdout",
        lambda c: evaluated(
            run(c),
            c,
            lambda at: line(0.8, 2.2, 0, 0.5)(at) - line(0, c.uniform(1.0, 1.3), 0.5, 0.9)(at),
        ),
    ),
    "form alone": (
        "format_only",
        lambda c: run(c, right=lambda at: 0.2, form=line(0.2, 1.0, 0, 0.4)),
    ),
    "short instead of right": (
        "format_only reward_falling",
        lambda c: run(c, right=line(0.6, 0.15)).put(
            rewards__short__mean=lambda at, row: line(0.1, 0.9)(at) + c.gauss(0, 0.03)
        ),
    ),
    "tools fail": (
        "tools",
        lambda c: level(c).put(
            0.3, tools__failure_frequency=around(c, lambda at: c.uniform(0.6, 0.9))
        ),
    ),
    "cut, numbers as text": (
        "truncation",
        lambda c: as_text(level(c).put(completions__clipped_ratio=around(c, lambda at: 0.75))),
    ),
    "flat for long": (
        "reward_flat",
        lambda c: Made(
            healthy_log(c.randrange(310, 400), c.random(), speed=0.0), {"weights": WEIGHTS}
        ),
    ),
}
HEALTHY: dict[str, Maker] = {
    "steady": run,
    "slow": lambda c: run(c, right=line(0.2, 0.4)),
    "level after a fast rise": lambda c: risen(c, 0.75),
    "thinks longer": lambda c: run(c).put(completions__mean_length=around(c, line(200, 650))),
    "thinks shorter": lambda c: run(c).put(completions__mean_length=around(c, line(400, 150))),
    "one group a step": lambda c: run(c, groups=1),
    "penalties only": lambda c: run(c).put(
        reward=lambda at, row: row["reward"] - 3,
        rewards__form__mean=lambda at, row: row["rewards/form/mean"] - 1,
        rewards__right__mean=lambda at, row: row["rewards/right/mean"] - 1,
    ),
    "primed: KL from the first row": lambda c: run(c).put(kl=around(c, line(0.9, 1.1), 0.1)),
    "no KL": lambda c: run(c).put(kl=lambda at, row: None),
    "held-out rises": lambda c: with_holdout(run(c), c, line(0.3, 0.75)),
    "held-out rises, then level": lambda c: with_holdout(run(c), c, line(0.3, 0.7, 0, 0.5)),
    "entropy to a third": lambda c: run(c).put(entropy=around(c, line(1.2, 0.4))),
    "single spikes": lambda c: spiked(spiked(run(c), "kl", c, 70, 2, 0), "grad_norm", c, 60, 12, 0),
    "success pays 20": lambda c: run(c).put(
        reward=lambda at, row: 20 * row["rewards/right/mean"],
        reward_std=lambda at, row: 20 * row["rewards/right/std"],
        rewards__right__mean=lambda at, row: 20 * row["rewards/right/mean"],
        rewards__right__std=lambda at, row: 20 * row["rewards/right/std"],
    ),
    "good from the start": lambda c: run(c, right=line(0.65, 0.82), form=lambda at: 0.95),
    "short run": lambda c: Made(healthy_log(24, c.random()), {"weights": WEIGHTS}),
}

TRIES = 2
RUNS = [f"{kind} #{number}" for kind in (*FAULTS, *HEALTHY) for number in range(TRIES)]
ASIDE = frozenset(random.Random("set aside").sample(RUNS, len(RUNS) // 2))
SEEN = [name for name in RUNS if name not in ASIDE]


def made_run(name: str) -> Made:
    """The run of a name in `RUNS`."""
    kind = name.partition(" #")[0]
    maker = FAULTS[kind][1] if kind in FAULTS else HEALTHY[kind]
    return maker(random.Random(name))


def judged(names: Iterable[str], check: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """Return the faulty runs whose fault got no warning, and the healthy runs that got one."""
    missed = []
    accused = []
    for name in names:
        made = made_run(name)
        kind = name.partition(" #")[0]
        loud = {
            alert.rule
            for alert in check(made.rows, **made.told).alerts
            if alert.severity != "info" and not getattr(alert, "withdrawn_step", None)
        }
        if kind in HEALTHY and loud:
            accused.append(f"{name}: {', '.join(sorted(loud))}")
        elif kind in FAULTS and not any(
            rule.startswith(tuple(FAULTS[kind][0].split())) for rule in loud
        ):
            missed.append(f"{name}: {', '.join(sorted(loud)) or 'nothing'}")
    return missed, accused
