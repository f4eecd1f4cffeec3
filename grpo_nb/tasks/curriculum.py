"""Measurements for the choice of training questions: pass rates, and how often each was sampled.

GRPO learns nothing from a question that all completions of its group solve, or none, because the
advantages are zero. DAPO samples until a batch holds no such group (arXiv:2503.14476, section 3.2),
which multiplies the sampling. This kit chooses between runs instead, by pass rates in the middle
(arXiv:2504.03380). The methods of `Task` make the choice.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

# A full score may be rounded to slightly below 1.
_RIGHT = 1 - 1e-6


def is_baseline(measured: Any) -> bool:
    """Say whether this is a `Baseline`; otherwise it is a `Run`."""
    return hasattr(measured, "num_generations")


def scores_by_row(prompts: Sequence[Any], measured: Any, reward: str) -> list[list[float]]:
    """Return the scores of all completions of each prompt; the list is empty if it was not sampled.

    Args:
        prompts: Prompts of the training rows, as a run or baseline records them.
        measured: A `Baseline` or a `Run`.
        reward: Name of the reward.
    """
    scores_of: dict[str, list[float]] = defaultdict(list)
    if is_baseline(measured):
        size = measured.num_generations
        scores = measured.scores.values[reward]
        for place, row in enumerate(measured.rows):
            scores_of[_key(row["prompt"])] += scores[place * size : (place + 1) * size]
    elif measured.steps:
        for prompt, group in measured.completions().groupby("prompt", sort=False):
            messages = json.loads(prompt) if prompt.startswith("[") else prompt
            scores_of[_key(messages)] += group[reward].tolist()
    return [scores_of[_key(prompt)] for prompt in prompts]


def pass_rate(scores: Sequence[float]) -> float | None:
    """Return the share of completions with the full score; None if none has a score.

    >>> pass_rate([1.0, 0.0, float("nan")]), pass_rate([])
    (0.5, None)
    """
    known = [score for score in scores if not math.isnan(score)]
    return sum(score >= _RIGHT for score in known) / len(known) if known else None


def _key(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(prompt, str):
        return prompt
    turns = [[turn["role"], turn["content"]] for turn in prompt]
    return json.dumps(turns)
