"""All rules. Most are a line of a table: a metric against a level, or against its own start; the others are functions.

A finding says what was measured and what follows from it, and nothing about what was not measured. docs/guide/health.md has
the rules as a user needs them, docs/evidence/health.md the reason of each threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from statistics import fmean, median
from typing import Any, NamedTuple

from grpo_nb.health.course import AVERAGED, CLEAR, LEAST, LIKELY, RECENT, TESTED, WINDOW, Course, rank_shift
from grpo_nb.runs.alert import SEVERITIES, Severity

# What an alert may advise -> the setting, its new value from the old one, and the words where the settings are not known.
CHANGES: Mapping[str, tuple[str, Callable[[Any], Any], str]] = {
    "slower": ("learning_rate", lambda old: old / 2, "lower learning_rate"),
    "nearer": ("beta", lambda old: old * 2 or 0.04, "raise beta"),
    "warmer": ("temperature", lambda old: max(old, 1.0), "sample at temperature 1 or above"),
    "larger_groups": ("num_generations", lambda old: old * 2, "raise num_generations"),
    "longer": ("max_completion_length", lambda old: old * 2, "raise max_completion_length"),
    "other_loss": ("loss_type", lambda old: "dr_grpo", 'choose loss_type "dr_grpo"'),
}


class Finding(NamedTuple):
    """What a rule found after the last row. `advice` names entries of `CHANGES` in braces."""

    rule: str
    severity: Severity
    message: str
    advice: str
    subject: str = ""
    """What it is about, where a rule can speak about several things."""


# fmt: off
# Rule, metric, how many steps its mean is of, what reaches info, warning and critical, what it is a share of, advice.
LEVELS: tuple[tuple[str, str, int, tuple[float, float, float], str, str], ...] = (
    ("truncation", "completions/clipped_ratio", RECENT, (0.25, 0.5, 0.9), "of the completions were cut at the length limit",
     "Read some of them. If the answer is missing: {longer}, ask for shorter answers, or reward brevity."),
    ("collapse", "completions/same_answer", LEAST, (0.8, 0.8, 0.8), "of the completions are one text, whatever the prompt",
     "Stop, and find the reward that pays for that text. Then {slower}."),
    ("collapse", "completions/duplicates", LEAST, (0.5, 0.5, math.inf), "of the completions repeat another of their group",
     "If these answers are right, the prompts are learnt: take harder ones. Otherwise {warmer}, or {slower}."),
    ("tools", "tools/failure_frequency", LEAST, (0.25, 0.5, 1.0), "of the calls of tools failed, and the model was told so",
     "Read run.step(...), or call the tool as the model does, gn.lab.ByHand(task, 0).do(...): is it the tool that fails?"),
    ("tools", "tools/unanswered", LEAST, (0.25, 0.5, math.inf), "of the episodes ended with a call that nobody answered",
     "They had no room or no round left for it: {longer}, or task.with_tools(..., rounds=...)."),
    ("ratio_clipping", "clip_ratio/region_mean", LEAST, (0.2, 0.2, math.inf), "of the tokens are clipped by their ratio",
     "To move less in a step: {slower}, or set num_iterations lower through extra."),
    ("gradient", "grad_norm/zero", LEAST, (1, 1, 1), "of the steps have a gradient of 0 though rewards differ",
     "Stop. Has the model a trainable LoRA (model.print_trainable_parameters())?"),
    ("gradient", "learning_rate/zero", LEAST, (1, 1, 1), "of the steps have a learning rate of 0, so no weight moves",
     "Stop. Look at learning_rate, and at the schedule: does it end before the run?"),
)
# Rule, subject, metric, how many times the median of the start, what is seen, advice.
SHIFTS: tuple[tuple[str, str, str, float, str, str], ...] = (
    ("collapse", "entropy", "entropy", 0.2, "Entropy is {:.3g}, from {:.3g}",
     "Read a group: are its completions alike? Then {warmer}, {slower}, or raise epsilon_high through extra."),
    ("length", "longer", "completions/mean_length", 1.5, "Completions have {:.0f} tokens, from {:.0f}",
     "Reward brevity, or {other_loss}, which does not favour long wrong answers."),
    ("length", "shorter", "completions/mean_length", 1 / 3, "Completions have {:.0f} tokens, from {:.0f}",
     "Read the best paid ones: if the reasoning is gone, find the reward that pays for leaving it out."),
    ("spread_growth", "spread", "reward_std", 1.8, "The spread of the rewards is {:.3g}, from {:.3g}",
     "Look at the highest and the lowest paid completions. If few of them decide, give the reward bounds."),
    ("gradient", "size", "grad_norm", 10.0, "The gradient norm is {:.3g}, from {:.3g}",
     "Compare completions of now and of the start. If they got worse, go back to a checkpoint and {slower}."),
    ("slow_steps", "", "step_time", 2.0, "A step takes {:.3g} s, from {:.3g} s",
     "Look for another process, memory that swaps, or a reward that slows down (check_rewards measures them)."),
)
# What the groups without spread are -> what to do.
ALIKE = {
    "nearly all fail": "Easier prompts, an example in the prompt, partial credit, or {larger_groups}: one success is a signal.",
    "nearly all succeed": "Harder prompts; or stop here, if this is the goal.",
    "all alike": "Read a group: if it is one way of answering, {warmer}; if they are right, take harder prompts.",
}
# fmt: on


def softened(course: Course, severity: Severity) -> Severity:
    """One severity less while a reward rises: a run that learns is not to be changed because of a warning."""
    return SEVERITIES[max(0, SEVERITIES.index(severity) - course.is_learning)]


def levels(course: Course) -> Iterator[Finding]:
    """What `LEVELS` find."""
    for rule, metric, steps, least, seen, advice in LEVELS:
        now = course.mean(metric, steps)
        reached = sum(now >= level for level in least)
        if reached:
            severity = softened(course, SEVERITIES[reached - 1])
            if severity == "critical" and (course.has_gained or course.steps < steps):
                severity = "warning"  # what is cut, or the same, has been paid more all the same
            yield Finding(rule, severity, f"{now:.0%} {seen} (mean of {steps} steps).", advice, metric)


def shifts(course: Course) -> Iterator[Finding]:
    """What `SHIFTS` find. What came with a rise of the reward belongs to it."""
    is_at_best = course.has_gained and course.count - course.best_at <= course.rows_of(WINDOW)
    is_earned = {"longer": is_at_best, "spread": is_at_best, "shorter": course.has_gained and not course.has_lost}
    lengths_then = course.first("completions/mean_length") or [math.inf]
    lengths_now = course.last("completions/mean_length") or [0.0]
    for rule, subject, metric, times, seen, advice in SHIFTS:
        is_slower = rule == "slow_steps"
        # The first two rows compile and warm up.
        first, last = course.first(metric, RECENT, TESTED)[2:], course.last(metric, RECENT, TESTED)
        if course.steps < 2 * RECENT or min(len(first), len(last)) < TESTED - 2 or median(first) <= 1e-6:
            continue
        if is_earned.get(subject) or (course.is_learning and not is_slower):
            continue
        now, then = median(last), median(first)
        longer = max(1.0, median(lengths_now) / max(1.0, median(lengths_then))) if is_slower else 1.0
        is_far = now >= times * longer * then if times > 1 else now <= times * then
        if is_far and abs(rank_shift(first, last)) >= CLEAR:
            message = f"{seen.format(now, then)} at the start{'' if is_slower else '; no reward rises clearly'}."
            yield Finding(rule, "warning", message, advice, subject)


def spikes(course: Course) -> Iterator[Finding]:
    """KL and gradient that jump again and again: one jump does no harm."""
    for rule, metric, times, floor, least in (("kl_spike", "kl", 5, 10.0, 2), ("gradient", "grad_norm", 10, 0.0, 3)):
        values, first = course.last(metric, WINDOW), course.first(metric)
        if len(values) < LEAST or course.is_learning or not first:
            continue
        # What has been as high from the start on is the noise of the run, and no jump.
        high = max(floor, 2 * max(first), times * median(values))
        jumps = [value for value in course.last(metric) if value > high]
        if len(jumps) >= least:
            message = f"{metric} jumped {len(jumps)} times of {RECENT}, from {median(values):.3g} to {max(jumps):.3g}."
            advice = "Look at the completions of these steps. If they are garbled: {slower}."
            yield Finding(rule, "warning", message, advice, "jumps")


def not_finite(course: Course) -> Iterator[Finding]:
    """NaN or infinity in anything that was logged."""
    for key in course.bad:
        times = course.bad_counts[key]
        # float16 skips a step now and then; a reward may have nothing to say about some rows.
        is_lost = key in ("reward", "loss", "kl") or (key == "grad_norm" and times >= 3)
        severity = "critical" if is_lost else "info" if key.startswith("rewards/") and times < LEAST else "warning"
        advice = "If a reward is NaN too, run check_rewards. If not, go back to a checkpoint before, and {slower}."
        yield Finding("not_finite", severity, f"{key} is NaN or infinite, {times} times so far.", advice, key)


def no_reward(course: Course) -> Iterator[Finding]:
    """Rows of training without any reward: TRL leaves out what is NaN or None for every completion."""
    silence = course.step - course.paid_at
    if course.is_silent and (not course.count or silence >= max(RECENT, 3 * course.longest_silence)):
        advice = "Stop, and run check_rewards: a reward that is NaN or None for every completion is left out."
        yield Finding("no_reward", "critical", f"No row has a reward since step {course.paid_at}.", advice)


def no_spread(course: Course) -> Iterator[Finding]:
    """Groups whose completions all get the same reward, more than chance gives: they teach nothing."""
    shares, place = course.last("frac_reward_zero_std", WINDOW), course.place(course.main)
    if len(shares) < course.rows_of(LEAST):
        return
    kind = "nearly all fail" if place <= 0.2 else "nearly all succeed" if place >= 0.9 else "all alike"
    least, now, recent = 0.5, fmean(shares), fmean(shares[-course.rows_of(RECENT) :])
    if kind == "all alike" and place > 0:
        # So many groups agree by chance where each completion is right or wrong on its own. TRL's groups have 8.
        size = course.settings.num_generations if course.settings else 8
        least += 0.5 * (place**size + (1 - place) ** size)
    if now < least or (kind == "nearly all succeed" and course.has_gained):
        return
    is_kept = kind == "nearly all succeed" or (course.has_gained and not course.has_lost)
    is_sure = now - 1.64 * math.sqrt(abs(now * (1 - now)) / len(shares)) >= 0.75 * least
    is_lost = recent >= 0.9 and course.steps >= RECENT and not is_kept
    severity = "critical" if is_lost else "warning" if is_sure else "info"
    message = f"In {now:.0%} of the groups of {min(WINDOW, course.steps)} steps all completions got the same: {kind}."
    advice = "Go back to a checkpoint from before the reward fell, then {slower}." if course.has_lost else ALIKE[kind]
    yield Finding("no_spread", softened(course, severity), message, advice)


def kl(course: Course) -> Iterator[Finding]:
    """KL that has grown large for good: the price of learning, or, with a falling reward, the way to garbage."""
    values, first = course.last("kl"), course.first("kl")[:AVERAGED]
    growth = median(values) - median(first) if first and len(values) >= course.rows_of(LEAST) else 0.0
    if growth >= 0.5:
        severity = softened(course, "warning" if growth >= 2 else "info")
        if course.has_lost:
            severity = "critical" if growth >= 10 else "warning"
        message = f"KL is {median(values):.3g}, from {median(first):.3g} in the first steps."
        advice = "Try the model on prompts outside the task. If it got worse there: {nearer}, or {slower}."
        yield Finding("kl_drift", severity, message, advice)


def falling(course: Course) -> Iterator[Finding]:
    """A reward that has lost half of its gain, is below its start, has just dropped, or falls again and again."""
    before = course.last("reward", RECENT + TESTED, RECENT + TESTED)
    before, dropped = before[:-TESTED], before[-TESTED:]
    advice = "Compare completions of before and after. Then go back to the best checkpoint, and {slower} or {nearer}."
    floor = (course.range_of(None) or [min(0.0, course.low["reward"])])[0]
    if course.has_lost:
        began, now = fmean(course.first("reward")), fmean(course.last("reward"))
        best = f", {fmean(course.best):.3g} at its best" if course.best else ""
        message = f"The reward is {now:.3g}; it was {began:.3g} at the start{best}."
        yield Finding("reward_falling", "critical" if course.has_lost_all else "warning", message, advice)
    elif len(before) >= LEAST and rank_shift(before, dropped) <= -CLEAR:
        was, now = fmean(before), fmean(dropped)
        if now - floor <= 0.5 * (was - floor):
            message = f"The reward has dropped to {now:.3g} in the last {TESTED} rows, from {was:.3g} in those before."
            yield Finding("reward_falling", "warning", message, advice)
    if len(course.turns) >= 3 and course.step - course.turns[-1] <= 2 * WINDOW:
        message = f"The reward falls and rises: it turned {len(course.turns)} times, last at step {course.turns[-1]}."
        advice = "A step may move too far for the prompts of one batch: {slower}, or take more prompts a step."
        yield Finding("reward_falling", "warning", message, advice, "swings")


def flat(course: Course) -> Iterator[Finding]:
    """A reward that has not begun to rise."""
    is_late = course.steps >= min(100, max(2 * LEAST, course.max_steps / 2))
    if not is_late or course.has_gained or course.is_learning or course.has_lost or course.place(None) >= 0.9:
        return
    began, now = fmean(course.first("reward")), fmean(course.last("reward"))
    message = f"No reward has risen in {course.steps} steps: {began:.3g} at the start, {now:.3g} now."
    advice = "Run check_rewards, then baseline: can the model earn the reward at all? If so, take more prompts a step."
    yield Finding("reward_flat", "warning" if course.steps >= 300 else "info", message, advice)


def constant(course: Course) -> Iterator[Finding]:
    """Rewards that have never been anything but one value: without effect, whatever their weight."""
    one = {name: course.high[f"rewards/{name}"] for name in course.rewards if course.is_constant(f"rewards/{name}")}
    # What only punishes is at its best at 0.
    unpaid = [name for name, value in one.items() if value <= 0 and value < course.ranges.get(name, (0, math.inf))[1]]
    if one:
        said = ", ".join(f"{name} is {value:.3g}" for name, value in one.items())
        message = f"{said} for every completion of all {course.steps} steps."
        advice = "Leave it out, or make it ask for more."
        if unpaid:
            advice = "Run check_rewards on it: can its pattern fit at all (re.DOTALL)? If it is too hard, give partial credit."
        severity = "warning" if unpaid and course.steps >= 30 else "info"
        yield Finding("constant_reward", severity, message, advice)


def dominating(course: Course) -> Iterator[Finding]:
    """Another reward than the main one that makes nearly all of the differences."""
    main, parts = course.main, {}
    for name in course.rewards:
        spreads = course.last(f"rewards/{name}/std", WINDOW) or [math.nan]  # without spreads nothing is compared
        parts[name] = course.weights.get(name, 1.0) ** 2 * fmean(spread * spread for spread in spreads)
    has_spread = not course.mean("frac_reward_zero_std", WINDOW) >= 0.5
    if main is None or course.steps < WINDOW or course.is_learning or not has_spread:
        return
    top, total = max(parts, key=parts.__getitem__), sum(parts.values())
    if top != main and parts[top] >= 0.8 * total > 0:
        message = f"{top} makes {parts[top] / total:.0%} of the weighted differences; {main} is the main reward."
        yield Finding("dominating_reward", "warning", message, "Lower its weight, or pay it less.")


def form_only(course: Course) -> Iterator[Finding]:
    """The total rises, the main reward does not."""
    main, key = course.main, f"rewards/{course.main}"
    others = [name for name in course.rewards if name != main and course.risen(f"rewards/{name}") >= CLEAR]
    if main is None or not others or course.steps < 30 or course.risen("reward") < CLEAR or course.place(main) >= 0.5:
        return
    before, now, ends = fmean(course.first(key) or [0.0]), course.mean(key), course.range_of(main)
    is_small = ends is not None and now - before < 0.05 * (ends[1] - ends[0])
    if is_small or max(course.risen(key), course.risen(key, WINDOW), course.rising(key)) < LIKELY:
        # Form first is normal. It is over when the others rise no more and the main reward shows no sign of a beginning.
        is_over = course.steps >= 100 and all(course.rising(f"rewards/{name}") < 1 for name in others)
        is_alone = is_over and (course.risen(key, WINDOW) < 1 or (is_small and course.steps >= 4 * WINDOW))
        severity = "warning" if (is_alone and ends) or course.risen(key) <= -CLEAR else "info"
        message = f"The total has risen with {', '.join(others)}; {main} is {now:.3g}, from {before:.3g} at the start."
        advice = "Read what is paid most. Give the main reward more weight, or partial credit."
        yield Finding("form_only", severity, message, advice)


def holdout(course: Course) -> Iterator[Finding]:
    """A held-out score that falls from its best, or stays where it was while the reward has risen."""
    scores, asked = course.holdout, course.settings.holdout_questions if course.settings else 32
    if len(scores) < 3:
        return
    pairs = [fmean(scores[i : i + 2]) for i in range(len(scores) - 1)]
    best, now = max(pairs), pairs[-1]
    if best - now >= max(0.05, 2.5 * math.sqrt(max(0.0, best * (1 - best)) / asked)):
        message = f"Held-out accuracy has fallen from {best:.0%} to {now:.0%} (means of two measurements)."
        advice = 'Stop, and take the best adapter (keep="best"); more varied prompts last longer.'
        yield Finding("holdout", "warning", message, advice, "falling")
    elif course.has_gained and course.steps >= 2 * WINDOW and scores[0] <= 0.96 and now - scores[0] < 0.02:
        message = f"Held-out accuracy is {now:.0%}, from {scores[0]:.0%} at first; the training reward has risen."
        advice = "Read the best paid completions: learnt by heart, or pleasing the reward?"
        yield Finding("holdout", "warning", message, advice, "flat")


# The others are asked from `LEAST` steps on.
FROM_THE_FIRST_ROW = (not_finite, no_reward)
RULES = (no_spread, levels, shifts, spikes, kl, falling, flat, constant, dominating, form_only, holdout)
