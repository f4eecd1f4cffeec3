"""What to change before training, read off a sample: each piece of advice with its numbers and the line to write.

Thresholds are round numbers, not tests: a piece of advice says what was seen in the sample and leaves the choice to the reader.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from grpo_nb.checks.groups import ENOUGH, RewardSpread, Sampled, in_groups
from grpo_nb.settings.settings import Settings

MANY_CUT = 0.1
FEW_SLOTS = 0.05
_MOSTLY_CUT = 0.5
_FAR_APART = 0.3
# Of fewer questions, the likeliest answer of one makes more than `_FAR_APART` of all.
_FEWEST_GROUPS = 5
# Of fewer answers that can be read, or of a smaller share of all, nothing is said of how hard the questions are.
_FEWEST_READ = 8
_SAME = 1e-6
_CHECK = "gn.check_rewards(rewards, task)"
_PARTIAL_CREDIT = "rewards.append(gn.rewards.incremental_format(format=task.format, weight=0.5))"


@dataclass(frozen=True)
class Advice:
    """One thing to change."""

    kind: str
    """A short name such as `example turn` or `dead reward`; for code, which should not read prose."""
    what: str
    """What was seen, with its numbers, and why it matters."""
    line: str
    """The line of code to change or to run."""

    def __repr__(self) -> str:
        return f"advice: {self.kind}: {self.what}\n    {self.line}"


def advise(gate: Sampled) -> tuple[Advice, ...]:
    """Return what to change, the most important first: broken rewards, then form, data, length, sampling, sample size."""
    form = list(_of_form(gate))
    advice = [*_of_broken(gate), *form, *_of_difficulty(gate), *_of_length(gate), *_of_sampling(gate)]
    # Where no answer can be read, the form is why rewards are not earned, and says what to do.
    advice += _of_constant(gate, with_unearned=not form)
    return tuple([*advice, *_of_sample_size(gate, has_other=bool(advice))])


def _constant(gate: Sampled) -> list[RewardSpread]:
    return [r for r in gate.rewards if r.weight and not math.isnan(r.highest) and r.is_constant]


def _knows(reward: RewardSpread) -> bool:
    """Say whether a reward with one score for the whole sample gives another to a right or to an empty completion."""
    return not (abs(reward.right - reward.highest) <= _SAME and abs(reward.empty - reward.highest) <= _SAME)


def _without(reward: RewardSpread) -> str:
    return f"rewards = [r for r in rewards if r.__name__ != {reward.name!r}]"


def _of_broken(gate: Sampled) -> Iterator[Advice]:
    count = len(gate.scores)
    for reward in gate.rewards:
        if math.isnan(reward.highest):
            what = f"{reward.name} gave no score to any of {count} completions, so it takes no part in training."
            yield Advice("no score", what, _CHECK)
    for reward in _constant(gate):
        name, value = reward.name, reward.highest
        if _knows(reward):
            continue
        if abs(value) <= _SAME:
            what = (
                f"{name} gave 0 to all {count} completions, and to a right answer in the format too: can it pay at all?"
            )
            yield Advice("dead reward", what, _CHECK)
        else:
            what = (
                f"{name} gave {value:g} to all {count} completions, to a right answer and to an empty text: it adds the "
                "same to each total, which no advantage sees."
            )
            yield Advice("constant reward", what, _without(reward))


def _of_constant(gate: Sampled, *, with_unearned: bool) -> Iterator[Advice]:
    unearned = []
    for reward in filter(_knows, _constant(gate)):
        gave = f"{reward.name} gave {reward.highest:g} to all {len(gate.scores)} completions"
        if reward.highest >= reward.right - _SAME:
            yield Advice("earned reward", f"{gave}, as much as a right answer gets.", _without(reward))
        elif with_unearned:
            unearned.append(f"{gave}; a right answer in the format gets {reward.right:g}")
    if not unearned:
        return
    what = f"{'. '.join(unearned)}: not broken, but nothing is taught until one earns it."
    # Who has the form already is not led to the answer by more pay for form.
    if any(map(gate.format.is_exact, gate.scores.completions)) or "incremental_format" in gate.scores.values:
        line = _larger_group(gate.settings, 2 * gate.num_generations)
        yield Advice("unearned reward", f"{what} A larger group is likelier to hold a right answer.", line)
    else:
        yield Advice("unearned reward", f"{what} Partial credit beside it is a slope towards it.", _PARTIAL_CREDIT)


def _of_form(gate: Sampled) -> Iterator[Advice]:
    if gate.slot_share >= FEW_SLOTS:
        return
    count, tagged = len(gate.scores), sum(gate.tagged)
    seen = (
        f"an answer can be read in {_of(round(gate.slot_share * count), count)} completions, and any mark of the format "
        f"{gate.format.name!r} stands in {_of(tagged, count)}."
    )
    if not gate.has_example:
        turns = [turn["content"] for row in gate.rows[:1] for turn in row.get("prompt", ())]
        mark = gate.format.answer_open.strip()
        is_told = not turns or any(mark in text for text in turns)
        told = "The prompts describe the format and" if is_told else f"Nothing in the prompts names {mark}, and they"
        what = f"{seen} {told} show no example; a small model often needs to see one."
        example = 'example=("a question", "short reasoning", "its answer")'
        yield Advice("example turn", what, f"task = gn.load_task(..., {example})  # the rest as before")
    elif tagged:
        what = "The prompts show an example already; pay for each part of the format, so that the first parts count."
        yield Advice("partial credit", f"{seen} {what}", _PARTIAL_CREDIT)
    else:
        what = "The prompts show an example already, and nothing of it is taken up: try one that the model knows."
        line = "task = gn.load_task(..., format=gn.tasks.hashes(), example=...)  # the rest as before"
        yield Advice("other format", f"{seen} {what}", line)


def _of_difficulty(gate: Sampled) -> Iterator[Advice]:
    count, counts = len(gate.groups), gate.counts

    def line(arithmetic: str, kind: str) -> str:
        if gate.task_name == "arithmetic":
            return (
                f'task = gn.load_task("arithmetic", settings, {arithmetic}, tokenizer=tokenizer)  # the rest as before'
            )
        return (
            f"task = gn.load_task(..., keep=lambda row: ...)  # says which of your rows are {kind}; the rest as before"
        )

    is_form = gate.verdict == "form only"
    # Half and half is no reason to change either way: the questions are as different as they should be.
    too_hard = counts["all wrong"] * 2 >= count and counts["all wrong"] > counts["all right"]
    # Of answers that were cut nobody knows how hard they were.
    is_read = gate.slot_share >= max(ENOUGH, _FEWEST_READ / len(gate.scores))
    if (is_form or too_hard) and is_read and gate.cut_share < _MOSTLY_CUT:
        wrong = f"in {_of(counts['all wrong'], count)} groups no completion earned more than an empty one"
        what = (
            f"{'no sampled answer is right' if is_form else wrong}, though {gate.slot_share:.0%} of the answers can be read: "
            "the questions are too hard to begin with."
        )
        easy = line("high=9, train_size=60, holdout_size=20", "easy")
        yield Advice("easier data", what, easy)
    if counts["all right"] * 2 >= count and counts["all right"] > counts["all wrong"]:
        what = f"in {_of(counts['all right'], count)} groups every completion is right: nothing is left to learn there."
        yield Advice("harder data", what, line("high=99", "hard"))


def _of_length(gate: Sampled) -> Iterator[Advice]:
    if gate.cut_share < MANY_CUT:
        return
    limit = gate.settings.max_completion_length
    begun = sum(tagged for tagged, is_cut in zip(gate.tagged, gate.is_cut, strict=True) if is_cut)
    # A text that ends nowhere near the format is not short of room, and twice the room would only cost twice the time.
    if not begun and gate.slot_share < FEW_SLOTS:
        return
    what = (
        f"{_of(sum(gate.is_cut), len(gate.is_cut))} completions were cut at {limit} tokens, {begun} of them with the format "
        "begun: what they would have answered is not seen. The model has to be loaded again for a longer limit."
    )
    yield Advice("longer completions", what, f"settings = settings.replace(max_completion_length={2 * limit})")


def _of_sampling(gate: Sampled) -> Iterator[Advice]:
    count, size, temperature = len(gate.groups), gate.num_generations, gate.settings.temperature
    sampled, greedy = gate.right_shares
    differ = gate.counts["differs"]
    distinct = sum(len(set(group)) for group in in_groups(gate.scores.completions, size)) / count
    # One word on the temperature: what makes it lower and what makes it higher may both be seen in a few questions.
    if count >= _FEWEST_GROUPS and greedy - sampled >= _FAR_APART:
        what = (
            f"{greedy:.0%} of the likeliest answers are right and {sampled:.0%} of those drawn at temperature {temperature:g}: "
            "the model knows more than it says when it draws. Training will first sharpen what it draws, and the reward rises "
            "by that alone; what was learnt, the held-out comparison says, which looks at the likeliest answers."
        )
        yield Advice(
            "sampling", what, f"settings = settings.replace(temperature={max(0.2, round(0.7 * temperature, 1))})"
        )
    elif 2 * distinct <= size and 4 * differ < 3 * count:
        what = (
            f"a group of {size} holds {distinct:.1f} different completions on average at temperature {temperature:g}: "
            "equal ones get equal scores."
        )
        warmer = 1.0 if temperature < 1 else round(temperature + 0.2, 2)
        yield Advice("temperature", what, f"settings = settings.replace(temperature={warmer})")
    elif temperature > 1 and gate.slot_share < 0.5:
        what = f"at temperature {temperature:g} an answer can be read in only {gate.slot_share:.0%} of the completions."
        yield Advice("temperature", what, "settings = settings.replace(temperature=1.0)")
    if differ and 4 * differ < 3 * count and size >= 4:
        half, whole = gate.useful_share_of(size // 2), gate.useful_share_of(size)
        if whole - half >= 0.1:
            what = (
                f"of groups of {size // 2} taken from these, {half:.0%} would differ, of groups of {size} {whole:.0%} do: "
                "the share grows with the size."
            )
            yield Advice("larger group", what, _larger_group(gate.settings, 2 * size))


def _larger_group(settings: Settings, size: int) -> str:
    """The line for groups of `size`, with a batch that they divide."""
    batch = -(-settings.batch_size // size) * size
    more = f", per_device_train_batch_size={batch}, gradient_accumulation_steps=1"
    return f"settings = settings.replace(num_generations={size}{'' if batch == settings.batch_size else more})"


def _of_sample_size(gate: Sampled, *, has_other: bool) -> Iterator[Advice]:
    low, high = gate.useful_interval
    # Where nothing differs at all, what else was seen comes first; more of the same would show more of the same.
    count = len(gate.groups)
    prompts = min(4 * count, gate.available) if gate.available else 4 * count
    if gate.verdict == "signal" or high <= ENOUGH or (gate.verdict == "no signal" and has_other) or prompts <= count:
        return
    what = (
        f"after {count} groups anything from {low:.0%} to {high:.0%} of all groups may differ; a larger sample tells."
    )
    yield Advice("more prompts", what, f"gn.baseline(model, tokenizer, task, rewards, settings, prompts={prompts})")


def _of(number: int, count: int) -> str:
    return f"{number or 'none'} of {count}" if number != count else f"all {count}"
