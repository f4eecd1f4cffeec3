"""All rules. docs/guide/health.md describes each one, docs/evidence/health.md has the sources.

A rule is a function that yields findings after each row. A finding reports what was measured and
what follows from it. A rule is silent if its metric was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any, NamedTuple

from grpo_nb.config.settings import Settings
from grpo_nb.core.statistics import mann_whitney_z
from grpo_nb.health.history import (
    CLEAR_Z,
    LIKELY_Z,
    LONG_WINDOW,
    MIN_ROWS_OF_CRITICAL,
    MIN_ROWS_OF_TEST,
    RECENT_STEPS,
    SHORT_WINDOW,
    SILENT_SHARE,
    ZERO_UPDATE,
    RunHistory,
)
from grpo_nb.health.trend import (
    RewardTrend,
    main_reward,
    reward_position,
    reward_range,
    rise_in_window,
    rise_since_start,
    total_range,
)
from grpo_nb.runs.alert import SEVERITIES, Severity


class Finding(NamedTuple):
    """One result of a rule after the last row."""

    rule: str
    severity: Severity
    message: str
    """Description of what was measured, with numbers."""
    advice: str
    """Description of what to do. Names of `CHANGES` in braces stand for their phrases."""
    subject: str = ""
    """Metric or kind of problem, if the rule can report several."""


@dataclass(frozen=True)
class Change:
    """A change of one setting that an alert may advise."""

    setting: str
    phrase: str
    new_value: Callable[[Any], Any]
    """Function that returns the advised value, given the value of the run."""


DEFAULT_BETA = Settings().beta
"""New beta if the KL penalty is off."""

CHANGES: Mapping[str, Change] = {
    "lower_rate": Change("learning_rate", "lower learning_rate", lambda old: old / 2),
    "raise_beta": Change("beta", "raise beta", lambda old: old * 2 or DEFAULT_BETA),
    "warmer": Change("temperature", "sample at temperature 1 or above", lambda old: max(old, 1.0)),
    "larger_groups": Change("num_generations", "raise num_generations", lambda old: old * 2),
    "longer": Change("max_completion_length", "raise max_completion_length", lambda old: old * 2),
    "dr_grpo": Change("loss_type", 'choose loss_type "dr_grpo"', lambda old: "dr_grpo"),
}


def limit_severity(severity: Severity, history: RunHistory, trend: RewardTrend) -> Severity:
    """Return the severity that is fair to a run that learns, or that may be learning."""
    position = SEVERITIES.index(severity)
    if trend.is_rising:
        return SEVERITIES[max(0, position - 1)]
    # A run whose reward has risen all the same is not lost. With few rows a rise would not be seen.
    if trend.is_above_start or history.reward_rows < MIN_ROWS_OF_CRITICAL:
        return SEVERITIES[min(position, 1)]
    return severity


# not_finite --------------------------------------------------------------------------------------

LOST_IF_NAN = ("reward", "loss", "kl")
"""Metrics without which nothing is learnt."""

TOLERATED_ROWS = 2
"""Rows with an infinite loss or KL, or without a usable gradient norm, that are harmless: float16
training skips a step now and then, and a single token can make the KL estimate infinite."""

TOLERATED_SCORES = 9
"""NaN scores of one reward that are harmless: a reward may have no score for some rows."""


LONG_GAPS = 3
"""A gap without reward is long if it is this many times the longest gap before it. With
`num_iterations` above 1, TRL logs a reward only when it samples new completions."""


def check_not_finite(history: RunHistory) -> Iterator[Finding]:
    """Report each metric that is NaN or infinite in the last row, and a reward that is missing.

    TRL leaves a reward out of the log if it is NaN or None for every completion.
    """
    gap = history.step - history.last_reward_step
    is_long = gap >= max(RECENT_STEPS, LONG_GAPS * history.longest_gap)
    if history.is_reward_missing and (is_long or history.reward_rows == 0):
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
        is_nan_loss = metric in LOST_IF_NAN and math.isnan(value)
        is_repeated = metric in (*LOST_IF_NAN, "grad_norm") and count > TOLERATED_ROWS
        severity: Severity = "warning"
        if is_nan_loss or is_repeated:
            severity = "critical"
        elif metric.startswith("rewards/") and count <= TOLERATED_SCORES:
            severity = "info"
        # The history counts a gradient norm from its last finite value, other metrics from step 1.
        extent = "in a row" if metric == "grad_norm" else "so far"
        message = f"{metric} is NaN or infinite (rows {extent}: {count})."
        advice = (
            "If a reward is NaN too, run check_rewards. If not, go back to an earlier checkpoint, "
            "and {lower_rate}."
        )
        yield Finding("not_finite", severity, message, advice, metric)


# no_spread ---------------------------------------------------------------------------------------

NO_SPREAD_SHARE = 0.5
"""Share of groups with zero reward variance that triggers the rule: half of the computation is
wasted. DAPO (arXiv:2503.14476) drops such groups."""

NO_SIGNAL_SHARE = 0.9
"""Share of groups with zero reward variance, in the last 20 steps, that leaves nothing to learn."""

FAILING_POSITION = 0.2
"""Mean reward, relative to its range, up to which nearly all completions fail."""

SUCCEEDING_POSITION = 0.9
"""Mean reward, relative to its range, from which nearly all completions succeed."""

ONE_SIDED_95_PERCENT_Z = 1.64
"""z-score of the lower end of a one-sided 95 % confidence interval."""

SURE_PART = 0.75
"""Part of the threshold that the lower end of this interval has to reach for a warning."""


def check_no_spread(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report groups with zero reward variance, if there are more of them than by chance."""
    shares = history.last_values(SILENT_SHARE, LONG_WINDOW)
    if len(shares) < history.rows_in(SHORT_WINDOW):
        return
    share = fmean(shares)
    if share < NO_SPREAD_SHARE:
        return

    main = main_reward(history)
    position = reward_position(history, main)
    has_failed = position <= FAILING_POSITION
    has_succeeded = position >= SUCCEEDING_POSITION
    threshold = NO_SPREAD_SHARE
    if FAILING_POSITION < position < SUCCEEDING_POSITION:
        # Of the groups that agree by chance, half count on top of the usual threshold.
        size = group_size(history, f"rewards/{main}" if main else "reward")
        threshold += 0.5 * (position**size + (1 - position) ** size)
    if share < threshold or (has_succeeded and trend.is_above_start):
        return

    standard_error = math.sqrt(abs(share * (1 - share)) / len(shares))
    is_sure = share - ONE_SIDED_95_PERCENT_Z * standard_error >= SURE_PART * threshold
    severity: Severity = "warning" if is_sure else "info"
    if _is_signal_lost(history) and not (has_succeeded or trend.has_kept_gain):
        severity = "critical"
    reason = "all are alike"
    advice = (
        "Read a group. If its completions answer in the same way, {warmer}. If they are right, use"
        " harder prompts."
    )
    if has_failed:
        reason = "nearly all fail"
        advice = (
            "Use easier prompts, add an example to the prompt, give partial credit, or "
            "{larger_groups}: one success in a group is a signal."
        )
    elif has_succeeded:
        reason = "nearly all succeed"
        advice = "Use harder prompts, or stop here if this is the goal."
    if trend.has_lost_half:
        advice = "Go back to a checkpoint from before the reward fell, then {lower_rate}."
    steps = history.steps_in_window(LONG_WINDOW)
    message = (
        f"In {share:.0%} of the groups of the last {steps} steps, all completions got the same "
        f"reward: {reason}."
    )
    yield Finding("no_spread", limit_severity(severity, history, trend), message, advice)


def _is_signal_lost(history: RunHistory) -> bool:
    """Return True if the recent groups leave nothing to learn from.

    Where nearly all fail, a few groups with a success are the start of most runs that learn, unless
    nearly all completions are truncated.
    """
    share = history.mean(SILENT_SHARE, RECENT_STEPS)
    if history.steps < RECENT_STEPS or not share >= NO_SIGNAL_SHARE:
        return False
    is_truncated = history.mean("completions/clipped_ratio") >= NO_SIGNAL_SHARE
    has_signal = history.mean(SILENT_SHARE, LONG_WINDOW) < 1
    lowest = history.lowest["reward"]
    highest = lowest + FAILING_POSITION * (history.highest["reward"] - lowest)
    # Rows of many steps lie close together, so the possible range counts as well where it is known.
    is_low = history.mean("reward", LONG_WINDOW) <= highest
    is_low |= reward_position(history, None) <= FAILING_POSITION
    may_start = has_signal and is_low
    return is_truncated or not may_start


LARGEST_BATCH = 512
"""Largest number of parts that `group_size` looks for."""


def group_size(history: RunHistory, metric: str) -> float:
    """Return the number of completions per prompt, infinity if neither settings nor log show it.

    The log shows the number if every score is 0 or 1. The mean score is then a multiple of
    1 / completions, and the share of groups with zero reward variance a multiple of 1 / groups.
    Graded scores show no number, and none is needed: such groups do not agree by chance.
    """
    if history.settings is not None:
        return history.settings.num_generations
    completions = _parts(history.last_values(metric, LONG_WINDOW))
    groups = _parts(history.last_values(SILENT_SHARE, LONG_WINDOW))
    size = completions // groups
    return size if size >= 2 else math.inf


def _parts(shares: list[float]) -> int:
    """Return the smallest number of which all shares are whole parts, 1 if there is none."""
    for count in range(1, LARGEST_BATCH + 1):
        # A printed log has four digits.
        tolerance = max(0.002, 1e-4 * count)
        if all(abs(share * count - round(share * count)) <= tolerance for share in shares):
            return count
    return 1


# truncation, collapse by texts, tools, learning rate ---------------------------------------------


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
    """Steps of a run that may still learn, before a critical finding."""
    min_steps: int = 0
    """Steps of a run before any finding."""
    is_for_short_answers: bool | None = None
    """True or False if the rule judges only answers of up to, or above, `SHORT_ANSWER_TOKENS`."""
    meaning: str
    """Rest of the message after the percentage."""
    advice: str


SAME_TEXT_ADVICE = "Stop, and find the reward that gives this text a high score. Then {lower_rate}."


SHARE_RULES = (
    ShareRule(
        rule="truncation",
        metric="completions/clipped_ratio",
        info=0.25,
        warning=0.5,
        critical=0.9,  # in trl issue 5697 all completions are truncated, and all score 0
        steps=RECENT_STEPS,
        critical_steps=LONG_WINDOW,  # base models learn to end their answers first
        meaning="of the completions were truncated at the length limit",
        advice=(
            "Read some of them. If the answer is missing, {longer}, ask for shorter answers, or "
            "reward brevity."
        ),
    ),
    ShareRule(
        rule="collapse",
        metric="completions/same_answer",
        info=0.8,  # such a model ignores the prompt
        warning=0.8,
        critical=0.8,
        is_for_short_answers=False,
        meaning="of the completions are the same text, whatever the prompt",
        advice=SAME_TEXT_ADVICE,
    ),
    ShareRule(
        rule="collapse",
        metric="completions/same_answer",
        # If nine of ten gold answers are the same label, a good model gives two prompts the same
        # answer in 82 % of the steps. A mean of 99 % over 50 steps is then rarer than 1 in 1,000.
        info=0.99,
        warning=0.99,
        critical=0.99,
        steps=LONG_WINDOW,
        critical_steps=LONG_WINDOW,
        min_steps=LONG_WINDOW,
        is_for_short_answers=True,
        meaning="of the completions are the same answer, whatever the prompt",
        advice=SAME_TEXT_ADVICE,
    ),
    ShareRule(
        rule="collapse",
        metric="completions/duplicates",
        info=0.5,  # never critical, because the model may simply have learnt the prompts
        warning=0.5,
        is_for_short_answers=False,
        meaning="of the completions repeat another completion of their group",
        advice="If these answers are right, the model has learnt these prompts: use harder ones. "
        "Otherwise {warmer}, or {lower_rate}.",
    ),
    ShareRule(
        rule="tools",
        metric="tools/failure_frequency",
        info=0.25,  # TRL shows the error of a tool to the model alone
        warning=0.5,
        critical=1.0,
        meaning="of the tool calls failed, and only the model saw the errors",
        advice="Does the tool itself fail? Read the calls of a step with run.step(5), or call the "
        'tool as the model does: gn.lab.ByHand(task, 0).do("search", query="Paris").',
    ),
    ShareRule(
        rule="tools",
        metric="tools/unanswered",
        info=0.25,
        warning=0.5,
        meaning="of the episodes ended with an unanswered tool call",
        advice="These episodes had no tokens or no round left for the answer: {longer}, or allow "
        "more rounds with task.with_tools(*tools, rounds=16).",
    ),
    ShareRule(
        rule="gradient",
        metric="learning_rate/zero",
        info=1.0,  # one other step shows that the weights can move
        warning=1.0,
        critical=1.0,
        meaning="of the steps have a learning rate of 0, so that no weight moves",
        advice="Stop. Look at learning_rate, and at the schedule: does it end before the run?",
    ),
)

SHORT_ANSWER_TOKENS = 16
"""Mean length up to which completions are bare answers: a label in answer tags has 8 to 12 tokens.
Among eight answers with five labels at least three are equal, so equal answers in a group say
nothing there."""


def check_shares(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report each share of `SHARE_RULES` that reaches a threshold."""
    for rule in SHARE_RULES:
        if rule.is_for_short_answers not in (None, _has_short_answers(history)):
            continue
        share = history.mean(rule.metric, rule.steps)
        if not share >= rule.info or history.steps < rule.min_steps:
            continue
        if rule.metric == "completions/duplicates" and _has_reached_top(history, trend):
            continue
        severity: Severity = "info"
        if share >= rule.warning:
            severity = "warning"
        has_steps = history.steps >= rule.critical_steps or _is_signal_lost(history)
        if share >= rule.critical and history.steps >= rule.steps and has_steps:
            severity = "critical"
        severity = limit_severity(severity, history, trend)
        steps = history.steps_in_window(rule.steps)
        message = f"{share:.0%} {rule.meaning} (mean of {steps} steps)."
        yield Finding(rule.rule, severity, message, rule.advice, rule.metric)


def _has_short_answers(history: RunHistory) -> bool:
    """Return True if completions are bare answers, or of unknown length."""
    return not history.mean("completions/mean_length") > SHORT_ANSWER_TOKENS


def _has_reached_top(history: RunHistory, trend: RewardTrend) -> bool:
    """Return True if nearly all completions have become right, so that they may be alike."""
    position = reward_position(history, main_reward(history))
    return trend.is_above_start and position >= SUCCEEDING_POSITION


# gradient, entropy, length: now and at the start -------------------------------------------------

WARM_UP_ROWS = 2
"""First rows that are left out of a comparison with the start, because kernels compile then."""

SMALLEST_START = 1e-6
"""Start values up to this median are not compared: a ratio to nearly zero has no meaning."""

ZERO_GRADIENT_CHANCE = 1e-4
"""Accepted chance of a false alert: gradients are rightly 0 in steps in which no rewards differ."""

GRADIENT_FACTOR = 10.0
"""Growth of the gradient norm that triggers a warning."""

REMAINING_ENTROPY = 0.2
"""Entropy after a collapse, relative to the start. In healthy runs a third may remain."""

LONGER_FACTOR = 2.0
"""Growth of the mean completion length, since the reward last rose, that triggers a warning. The
usual GRPO loss favours long wrong answers, because it averages over the tokens of each answer
(arXiv:2503.20783)."""

SIGN_OF_GAIN_Z = 1.4
"""z-score of a gain of the reward that may have paid for longer completions. It is below
`LIKELY_Z`, because growing completions alone are no fault."""

LONGER_MIN_STEPS = 4 * LONG_WINDOW
"""Steps before longer completions are reported. The reward may follow only later."""


def check_zero_gradient(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report gradients of 0 although rewards differ.

    TRL logs the gradient norm of the last step of a row, but the mean share of silent groups. If
    a row stands for several steps, its last step may have been silent in all groups. The chance of
    that is at most the mean share. Without the share nobody knows whether the rewards of that step
    differed.
    """
    rows = 0
    chance = 1.0
    for row in reversed(history.last_rows):
        if "grad_norm" not in row:
            continue
        if row["grad_norm"] > ZERO_UPDATE:
            break
        rows += 1
        if history.is_one_step_per_row and SILENT_SHARE in row:
            chance = 0.0
        else:
            chance *= row.get("frac_reward_zero_std", 1.0)
    if rows < history.rows_in(SHORT_WINDOW) or chance > ZERO_GRADIENT_CHANCE:
        return
    message = f"The gradient was 0 in each of the last {rows} rows although rewards differ."
    advice = "Stop. Does the model have a trainable LoRA (model.print_trainable_parameters())?"
    severity = limit_severity("critical", history, trend)
    yield Finding("gradient", severity, message, advice, "grad_norm/zero")


def check_shifts(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report a gradient, an entropy or a length that has changed much without a better reward."""
    if trend.is_rising:
        return
    end = "at the start, and no reward rises clearly."
    then, now = _shift(history, "grad_norm")
    if now >= GRADIENT_FACTOR * then:
        message = f"The gradient norm is {now:.3g}, from {then:.3g} {end}"
        advice = (
            "Compare completions from now and from the start. If they got worse, go back to a "
            "checkpoint and {lower_rate}."
        )
        yield Finding("gradient", "warning", message, advice, "size")

    then, now = _shift(history, "entropy")
    may_be_certain = _has_short_answers(history) or _has_reached_top(history, trend)
    if now <= REMAINING_ENTROPY * then and not may_be_certain:
        message = f"The entropy is {now:.3g}, from {then:.3g} {end}"
        advice = (
            "Read a group: are its completions alike? Then {warmer}, {lower_rate}, or raise "
            "epsilon_high through extra."
        )
        yield Finding("collapse", "warning", message, advice, "entropy")

    then, now = _shift(history, "completions/mean_length")
    message = f"Completions have {now:.0f} tokens, from {then:.0f} {end}"
    is_longer = now >= LONGER_FACTOR * max(then, history.gain_length)
    if is_longer and history.steps >= LONGER_MIN_STEPS and not _has_new_gain(history, trend):
        advice = "Reward brevity, or {dr_grpo}, which does not favour long wrong answers."
        yield Finding("length", "warning", message, advice, "longer")


def _shift(history: RunHistory, metric: str) -> tuple[float, float]:
    """Return the median of a metric at the start and now, NaN if there is no clear difference."""
    first = history.first_values(metric, RECENT_STEPS, MIN_ROWS_OF_TEST)[WARM_UP_ROWS:]
    last = history.last_values(metric, RECENT_STEPS, MIN_ROWS_OF_TEST)
    is_early = history.steps < 2 * RECENT_STEPS
    if is_early or min(len(first), len(last)) < MIN_ROWS_OF_TEST - WARM_UP_ROWS:
        return math.nan, math.nan
    if median(first) <= SMALLEST_START or abs(mann_whitney_z(first, last)) < CLEAR_Z:
        return math.nan, math.nan
    return median(first), median(last)


def _has_new_gain(history: RunHistory, trend: RewardTrend) -> bool:
    """Return True if the reward has lately been higher than before, so that length has paid off."""
    rows_since_best = history.reward_rows - history.best_row
    if trend.is_above_start and rows_since_best <= history.rows_in(LONG_WINDOW):
        return True
    last = history.last_values("reward", LONG_WINDOW, MIN_ROWS_OF_TEST)
    return mann_whitney_z(history.gain_block, last) >= SIGN_OF_GAIN_Z


# kl_drift ----------------------------------------------------------------------------------------

KL_START_STEPS = 3
"""First steps whose KL is the start: a run may begin far from its reference model."""

KL_INFO_GROWTH = 0.5
"""Growth of the KL, in nats, that is worth knowing. Guides warn at a KL of 0.5."""

KL_WARNING_GROWTH = 2.0
"""Growth of the KL that is a warning. DAPO trains well without any limit, so less is only info."""

KL_CRITICAL_GROWTH = 10.0
"""Growth of the KL that is critical if the reward has fallen."""


def check_kl_drift(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report a KL that has grown for good.

    That is the price of learning, or, if the reward falls, the way to garbage.
    """
    first = history.first_values("kl")[: history.rows_in(KL_START_STEPS, min_rows=1)]
    last = history.last_values("kl")
    if not first or len(last) < history.rows_in(SHORT_WINDOW):
        return
    growth = median(last) - median(first)
    if growth < KL_INFO_GROWTH:
        return
    if trend.has_lost_half:
        severity: Severity = "critical" if growth >= KL_CRITICAL_GROWTH else "warning"
    else:
        severity = "warning" if growth >= KL_WARNING_GROWTH else "info"
        severity = limit_severity(severity, history, trend)
    message = f"The KL is {median(last):.3g}, from {median(first):.3g} in the first steps."
    advice = (
        "Try the model on prompts outside the task. If it got worse there, {raise_beta}, or "
        "{lower_rate}."
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
        "Compare completions from before and after. Then go back to the best checkpoint, and "
        "{lower_rate} or {raise_beta}."
    )
    yield Finding("reward_falling", severity, f"{message}.", advice)


# reward_flat -------------------------------------------------------------------------------------

FLAT_INFO_STEPS = 100
"""Steps after which the reward should have risen. In a shorter run, half of `max_steps` counts."""

FLAT_MIN_STEPS = 20
"""Steps that even the shortest run has before the first report."""

FLAT_WARNING_STEPS = 300
"""Steps after which a flat reward is a warning. Published guides advise to wait that long."""

GOAL_POSITION = 0.9
"""Mean total reward, relative to its range, that is high enough without a rise."""


def check_reward_flat(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report a run in which no reward has risen yet."""
    half_of_run = max(FLAT_MIN_STEPS, history.max_steps / 2)
    if history.steps < min(FLAT_INFO_STEPS, half_of_run):
        return
    if trend.is_above_start or trend.is_rising or trend.has_lost_half:
        return
    if reward_position(history, None) >= GOAL_POSITION:
        return
    has_rows = history.reward_rows >= MIN_ROWS_OF_CRITICAL
    is_long = history.steps >= FLAT_WARNING_STEPS and has_rows
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

CONSTANT_RANGE = 1e-6
"""Largest difference of mean scores, and largest standard deviation, of a constant reward."""

CONSTANT_WARNING_STEPS = 30
"""Steps after which a reward without any positive score is a warning. The usual reason is a pattern
that cannot match (unslothai/notebooks issue 96)."""


def check_constant_reward(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report rewards that gave one score in all rows, and so have no effect."""
    scores = []
    has_unearned = False
    for name in history.rewards:
        metric = f"rewards/{name}"
        score = history.highest[metric]
        is_constant = score - history.lowest[metric] < CONSTANT_RANGE
        has_std = history.highest.get(f"{metric}/std", 0.0) > CONSTANT_RANGE
        # A reward that is NaN in most rows was measured too rarely to be called constant.
        values = history.last_values(metric, LONG_WINDOW)
        if not is_constant or has_std or len(values) < history.rows_in(SHORT_WINDOW):
            continue
        scores.append(f"{name} is {score:.3g}")
        # A reward that only punishes gives 0 at best, so its 0 is earned.
        highest_possible = history.ranges.get(name, (0, math.inf))[1]
        has_unearned |= score <= 0 and score < highest_possible
    if not scores:
        return
    severity: Severity = "info"
    advice = "Leave it out, or make it ask for more."
    if has_unearned:
        advice = (
            "Run check_rewards on it: can its pattern match at all (re.DOTALL)? If the task is too "
            "hard, give partial credit."
        )
        if history.steps >= CONSTANT_WARNING_STEPS:
            severity = "warning"
    message = f"{', '.join(scores)} for every completion of all {history.steps} steps."
    yield Finding("constant_reward", severity, message, advice)


# form_only ---------------------------------------------------------------------------------------

FORM_ONLY_MIN_STEPS = 30
"""Steps before the first report. Most runs learn the format first."""

FORMAT_PHASE_STEPS = 100
"""Steps after which the main reward should have started to rise."""

TINY_GAIN_STEPS = 200
"""Steps after which a tiny gain of the main reward no longer counts as a start."""

HIGH_POSITION = 0.5
"""Mean of the main reward, relative to its range, that is high enough without a rise."""

TINY_GAIN = 0.05
"""Gain of the main reward, relative to its range, that does not count as a rise."""

NO_RISE_Z = 1.0
"""z-score below which a reward shows no sign of a rise."""


def check_form_only(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report a total that has risen without the main reward, usually with the format alone."""
    main = main_reward(history)
    if main is None or history.steps < FORM_ONLY_MIN_STEPS:
        return
    risen = []
    for name in history.rewards:
        if name != main and rise_since_start(history, f"rewards/{name}") >= CLEAR_Z:
            risen.append(name)
    if not risen or rise_since_start(history, "reward") < CLEAR_Z:
        return
    if reward_position(history, main) >= HIGH_POSITION:
        return

    metric = f"rewards/{main}"
    # A main reward that was added later counts as 0 at the start.
    start = fmean(history.first_values(metric) or [0.0])
    now = history.mean(metric)
    scores = reward_range(history, main)
    is_tiny = scores is not None and now - start < TINY_GAIN * (scores[1] - scores[0])
    short_rise = rise_since_start(history, metric)
    long_rise = rise_since_start(history, metric, LONG_WINDOW)
    highest_rise = max(short_rise, long_rise, rise_in_window(history, metric))
    if highest_rise >= LIKELY_Z and not is_tiny:
        return  # The main reward rises, too.

    # A healthy run learns the format first. This phase is over when the other rewards no longer
    # rise. Then the main reward should rise, and it is stuck if it does not.
    is_phase_over = history.steps >= FORMAT_PHASE_STEPS and all(
        rise_in_window(history, f"rewards/{name}") < NO_RISE_Z for name in risen
    )
    is_still_tiny = is_tiny and history.steps >= TINY_GAIN_STEPS
    is_stuck = is_phase_over and (long_rise < NO_RISE_Z or is_still_tiny)
    has_fallen = short_rise <= -CLEAR_Z
    is_warning = has_fallen or (is_stuck and scores is not None)
    message = (
        f"The total has risen with {', '.join(risen)}, but {main} is {now:.3g}, from {start:.3g} "
        f"at the start."
    )
    advice = (
        "Read the completions with the highest reward. Give the main reward more weight, or "
        "partial credit."
    )
    yield Finding("form_only", "warning" if is_warning else "info", message, advice)


# holdout -----------------------------------------------------------------------------------------

MIN_ACCURACIES = 3
"""Held-out accuracies that are needed: two means of two measurements each."""

MIN_EVAL_REWARDS = 4
"""Held-out rewards that are needed. Their noise is estimated from the differences between them."""

DEFAULT_HOLDOUT_QUESTIONS = Settings().holdout_questions
"""Held-out questions if the settings are not known."""

HOLDOUT_DROP = 0.05
"""Smallest drop that triggers a warning, relative to the range of the score."""

HOLDOUT_STANDARD_ERRORS = 2.5
"""Standard errors that a drop also has to reach. The best of many scores is high by luck."""

HOLDOUT_GAIN = 0.02
"""Gain that is too small to count, relative to the range of the score."""

HOLDOUT_GOAL = 0.96
"""Score at the start, relative to its range, that leaves no room for a gain."""

MEDIAN_DIFFERENCE = 0.954
"""Median difference of two normal values, relative to their standard deviation."""


class HeldOut(NamedTuple):
    """The held-out scores of one column, and what is known about their scale."""

    name: str
    """Name of the score in messages."""
    scores: list[float]
    unit: str
    """Format of a score."""
    low: float
    """Lowest possible score, or the lowest reward so far."""
    span: float
    """Width of the range of the score."""
    noise: float
    """Standard error of a score."""


def held_out_scores(history: RunHistory) -> Iterator[HeldOut]:
    """Yield the accuracy that the kit measures, or else the total rewards of TRL's evaluations."""
    accuracies = history.holdout_scores
    if len(accuracies) >= MIN_ACCURACIES:
        questions = DEFAULT_HOLDOUT_QUESTIONS
        if history.settings is not None:
            questions = history.settings.holdout_questions
        best = max(fmean(pair) for pair in pairwise(accuracies))
        noise = math.sqrt(max(0.0, best * (1 - best)) / questions)
        yield HeldOut("accuracy", accuracies, ".0%", 0.0, 1.0, noise)
    if accuracies:
        return
    low, high = total_range(history) or (history.lowest["reward"], history.highest["reward"])
    for column, scores in history.eval_rewards.items():
        if len(scores) < MIN_EVAL_REWARDS:
            continue
        differences = [abs(after - before) for before, after in pairwise(scores)]
        noise = median(differences) / MEDIAN_DIFFERENCE
        yield HeldOut(f"reward ({column})", scores, ".3g", low, high - low, noise)


def check_holdout(history: RunHistory, trend: RewardTrend) -> Iterator[Finding]:
    """Report a held-out score that falls, or stays the same while the reward has risen."""
    for held_out in held_out_scores(history):
        scores = held_out.scores
        unit = held_out.unit
        # A mean of two scores is less noisy than one.
        means = [fmean(pair) for pair in pairwise(scores)]
        # A low first score alone is no gain, so the mean of the first two counts if it is higher.
        start = max(scores[0], means[0])
        best = max(means)
        now = means[-1]
        smallest_drop = max(HOLDOUT_DROP * held_out.span, HOLDOUT_STANDARD_ERRORS * held_out.noise)
        if best - now >= smallest_drop > 0:
            message = (
                f"The held-out {held_out.name} has fallen from {best:{unit}} to {now:{unit}} "
                "(means of two measurements)."
            )
            advice = (
                'Stop, and use the best adapter (keep_adapter="best"). With more varied prompts '
                "the model generalises longer."
            )
            yield Finding("holdout", "warning", message, advice, _subject("falling", held_out))
            continue
        has_trained = trend.is_above_start and history.steps >= 2 * LONG_WINDOW
        has_room = start <= held_out.low + HOLDOUT_GOAL * held_out.span
        if has_trained and has_room and now - start < HOLDOUT_GAIN * held_out.span:
            message = (
                f"The held-out {held_out.name} is {now:{unit}}, from {start:{unit}} at first, "
                "although the training reward has risen."
            )
            advice = (
                "Read the completions with the highest reward: does the model repeat answers by "
                "heart, or exploit the reward?"
            )
            yield Finding("holdout", "warning", message, advice, _subject("flat", held_out))


def _subject(kind: str, held_out: HeldOut) -> str:
    """Return the subject of a finding, with the column if a log may have several."""
    is_only = held_out.name in ("accuracy", "reward (eval_reward)")
    return kind if is_only else f"{kind} {held_out.name}"


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
