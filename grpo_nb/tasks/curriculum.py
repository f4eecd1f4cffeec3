"""Which questions to train on, by what was measured: pass rates, and how often each was sampled. `Task` has the methods.

GRPO learns nothing from a question that every completion of its group solves, or none: its advantages are zero. DAPO samples
until a batch holds no such group (arXiv:2503.14476, section 3.2), which multiplies the sampling; the kit chooses between runs
instead, by pass rates in the middle (arXiv:2504.03380).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.tasks.questions import normalized_question

if TYPE_CHECKING:
    from datasets import Dataset

_RIGHT = 1 - 1e-6


@dataclass(frozen=True)
class Visit:
    """One group of completions of one question, as it was scored."""

    key: str
    """Of the prompt, as `_key` makes it, or of the question alone where no more is known."""
    question: str
    scores: Mapping[str, Sequence[float]]


def pass_rates(train: Dataset, measured: Any, reward: str | None) -> dict[int, float]:
    """Return, for each row that was sampled, the share of completions that the reward pays in full.

    Raises:
        ValueError: No such reward, or nothing measured on these questions.
    """
    visits = list(visits_of(measured))
    names = list(dict.fromkeys(name for visit in visits for name in visit.scores))
    if reward is None:
        reward = "correctness" if "correctness" in names else names[0] if len(names) == 1 else None
    if reward not in names:
        raise ValueError(f"which reward says that an answer is right? Write reward='<name>' with one of {names}.")
    rates = {}
    for row, seen in enumerate(_by_row(train, visits)):
        scores = [score for visit in seen for score in visit.scores.get(reward, ()) if not math.isnan(score)]
        if scores:
            rates[row] = sum(score >= _RIGHT for score in scores) / len(scores)
    if not rates:
        raise ValueError("none of the measured groups belongs to a training question of this task: measure this one.")
    return rates


def visit_counts(train: Dataset, runs: Sequence[Any]) -> list[int]:
    """Return how often each row was sampled in these runs; one without completions has sampled nothing."""
    return [len(seen) for seen in _by_row(train, visits_of([run for run in runs if run.steps]))]


def visits_of(measured: Any) -> Iterator[Visit]:
    """Yield every group that a baseline, a run or several of these have scored, in order of time."""
    if isinstance(measured, (list, tuple)):
        for part in measured:
            yield from visits_of(part)
    elif hasattr(measured, "num_generations"):  # a Baseline
        size = measured.num_generations
        for i, group in enumerate(measured.groups):
            scores = {name: s[i * size : (i + 1) * size] for name, s in measured.scores.values.items()}
            question = normalized_question(group.question)
            yield Visit(question, question, scores)
    else:
        yield from _visits_of_run(measured)


def _visits_of_run(run: Any) -> Iterator[Visit]:
    rewards, last = [reward["name"] for reward in run.info["rewards"]], None
    for _, step in run.completions().groupby("step", sort=True):
        sampled = step[["prompt", "completion"]].to_numpy().tolist()
        if sampled == last:  # a step that goes on with the samples of the one before is no second visit
            continue
        last = sampled
        for _, group in step.groupby("group", sort=True):
            prompt = group["prompt"].iloc[0]
            messages = json.loads(prompt) if prompt.startswith("[") else prompt
            question = normalized_question(messages if isinstance(messages, str) else messages[-1]["content"])
            yield Visit(_key(messages), question, {name: group[name].tolist() for name in rewards})


def _key(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else json.dumps([[turn["role"], turn["content"]] for turn in prompt])


def _by_row(rows: Dataset, visits: Iterable[Visit]) -> list[list[Visit]]:
    """The visits of each row, in order of time."""
    by_prompt = {_key(prompt): row for row, prompt in enumerate(rows["prompt"])}
    by_question = {normalized_question(question): row for row, question in enumerate(rows["question"])}
    found: list[list[Visit]] = [[] for _ in range(len(rows))]
    for visit in visits:
        row = by_prompt.get(visit.key, by_question.get(visit.question))
        if row is not None:
            found[row].append(visit)
    return found
