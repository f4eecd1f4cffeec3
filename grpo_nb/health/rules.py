"""All rules. docs/guide/health.md describes each one, docs/evidence/health.md has the sources.

A rule is a function that yields findings after each row. A finding reports what was measured and
what follows from it. A rule is silent if its metric was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from grpo_nb.core.statistics import mann_whitney_z
from grpo_nb.health.history import (
    CLEAR_Z,
    LIKELY_Z,
    LONG_WINDOW,
    MIN_ROWS_FOR_CRITICAL,
    MIN_ROWS_PER_SIDE,
    SHORT_WINDOW,
    WINDOW,
    ZERO_STD_SHARE,
    ZERO_UPDATE,
    RunHistory,
)
from grpo_nb.health.trend import (
    RewardTrend,
    main_position,
    main_reward,
    mean_position,
    reward_position,
    reward_range,
    rise_in_window,
    rise_since_start,
)
from grpo_nb.runs.alert import Severity

LOW_POSITION = 0.2
"""Mean reward, relative to its range, up to which nearly all completions fail."""

HIGH_POSITION = 0.9
"""Mean reward, relative to its range, from which nearly all completions succeed."""

NO_SIGNAL_SHARE = 0.9
"""Share of groups with zero reward variance, in the last 20 steps, that leaves nothing to learn."""

SHORT_ANSWER_TOKENS = 16
"""Mean length up to which completions are bare answers: a label in answer tags has 8 to 12 tokens.
Among eight answers with five labels at least three are equal, so equal answers in a group say
nothing there."""


class Finding(NamedTuple):
    """One result of a rule after the last row."""

    rule: str
    severity: Severity
    message: str
    """Description of what was measured, with numbers."""
    advice: str
    """Description of what to do."""
    subject: str = ""
    """Metric or kind of problem, if the rule can report several."""


def soften(severity: Severity, history: RunHistory, trend: RewardTrend) -> Severity:
    """Return the severity that is fair to a run that learns, or that may be learning."""
    if trend.is_rising:
        return "warning" if severity == "critical" else "info"
    # A run whose reward has risen all the same is not lost. With few rows a rise would not be seen.
    may_learn = trend.is_above_start or history.reward_rows < MIN_ROWS_FOR_CRITICAL
    return "warning" if may_learn and severity == "critical" else severity


# not_finite --------------------------------------------------------------------------------------


def check_not_finite(history: RunHistory) -> Iterator[Finding]:
    """Report each metric that is NaN or infinite in the last row, and a reward that is missing."""
    steps_without_reward = history.step - history.last_reward_step
    has_no_reward = history.reward_rows == 0 or steps_without_reward >= WINDOW
    if history.is_reward_missing and has_no_reward:
        message = "No reward has been logged yet."
        if history.reward_rows:
            message = f"No reward has been logged since step {history.last_reward_step}."
        advice = (
            "Stop, and run check_rewards: a reward that is NaN or None for every completion is "
            "left out of the log."
        )
        yield Finding("not_finite", "critical", message, advice, "missing reward")
    for metric, value in history.unusable.items():
        count = history.unusable_counts[metric]
        # Nothing is learnt without these three.
        is_vital = metric in ("reward", "loss", "kl")
        # float16 training skips a step now and then, and a single token can make the KL estimate
        # infinite, so two rows are harmless.
        is_repeated = (is_vital or metric == "grad_norm") and count > 2
        severity: Severity = "warning"
        if is_repeated or (is_vital and math.isnan(value)):
            severity = "critical"
        elif metric.startswith("rewards/") and count < 10:
            severity = "info"  # A reward may have no score for some rows.
        # The history counts a gradient norm from its last finite value, other metrics from step 1.
        extent = "in a row" if metric == "grad_norm" else "so far"
        rows = "1 row" if count == 1 else f"{count} rows {extent}"
        message = f"{metric} is NaN or infinite ({rows})."
        advice = (
            "If a reward is NaN too, run check_rewards. If not, go back to an earlier checkpoint, "
            "and lower learning_rate."
        )
        yield Finding("not_finite", severity, message, advice, metric)


# no_spread ---------------------------------------------------------------------------------------


def check_no_spread(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report groups with zero reward variance, if there are more of them than by chance."""
    shares = history.last_values(ZERO_STD_SHARE, LONG_WINDOW)
    if len(shares) < history.rows_in(SHORT_WINDOW):
        return
    share = fmean(shares)
    position = main_position(history)
    has_failed = position <= LOW_POSITION
    has_succeeded = position >= HIGH_POSITION
    threshold = 0.5  # Half of the computation is wasted. DAPO (arXiv:2503.14476) drops such groups.
    if LOW_POSITION < position < HIGH_POSITION:
        # Small groups often agree by chance. Raise the threshold by half the share
        # of groups expected to agree by chance.
        size = history.group_size
        threshold += 0.5 * (position**size + (1 - position) ** size)
    if share < threshold or (has_succeeded and trend.is_above_start):
        return

    standard_error = math.sqrt(abs(share * (1 - share)) / len(shares))
    # The lower end of a one-sided 95 % interval must reach three quarters of the threshold.
    is_sure = share - 1.64 * standard_error >= 0.75 * threshold
    severity: Severity = "warning" if is_sure else "info"
    if _is_signal_lost(history) and not (has_succeeded or trend.has_kept_gain):
        severity = "critical"
    reason = "all are alike"
    advice = (
        "Read a group. If its completions answer in the same way, raise temperature. If they are "
        "right, use harder prompts."
    )
    if has_failed:
        reason = "nearly all fail"
        advice = (
            "Use easier prompts, add an example to the prompt, give partial credit, or raise "
            "num_generations: one success in a group is a signal."
        )
    elif has_succeeded:
        reason = "nearly all succeed"
        advice = "Use harder prompts, or stop here if this is the goal."
    if trend.has_lost_half:
        advice = "Go back to a checkpoint from before the reward fell, then lower learning_rate."
    steps = history.steps_in_window(LONG_WINDOW)
    message = (
        f"In {share:.0%} of the groups of the last {steps} steps, all completions got the same "
        f"reward: {reason}."
    )
    yield Finding("no_spread", soften(severity, history, trend), message, advice)


def _is_signal_lost(history: RunHistory) -> bool:
    """Return True if nearly all recent groups have zero reward variance.

    Most runs that learn begin with low rewards and few groups that differ. They are excepted,
    unless nearly all completions are truncated.
    """
    share = history.mean(ZERO_STD_SHARE, WINDOW)
    if history.steps < WINDOW or math.isnan(share) or share < NO_SIGNAL_SHARE:
        return False
    if history.mean("completions/clipped_ratio") >= NO_SIGNAL_SHARE:
        return True
    some_differ = history.mean(ZERO_STD_SHARE, LONG_WINDOW) < 1
    may_be_starting = some_differ and mean_position(history) <= LOW_POSITION
    return not may_be_starting


# truncation, repeated texts, tools, learning rate ---------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ShareRule:
    """A rule that compares the mean of a share with a threshold for each severity."""

    rule: str
    metric: str
    info: float
    warning: float
    critical: float = math.inf
    steps: int = SHORT_WINDOW
    """Steps that the mean is taken over."""
    critical_steps: int = SHORT_WINDOW
    """Steps before a critical finding, unless the signal is already lost."""
    is_about_texts: bool = False
    """True if bare answers, which are often equal, are left out (`SHORT_ANSWER_TOKENS`)."""
    meaning: str
    """Rest of the message after the percentage."""
    advice: str


SHARE_RULES = (
    ShareRule(
        rule="truncation",
        metric="completions/clipped_ratio",
        info=0.25,
        warning=0.5,
        critical=0.9,  # in trl issue 5697 all completions are truncated, and all score 0
        steps=WINDOW,
        critical_steps=LONG_WINDOW,  # base models learn to end their answers first
        meaning="of the completions were truncated at the length limit",
        advice="Read some of them. If the answer is missing, raise max_completion_length, ask for "
        "shorter answers, or reward brevity.",
    ),
    ShareRule(
        rule="collapse",
        metric="completions/same_answer",
        info=0.8,  # such a model ignores the prompt
        warning=0.8,
        critical=0.8,
        is_about_texts=True,
        meaning="of the completions are the same text, whatever the prompt",
        advice="Find the reward that gives this text a high score. Then lower learning_rate.",
    ),
    ShareRule(
        rule="collapse",
        metric="completions/duplicates",
        info=0.5,
        warning=0.5,  # never critical, because the model may simply have learnt the prompts
        is_about_texts=True,
        meaning="of the completions repeat another completion of their group",
        advice="If these answers are right, the model has learnt these prompts: use harder ones. "
        "Otherwise raise temperature, or lower learning_rate.",
    ),
    ShareRule(
        rule="tools",
        metric="tools/failure_frequency",
        info=0.25,  # TRL shows the error of a tool to the model alone
        warning=0.5,
        critical=1.0,
        meaning="of the tool calls failed, and only the model saw the errors",
        advice="Does the tool itself fail? Read the calls of a step with run.step(n), or call the "
        "tool as the model does, for example a tool named search: "
        'gn.lab.ByHand(task, 0).do("search", query="Paris").',
    ),
    ShareRule(
        rule="tools",
        metric="tools/unanswered",
        info=0.25,
        warning=0.5,
        meaning="of the episodes ended with an unanswered tool call",
        advice="These episodes had no tokens or no round left for the answer: raise "
        "max_completion_length, or allow more rounds with task.with_tools(*tools, rounds=16).",
    ),
    ShareRule(
        rule="gradient",
        metric="learning_rate/zero",
        info=1.0,  # one other step shows that the weights can move
        warning=1.0,
        critical=1.0,
        meaning="of the steps have a learning rate of 0, so that no weight moves",
        advice="Look at learning_rate, and at the schedule: does it end before the run?",
    ),
)


def check_shares(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report each share of `SHARE_RULES` that reaches a threshold."""
    for rule in SHARE_RULES:
        share = history.mean(rule.metric, rule.steps)
        if math.isnan(share) or share < rule.info:
            continue
        if rule.is_about_texts and _has_short_answers(history):
            continue
        if rule.metric == "completions/duplicates" and _has_reached_top(history, trend):
            continue
        severity: Severity = "warning" if share >= rule.warning else "info"
        has_steps = history.steps >= rule.critical_steps or _is_signal_lost(history)
        if share >= rule.critical and history.steps >= rule.steps and has_steps:
            severity = "critical"
        severity = soften(severity, history, trend)
        steps = history.steps_in_window(rule.steps)
        message = f"{share:.0%} {rule.meaning} (mean of {steps} steps)."
        advice = f"Stop. {rule.advice}" if severity == "critical" else rule.advice
        yield Finding(rule.rule, severity, message, advice, rule.metric)


def _has_short_answers(history: RunHistory) -> bool:
    """Return True if completions are bare answers, or of unknown length."""
    length = history.mean("completions/mean_length")
    return math.isnan(length) or length <= SHORT_ANSWER_TOKENS


def _has_reached_top(history: RunHistory, trend: RewardTrend) -> bool:
    """Return True if nearly all completions have become right, so that they may be alike."""
    return trend.is_above_start and main_position(history) >= HIGH_POSITION


# gradient, entropy, length: now and at the start -------------------------------------------------


def check_zero_gradient(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report gradients of 0 although rewards differ.

    TRL logs the gradient norm of the last step of a row, but the mean share of groups with zero
    reward variance. If a row stands for several steps, possibly no rewards differ in its last step.
    The probability of that is at most the mean share. Without the share, as in logs of older
    versions of TRL, nothing is reported.
    """
    rows = 0
    chance = 1.0
    for row in reversed(history.last_rows):
        if "grad_norm" not in row:
            continue
        if row["grad_norm"] > ZERO_UPDATE:
            break
        rows += 1
        chance *= row.get("frac_reward_zero_std", 1.0)
    if rows < history.rows_in(SHORT_WINDOW) or chance > 1e-4:
        return
    message = f"The gradient was 0 in the last {rows} rows that log it, although rewards differ."
    advice = "Does the model have a trainable LoRA (model.print_trainable_parameters())?"
    severity = soften("critical", history, trend)
    if severity == "critical":
        advice = f"Stop. {advice}"
    yield Finding("gradient", severity, message, advice, "grad_norm/zero")


def check_shifts(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report a gradient, an entropy or a length that has changed much without a better reward."""
    if trend.is_rising:
        return
    then, now = _shift(history, "grad_norm")
    if now >= 10 * then:
        message = f"The gradient norm is {now:.3g}, from {then:.3g} at the start."
        advice = (
            "Compare completions from now and from the start. If they got worse, go back to a "
            "checkpoint and lower learning_rate."
        )
        yield Finding("gradient", "warning", message, advice, "grad_norm/size")

    then, now = _shift(history, "entropy")
    may_be_certain = _has_short_answers(history) or _has_reached_top(history, trend)
    # In healthy runs a third of the entropy may remain.
    if now <= 0.2 * then and not may_be_certain:
        message = f"The entropy is {now:.3g}, from {then:.3g} at the start."
        advice = (
            "Read a group: are its completions alike? Then raise temperature, lower learning_rate, "
            "or raise epsilon_high through extra."
        )
        yield Finding("collapse", "warning", message, advice, "entropy")

    # The usual GRPO loss favours long wrong answers, because it averages over the tokens of each
    # answer (arXiv:2503.20783). Longer answers are fine while the reward grows with them, and that
    # may take 200 steps to show.
    then, now = _shift(history, "completions/mean_length")
    is_longer = now >= 2 * max(then, history.last_record_length)
    if is_longer and history.steps >= 4 * LONG_WINDOW and not _has_new_gain(history, trend):
        message = f"Completions have {now:.0f} tokens, from {then:.0f} at the start."
        advice = 'Reward brevity. The loss_type "dr_grpo" does not favour long wrong answers.'
        yield Finding("length", "warning", message, advice, "longer")


def _shift(history: RunHistory, metric: str) -> tuple[float, float]:
    """Return the median of a metric at the start and now, NaN if there is no clear difference."""
    # The run warms up in the first two rows.
    first = history.first_values(metric, WINDOW, MIN_ROWS_PER_SIDE)[2:]
    last = history.last_values(metric, WINDOW, MIN_ROWS_PER_SIDE)
    is_early = history.steps < 2 * WINDOW or min(len(first), len(last)) < MIN_ROWS_PER_SIDE - 2
    # A ratio to nearly zero has no meaning.
    if is_early or median(first) <= 1e-6 or abs(mann_whitney_z(first, last)) < CLEAR_Z:
        return math.nan, math.nan
    return median(first), median(last)


def _has_new_gain(history: RunHistory, trend: RewardTrend) -> bool:
    """Return True if the reward has lately been higher than before, so that length has helped."""
    rows_since_best = history.reward_rows - history.best_row
    if trend.is_above_start and rows_since_best <= history.rows_in(LONG_WINDOW):
        return True
    last = history.last_values("reward", LONG_WINDOW, MIN_ROWS_PER_SIDE)
    # Growing completions alone are no fault, so a smaller z-score than `LIKELY_Z` excuses them.
    return mann_whitney_z(history.last_record_block, last) >= 1.4


# kl_drift ----------------------------------------------------------------------------------------


def check_kl_drift(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report a KL that has grown for good, as a price of learning or on the way to garbage."""
    # A run may begin far from its reference model, so the first three steps are the start.
    first = history.first_values("kl")[: history.rows_in(3, min_rows=1)]
    last = history.last_values("kl")
    if not first or len(last) < history.rows_in(SHORT_WINDOW):
        return
    growth = median(last) - median(first)
    if growth < 0.5:  # Guides warn at a KL of 0.5 nats. DAPO trains well without any limit.
        return
    if trend.has_lost_half:
        severity: Severity = "critical" if growth >= 10 else "warning"
    else:
        severity = soften("warning" if growth >= 2 else "info", history, trend)
    message = f"The KL is {median(last):.3g}, from {median(first):.3g} in the first steps."
    advice = (
        "Try the model on prompts outside the task. If it got worse there, raise beta, or lower "
        "learning_rate."
    )
    yield Finding("kl_drift", severity, message, advice)


# reward_falling ----------------------------------------------------------------------------------


def check_reward_falling(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report a total reward that fell below its start, or lost at least half of its gain."""
    if not trend.has_lost_half:
        return
    severity: Severity = "critical" if trend.has_lost_nearly_all else "warning"
    start = fmean(history.first_values("reward"))
    now = fmean(history.last_values("reward"))
    message = f"The reward is {now:.3g}; it was {start:.3g} at the start"
    if history.best_block:
        message += f", {fmean(history.best_block):.3g} at its best"
    advice = (
        "Compare completions from before and after. Then go back to the best checkpoint, and lower "
        "learning_rate or raise beta."
    )
    yield Finding("reward_falling", severity, f"{message}.", advice)


# reward_flat -------------------------------------------------------------------------------------


def check_reward_flat(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report a run in which no reward has risen yet."""
    half_of_run = max(WINDOW, history.max_steps / 2)
    if history.steps < min(100, half_of_run):
        return
    if trend.is_above_start or trend.is_rising or trend.has_lost_half:
        return
    if mean_position(history) >= HIGH_POSITION:
        return
    # Published guides advise to wait for 300 steps.
    is_long = history.steps >= 300 and history.reward_rows >= MIN_ROWS_FOR_CRITICAL
    message = (
        f"No reward has risen in {history.steps} steps: the total was "
        f"{fmean(history.first_values('reward')):.3g} at the start and is "
        f"{fmean(history.last_values('reward')):.3g} now."
    )
    advice = (
        "Run check_rewards, then baseline: can the model earn the reward at all? If so, use more "
        "prompts per step."
    )
    yield Finding("reward_flat", "warning" if is_long else "info", message, advice)


# constant_reward ---------------------------------------------------------------------------------


def check_constant_reward(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report rewards that gave one score in all rows, and so have no effect."""
    constants = []
    is_never_rewarded = False
    for name in history.rewards:
        metric = f"rewards/{name}"
        score = history.highest[metric]
        is_constant = score - history.lowest[metric] < 1e-6
        # A reward that is NaN in most rows was measured too rarely to be called constant.
        values = history.last_values(metric, LONG_WINDOW)
        if not is_constant or len(values) < history.rows_in(SHORT_WINDOW):
            continue
        constants.append(f"{name} is {score:.3g}")
        # A reward that only punishes gives 0 at best, so 0 is its best score.
        highest_possible = history.ranges.get(name, (0, math.inf))[1]
        is_never_rewarded |= score <= 0 and score < highest_possible
    if not constants:
        return
    severity: Severity = "info"
    advice = "Leave it out, or make it ask for more."
    if is_never_rewarded:
        advice = (
            "Run check_rewards on it: can its pattern match at all (re.DOTALL)? If the task is too "
            "hard, give partial credit."
        )
        # The usual reason is a pattern that cannot match (unslothai/notebooks issue 96).
        if history.steps >= 30:
            severity = "warning"
    message = f"{', '.join(constants)} in every row of {history.steps} steps."
    yield Finding("constant_reward", severity, message, advice)


# form_only ---------------------------------------------------------------------------------------


def check_form_only(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report a total that has risen without the main reward, usually with the format alone."""
    main = main_reward(history)
    # Most runs learn the format first, so this rule waits for 30 steps.
    if main is None or history.steps < 30 or rise_since_start(history, "reward") < CLEAR_Z:
        return
    others = [name for name in history.rewards if name != main]
    risen = [name for name in others if rise_since_start(history, f"rewards/{name}") >= CLEAR_Z]
    # A main reward that is at half of its range is high enough without a rise.
    if not risen or reward_position(history, main) >= 0.5:
        return

    metric = f"rewards/{main}"
    # A main reward that was added later counts as 0 at the start.
    start = fmean(history.first_values(metric) or [0.0])
    now = history.mean(metric)
    scores = reward_range(history, main)
    is_tiny = scores is not None and now - start < 0.05 * (scores[1] - scores[0])
    short_rise = rise_since_start(history, metric)
    long_rise = rise_since_start(history, metric, LONG_WINDOW)
    highest_rise = max(short_rise, long_rise, rise_in_window(history, metric))
    if highest_rise >= LIKELY_Z and not is_tiny:
        return  # The main reward rises, too.

    # The format is learnt after the first 100 steps, unless it still rises. From then on a main
    # reward without a sign of a rise is stuck, and after 200 steps one with a tiny rise, too.
    form_rises = max(rise_in_window(history, f"rewards/{name}") for name in risen)
    is_form_learnt = history.steps >= 100 and form_rises < 1
    has_no_gain = long_rise < 1 or (is_tiny and history.steps >= 200)
    is_stuck = scores is not None and is_form_learnt and has_no_gain
    has_fallen = short_rise <= -CLEAR_Z
    severity: Severity = "warning" if is_stuck or has_fallen else "info"
    message = (
        f"The total has risen with {', '.join(risen)}, but {main} is {now:.3g}, from {start:.3g} "
        f"at the start."
    )
    advice = (
        "Read the completions with the highest reward. Give the main reward more weight, or "
        "partial credit."
    )
    yield Finding("form_only", severity, message, advice)


# holdout -----------------------------------------------------------------------------------------


def check_holdout(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report a held-out score that falls, or stays the same while the reward has risen.

    The score is the accuracy that the kit measures, or else the total reward of TRL's evaluations.
    """
    name = "accuracy"
    scores = history.accuracies
    lowest = 0.0
    span = 1.0
    if not scores:
        name = "reward"
        scores = history.eval_rewards
        lowest = history.lowest["reward"]
        span = history.highest["reward"] - lowest
    if len(scores) < 4:
        return
    # A mean of two scores is less noisy than one.
    means = [fmean(pair) for pair in pairwise(scores)]
    # A low first score alone is no gain, so the mean of the first two counts if it is higher.
    start = max(scores[0], means[0])
    best = max(means)
    now = means[-1]
    if history.accuracies:
        place = means.index(best)
        error = max(history.accuracy_errors[place : place + 2])
    else:
        # The median difference of two normal values is 0.954 of their standard deviation.
        error = median(abs(after - before) for before, after in pairwise(scores)) / 0.954
    # The best of many scores is high by luck, so a drop needs 2.5 standard errors.
    if best - now >= max(0.05 * span, 2.5 * error) > 0:
        message = (
            f"The held-out {name} has fallen from {best:.3g} to {now:.3g} (means of two "
            "measurements)."
        )
        advice = (
            'Stop, and use the best adapter (keep_adapter="best"). With more varied prompts the '
            "model generalises longer."
        )
        yield Finding("holdout", "warning", message, advice, "falling")
        return
    has_trained = trend.is_above_start and history.steps >= 2 * LONG_WINDOW
    has_room = start <= lowest + 0.96 * span
    if has_trained and has_room and now - start < 0.02 * span:
        message = (
            f"The held-out {name} is {now:.3g}, from {start:.3g} at first, although the training "
            "reward has risen."
        )
        advice = (
            "Read the completions with the highest reward: does the model repeat answers by heart, "
            "or exploit the reward?"
        )
        yield Finding("holdout", "warning", message, advice, "flat")


RULES = (
    check_no_spread,
    check_shares,
    check_zero_gradient,
    check_shifts,
    check_kl_drift,
    check_reward_falling,
    check_reward_flat,
    check_constant_reward,
    check_form_only,
    check_holdout,
)
"""Rules that need several rows with a reward. `check_not_finite` reports from the first row on."""
