"""Advise what to change before training, from the groups that a baseline has sampled.

The thresholds are round numbers, not statistical tests. Each piece of advice gives the numbers
behind it and leaves the choice to the reader.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_nb.checks.learning_signal import Baseline

MIN_TRUNCATED_SHARE = 0.1
"""Smallest share of truncated completions for which a higher limit is advised."""

MIN_READABLE_SHARE = 0.05
"""The model counts as writing the format if this share of completions is readable, or is truncated
after it started the format."""


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
    advice = []
    texts = baseline.scores.completions
    truncated_texts = list(itertools.compress(texts, baseline.is_truncated))
    # A text with one of these tags has started the format. The chat template may write the first.
    format = baseline.format
    tags = [tag for tag in format.tags if tag != format.answer_close]
    started_count = 0
    for text in truncated_texts:
        started_count += format.is_opened_by_template or any(tag in text for tag in tags)
    written_share = baseline.readable_share + started_count / len(texts)
    is_format_written = written_share >= MIN_READABLE_SHARE

    # Propose an example turn if the model does not write the format, and the prompt shows none.
    # A prompt has an example if one of its assistant turns shows the format.
    opening = format.answer_open.strip()
    turns = baseline.rows[0]["prompt"]
    has_example = any(
        turn["role"] == "assistant" and opening in (turn["content"] or "") for turn in turns
    )
    if not is_format_written and not has_example:
        example_turn = Advice(
            "example turn",
            f"an answer can be read in {baseline.readable_share:.0%} of the completions. The "
            f"prompts show no example of the format {format.name!r}, which a small model needs.",
            'task = gn.load_task(..., example=("a question", "short reasoning", "its answer"))'
            "  # the rest as before",
        )
        advice.append(example_turn)

    # Propose a higher length limit if many completions are truncated. A model that does not write
    # the format would only write more text under a higher limit.
    truncated_count = len(truncated_texts)
    if is_format_written and truncated_count >= MIN_TRUNCATED_SHARE * len(texts):
        limit = baseline.settings.max_completion_length
        started_phrase = (
            f"{started_count} of them after they had begun the format, " if started_count else ""
        )
        longer_completions = Advice(
            "longer completions",
            f"{truncated_count} of {len(texts)} completions were truncated at {limit} tokens, "
            f"{started_phrase}so their answers are unknown. Load the model again after this "
            "change.",
            f"settings = settings.replace(max_completion_length={2 * limit})",
        )
        advice.append(longer_completions)
    return tuple(advice)
