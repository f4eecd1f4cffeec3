"""Which questions to train on, by what was measured: pass rates, and how often each was sampled. `Task` has the methods.

GRPO learns nothing from a question that every completion of its group solves, or none: its advantages are zero. DAPO samples
until a batch holds no such group (arXiv:2503.14476, section 3.2), which multiplies the sampling; the kit chooses between runs
instead, by pass rates in the middle (arXiv:2504.03380).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from datasets import Dataset

_RIGHT = 1 - 1e-6


class Sampled(NamedTuple):
    """Completions of one prompt, as they were scored."""

    key: str
    """Of the prompt, as `_key` makes it."""
    scores: Mapping[str, Sequence[float]]


def pass_rates(
    train: Dataset, measured: Any, reward: str | None, begun: Sequence[Any] = ()
) -> dict[int, float]:
    """Return, for each row that was sampled, the share of completions that the reward pays in full.

    Args:
        train: The training rows.
        measured: A baseline, a run or several of these.
        reward: Its name.
        begun: The prompt of each row with what its environment says at first, as a run has recorded it.

    Raises:
        ValueError: No such reward, or nothing measured on these questions.
    """
    sampled = list(sampled_in(measured))
    names = list(dict.fromkeys(name for one in sampled for name in one.scores))
    if reward is None:
        reward = "correctness" if "correctness" in names else names[0] if len(names) == 1 else None
    if reward not in names:
        raise ValueError(
            f"which reward says that an answer is right? Write reward='<name>' with one of {names}."
        )
    rates = {}
    for row, seen in enumerate(_by_row(train, sampled, begun)):
        scores = [
            score for one in seen for score in one.scores.get(reward, ()) if not math.isnan(score)
        ]
        if scores:
            rates[row] = sum(score >= _RIGHT for score in scores) / len(scores)
    if not rates:
        raise ValueError(
            "none of the measured groups belongs to a training question of this task: measure this one."
        )
    return rates


def completion_counts(train: Dataset, runs: Sequence[Any], begun: Sequence[Any] = ()) -> list[int]:
    """Return how many completions of each row these runs have; one without a step has none."""
    counted = _by_row(train, sampled_in([run for run in runs if run.steps]), begun)
    return [sum(len(next(iter(one.scores.values()))) for one in seen) for seen in counted]


def sampled_in(measured: Any) -> Iterator[Sampled]:
    """Yield what a baseline, a run or several of these have sampled, by prompt."""
    if isinstance(measured, (list, tuple)):
        for part in measured:
            yield from sampled_in(part)
    elif hasattr(measured, "num_generations"):  # a Baseline
        size = measured.num_generations
        for i, row in enumerate(measured.rows):
            scores = {
                name: s[i * size : (i + 1) * size] for name, s in measured.scores.values.items()
            }
            yield Sampled(_key(row["prompt"]), scores)
    else:
        rewards = [reward["name"] for reward in measured.info["rewards"]]
        for prompt, group in measured.completions().groupby("prompt", sort=False):
            messages = json.loads(prompt) if prompt.startswith("[") else prompt
            yield Sampled(_key(messages), {name: group[name].tolist() for name in rewards})


def _key(prompt: Any) -> str:
    return (
        prompt
        if isinstance(prompt, str)
        else json.dumps([[turn["role"], turn["content"]] for turn in prompt])
    )


def _by_row(rows: Dataset, sampled: Iterable[Sampled], begun: Sequence[Any]) -> list[list[Sampled]]:
    """What was sampled of each row."""
    by_prompt = {
        _key(prompt): row
        for prompts in (rows["prompt"], begun)
        for row, prompt in enumerate(prompts)
    }
    found: list[list[Sampled]] = [[] for _ in range(len(rows))]
    for one in sampled:
        if one.key in by_prompt:
            found[by_prompt[one.key]].append(one)
    return found
