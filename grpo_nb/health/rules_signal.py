"""Health rules about the signal and the mathematics of a run: spread, sameness, truncation, NaN, gradient, KL, time.

A rule is a function of the history that yields alerts, or nothing. It says nothing about what was not measured. The
thresholds are constants here; docs/evidence/health.md has the reason and the source of each, and the logs they were tried on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from grpo_nb.health.facts import rank_shift, values_of
from grpo_nb.health.following import Rule
from grpo_nb.health.history import CLEAR, LEAST, RECENT, START, History
from grpo_nb.runs.alert import Alert, Severity

NO_SPREAD, NO_SPREAD_CRITICAL = 0.5, 0.9
AT_TOP, AT_BOTTOM = 0.9, 0.2
AT_CAP = 0.95
SPREAD_RATIO = 5.0
TRUNCATED, TRUNCATED_WARNING, TRUNCATED_CRITICAL = 0.25, 0.5, 0.9
DUPLICATES, SAME_ANSWER = 0.5, 0.8
ENTROPY_LEFT = 0.2
KL_SPIKE_RATIO, KL_SPIKE_LEAST = 5.0, 0.1
KL_HIGH, KL_BROKEN = 0.5, 10.0
GRADIENT_SPIKE_RATIO, GRADIENT_SPIKES = 10.0, 3
GRADIENT_ZERO = 1e-8
RATIO_CLIPPED = 0.2
SLOWER = 2.0


def find_not_finite(history: History) -> Iterator[Alert]:
    """NaN or infinity in anything that was logged, from the first row on."""
    why = "A NaN or infinity in the loss or the gradient ends in the weights, and every later step is lost."
    lower = history.advice("back and slower")
    for key in history.bad_now:
        count = history.bad_counts[key]
        severity: Severity = "warning"
        message, reason = f"{key} is NaN or infinite.", why
        advice = f"Stop; {lower}. If the reward itself is NaN, run check_rewards: one of them returns it."
        if key.startswith("rewards/"):
            severity = "warning" if count >= LEAST else "info"
            message = f"{key} is NaN: this reward scored no completion in {count} step{'s' * (count > 1)}."
            reason = "TRL leaves out a reward that returns None or NaN, without a word."
            advice = "Fine if the reward is only meant for some rows. Otherwise run check_rewards on it."
        elif key in ("reward", "loss", "kl") or (key == "grad_norm" and count >= 3):
            severity = "critical"
        else:
            reason = f"In float16 a step is skipped now and then, which does no harm. {why}"
            advice = f"If it comes again, {lower}."
        yield history.alert(severity, message, why=reason, advice=advice, subject=key, evidence={"times": count})


def find_no_reward(history: History) -> Iterator[Alert]:
    """Rows of training without any reward: none at all, or more of them than where a batch is used several times."""
    count = history.unrewarded
    if count < (1 if history.count == 0 else max(2 * LEAST, 3 * history.longest_gap)):
        return
    since = "none was ever a number" if history.count == 0 else f"the last one came {count} rows ago"
    yield history.alert(
        "critical",
        f"No reward in the last {count} logged step{'s' * (count > 1)}: {since}.",
        why="Where every reward is NaN, None or infinite, TRL logs none. No completion is better than another then, and "
        "nothing is learnt.",
        advice="Stop, and run check_rewards: it names the reward that returns this, and for what. A log that is not of GRPO "
        "has no rewards either.",
        evidence={"steps": count},
    )


def _is_sure(share: float, count: int) -> bool:
    """At the threshold, and not by the accident of a few rows: where a third is true, it is seldom reached."""
    return share >= NO_SPREAD and share - 1.64 * math.sqrt(share * (1 - share) / count) >= 0.38


def find_no_spread(history: History, values: Sequence[float]) -> Iterator[Alert]:
    """Groups whose completions all get the same reward: their advantages are zero, and they teach nothing."""
    now, whole, count = fmean(values), history.share("no_spread"), history.times_measured("no_spread")
    if max(now, whole) < NO_SPREAD:
        return
    kind, level = _kind_of_sameness(history)
    recent = history.values("no_spread", RECENT)
    severity: Severity = "warning" if _is_sure(now, len(values)) or _is_sure(whole, count) else "info"
    is_lost = len(recent) >= RECENT and fmean(recent) >= NO_SPREAD_CRITICAL
    # Where nobody knows what a reward can pay, a run that has risen may have reached its goal.
    may_be_done = kind == "too easy" or (kind == "all alike" and history.risen_at is not None and not history.has_lost)
    if is_lost and not may_be_done and not history.is_learning:
        severity = "critical"
    why, advice = _SAMENESS[kind]
    yield history.alert(
        severity,
        f"{kind}: {now:.0%} of the groups of the last {len(values)} steps ({whole:.0%} of the run) got the same reward "
        f"for every completion{level}.",
        why=f"Advantages are differences within a group: without any, the step costs its time and teaches nothing. {why}",
        advice=advice.format(larger=history.advice("larger groups")),
        evidence={"share_now": now, "share_run": whole, "kind": kind, "steps": len(values)},
    )


_SAMENESS = {
    "too hard": (
        "Rewards are at their low end, so the model almost never earns anything.",
        "Give easier prompts or an example turn, add a reward with partial credit, prime with a few supervised steps, or "
        "{larger}: one success in a group is a signal.",
    ),
    "too easy": (
        "Rewards are at their top, so there is nothing left to learn from these prompts.",
        "If this is the goal, stop here. Otherwise take harder prompts, or a reward that tells good from better.",
    ),
    "all alike": (
        "Unless that is the most they pay, the model has settled on one way to answer.",
        "Look at the completions. If they are as good as can be, stop here. Otherwise raise temperature, {larger}, or start "
        "again from a checkpoint with a lower learning_rate; a reward with finer steps helps too.",
    ),
}


_UNKNOWN = "the most it can be is not known: give the function an attribute range = (least, most)"


def _kind_of_sameness(history: History) -> tuple[str, str]:
    """Too hard, too easy, or all alike, from where the groups without spread lie in what rewards can pay, if that is known."""
    alike = [facts for facts in history.window if facts.get("no_spread", 0) >= 0.5]
    # A full reward for form does not make a task easy: the main reward decides, if there is one.
    fact, what = (f"rewards/{history.main}", history.main) if history.main is not None else ("reward", "the reward")
    same = values_of(alike, fact)
    if not same:
        return "all alike", ""
    level, possible = median(same), history.possible(fact)
    if possible is None:
        # Whatever was seen: the best of a run may be its failures. But nothing is earned at 0.
        return "too hard" if level <= 0 else "all alike", f" ({what} {level:.3g}; {_UNKNOWN})"
    low, high = possible
    place = (level - low) / (high - low) if high > low else 0.0
    kind = "too easy" if place >= AT_TOP else "too hard" if place <= AT_BOTTOM else "all alike"
    return kind, f" ({what} {level:.3g}; it can be {low:.3g} to {high:.3g})"


def find_collapse(history: History) -> Iterator[Alert]:
    """The same text again and again: for different prompts, or within groups."""
    warmer, slower = history.advice("warmer"), history.advice("slower")
    for fact, least, severity, subject, seen, why, advice in (
        ("same_answer", SAME_ANSWER, "critical", "one answer",
         "of the completions of a step are the same text, whatever the prompt",
         "The model no longer reads the prompt. It has found one text that is paid, or nothing is.",
         f"Stop, look at that text, and find the reward that pays for it. Then {slower} and raise beta."),
        ("duplicates", DUPLICATES, "warning", "within groups",
         "of the completions repeat another one of their group, word for word",
         "GRPO learns from the differences within a group; equal texts have none.",
         f"If the answers are right, the task is learnt. Otherwise {warmer} with top_p=1.0 and top_k=0, or {slower}."),
    ):  # fmt: skip
        shares = history.values(fact, LEAST)
        if len(shares) >= LEAST and fmean(shares) >= least:
            message = f"{fmean(shares):.0%} {seen} (last {LEAST} steps)."
            evidence = {"share": fmean(shares)}
            severity = history.softened(severity)
            yield history.alert(severity, message, why=why, advice=advice, subject=subject, evidence=evidence)
            return


def find_entropy_gone(history: History, now: Sequence[float]) -> Iterator[Alert]:
    """Entropy that is nearly gone, where it is logged."""
    entropy, first = fmean(now), history.start_values("entropy")
    if history.count < 2 * LEAST or len(first) < LEAST or not entropy <= ENTROPY_LEFT * fmean(first) > 0:
        return
    yield history.alert(
        history.softened("warning"),
        f"Entropy is down to {entropy:.3g}, from {fmean(first):.3g} at the start.",
        why="The policy has become certain. What it does not try it cannot learn.",
        advice=f"If the reward has stopped rising: {history.advice('slower')}, {history.advice('warmer')}, or raise "
        "epsilon_high through extra.",
        subject="entropy",
        evidence={"entropy": entropy, "entropy_start": fmean(first)},
    )


_CUT = "A cut answer has no end, so rewards for the answer or the closing tag pay nothing, however good the start was."


def find_truncation(history: History, recent: Sequence[float]) -> Iterator[Alert]:
    """Completions cut at the length limit: the end with the answer is missing, and the reward measures the limit."""
    if fmean(recent[-LEAST:]) >= TRUNCATED > fmean(recent):
        recent = recent[-LEAST:]  # it has just begun
    now, whole = fmean(recent), history.share("clipped")
    if max(now, whole) < TRUNCATED:
        return
    severity: Severity = "info"
    if now >= TRUNCATED_CRITICAL and len(recent) >= RECENT:
        severity = history.softened("critical")
    elif now >= TRUNCATED_WARNING or whole >= TRUNCATED_WARNING:
        severity = history.softened("warning")
    length = history.mean("length", RECENT)
    yield history.alert(
        severity,
        f"{now:.0%} of the completions of the last {len(recent)} steps ({whole:.0%} of the run) were cut at the limit"
        + (f"; they have {length:.0f} tokens on average." if length is not None else "."),
        why=_CUT,
        advice=f"{history.advice('longer')}, ask for shorter answers in the system prompt, or add a reward for brevity.",
        evidence={"share_now": now, "share_run": whole, "steps": len(recent)},
    )


def find_length_at_cap(history: History, lengths: Sequence[float]) -> Iterator[Alert]:
    """Completions as long as they may be on average, where the share of those that were cut is not logged, or low."""
    longest = set(history.values("longest"))
    known = {history.settings.max_completion_length} if history.settings else longest
    cap = known.pop() if len(known) == 1 else math.inf
    if not AT_CAP * cap <= fmean(lengths) <= cap or (history.mean("clipped", RECENT) or 0) >= TRUNCATED:
        return
    yield history.alert(
        history.softened("warning"),
        f"Completions have {fmean(lengths):.0f} tokens on average, of at most {cap:.0f}: nearly all of them are cut.",
        why=_CUT,
        advice=f"{history.advice('longer')}, ask for shorter answers in the system prompt, or add a reward for brevity.",
        subject="mean length",
        evidence={"length": fmean(lengths), "limit": cap},
    )


def find_gradient_trouble(history: History, norms: Sequence[float]) -> Iterator[Alert]:
    """A gradient of zero though rewards differ, or one that jumps."""
    spread = history.mean("no_spread", LEAST)
    if max(map(abs, norms[-LEAST:])) <= GRADIENT_ZERO and not (spread is not None and spread >= NO_SPREAD):
        known = "though the rewards differ" if spread is not None else "and the spread of the rewards was not logged"
        yield history.alert(
            "critical",
            f"The gradient norm has been 0 for {LEAST} steps, {known}.",
            why="No weight moves. The run will end where it began.",
            advice="Stop. Check that the model has a trainable LoRA (model.print_trainable_parameters()), that learning_rate "
            "is above 0, and that mask_truncated_completions does not mask every completion.",
            subject="zero",
            evidence={"grad_norm": norms[-1], "steps": LEAST},
        )
    before = [norm for norm in norms[:-1] if norm > GRADIENT_ZERO]
    if len(before) < LEAST:
        return
    usual = median(before)
    spikes = [norm for norm in norms[-RECENT:] if norm > GRADIENT_SPIKE_RATIO * usual]
    if norms[-1] > GRADIENT_SPIKE_RATIO * usual:
        yield history.alert(
            history.softened("warning") if len(spikes) >= GRADIENT_SPIKES else "info",
            f"The gradient norm jumped to {norms[-1]:.3g}, {norms[-1] / usual:.0f} times its usual {usual:.3g}"
            + (f", {len(spikes)} such jumps in {min(RECENT, len(norms))} steps." if len(spikes) > 1 else "."),
            why="max_grad_norm cuts a single jump. Several in a row push the weights far from where the rewards were measured.",
            advice=f"Nothing for one. If they go on: {history.advice('slower')}, {history.advice('tighter')}, or take more "
            "prompts per step.",
            subject="spike",
            evidence={"grad_norm": norms[-1], "usual": usual, "spikes": len(spikes)},
        )


def find_kl_spike(history: History, values: Sequence[float]) -> Iterator[Alert]:
    """One step far above the KL before it."""
    usual, last = median(values[:-1]), values[-1]
    if last < KL_SPIKE_LEAST or last < KL_SPIKE_RATIO * usual:
        return
    broken = sum(value >= KL_BROKEN for value in values[-RECENT:])
    odd = "rare" if last < KL_HIGH else "nearly impossible"
    ratio = f", {last / usual:,.0f} times its usual {usual:.3g}" if usual > 0 else ""
    yield history.alert(
        history.softened("warning") if broken >= 2 else "info",
        f"KL to the starting model jumped to {last:.3g}{ratio}.",
        why=f"Some completions of this step are {odd} under the starting model: often a garbled or endless text.",
        advice="Look at the completions of this step. Nothing to change for one; if they come often, "
        f"{history.advice('slower')} or raise beta.",
        # A spike ten times as large is told again: the first one may have been nothing.
        subject=f"above {10.0 ** math.floor(math.log10(last)):g}",
        evidence={"kl": last, "usual": usual},
    )


def find_kl_step(history: History, values: Sequence[float]) -> Iterator[Alert]:
    """KL that changed its level at once, and stayed."""
    rewards, now, before = history.values("reward"), values[-5:], values[-5 - RECENT : -5]
    if len(before) < LEAST or min(now) < 2 * max(before) or median(now) < KL_SPIKE_LEAST:
        return
    old, new = median(before), median(now)
    fallen = -rank_shift(rewards[-RECENT - 5 : -5], rewards[-5:])
    yield history.alert(
        "warning" if fallen >= CLEAR else "info",
        f"KL to the starting model changed its level from {old:.3g} to {new:.3g} within five steps, and stayed there"
        + (" while the reward fell." if fallen >= CLEAR else "."),
        why="The model has jumped to another way of answering. That is how a discovery looks, and how a breakdown looks.",
        advice="Compare completions from before and after. If they got worse, go back to the checkpoint before and "
        f"{history.advice('slower')}.",
        evidence={"kl_before": old, "kl_now": new, "reward_fall_z": fallen},
    )


def find_kl_drift(history: History, values: Sequence[float]) -> Iterator[Alert]:
    """KL that has grown large for good. By itself the price of learning; with a falling reward, the way to garbage."""
    level, began = median(values), median(values_of(history.start, "kl")[:3])
    if level < KL_HIGH:
        return
    severity: Severity = "critical" if level >= KL_BROKEN else "warning"
    rewards = "falls" if history.has_lost else "rises" if history.is_learning else "does not rise"
    why = (
        "Published healthy runs stay below 0.5. Some distance is the price of learning, and DAPO does without the KL term; "
        "distance without reward is loss of ability."
    )
    advice = (
        "Try the model on prompts outside the task. If it got worse there or the reward falls, "
        f"{history.advice('nearer')} or {history.advice('slower')}."
    )
    is_old = began >= KL_HIGH / 2 and level - began < KL_HIGH
    if is_old:
        why = (
            "It was there from the first steps, so this run did not make it: KL is measured to another model than the one it "
            "started from, as after supervised priming or an earlier stage."
        )
        advice = (
            "Nothing for this by itself. To measure from where a run starts: gn.train(..., reference='start') on a CPU."
        )
    yield history.alert(
        severity if history.has_lost else "info",
        f"KL to the {'reference' if is_old else 'starting model'} {'is' if is_old else 'has reached'} {level:.3g} (median of "
        f"{len(values)} steps; {began:.3g} in the first ones) while the reward {rewards}.",
        why=why,
        advice=advice,
        subject="from the start" if is_old else "",
        evidence={"kl": level, "kl_start": began},
    )


def find_ratio_clipping(history: History, values: Sequence[float]) -> Iterator[Alert]:
    """Too many tokens outside the trust region, where a batch is used more than once."""
    if fmean(values) < RATIO_CLIPPED:
        return
    yield history.alert(
        history.softened("warning"),
        f"{fmean(values):.0%} of the tokens are clipped by the probability ratio (last {LEAST} steps).",
        why="The model has moved so far from the one that sampled the batch that much of the batch no longer counts.",
        advice=f"{history.advice('slower')}, or set num_iterations or steps_per_generation lower through extra.",
        evidence={"share": fmean(values)},
    )


def find_spread_growth(history: History, now: Sequence[float]) -> Iterator[Alert]:
    """Rewards that differ ever more while they do not rise: a few that are far off decide what is learnt."""
    first, rewards = history.start_values("spread"), history.start_values("reward")
    dead = history.start_values("no_spread")
    if history.count < 2 * RECENT or not first or fmean(first) <= 1e-6 or fmean(now) < SPREAD_RATIO * fmean(first):
        return
    if dead and fmean(dead) >= NO_SPREAD:
        return  # there was hardly any to grow from
    if history.mean("reward", RECENT) - fmean(rewards) >= fmean(now) / 2:
        return  # successes that pay much make such a spread
    yield history.alert(
        history.softened("warning"),
        f"The spread of the rewards is {fmean(now):.3g}, {fmean(now) / fmean(first):.0f} times the {fmean(first):.3g} of the "
        "start, and they are not higher for it.",
        why="A few completions with rewards far from the others decide the advantages, and drown what the others teach.",
        advice="Look at the completions with the highest and the lowest reward. Give the reward bounds: one without pays most "
        "for what nobody meant.",
        evidence={"spread": fmean(now), "spread_start": fmean(first)},
    )


def find_slow_steps(history: History, now: Sequence[float]) -> Iterator[Alert]:
    """Steps that take longer and longer."""
    started = history.start[2:]  # the first steps compile and warm up
    first = values_of(started, "step_time")[:LEAST]
    if history.count < START + LEAST or len(first) < 5:
        return
    before, after = median(first), median(now)
    if before <= 0 or after < SLOWER * before:
        return
    short, longer = values_of(started, "length")[:LEAST], history.values("length", LEAST)
    is_measured = short and longer and median(short) > 0 and median(longer) > 0
    growth = median(longer) / median(short) if is_measured else None
    by_length = growth is not None and after / before <= 1.3 * growth
    yield history.alert(
        "info" if by_length else "warning",
        f"A step takes {after:.3g} s, {after / before:.1f} times the {before:.3g} s of the start"
        + (f"; completions are {growth:.1f} times as long." if growth is not None else "."),
        why="The length of the completions explains it." if by_length else "The completions do not explain it.",
        advice="Limit max_completion_length, or add a reward for brevity."
        if by_length
        else "Look for another process on the machine, memory that swaps, heat, or a reward function that slows down "
        "(check_rewards measures them).",
        evidence={"seconds": after, "seconds_start": before, "length_growth": growth},
    )


FROM_THE_FIRST_ROW = (Rule("not_finite", find_not_finite), Rule("no_reward", find_no_reward))
"""The others speak from `LEAST` rows on."""
RULES = (
    Rule("no_spread", find_no_spread, "no_spread"),
    Rule("collapse", find_collapse),
    Rule("collapse", find_entropy_gone, "entropy", LEAST, is_low_worse=True),
    Rule("truncation", find_truncation, "clipped", RECENT),
    Rule("truncation", find_length_at_cap, "length", RECENT),
    Rule("gradient", find_gradient_trouble, "grad_norm"),
    Rule("kl_spike", find_kl_spike, "kl", hold=math.inf),
    Rule("kl_step", find_kl_step, "kl", hold=math.inf),
    Rule("kl_drift", find_kl_drift, "kl", RECENT),
    Rule("spread_growth", find_spread_growth, "spread", RECENT),
    Rule("ratio_clipping", find_ratio_clipping, "ratio_clipped", LEAST),
    Rule("slow_steps", find_slow_steps, "step_time", LEAST),
)
