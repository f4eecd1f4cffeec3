"""What shows only when all rewards are looked at together: names, columns, weights, and what the weighted total pays."""

from __future__ import annotations

import collections
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from grpo_nb.checks.catalogue import WHOLE_SET, Finding, found
from grpo_nb.checks.contract import TRL_ARGUMENTS
from grpo_nb.checks.probes import REFUSED, Probe
from grpo_nb.checks.roles import BY_DEGREES, TELLS, UNSCORED, Results, Role, is_paid
from grpo_nb.rewards.base import Reward, RewardFunction, reward_name

Seen = Mapping[str, tuple[Results, Role]]
# Near answers, and what a lax reading of several takes for right: said of the reward that does so, not of the total.
_LAX = {
    "hedge, gold first",
    "equation",
    "equation, gold first",
    "retracted in the slot",
    "retracted",
    "gold after wrong slot",
    "echo of the prompt",
}

_FEW_UNSCORED = 0.1
_SILENT = 0.1
"""Models that begin with a smaller pass rate fall silent, and that is said only from here on."""


def check_names(rewards: Sequence[RewardFunction], columns: Sequence[str]) -> Iterator[Finding]:
    """A name that two rewards have, and data columns named as what TRL passes itself."""
    for name, count in collections.Counter(map(reward_name, rewards)).items():
        if count > 1:
            is_kits = any(isinstance(reward, Reward) and reward.__name__ == name for reward in rewards)
            mend = f"give one of them name='{name}_2'" if is_kits else f"reward.__name__ = '{name}_2' of one function"
            yield found("same name twice", WHOLE_SET, f"{count} rewards are named {name!r}", fix=mend)
    clash = [column for column in columns if column in TRL_ARGUMENTS and column != "completion_ids"]
    if clash:
        yield found("column name taken", WHOLE_SET, f"the data has columns {clash}, TRL's own argument names")


def check_set(
    seen: Seen,
    weights: Mapping[str, float],
    rows: Sequence[int],
    broken: Collection[str],
    is_form: bool,
) -> Iterator[Finding]:
    """What the weighted total pays: GRPO learns from nothing else.

    Args:
        seen: Of all rewards what they gave and do.
        weights: Of all.
        rows: That were tried.
        broken: Rewards of which something has been said that has to be mended first.
        is_form: It is one reward that is sound and has nothing to do with the gold answer.
    """
    telling = [name for name, (_, role) in seen.items() if role.kind == TELLS and weights[name]]
    judges = [
        results.rows_scored()
        for name, (results, role) in seen.items()
        if role.kind in (TELLS, UNSCORED) and name not in broken
    ]
    common = set.intersection(*map(set, judges)) if judges else set()
    if unscored := [row for row in sorted(common) if not any(scored[row] for scored in judges)]:
        gold = next(
            p.detail for results, _ in seen.values() for p in results.outcomes if p.row == unscored[0] and p.detail
        )
        what = (
            f"no reward for the answer scores {len(unscored)} of {len(common)} rows, as with the gold answer {gold!r}"
        )
        if len(unscored) > _FEW_UNSCORED * len(common):
            most = {} if 2 * len(unscored) > len(common) else {"severity": "warning"}
            yield found("rows without score (answers)", WHOLE_SET, what, **most)
    if not telling:
        what = "no reward gives the gold answer more than a wrong one in the same words and format"
        mend = (
            f"mend what is said of {', '.join(sorted(broken))}; where none of these is for the answer, add one that is"
        )
        changed = {"fix": mend} if broken else {}
        if is_form:
            changed = {"severity": "note", "effect": "on its own, the model learns no answers"}
        yield found("nothing tells right from wrong", WHOLE_SET, what, **changed)
        return
    totals = _totals(seen, weights)
    rows = [row for row in rows if any(row in seen[name][1].pairs for name in telling)]
    best: dict[tuple[str, int, str], float] = {}
    for probe, total in totals:
        key = (probe.kind, probe.row, probe.layout)
        best[key] = max(total, best.get(key, total))

    def gap(pair: tuple[float, float]) -> float:
        return -math.inf if math.isnan(pair[0] - pair[1]) else pair[0] - pair[1]

    def pair_in(row: int, layout: str) -> tuple[float, float]:
        return best.get(("right", row, layout), math.nan), best.get(("wrong", row, layout), math.nan)

    pairs = {row: max((pair_in(row, layout) for layout in ("", ", one line", ", newline")), key=gap) for row in rows}
    for right, wrong in pairs.values():
        if not right > wrong:
            what = f"with these weights a right answer has a total of {right:.3g}, a wrong one {wrong:.3g}"
            yield found("wrong pays as much as right", WHOLE_SET, what)
            return
    yield from _check_weights(seen, weights, telling, rows)
    silent = {row: max(best.get((kind, row, ""), -math.inf) for kind in ("empty", "blank")) for row in rows}
    plain = {row: best.get(("prose", row, ""), math.nan) for row in rows}
    yield from _check_silence(pairs, silent, plain, is_alone=len(seen) == 1)
    # What the reward for the answer pays itself has been said of that reward.
    known = {
        probe.kind
        for results, role in (seen[name] for name in telling)
        for probe, score in results.scored
        if is_paid(role, probe, score)
    }
    beaten = [
        (probe, total)
        for probe, total in totals
        if probe.row in pairs
        and probe.family not in ("", REFUSED, "near miss")
        and probe.kind not in _LAX | known
        and total >= pairs[probe.row][0] - 0.05 * gap(pairs[probe.row])
    ]
    if beaten:
        beaters = ", ".join(sorted({probe.kind for probe, _ in beaten}))
        probe, total = min(beaten, key=lambda entry: len(entry[0].text))
        what = f"a total of {total:.3g} for {beaters}, the right answer has {pairs[probe.row][0]:.3g}"
        yield found("beats the right answer", WHOLE_SET, what, [probe.text])


def _check_silence(
    pairs: Mapping[int, tuple[float, float]],
    silent: Mapping[int, float],
    plain: Mapping[int, float],
    *,
    is_alone: bool,
) -> Iterator[Finding]:
    """Where the chance of being right is small enough, nothing is better than an attempt.

    An attempt is a wrong answer in the format, or, of a model that does not know the format yet, plain words.
    """
    wrong = {row: wrong for row, (_, wrong) in pairs.items()}
    for how, attempt in (("wrong", wrong), ("in plain words", plain)):
        gains = {row: right - attempt[row] for row, (right, _) in pairs.items() if right > attempt[row]}
        worth, row = max(((silent[row] - attempt[row]) / gain, row) for row, gain in gains.items()) if gains else (1, 0)
        if _SILENT <= worth < 1:
            what = (
                f"below a pass rate of {worth:.0%} an empty completion ({silent[row]:.3g}) gets more than an attempt "
                f"(right {pairs[row][0]:.3g}, {how} {attempt[row]:.3g})"
            )
            # One reward alone may stand beside others that pay for writing something.
            yield found("silence pays", WHOLE_SET, what, severity="note" if is_alone else "warning")
            return


def _totals(seen: Seen, weights: Mapping[str, float]) -> list[tuple[Probe, float]]:
    """The weighted total of every probe that all rewards were tried on and none failed on."""
    parts: dict[Probe, list[float]] = {}
    for name, (results, _) in seen.items():
        for probe, score in results.scored:
            parts.setdefault(probe, []).append(weights[name] * score)
    return [
        (probe, sum(v for v in values if not math.isnan(v)))
        for probe, values in parts.items()
        if len(values) == len(seen) and not all(math.isnan(v) for v in values)
    ]


def _check_weights(
    seen: Seen, weights: Mapping[str, float], telling: Sequence[str], rows: Sequence[int]
) -> Iterator[Finding]:
    answer, earning = sum(abs(weights[name]) * seen[name][1].gap for name in telling), {}
    for name, (results, role) in seen.items():
        # A reward for the answer may pay for form too: what a wrong answer in the format has more than prose. Of one that
        # pays by degrees this is its floor, which is told of that reward.
        kind, plain = ("wrong", "prose") if role.kind == TELLS else ("right", "right")
        layout = "" if role.kind == TELLS else ", slot only"
        gains = [results.best(kind, row, role.layout) - results.best(plain, row, layout) for row in rows]
        if role.said != BY_DEGREES:
            earning[name] = weights[name] * max((g for g in gains if not math.isnan(g)), default=0.0)
    earning = {name: gain for name, gain in earning.items() if gain > 0}
    adds = f"perfect form adds {sum(earning.values()):.3g} ({', '.join(earning)}), the right answer {answer:.3g}"
    # Inside a reward for the answer a right one has both.
    if not earning.keys() <= set(telling) and sum(earning.values()) >= answer:
        yield found("form outweighs being right", WHOLE_SET, adds)
    elif earning.keys() <= set(telling) and sum(earning.values()) > answer:
        yield found("form outweighs being right (of the answer)", WHOLE_SET, adds)
