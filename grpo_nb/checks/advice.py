"""Decide from sampled groups whether GRPO gets a learning signal, and what to change if not.

The thresholds are round numbers, not tests. Each piece of advice gives the numbers behind it and
leaves the choice to the reader.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from grpo_nb.checks.groups import SampledGroups

Verdict = Literal["signal", "weak signal", "format only", "no signal"]

ENOUGH_GROUPS = 0.25
"""Share of groups that must differ, at the lower end of the interval, for the verdict "signal".

Then at most four groups are sampled for one that teaches something.
"""

MANY_TRUNCATED = 0.1
"""Share of truncated completions from which more room is worth its time."""

FEW_SLOTS = 0.05
"""Below this share of readable answers, the format is what the model lacks."""

ENOUGH_SLOTS = 0.25
"""Share of readable answers needed to call questions too hard."""

OFTEN_DIFFERENT = 0.75
"""Share of groups with a learning signal above which a larger group adds little."""


@dataclass(frozen=True)
class Advice:
    """One change to make before training."""

    kind: str
    """A short name, such as `example turn`. Code should read this, not the prose."""
    reason: str
    """Observation with its numbers, and why it matters."""
    code: str
    """Line of code to write."""

    def __repr__(self) -> str:
        return f"advice: {self.kind}: {self.reason}\n    {self.code}"


def decide_verdict(sample: SampledGroups) -> Verdict:
    """Return whether GRPO would get a learning signal from prompts like these.

    `no signal`: no group differs. `weak signal`: some differ, but the sample does not show that one
    in four does. `format only`: it would be a signal, but no answer is correct, and the rewards for
    answers do not differ anywhere. `signal`: all others.
    """
    if sample.counts["differs"] == 0:
        return "no signal"
    if sample.useful_interval[0] < ENOUGH_GROUPS:
        return "weak signal"
    is_format_only = sample.unearned_rewards and sample.right_shares[0] == 0
    return "format only" if is_format_only else "signal"


def give_advice(sample: SampledGroups) -> tuple[Advice, ...]:
    """Return what to change before training, the most important first."""
    return (
        *_advise_format(sample),
        *_advise_difficulty(sample),
        *_advise_length(sample),
        *_advise_group_size(sample),
    )


def _advise_format(sample: SampledGroups) -> Iterable[Advice]:
    """Propose an example turn, or priming, if the model does not write the format."""
    if sample.slot_share >= FEW_SLOTS:
        return
    texts = sample.scores.completions
    read = round(sample.slot_share * len(texts))
    seen = f"an answer can be read in {read or 'none'} of {len(texts)} completions"
    if sample.has_example:
        yield Advice(
            "priming",
            f"{seen}, although the prompts show an example. A few supervised steps on right "
            "answers teach the format, and GRPO starts from there.",
            "SFTTrainer(model, args=config, train_dataset=turns).train()  # docs/guide/train.md",
        )
    else:
        yield Advice(
            "example turn",
            f"{seen}, and {_count_tagged(sample, texts) or 'none'} of {len(texts)} contain any tag "
            f"of the format {sample.format.name!r}. The prompts show no example, which a small "
            "model needs.",
            _load_task('example=("a question", "short reasoning", "its answer")'),
        )


def _advise_difficulty(sample: SampledGroups) -> Iterable[Advice]:
    """Propose easier questions if most groups are all wrong, harder ones if they are all right."""
    groups = len(sample.groups)
    wrong = sample.counts["all wrong"]
    right = sample.counts["all right"]
    is_format_only = decide_verdict(sample) == "format only"
    # Half right and half wrong is no reason for either: the questions are of different difficulty.
    is_hard = 2 * wrong >= groups and wrong > right
    if (is_hard or is_format_only) and sample.slot_share >= ENOUGH_SLOTS:
        reason = f"in {wrong} of {groups} groups no completion earned more than an empty one"
        if is_format_only:
            reason = "no sampled answer is correct"
        yield Advice(
            "easier data",
            f"the questions are too hard for a start: {reason}.",
            _load_task("filter=lambda row: ..."),
        )
    if 2 * right >= groups and right > wrong:
        yield Advice(
            "harder data",
            f"in {right} of {groups} groups every completion is right, so there is nothing left to "
            "learn from these questions.",
            _load_task("filter=lambda row: ..."),
        )


def _advise_length(sample: SampledGroups) -> Iterable[Advice]:
    """Propose a higher length limit if answers that were begun are truncated."""
    truncated = _truncated_texts(sample)
    completions = len(sample.scores)
    begun = _count_tagged(sample, truncated)
    # A text far from the format does not lack room: twice the room would only take twice the time.
    is_in_format = sample.slot_share >= FEW_SLOTS or begun > 0
    is_often = len(truncated) >= MANY_TRUNCATED * completions
    if is_often and is_in_format:
        limit = sample.settings.max_completion_length
        yield Advice(
            "longer completions",
            f"{len(truncated)} of {completions} completions were truncated at {limit} tokens, "
            f"{begun} of them after they had begun the format, so their answers are unknown. Load "
            "the model again after this change.",
            _replace_settings(f"max_completion_length={2 * limit}"),
        )


def _advise_group_size(sample: SampledGroups) -> Iterable[Advice]:
    """Propose a larger group if only some groups differ."""
    groups = len(sample.groups)
    differing = sample.counts["differs"]
    if not 0 < differing < OFTEN_DIFFERENT * groups:
        return
    size = 2 * sample.num_generations
    change = f"num_generations={size}"
    batch_size = sample.settings.batch_size
    if batch_size % size:
        whole_groups = math.ceil(batch_size / size) * size
        change += f", per_device_train_batch_size={whole_groups}, gradient_accumulation_steps=1"
    yield Advice(
        "larger group",
        f"{differing} of {groups} groups differ. A group of {size} completions is likelier to "
        "contain two different scores.",
        _replace_settings(change),
    )


def _truncated_texts(sample: SampledGroups) -> list[str]:
    pairs = zip(sample.scores.completions, sample.is_truncated, strict=True)
    return [text for text, is_truncated in pairs if is_truncated]


def _count_tagged(sample: SampledGroups, texts: Iterable[str]) -> int:
    """Count the texts that contain any tag of the format."""
    count = 0
    for text in texts:
        count += any(tag in text for tag in sample.format.tags)
    return count


def _load_task(change: str) -> str:
    return f"task = gn.load_task(..., {change})  # the rest as before"


def _replace_settings(change: str) -> str:
    return f"settings = settings.replace({change})"
