"""All rules. docs/guide/health.md describes each one, docs/evidence/health.md has the sources.

A check is a function that yields findings after each row. A finding reports what was measured and
what follows from it, and names its rule: the topic that it belongs to. A check is silent if its
metric was not measured. In the order of this file, the rules ask:

- Are all numbers finite (`not_finite`), and do rewards differ within groups (`zero_variance`)?
- Are completions truncated or repeated, do tool calls fail, is the learning rate 0 (`truncation`,
  `collapse`, `tools`, `gradient`)?
- Have the gradient, the entropy, the length or the KL changed too much?
- Has the reward fallen (`reward_falling`), or not risen (`reward_flat`, `constant_reward`)?
- Did the format alone improve (`format_only`), or the training reward alone (`holdout`)?

Most alerts are milder while the reward rises (`soften`), because a run that learns should be left
alone. Five rules are never softened: `not_finite` and `constant_reward`, which are faults in any
run; `reward_falling` and `reward_flat`, which are about the reward itself; and `holdout`, because
the held-out score counts more than the reward. `check_shifts_since_start` is silent while the
reward rises.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from grpo_nb.core.statistics import mann_whitney_z
from grpo_nb.health.history import (
    CLEAR_Z,
    HOLDOUT_TOTAL,
    LIKELY_Z,
    LONG_WINDOW,
    MIN_ROWS_FOR_CRITICAL,
    NEARLY_ZERO,
    SHORT_WINDOW,
    WINDOW,
    ZERO_UPDATE,
    ZERO_VARIANCE_SHARE,
    RunHistory,
)
from grpo_nb.health.trend import (
    RewardTrend,
    has_fallen,
    main_position,
    main_reward,
    reward_position,
    z_since_start,
)
from grpo_nb.runs.alert import Severity
from grpo_nb.runs.rows import MEAN_LENGTH_KEY

LOW_POSITION = 0.2
"""Nearly all completions fail if the mean reward is at most this share of its range. Then easier
prompts help, and a few groups with a learning signal may be the start of learning."""

HIGH_POSITION = 0.9
"""Nearly all completions succeed if the mean reward is at least this share of its range. Then
little is left to learn, so a reward that does not rise is not a fault."""


class HealthFinding(NamedTuple):
    """One result of a check after the last row."""

    rule: str
    """Topic, such as `truncation`. Several checks can belong to one rule."""
    severity: Severity
    message: str
    """Description of what was measured, with numbers."""
    advice: str
    """Description of what to do."""
    subject: str = ""
    """Metric or kind of problem, if the rule can report several."""


def soften(severity: Severity, history: RunHistory, trend: RewardTrend) -> Severity:
    """Return the severity, or a milder one if the run learns or may be learning."""
    # A run whose reward has risen at all is not lost. Few rows cannot show a rise.
    has_few_rows = history.reward_row_count < MIN_ROWS_FOR_CRITICAL
    may_learn = trend.is_rising or trend.is_above_start or has_few_rows
    if severity == "critical" and may_learn:
        return "warning"
    return "info" if trend.is_rising else severity


# not_finite --------------------------------------------------------------------------------------

VITAL_METRICS = ("reward", "loss", "kl", "grad_norm")
"""The model learns nothing while one of these metrics is not finite. Any other metric causes at
most a warning."""

HARMLESS_ROWS = 2
"""Number of consecutive rows in which an infinite vital metric or a NaN gradient norm does no harm.
float16 training skips a step now and then, and a single token can make the KL estimate infinite."""

UNSCORED_ROWS_FOR_WARNING = 10
"""The alert is a warning after this many consecutive rows without a score of one reward. A few such
rows are normal, because a reward may return None for prompts that it does not score."""


def check_not_finite(history: RunHistory) -> Iterator[HealthFinding]:
    """Report each metric that is NaN or infinite in the last row, and a reward that is missing."""
    steps_without_reward = history.step - history.last_reward_step
    has_no_reward = history.reward_row_count == 0 or steps_without_reward >= WINDOW
    if history.is_reward_missing and has_no_reward:
        message = f"No reward has been logged since step {history.last_reward_step}."
        advice = (
            "Stop, and run check_rewards: a reward that is NaN or None for every completion is "
            "left out of the log."
        )
        yield HealthFinding("not_finite", "critical", message, advice, "missing reward")
    for metric, value in history.not_finite.items():
        count = history.not_finite_streaks[metric]
        # A NaN is harmless only in the gradient norm, because such a step is skipped.
        is_fatal = metric != "grad_norm" and math.isnan(value)
        severity: Severity = "warning"
        if metric in VITAL_METRICS and (is_fatal or count > HARMLESS_ROWS):
            severity = "critical"
        elif metric.startswith("rewards/") and count < UNSCORED_ROWS_FOR_WARNING:
            severity = "info"
        message = f"{metric} is NaN or infinite (consecutive rows: {count})."
        advice = (
            "If a reward is NaN too, run check_rewards. If not, go back to an earlier checkpoint, "
            "and lower learning_rate."
        )
        yield HealthFinding("not_finite", severity, message, advice, metric)


# zero_variance -----------------------------------------------------------------------------------


ZERO_VARIANCE_FOR_WARNING = 0.5
"""Groups with zero reward variance are reported if they are at least this share of the groups in
the last 50 steps, because then half of the computation is wasted. DAPO (arXiv:2503.14476) drops
such groups."""

CHANCE_WEIGHT = 0.5
"""The threshold rises by this fraction of the share of groups that would agree by chance. In small
groups, all completions often do."""

ZERO_VARIANCE_FOR_CRITICAL = 0.9
"""The alert is critical if at least this share of the groups in the last 20 steps has zero reward
variance, because too few groups are left to learn from."""


def check_zero_variance(history: RunHistory, trend: RewardTrend) -> Iterator[HealthFinding]:
    """Report groups with zero reward variance, if chance does not explain their number."""
    position = main_position(history)
    nearly_all_succeed = position >= HIGH_POSITION
    if nearly_all_succeed and trend.is_above_start:
        return  # The run has learned these prompts.
    severity: Severity = "warning"
    # A run whose completions succeed is not lost.
    if _is_signal_lost(history) and not nearly_all_succeed:
        severity = "critical"
    threshold = ZERO_VARIANCE_FOR_WARNING
    if position <= LOW_POSITION:
        reason = "nearly all fail"
        advice = (
            "Use easier prompts, add an example to the prompt, give partial credit, or raise "
            "num_generations: one success in a group is a signal."
        )
    elif nearly_all_succeed:
        reason = "nearly all succeed"
        advice = "Use harder prompts, or stop here if this is the goal."
    else:
        # Some groups agree by chance: in them, all completions succeed or all fail. The position is
        # NaN if the range is not known.
        if not math.isnan(position):
            size = history.group_size
            share_by_chance = position**size + (1 - position) ** size
            threshold += CHANCE_WEIGHT * share_by_chance
        reason = "all are alike"
        advice = (
            "Read a group. If its completions answer in the same way, raise temperature. If they "
            "are right, use harder prompts."
        )
    # A share that was not measured counts as 0, so nothing is reported.
    share = fmean(history.last_values(ZERO_VARIANCE_SHARE, LONG_WINDOW) or [0.0])
    if share < threshold:
        return
    message = (
        f"In {share:.0%} of the groups of the last steps, all completions got the same reward: "
        f"{reason}."
    )
    yield HealthFinding("zero_variance", soften(severity, history, trend), message, advice)


def _is_signal_lost(history: RunHistory) -> bool:
    """Return True if nearly all recent groups have zero reward variance.

    The signal is not lost while rewards are low and a few groups still differ, because most runs
    that learn start like this.
    """
    has_no_signal = history.mean(ZERO_VARIANCE_SHARE, WINDOW) >= ZERO_VARIANCE_FOR_CRITICAL
    some_differ = history.mean(ZERO_VARIANCE_SHARE, LONG_WINDOW) < 1
    may_be_starting = some_differ and main_position(history) <= LOW_POSITION
    return history.logged_steps >= WINDOW and has_no_signal and not may_be_starting


# truncation, collapse, tools, learning rate ------------------------------------------------------

SHORT_ANSWER_TOKENS = 16
"""Completions with at most this mean length are bare answers: a label in answer tags has 8 to 12
tokens. Eight answers with five labels cannot all differ, so repetition in a group is not a
fault."""


@dataclass(frozen=True, kw_only=True)
class ShareLimit:
    """Thresholds for the mean of a share, one for each severity."""

    rule: str
    metric: str
    thresholds: Mapping[Severity, float]
    """Lowest mean for each severity, from mild to severe."""
    meaning: str
    """Rest of the message after the percentage."""
    advice: str


SHARE_LIMITS = (
    ShareLimit(
        rule="truncation",
        metric="completions/clipped_ratio",
        # The critical case is seen in trl issue 5697: all completions are truncated and score 0.
        thresholds={"info": 0.25, "warning": 0.5, "critical": 0.9},
        meaning="of the completions were truncated at the length limit",
        advice="Read some of them. If the answer is missing, raise max_completion_length, ask for "
        "shorter answers, or reward brevity.",
    ),
    ShareLimit(
        rule="collapse",
        metric="completions/duplicates",
        thresholds={"warning": 0.5},  # never critical: the model may simply know the prompts
        meaning="of the completions repeat another completion of their group",
        advice="If these answers are right, the model has learned these prompts: use harder ones. "
        "Otherwise raise temperature, or lower learning_rate.",
    ),
    ShareLimit(
        rule="tools",
        metric="tools/failure_frequency",
        # TRL shows the error of a tool only to the model.
        thresholds={"info": 0.25, "warning": 0.5, "critical": 1.0},
        meaning="of the tool calls failed, and only the model saw the errors",
        advice="Does the tool itself fail? Read the calls of a step with run.step(n), or call the "
        "tool as the model does, for example a tool named search: "
        'gn.lab.ManualEpisode(task, 0).do("search", query="Paris").',
    ),
    ShareLimit(
        rule="gradient",
        metric="learning_rate/zero",
        thresholds={"critical": 1.0},  # a single step above 0 shows that the weights can move
        meaning="of the steps have a learning rate of 0, so that no weight moves",
        advice="Look at learning_rate, and at the schedule: does it end before the run?",
    ),
)


def check_share_limits(history: RunHistory, trend: RewardTrend) -> Iterator[HealthFinding]:
    """Report each share of `SHARE_LIMITS` that reaches a threshold."""
    for limit in SHARE_LIMITS:
        share = history.mean(limit.metric)
        reached = [severity for severity, lowest in limit.thresholds.items() if share >= lowest]
        is_normal = limit.rule == "collapse" and _repeats_are_normal(history, trend)
        if not reached or is_normal:
            continue
        severity = reached[-1]
        # Truncation is normal at first: a base model begins by learning to end its answers.
        is_early = history.logged_steps < LONG_WINDOW and not _is_signal_lost(history)
        if limit.rule == "truncation" and severity == "critical" and is_early:
            severity = "warning"
        severity = soften(severity, history, trend)
        yield HealthFinding(
            limit.rule, severity, f"{share:.0%} {limit.meaning}.", limit.advice, limit.metric
        )


def _repeats_are_normal(history: RunHistory, trend: RewardTrend) -> bool:
    """Return True if completions are bare answers, or of unknown length, or have become right."""
    is_long = history.mean(MEAN_LENGTH_KEY) > SHORT_ANSWER_TOKENS
    has_learned = trend.is_above_start and main_position(history) >= HIGH_POSITION
    return has_learned or not is_long


# gradient, entropy, length: now and at the start -------------------------------------------------

MAX_HARMLESS_PROBABILITY = 1e-4
"""Gradients of 0 are reported if the probability of a harmless cause is at most this. It is small,
because the alert can be critical and the rule tests after every step."""

GRADIENT_GROWTH = 10
"""A gradient norm is reported if it is at least this many times its start. Noise and warm-up stay
below that."""

ENTROPY_LEFT = 0.2
"""An entropy is reported if it is at most this share of its start. In healthy runs a third may
remain."""

LENGTH_GROWTH = 2
"""Longer completions are reported if their length is at least this multiple of both the length at
the start and the length in the best block. The best block is included, because a length that
grew with the reward is fine."""

LENGTH_STEPS = 200
"""Longer completions are reported from this step on. They are fine while the reward grows with
them, and that may take 200 steps to show."""

SLIGHT_Z = 1.4
"""A rise of the reward with at least this z-score excuses longer completions. It is below
`LIKELY_Z`, because longer completions alone are not a fault."""


def check_zero_gradient(history: RunHistory, trend: RewardTrend) -> Iterator[HealthFinding]:
    """Report gradients of 0 although rewards differ.

    A gradient of 0 is harmless if no group of its step had a signal. A row has the gradient norm of
    its last step, but the mean of `frac_reward_zero_std` over all its steps. The probability that
    the last step had no signal is at most about this mean. For successive rows, the product of the
    means limits the probability that all zeros are harmless. Logs of older versions of TRL have no
    `frac_reward_zero_std`, so nothing is reported for them.
    """
    zero_rows = 0
    probability = 1.0
    for row in reversed(history.last_rows):
        if row.get("grad_norm", 0.0) > ZERO_UPDATE:
            break
        if "grad_norm" in row:
            zero_rows += 1
            probability *= row.get("frac_reward_zero_std", 1.0)
    if zero_rows < history.row_count_in(SHORT_WINDOW) or probability > MAX_HARMLESS_PROBABILITY:
        return
    message = "The gradient is 0 in row after row, although rewards differ."
    advice = "Does the model have a trainable LoRA (model.print_trainable_parameters())?"
    yield HealthFinding(
        "gradient", soften("critical", history, trend), message, advice, "grad_norm/zero"
    )


def check_shifts_since_start(history: RunHistory, trend: RewardTrend) -> Iterator[HealthFinding]:
    """Report a gradient, an entropy or a length that has changed much without a better reward."""
    if trend.is_rising:
        return
    # 1. A gradient that explodes.
    start, now = _clear_shift(history, "grad_norm")
    if now >= GRADIENT_GROWTH * start:
        message = f"The gradient norm is {now:.3g}, from {start:.3g} at the start."
        advice = (
            "Compare completions from now and from the start. If they got worse, go back to a "
            "checkpoint and lower learning_rate."
        )
        yield HealthFinding("gradient", "warning", message, advice, "grad_norm/size")

    # 2. An entropy that collapses.
    start, now = _clear_shift(history, "entropy")
    if now <= ENTROPY_LEFT * start and not _repeats_are_normal(history, trend):
        message = f"The entropy is {now:.3g}, from {start:.3g} at the start."
        advice = (
            "Read a group: are its completions alike? Then raise temperature, lower learning_rate, "
            "or raise epsilon_high through extra."
        )
        yield HealthFinding("collapse", "warning", message, advice, "entropy")

    # 3. Longer completions. The usual GRPO loss favours long wrong answers, because it averages
    # over the tokens of each answer (arXiv:2503.20783).
    start, now = _clear_shift(history, MEAN_LENGTH_KEY)
    is_longer = now >= LENGTH_GROWTH * max(start, history.length_at_best)
    last_rewards = history.last_values("reward", LONG_WINDOW)
    has_gained = mann_whitney_z(history.best_rewards, last_rewards) >= SLIGHT_Z
    if is_longer and history.logged_steps >= LENGTH_STEPS and not has_gained:
        message = f"Completions have {now:.0f} tokens, from {start:.0f} at the start."
        advice = 'Reward brevity. The loss_type "dr_grpo" does not favour long wrong answers.'
        yield HealthFinding("length", "warning", message, advice, "longer")


def _clear_shift(history: RunHistory, metric: str) -> tuple[float, float]:
    """Return the median of a metric at the start and now, NaN if there is no clear difference."""
    first = history.first_values(metric)
    last = history.last_values(metric)
    is_early = history.logged_steps < 2 * WINDOW
    # A ratio to nearly 0 is noise.
    if is_early or abs(mann_whitney_z(first, last)) < CLEAR_Z or median(first) <= NEARLY_ZERO:
        return math.nan, math.nan
    return median(first), median(last)


# kl_drift ----------------------------------------------------------------------------------------


KL_START_STEPS = 3
"""The KL at the start is the median of this many first steps. It is not taken to be 0, because a
run may begin far from its reference model."""

KL_GROWTH_FOR_INFO = 0.5
"""A KL that has grown by this many nats is reported, because guides warn of it. The severity is
only info, because DAPO trains well without any limit."""

KL_GROWTH_FOR_WARNING = 2.0
"""A KL that has grown by this many nats is a warning, because the model is far from its start."""


def check_kl_drift(history: RunHistory, trend: RewardTrend) -> Iterator[HealthFinding]:
    """Report a KL that has grown and stayed high: the model learns, or it degenerates."""
    first = history.first_values("kl")[: history.row_count_in(KL_START_STEPS, min_rows=1)]
    last = history.last_values("kl")
    if not first or len(last) < history.row_count_in(SHORT_WINDOW):
        return
    start = median(first)
    now = median(last)
    growth = now - start
    if growth < KL_GROWTH_FOR_INFO:
        return
    # Never critical: if the reward falls as well, `check_reward_falling` reports that.
    severity: Severity = "warning" if growth >= KL_GROWTH_FOR_WARNING else "info"
    message = f"The KL is {now:.3g}, from {start:.3g} in the first steps."
    advice = (
        "Try the model on prompts outside the task. If it got worse there, raise beta, or lower "
        "learning_rate."
    )
    yield HealthFinding("kl_drift", soften(severity, history, trend), message, advice)


# reward_falling ----------------------------------------------------------------------------------


KEPT_SHARE_FOR_CRITICAL = 0.1
"""If at most this share of the gain is left, nearly all of it is lost. Then the alert can be
critical, because the run is back where it started."""

CERTAIN_Z = 4.3
"""z-score needed for a critical alert (p = 0.00001), either of a fall below the start, or of both a
rise and the fall after it. It is higher than `CLEAR_Z`, because the best block is the highest of
many. If a row stands for three steps or more, a window has eight rows. Even with ties, eight rows
against eight reach 3.9 at most, so the alert stays a warning."""


def check_reward_falling(history: RunHistory, trend: RewardTrend) -> Iterator[HealthFinding]:
    """Report a total reward that fell below its start, or lost at least half of its gain."""
    if not trend.has_fallen:
        return
    severity: Severity = "warning"
    if has_fallen(history, KEPT_SHARE_FOR_CRITICAL, CERTAIN_Z):
        severity = "critical"
    start = fmean(history.first_values("reward"))
    now = fmean(history.last_values("reward"))
    message = f"The reward is {now:.3g}; it was {start:.3g} at the start"
    if history.best_rewards:
        message += f", {fmean(history.best_rewards):.3g} at its best"
    advice = (
        "Compare completions from before and after. Then go back to the best checkpoint, and lower "
        "learning_rate or raise beta."
    )
    yield HealthFinding("reward_falling", severity, f"{message}.", advice)


# reward_flat -------------------------------------------------------------------------------------


FLAT_STEPS_FOR_INFO = 100
"""A run without a rise is reported after this many steps, or after half of the run if that is
shorter, because the second half can still be changed."""

FLAT_STEPS_FOR_WARNING = 300
"""The alert is a warning after this many steps without a rise, because published guides advise
waiting that long."""


def check_reward_flat(history: RunHistory, trend: RewardTrend) -> Iterator[HealthFinding]:
    """Report a run whose reward has not risen yet."""
    half_of_run = max(WINDOW, history.max_steps / 2)
    if history.logged_steps < min(FLAT_STEPS_FOR_INFO, half_of_run):
        return
    if trend.is_above_start or trend.is_rising or trend.has_fallen:
        return
    if main_position(history) >= HIGH_POSITION:
        return
    severity: Severity = "warning" if history.logged_steps >= FLAT_STEPS_FOR_WARNING else "info"
    now = fmean(history.last_values("reward"))
    message = f"The reward has not risen in {history.logged_steps} steps. It is {now:.3g}."
    advice = (
        "Run check_rewards, then baseline: can the model earn the reward at all? If so, use more "
        "prompts per step."
    )
    yield HealthFinding("reward_flat", severity, message, advice)


# constant_reward ---------------------------------------------------------------------------------


NEVER_REWARDED_STEPS = 30
"""The alert is a warning after this many steps in which a reward gave only its lowest possible
score. The usual reason is a pattern that cannot match (unslothai/notebooks issue 96)."""


def check_constant_reward(history: RunHistory, trend: RewardTrend) -> Iterator[HealthFinding]:
    """Report rewards that gave the same score in all rows, and so have no effect."""
    constants = []
    is_never_rewarded = False
    for name in history.rewards:
        metric = f"rewards/{name}"
        score = history.highest[metric]
        # A reward that ranks the completions of a group has a constant mean, but varied scores.
        is_varied = history.highest.get(f"{metric}/std", 0.0) >= NEARLY_ZERO
        is_constant = score - history.lowest[metric] < NEARLY_ZERO and not is_varied
        # A reward that is NaN in most rows was measured too rarely to be called constant.
        values = history.last_values(metric, LONG_WINDOW)
        if not is_constant or len(values) < history.row_count_in(SHORT_WINDOW):
            continue
        constants.append(f"{name} is {score:.3g}")
        # A penalty that always gives 0 is at the top of its range, so it is fine. If no range is
        # declared, such a penalty cannot be told from a reward that is never earned.
        is_never_rewarded |= reward_position(history, name) <= NEARLY_ZERO
    if not constants:
        return
    severity: Severity = "info"
    advice = "Leave it out, or make it ask for more."
    if is_never_rewarded:
        advice = (
            "Run check_rewards on it: can its pattern match at all (re.DOTALL)? If the task is too "
            "hard, give partial credit."
        )
        if history.logged_steps >= NEVER_REWARDED_STEPS:
            severity = "warning"
    message = f"{', '.join(constants)} in every row of {history.logged_steps} steps."
    yield HealthFinding("constant_reward", severity, message, advice)


# format_only -------------------------------------------------------------------------------------

FORMAT_STEPS = 100
"""The rule reports from this step on, because most runs learn the format first."""

MAX_MAIN_POSITION = 0.5
"""The rule reports only if the mean of the main reward is below this share of its range. Above it,
the total may rise with the format alone."""


def check_format_only(history: RunHistory, trend: RewardTrend) -> Iterator[HealthFinding]:
    """Report a total that has risen without the main reward, usually with the format alone."""
    main = main_reward(history)
    if main is None or history.logged_steps < FORMAT_STEPS:
        return
    if z_since_start(history, "reward") < CLEAR_Z:
        return
    # An unknown range of the reward can make its position NaN. Then nothing is reported.
    is_low = reward_position(history, main) < MAX_MAIN_POSITION
    if not is_low:
        return

    metric = f"rewards/{main}"
    if z_since_start(history, metric) >= LIKELY_Z:
        return  # The main reward has risen, too.
    now = history.mean(metric)
    message = f"The total reward has risen, but {main} has not: it is {now:.3g}."
    advice = (
        "Read the completions with the highest reward. Give the main reward more weight, or "
        "partial credit."
    )
    yield HealthFinding("format_only", soften("warning", history, trend), message, advice)


# holdout -----------------------------------------------------------------------------------------

MEAN_ABS_DIFFERENCE = 1.128
"""Two normal values with standard deviation 1 differ by this much on average: 2 / sqrt(pi). So a
mean difference divided by this number estimates the standard deviation."""

MIN_HOLDOUT_SCORES = 4
"""The rule compares the first two scores with the last two, so it needs four."""

MIN_HOLDOUT_DROP = 0.05
"""A drop from the best mean is reported if it is at least this share of the range of the score. A
smaller drop matters little, even if it is measured exactly."""

MIN_DROP_IN_ERRORS = 2.5
"""A drop must also be at least this many standard errors, because the best of many scores is high
by luck."""

MIN_HOLDOUT_GAIN = 0.02
"""A score that gained less than this share of its range has stayed the same, because noise alone
can raise it that much."""

HOLDOUT_TOP = 0.96
"""A score that starts above this share of its range has little left to gain, so it may stay the
same."""


def check_holdout(history: RunHistory, trend: RewardTrend) -> Iterator[HealthFinding]:
    """Report a held-out score that falls, or stays the same while the reward has risen.

    The score is the accuracy that the kit measures, or else the total reward of TRL's evaluations.
    """
    scores = history.holdout_scores
    if len(scores) < MIN_HOLDOUT_SCORES:
        return
    # 1. The range of the score.
    lowest = 0.0
    highest = 1.0
    if history.holdout_metric == HOLDOUT_TOTAL:
        lowest = history.lowest["reward"]
        highest = history.highest["reward"]
    # 2. The start, the best and now: means of two successive scores, which are less noisy than one.
    pairs = list(pairwise(scores))
    means = [(earlier + later) / 2 for earlier, later in pairs]
    start = means[0]
    best = max(means)
    now = means[-1]
    # 3. Has the score fallen by more than its noise? Without an interval of the accuracy, the noise
    # follows from the differences of successive scores.
    mean_change = fmean(abs(later - earlier) for earlier, later in pairs)
    standard_error = history.holdout_error or mean_change / MEAN_ABS_DIFFERENCE
    span = highest - lowest
    smallest_drop = max(MIN_HOLDOUT_DROP * span, MIN_DROP_IN_ERRORS * standard_error)
    # The smallest drop is 0 if neither the score nor the reward ever changed.
    if smallest_drop > 0 and best - now >= smallest_drop:
        message = (
            f"The held-out score has fallen from {best:.3g} to {now:.3g} (means of two "
            "measurements)."
        )
        advice = (
            "Stop. Train fewer steps, or keep the best adapter with an observer "
            "(docs/guide/runs.md). With more varied prompts the model generalises longer."
        )
        yield HealthFinding("holdout", "warning", message, advice, "falling")
        return
    # 4. Has the score stayed the same, although the training reward has risen?
    has_trained = trend.is_above_start and history.logged_steps >= 2 * LONG_WINDOW
    has_room = start <= lowest + HOLDOUT_TOP * span
    if has_trained and has_room and now - start < MIN_HOLDOUT_GAIN * span:
        message = (
            f"The held-out score is {now:.3g}, from {start:.3g} at first, although the training "
            "reward has risen."
        )
        advice = (
            "Read the completions with the highest reward: does the model repeat answers by heart, "
            "or exploit the reward?"
        )
        yield HealthFinding("holdout", "warning", message, advice, "flat")


CHECKS = (
    check_zero_variance,
    check_share_limits,
    check_zero_gradient,
    check_shifts_since_start,
    check_kl_drift,
    check_reward_falling,
    check_reward_flat,
    check_constant_reward,
    check_format_only,
    check_holdout,
)
"""Checks that need several rows with a reward. `check_not_finite` reports from the first row on."""
