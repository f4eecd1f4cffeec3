"""Advise what to change before training, from the groups that a baseline has sampled.

The thresholds are round numbers, not statistical tests. Each piece of advice gives the numbers
behind it and leaves the choice to the reader.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_nb.checks.learning_signal import Baseline

MANY_TRUNCATED = 0.1
"""From this share of truncated completions on, a higher limit is advised."""

FEW_READABLE = 0.05
"""Below this share of readable answers, the format is what the model lacks."""

ENOUGH_READABLE = 0.25
"""Share of readable answers needed to call questions too hard."""


@dataclass(frozen=True)
class Advice:
    """One change to make before training."""

    name: str
    """A short name, such as `example turn`. Code should read this, not the prose."""
    reason: str
    """Observation with its numbers, and why it matters."""
    code: str
    """Line of code to write."""


def give_advice(baseline: Baseline) -> tuple[Advice, ...]:
    """Return what to change before training, the most important first."""
    return (
        *_advise_format(baseline),
        *_advise_difficulty(baseline),
        *_advise_length(baseline),
    )


def _advise_format(baseline: Baseline) -> Iterable[Advice]:
    """Propose an example turn, or priming, if the model does not write the format."""
    if baseline.readable_share >= FEW_READABLE:
        return
    texts = baseline.scores.completions
    readable = round(baseline.readable_share * len(texts))
    seen = f"an answer can be read in {readable} of {len(texts)} completions"
    # A prompt has an example if one of its assistant turns shows the format.
    opening = baseline.format.answer_open.strip()
    turns = baseline.rows[0]["prompt"]
    if any(turn["role"] == "assistant" and opening in (turn["content"] or "") for turn in turns):
        yield Advice(
            "priming",
            f"{seen}, although the prompts show an example. A few supervised steps on right "
            "answers teach the format, and GRPO starts from there.",
            "SFTTrainer(model, args=config, train_dataset=turns).train()  # docs/guide/train.md",
        )
    else:
        yield Advice(
            "example turn",
            f"{seen}. The prompts show no example of the format {baseline.format.name!r}, which a "
            "small model needs.",
            'task = gn.load_task(..., example=("a question", "short reasoning", "its answer"))'
            "  # the rest as before",
        )


def _advise_difficulty(baseline: Baseline) -> Iterable[Advice]:
    """Propose easier questions if most groups are all wrong, harder ones if they are all right."""
    groups = len(baseline.groups)
    right = baseline.counts["all right"]
    load_others = "task = gn.load_task([row for row in rows if ...], ...)  # the rest as before"
    # Groups may differ in their format without a correct answer.
    is_hard = baseline.counts["all wrong"] > groups / 2 or baseline.sampled_accuracy == 0
    if is_hard and baseline.readable_share >= ENOUGH_READABLE:
        wrong = sum(not any(group) for group in baseline.is_right_by_group)
        yield Advice(
            "easier data",
            f"the questions are too hard for a start: {baseline.sampled_accuracy:.0%} of the "
            f"sampled answers are correct, and {wrong} of {groups} groups have no correct answer.",
            load_others,
        )
    if right > groups / 2:
        yield Advice(
            "harder data",
            f"in {right} of {groups} groups every completion is right, so there is nothing left to "
            "learn from these questions.",
            load_others,
        )


def _advise_length(baseline: Baseline) -> Iterable[Advice]:
    """Propose a higher length limit if many completions are truncated and some begin the format."""
    truncated = sum(baseline.is_truncated)
    completions = len(baseline.scores)
    begun = 0
    for text in itertools.compress(baseline.scores.completions, baseline.is_truncated):
        # A text with any tag of the format has begun the format.
        begun += any(tag in text for tag in baseline.format.tags)
    # A text without the format would only run on: twice the room would take twice the time.
    is_in_format = baseline.readable_share >= FEW_READABLE or begun > 0
    if truncated >= MANY_TRUNCATED * completions and is_in_format:
        limit = baseline.settings.max_completion_length
        started = f"{begun} of them after they had begun the format, " if begun else ""
        yield Advice(
            "longer completions",
            f"{truncated} of {completions} completions were truncated at {limit} tokens, "
            f"{started}so their answers are unknown. Load the model again after this change.",
            f"settings = settings.replace(max_completion_length={2 * limit})",
        )
