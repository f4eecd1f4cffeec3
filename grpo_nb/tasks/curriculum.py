"""Measurements for the choice of training questions: pass rates, and how often each was sampled.

GRPO learns nothing from a question that all completions of its group solve, or none, because the
advantages are zero. DAPO samples until a batch holds no such group (arXiv:2503.14476, section 3.2),
which multiplies the sampling. This kit chooses between runs instead, by pass rates in the middle
(arXiv:2504.03380). The methods of `Task` make the choice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from datasets import Dataset

# A full score may be rounded to slightly below 1.
_RIGHT = 1 - 1e-6


class Sampled(NamedTuple):
    """The scores of the completions of one prompt."""

    key: str
    """The prompt as text, from `_key`."""
    scores: Mapping[str, Sequence[float]]
    """Scores of each reward, by its name."""


def pass_rates(
    train: Dataset, measured: Any, reward: str | None, begun: Sequence[Any] = ()
) -> dict[int, float]:
    """Return the share of completions with the full score, for each row that was sampled.

    Args:
        train: The training rows.
        measured: A baseline, a run or several of these.
        reward: Name of the reward.
        begun: Prompts with the first text of their environment, as a run has recorded them.

    Raises:
        ValueError: No such reward, or nothing measured on these questions.
    """
    sampled = list(sampled_in(measured))
    names = list(dict.fromkeys(name for one in sampled for name in one.scores))
    if reward is None:
        reward = names[0] if len(names) == 1 else "correctness"
    if reward not in names:
        raise ValueError(
            f"which reward says that an answer is right? Write reward='<name>' with one of {names}."
        )
    rates = {}
    for row, groups in enumerate(_by_row(train, sampled, begun)):
        scores: list[float] = []
        for group in groups:
            scores += [score for score in group.scores.get(reward, ()) if not math.isnan(score)]
        if scores:
            rates[row] = sum(score >= _RIGHT for score in scores) / len(scores)
    if not rates:
        raise ValueError(
            "none of the measured groups belongs to a training question of this task: measure this "
            "one."
        )
    return rates


def completion_counts(train: Dataset, runs: Sequence[Any], begun: Sequence[Any] = ()) -> list[int]:
    """Return the number of completions of each row in these runs."""
    trained_runs = [run for run in runs if run.steps]
    counts = []
    for groups in _by_row(train, sampled_in(trained_runs), begun):
        # Each reward has a score for each completion.
        any_scores = [next(iter(group.scores.values())) for group in groups]
        counts.append(sum(map(len, any_scores)))
    return counts


def sampled_in(measured: Any) -> Iterator[Sampled]:
    """Yield the scores of each prompt that a baseline, a run or several of these have sampled."""
    if isinstance(measured, (list, tuple)):
        for part in measured:
            yield from sampled_in(part)
    elif hasattr(measured, "num_generations"):  # a Baseline
        size = measured.num_generations
        for i, row in enumerate(measured.rows):
            group = slice(i * size, (i + 1) * size)
            all_scores = measured.scores.values
            scores = {name: values[group] for name, values in all_scores.items()}
            yield Sampled(_key(row["prompt"]), scores)
    else:
        rewards = [reward["name"] for reward in measured.info["rewards"]]
        for prompt, group in measured.completions().groupby("prompt", sort=False):
            messages = json.loads(prompt) if prompt.startswith("[") else prompt
            scores = {name: group[name].tolist() for name in rewards}
            yield Sampled(_key(messages), scores)


def _key(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    turns = [[turn["role"], turn["content"]] for turn in prompt]
    return json.dumps(turns)


def _by_row(rows: Dataset, sampled: Iterable[Sampled], begun: Sequence[Any]) -> list[list[Sampled]]:
    """Return the sampled groups of each row."""
    row_of = {_key(prompt): row for row, prompt in enumerate(rows["prompt"])}
    row_of |= {_key(prompt): row for row, prompt in enumerate(begun)}
    groups: list[list[Sampled]] = [[] for _ in range(len(rows))]
    for group in sampled:
        if group.key in row_of:
            groups[row_of[group.key]].append(group)
    return groups
