"""Health rules about what the rewards do: flat, falling, saturated, constant, dominating, fighting, form alone; and length.

As in `rules_signal`, a rule yields alerts or nothing, and says nothing about what was not measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from statistics import correlation, fmean, median, mode, pvariance

from grpo_nb.health.facts import ranks
from grpo_nb.health.following import Rule
from grpo_nb.health.history import CLEAR, LEAST, RECENT, WINDOW, History
from grpo_nb.health.rules_signal import NO_SPREAD, TRUNCATED
from grpo_nb.runs.alert import Alert

FLAT, FLAT_WARNING = 100, 300
SATURATED = 0.95
CONSTANT_WARNING = 30
DOMINATES = 0.8
FIGHTS, FIGHTS_T = -0.5, 4.0
FORM_ONLY_ROWS, FORM_LEARNT = 100, 0.97
HOLDOUT_GAIN, HOLDOUT_SHARE = 0.02, 0.1
HOLDOUT_FALL, HOLDOUT_ERRORS = 0.05, 2.5
LONGER, SHORTER = 1.5, 1 / 3


def find_reward_flat(history: History) -> Iterator[Alert]:
    """A reward that does not rise, or no longer does."""
    enough = FLAT if history.max_steps is None else min(FLAT, max(2 * LEAST, history.max_steps / 2))
    start, now = history.start_values("reward"), history.mean("reward", RECENT)
    if history.count < enough or history.has_lost or _is_saturated(history) or now is None or not start:
        return
    evidence = {"reward": now, "reward_start": fmean(start), "best": fmean(history.best or [now])}
    since_best = history.count - history.best_at
    if history.risen_at is not None:
        facts = ["reward", *(f"rewards/{name}" for name in history.names)]
        if since_best >= 2 * WINDOW and max(map(history.rising, facts)) < 1:
            yield history.alert(
                "info",
                f"The reward has not risen for {since_best} logged steps: {fmean(history.best):.3g} at its best, {now:.3g} now "
                f"({fmean(start):.3g} at the start).",
                why="More steps with the same prompts and settings will hardly add anything.",
                advice="Stop here and compare on held-out prompts, or take harder prompts.",
                subject="plateau",
                evidence=evidence,
            )
    elif not history.is_learning and not history.has_gained:
        causes = _causes(history)
        found = f" At the same time {', '.join(causes)}: mend that first." if causes else ""
        yield history.alert(
            "warning" if history.count >= FLAT_WARNING else "info",
            f"No reward has risen in {history.count} logged steps: {fmean(start):.3g} at the start, {now:.3g} now.{found}",
            why="Guides say to wait for 300 steps. After that, what did not start will hardly start by itself.",
            advice="Run check_rewards, then baseline: can the model earn the reward at all? If so, "
            f"{history.advice('faster')}, take more prompts per step, or add a reward with partial credit.",
            evidence=evidence | {"causes": causes},
        )


def _causes(history: History) -> list[str]:
    """What else stands in the rows that would explain a flat reward."""
    said = (
        ("no_spread", NO_SPREAD / 2, "of the groups have no spread"),
        ("clipped", TRUNCATED / 2, "of the completions are cut at the length limit"),
        ("duplicates", 0.25, "of the completions repeat another one"),
    )
    shares = [(history.mean(fact), least, words) for fact, least, words in said]
    return [f"{share:.0%} {words}" for share, least, words in shares if share is not None and share >= least]


def find_reward_falling(history: History) -> Iterator[Alert]:
    """A reward below where it was: half of what was gained is lost, or the model is worse than at the start."""
    if not history.has_lost:
        return
    now, best = history.mean("reward", RECENT), fmean(history.best)
    began, z = fmean(history.start_values("reward")), history.risen("reward")
    why = "GRPO does not find its way back by itself once the completions it would learn from are gone."
    if history.risen_at is not None and best > began:
        is_gone = now <= began + 0.1 * (best - began)
        message = f"The reward has fallen to {now:.3g}, from {best:.3g} at its best; it began at {began:.3g}."
    else:
        is_gone = z <= -4.5
        message = f"The reward is lower than at the start: {now:.3g} now, {began:.3g} then."
        why = f"The training makes the model worse at what is measured. {why}"
    yield history.alert(
        "critical" if is_gone else "warning",
        message,
        why=why,
        advice=f"Go back to the checkpoint of the best reward, then {history.advice('slower')} or "
        f"{history.advice('nearer')}. Compare completions of both.",
        evidence={"reward": now, "reward_start": began, "best": best, "z": z},
    )


def _is_saturated(history: History) -> bool:
    values, possible = history.values("reward", RECENT), history.possible("reward")
    if len(values) < RECENT or possible is None:
        return False
    low, high = possible
    return min(median(values), fmean(values)) >= low + SATURATED * (high - low)


def find_reward_saturated(history: History) -> Iterator[Alert]:
    """A reward at the most that it can be, where that is known."""
    if not _is_saturated(history):
        return
    now, (_, high) = history.mean("reward", RECENT), history.possible("reward")
    yield history.alert(
        "info",
        f"The reward is at its top: {now:.3g} over {RECENT} steps, of {high:.3g} at most.",
        why="What is always earned teaches nothing more; from here only KL grows.",
        advice="Stop here and compare on held-out prompts, or take harder prompts.",
        evidence={"reward": now, "most": high},
    )


def find_constant_rewards(history: History) -> Iterator[Alert]:
    """Rewards that have never been anything but one value: without effect on the training, whatever their weight."""
    still: dict[str, float] = {}
    rows = 0
    for name in history.names:
        (low, high), count = history.extent(f"rewards/{name}"), history.times_measured(f"rewards/{name}")
        has_spread = any(spread > 1e-6 for spread in history.values(f"spreads/{name}"))
        if count >= LEAST and high - low < 1e-6 and not has_spread:
            still[name] = low
            rows = max(rows, count)
    if not still:
        return
    ranges = {name: history.possible(f"rewards/{name}") for name in still}
    unpaid = [name for name, value in still.items() if value <= 0 and not (ranges[name] and value >= ranges[name][1])]
    said = ", ".join(f"{name} is {value:.3g} for every completion" for name, value in still.items())
    # What only punishes is at its best there.
    unless = "" if all(ranges[name] for name in unpaid) else ", unless it only punishes"
    never = f" Nobody has ever earned {', '.join(unpaid)}{unless}." if unpaid else ""
    yield history.alert(
        "warning" if rows >= CONSTANT_WARNING and unpaid else "info",
        f"{said}, in all {rows} steps.{never}",
        why="A reward that is the same for every completion has no effect on the advantages, whatever its weight.",
        advice="Run check_rewards on it with the prompts of this run: the usual cause is a pattern that the format of the "
        "answers can never match (a missing re.DOTALL), or a wrong column. If it is right and too hard, give partial credit."
        if unpaid
        else "Leave it out, or make it ask for more.",
        evidence={"rewards": still, "steps": rows},
    )


def find_dominating_reward(history: History) -> Iterator[Alert]:
    """One reward that makes nearly all of the differences, and is not the one the run is about."""
    names, main = history.names, history.main
    if len(names) < 2 or history.count < 2 * LEAST:
        return
    spreads = {name: history.values(f"spreads/{name}") for name in names}
    has_spreads = all(len(values) >= LEAST for values in spreads.values())
    differing = sum(any(facts.get(f"spreads/{name}", 0) > 0 for name in names) for facts in history.window)
    if has_spreads and differing < LEAST:
        return  # nearly no step had differences: who made them says nothing
    parts: dict[str, float] = {}
    for name in names:
        values = history.values(f"rewards/{name}")
        course = pvariance(values) if len(values) >= LEAST else 0.0
        square = fmean([spread * spread for spread in spreads[name]]) if has_spreads else course
        parts[name] = square * history.weight(name) * history.weight(name)
    total = sum(parts.values())
    top = max(parts, key=parts.__getitem__)
    if not 0 < total < math.inf or parts[top] / total < DOMINATES or top == main:
        return
    share = parts[top] / total
    about = f", while {main}, the main reward, has {parts[main] / total:.0%}" if main else ""
    more = f", or give {main} more weight or partial credit." if main else "."
    yield history.alert(
        # A few large penalties make such a share by accident in a short window.
        history.softened("warning") if main and history.count >= WINDOW else "info",
        f"{top} makes {share:.0%} of the differences between {'completions' if has_spreads else 'the means of steps'}{about}.",
        why="Advantages follow the reward that differs most. The others have nearly no say, whatever they were meant to do.",
        advice=f"Lower the weight of {top} or scale its scores down{more}",
        subject=top,
        evidence={"share": share, "shares": {name: part / total for name, part in parts.items()}},
    )


def find_fighting_rewards(history: History) -> Iterator[Alert]:
    """Two rewards of which one rises where the other falls."""
    names = [name for name in history.names if history.weight(name) != 0]
    if len(names) < 2 or history.count < 30 or history.count % 5:
        return  # every fifth row: ranking all rewards costs the most of all rules
    columns = {name: history.values(f"rewards/{name}") for name in names}
    longest = max(map(len, columns.values()))
    # Rewards that were not given in every row cannot be paired with the others, and of one that hardly varies a row decides.
    paired = {
        name: ranks(v) for name, v in columns.items() if len(v) == longest >= 30 and len(v) - v.count(mode(v)) >= LEAST
    }
    for first, second in itertools.combinations(paired, 2):
        sign = 1 if history.weight(first) * history.weight(second) > 0 else -1
        r = sign * correlation(paired[first], paired[second])  # Pearson's, of ranks: Spearman's
        if r > FIGHTS or abs(r) * math.sqrt(longest - 2) < FIGHTS_T * math.sqrt(max(0.0, 1 - r * r)):
            continue
        losers = [n for n in (first, second) if n == history.main and history.rising(f"rewards/{n}") <= -CLEAR]
        yield history.alert(
            "warning" if losers else "info",
            f"Where {first} is high, {second} is low (rank correlation {r:.2f} over {longest} steps)"
            + (f", and {losers[0]} is losing." if losers else "."),
            why="The model can only gain one by giving up the other. It takes the one that pays more for less.",
            advice="If both are wanted, lower the weight of the lesser, or pay it only where the more important one is earned.",
            subject=" and ".join(sorted((first, second))),
            evidence={"correlation": r, "steps": longest},
        )


def find_form_only(history: History) -> Iterator[Alert]:
    """An improvement that comes from the other rewards alone, while the main one stays where it was."""
    main = history.main
    if main is None or len(history.names) < 2 or history.count < 30 or history.risen("reward") < CLEAR:
        return
    fact = f"rewards/{main}"
    gain = history.risen(fact)
    if gain >= 2.3 or history.rising(fact) >= 2.3:
        return
    start, now, (low, high) = history.start_values(fact), history.mean(fact, RECENT), history.extent(fact)
    if not start or now is None or now - fmean(start) > 0.1 * (high - low) > 0:
        return
    others = [name for name in history.names if name != main]
    risen = [n for n in others if history.weight(n) > 0 and history.risen(f"rewards/{n}") >= CLEAR]
    if not risen:
        return
    is_done = history.count >= FORM_ONLY_ROWS and all(_is_learnt(history, name) for name in others)
    yield history.alert(
        "warning" if gain <= -CLEAR or is_done else "info",
        f"The reward rises through {', '.join(risen)} alone: {main} was {fmean(start):.3g} and is {now:.3g}.",
        why="Form comes first in most runs. Where nothing else follows, the model learns to look right instead of being right.",
        advice=f"Wait while {risen[0]} still rises. Then give {main} more weight or partial credit, or the others less; "
        "and look at the completions that are paid most.",
        evidence={"score": now, "z": gain, "main": main, "risen": risen},
    )


def _is_learnt(history: History, name: str) -> bool:
    fact = f"rewards/{name}"
    # Where it is not known what it can be, what was seen holds the warning back; it is never said to be the top.
    low, high = history.possible(fact) or history.extent(fact)
    now = history.mean(fact)  # over the whole window, so that a few good steps are not enough
    return now is not None and now >= low + FORM_LEARNT * (high - low) and history.rising(fact) < 1


def find_holdout_flat(history: History) -> Iterator[Alert]:
    """A training reward that has been up for a while, and a held-out score that is not."""
    for key, points in history.holdout.items():
        if history.risen_at is None or history.count - history.risen_at < WINDOW or len(points) < 3:
            continue
        (began, first, reward), last = points[0], fmean([value for _, value, _ in points[-2:]])
        needed = HOLDOUT_GAIN if key == "holdout/accuracy" else HOLDOUT_SHARE * max(0.0, points[-1][2] - reward)
        is_full = key == "holdout/accuracy" and first > 1 - 2 * HOLDOUT_GAIN  # there is nothing to gain
        if is_full or (last - first >= needed and last > first):
            continue
        yield history.alert(
            "warning",
            f"The training reward rises, {key} does not: {first:.3g} at step {began}, {last:.3g} over the last two of "
            f"{len(points)} measurements.",
            why="The model learns the training prompts by heart, or learns to please the rewards instead of solving the task.",
            advice="Read the best paid completions. Take more varied prompts, mend the reward, or stop at the best score.",
            subject=key,
            evidence={"last": last, "held_out_start": first, "measurements": len(points)},
        )


def find_holdout_falling(history: History) -> Iterator[Alert]:
    """A held-out score below its best, by more than the luck of its questions."""
    for key, points in history.holdout.items():
        pairs = [((a + b) / 2, step) for (_, a, _), (step, b, _) in itertools.pairwise(points)]
        if len(pairs) < 3:
            continue
        (best, step), last = max(pairs[:-2]), pairs[-1][0]
        if key == "holdout/accuracy":
            asked = history.settings.holdout_questions if history.settings else 32
            needed = max(HOLDOUT_FALL, HOLDOUT_ERRORS * math.sqrt(max(0.0, best * (1 - best)) / asked))
        else:  # of a score of unknown size the steps between its values tell the noise
            noise = median(abs(b - a) for (_, a, _), (_, b, _) in itertools.pairwise(points))
            needed = max((best - points[0][1]) / 2, 3 * noise, 1e-9)
        if best - last < needed:
            continue
        yield history.alert(
            "warning",
            f"{key} has fallen from {best:.3g}, its best, at step {step}, to {last:.3g} (means of two measurements).",
            why="What is learnt from here on does not carry over to other questions. The best adapter is an earlier one.",
            advice="Stop, and take the checkpoint of the best score. More varied prompts or "
            f"{history.advice('nearer')} make it last longer.",
            subject=key,
            evidence={"last": last, "best": best, "best_step": step},
        )


def find_length_change(history: History, lengths: Sequence[float]) -> Iterator[Alert]:
    """Completions that grow or shrink while the reward does not rise, or no longer does."""
    start, now, z = history.start_values("length"), fmean(lengths), history.risen("length")
    if history.count < 2 * RECENT or history.is_learning or not start:
        return
    began = fmean(start)
    # What came with a rise belongs to it.
    risen = began if history.best_length is None or not history.has_gained else history.best_length
    if z >= CLEAR and 0 < LONGER * max(began, risen) <= now:
        yield history.alert(
            "warning",
            f"Completions have grown from {max(began, risen):.0f} to {now:.0f} tokens, and no reward has risen with them.",
            why="Length alone earns nothing; it costs time, and ends at the length limit.",
            advice="Add a reward for brevity or an overlong punishment, or "
            f"{history.advice('another loss')}: it does not favour long wrong answers.",
            evidence={"length": now, "length_start": max(began, risen)},
        )
    elif z <= -CLEAR and now <= SHORTER * min(began, risen):
        yield history.alert(
            "info",
            f"Completions have shrunk from {min(began, risen):.0f} to {now:.0f} tokens, and no reward has risen with it.",
            why="The model may have given up reasoning, or found that saying little is paid no less.",
            advice="Read some completions. A reward for the reasoning or the format brings the length back.",
            subject="shorter",
            evidence={"length": now, "length_start": min(began, risen)},
        )


RULES = (
    Rule("reward_flat", find_reward_flat, is_low_worse=True),
    Rule("reward_falling", find_reward_falling, is_low_worse=True),
    Rule("reward_saturated", find_reward_saturated, is_low_worse=True),
    Rule("constant_reward", find_constant_rewards, hold=1),
    Rule("dominating_reward", find_dominating_reward),
    Rule("fighting_rewards", find_fighting_rewards, is_low_worse=True),
    Rule("form_only", find_form_only, is_low_worse=True),
    Rule("holdout_flat", find_holdout_flat, is_low_worse=True),
    Rule("holdout_falling", find_holdout_falling, is_low_worse=True),
    Rule("length_growth", find_length_change, "length", RECENT),
)
