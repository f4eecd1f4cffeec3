"""What shows only when all rewards are looked at together: names, columns, weights, and what the weighted total pays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from grpo_nb.checks_sample import Sample
from grpo_nb.contract import TRL_ARGUMENTS
from grpo_nb.findings import WHOLE_SET, Finding
from grpo_nb.probes import Probe
from grpo_nb.probing import TELLS, Results, Role, is_paid, shortest
from grpo_nb.reward_calls import RewardFunction, reward_name
from grpo_nb.rewards.base import weight_of


def check_names(rewards: Sequence[RewardFunction]) -> list[Finding]:
    """A name that two rewards have."""
    names = [reward_name(reward) for reward in rewards]
    return [
        Finding(
            severity="critical",
            reward=WHOLE_SET,
            kind="same name twice",
            what=f"{names.count(name)} rewards are named {name!r}",
            effect="TRL logs the mean of both under one name: no curve shows either",
            fix=f"set __name__ of one: reward.__name__ = '{name}_2'",
        )
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]


def check_columns(sample: Sample) -> list[Finding]:
    """Data columns named as what TRL passes itself."""
    clash = [column for column in sample.rows[0] if column in TRL_ARGUMENTS and column != "completion_ids"]
    return (
        [
            Finding(
                severity="critical",
                reward=WHOLE_SET,
                kind="column name taken",
                what=f"the data has columns {clash}, TRL's own argument names",
                effect="every reward call fails: an argument is given twice",
                fix="rename the columns",
            )
        ]
        if clash
        else []
    )


def check_set(
    seen: Mapping[str, tuple[RewardFunction, Results, Role]], sample: Sample, weights: Mapping[str, float], count: int
) -> list[Finding]:
    """What the weighted total pays: GRPO learns from nothing else."""
    if len(seen) < count or not seen:
        return []
    weight = {name: float(weights.get(name, weight_of(reward))) for name, (reward, _, _) in seen.items()}
    telling = [name for name, (_, _, role) in seen.items() if role.kind == TELLS and weight[name]]
    if not telling:
        return [
            Finding(
                severity="critical",
                reward=WHOLE_SET,
                kind="nothing tells right from wrong",
                what="no reward gives the gold answer more than a wrong one in the same words and format",
                effect="the model learns form at best; accuracy does not move but by luck",
                fix="add a reward for the answer, such as gn.rewards.correctness()",
            )
        ]
    totals = _totals(seen, weight)
    rows = [r for r in range(len(sample.rows)) if any(r in seen[name][2].rows for name in telling)]

    def best(kind: str, row: int) -> float:
        return max((t for p, t in totals if p.kind == kind and p.row == row), default=math.nan)

    gaps = {}
    for row in rows:
        pairs = [
            (best(f"right{layout}", row), best(f"wrong{layout}", row)) for layout in ("", ", one line", ", newline")
        ]
        right, wrong = max(pairs, key=lambda pair: -math.inf if math.isnan(pair[0] - pair[1]) else pair[0] - pair[1])
        gaps[row] = (right, wrong)
    findings = []
    upside_down = [row for row, (right, wrong) in gaps.items() if not right > wrong]
    if upside_down:
        right, wrong = gaps[upside_down[0]]
        return [
            Finding(
                severity="critical",
                reward=WHOLE_SET,
                kind="wrong pays as much as right",
                what=f"with these weights a right answer has a total of {right:.3g}, a wrong one {wrong:.3g}",
                effect="the model is not drawn to right answers",
                fix="look at the weights and their signs",
            )
        ]
    findings += _check_weights(seen, weight, telling, rows)
    known = {
        p.kind
        for name in telling
        for p, o in seen[name][1].outcomes
        if o.scores and is_paid(seen[name][2], p, o.scores[0])
    }
    beaten = [
        (probe, total, gaps[probe.row])
        for probe, total in totals
        if probe.row in gaps
        and probe.kind in _UNPAID - known
        and total >= gaps[probe.row][0] - 0.05 * (gaps[probe.row][0] - gaps[probe.row][1])
    ]
    if beaten:
        beaters = ", ".join(sorted({probe.kind for probe, _, _ in beaten}))
        _, total, (right, _) = min(beaten, key=lambda entry: len(entry[0].text))
        findings.append(
            Finding(
                severity="critical",
                reward=WHOLE_SET,
                kind="beats the right answer",
                what=f"a total of {total:.3g} for {beaters}, the right answer has {right:.3g}",
                example=shortest([p for p, _, _ in beaten]),
                effect="the model learns this instead of the task",
                fix="lower the weight of what pays here, or bound it",
            )
        )
    return findings


_UNPAID = {
    "every candidate",
    "hedge",
    "not gold",
    "empty slot",
    "contains gold",
    "gold in reasoning only",
    "every candidate in prose",
    "judge",
    "empty",
    "blank",
    "tags only",
    "tags in prose",
    "wrong, repeated",
    "echo",
    "wrong, length",
}


def _totals(
    seen: Mapping[str, tuple[RewardFunction, Results, Role]], weight: Mapping[str, float]
) -> list[tuple[Probe, float]]:
    """The weighted total of every probe that all rewards were tried on and none failed on."""
    parts: dict[Probe, list[float]] = {}
    for name, (_, results, _) in seen.items():
        for probe, outcome in dict(results.outcomes).items():
            if outcome.scores:
                parts.setdefault(probe, []).append(weight[name] * outcome.scores[0])
    return [
        (probe, sum(v for v in values if not math.isnan(v)))
        for probe, values in parts.items()
        if len(values) == len(seen) and not all(math.isnan(v) for v in values)
    ]


def _check_weights(
    seen: Mapping[str, tuple[RewardFunction, Results, Role]],
    weight: Mapping[str, float],
    telling: Sequence[str],
    rows: Sequence[int],
) -> list[Finding]:
    answer = sum(abs(weight[name]) * seen[name][2].gap for name in telling)
    findings, form, formal = [], 0.0, []
    for name, (_, results, role) in seen.items():
        if role.kind == TELLS:
            continue
        gains = [results.best(f"right{role.layout}", row) - results.best("right, slot only", row) for row in rows]
        gain = weight[name] * max((g for g in gains if not math.isnan(g)), default=0.0)
        if role.kind != TELLS and gain > 0:
            form += gain
            formal.append(name)
        spread = abs(weight[name]) * results.spread()
        if spread > 10 * answer:
            findings.append(
                Finding(
                    severity="warning",
                    reward=name,
                    kind="dwarfs the answer",
                    what=f"times its weight it spreads over {spread:.3g}, while being right adds {answer:.3g}",
                    effect="advantages are scaled by the spread of the group: right and wrong look alike beside it",
                    fix="bound it (gn.rewards.clipped), or lower its weight",
                )
            )
    if form >= answer:
        findings.append(
            Finding(
                severity="warning",
                reward=WHOLE_SET,
                kind="form outweighs being right",
                what=f"perfect form adds {form:.3g} ({', '.join(formal)}), the right answer {answer:.3g}",
                effect="a wrong answer in perfect form beats a right one that is only in its slot",
                fix="give the answer more weight than all rewards for form together",
            )
        )
    return findings


def check_signal(pass_rate: float | None, size: int) -> list[Finding]:
    """Groups that will mostly be all right or all wrong."""
    if pass_rate is None:
        return []
    share = pass_rate**size + (1 - pass_rate) ** size
    if share <= 0.5:
        return []
    harder = "easier prompts or an example turn" if pass_rate < 0.5 else "harder prompts"
    return [
        Finding(
            severity="warning",
            reward=WHOLE_SET,
            kind="little signal",
            what=f"at a pass rate of {pass_rate:.0%}, {share:.0%} of groups of {size} are all right or all wrong",
            effect="they cost time and teach nothing",
            fix=f"{harder}, or a larger num_generations",
        )
    ]
