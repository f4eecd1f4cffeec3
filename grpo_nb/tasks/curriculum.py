"""Which questions to train on, by what was measured: pass rates, and groups without spread. `Task` has the methods.

GRPO learns nothing from a question that every completion of its group solves, or none: its advantages are zero. DAPO samples
until a batch holds no such group (arXiv:2503.14476, section 3.2); that multiplies the sampling, which on one GPU is most
of the time, and TRL has no such option. So the kit chooses between runs instead: from a baseline or a run it
knows the questions, and leaves those out for the next. Balanced filtering of that kind, by pass rates in the middle, is what
arXiv:2504.03380 argues for; Kimi k1.5 orders from easy to hard and prefers what is not solved yet (arXiv:2501.12599).

Not covered: choosing inside a run. On a CPU with `beta = 0` such groups at least cost no loss there
(docs/evidence/cpu_step.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.tasks.questions import normalized_question

if TYPE_CHECKING:
    from datasets import Dataset

# Totals nearer than this are equal, as in the baseline: beside TRL's 1e-4 nothing is left of such a spread.
_SAME = 1e-6


@dataclass(frozen=True)
class Visit:
    """One group of completions of one question, as it was scored."""

    key: str
    """Of the prompt, as `_key` makes it, or of the question alone where no more is known."""
    question: str
    scores: Mapping[str, Sequence[float]]
    totals: Sequence[float]

    @property
    def has_spread(self) -> bool:
        """Whether the totals differ, so that GRPO learns from the group."""
        known = [total for total in self.totals if not math.isnan(total)]
        return len(known) > 1 and max(known) - min(known) > _SAME


def pass_rates(
    train: Dataset, measured: Any, *, reward: str | None, threshold: float, last: int | None
) -> dict[int, tuple[float, int]]:
    """Return, for each row that was sampled, the share of right completions and how many there were.

    Args:
        train, measured, reward, threshold, last: As in `Task.with_pass_rates`.

    Raises:
        ValueError: No such reward, or nothing measured on these questions.
    """
    visits = visits_of(measured)
    name = _chosen_reward(visits, reward)
    rates = {}
    for row, seen in enumerate(_by_row(train, visits)):
        groups = [visit.scores.get(name, ()) for visit in (seen[-last:] if last else seen)]
        scores = [score for group in groups for score in group if not math.isnan(score)]
        if scores:
            rates[row] = sum(score >= threshold - _SAME for score in scores) / len(scores), len(scores)
    return rates


def flat_rows(train: Dataset, measured: Any, visits: int) -> list[int]:
    """Return the rows whose last `visits` groups, each of them, had no spread in the total."""
    seen = enumerate(_by_row(train, visits_of(measured)))
    return [row for row, v in seen if len(v) >= visits and not any(visit.has_spread for visit in v[-visits:])]


def visit_counts(train: Dataset, runs: Sequence[Any]) -> list[int]:
    """Return how often each row was sampled in these runs; one without completions has sampled nothing."""
    visits = [visit for run in runs if run.steps for visit in _visits(run)]
    return [len(seen) for seen in _by_row(train, visits, must_match=False)]


def visits_of(measured: Any) -> list[Visit]:
    """Return every group that a baseline, a run or several of these have scored, in order of time.

    Raises:
        ValueError: It is none of them, or has no completions.
    """
    return [visit for part in _single(measured) for visit in _visits(part)]


def _single(measured: Any) -> list[Any]:
    """The baselines and runs in what was measured."""
    if isinstance(measured, Sequence) and not isinstance(measured, str):
        return [single for part in measured for single in _single(part)]
    return [measured]


def _visits(measured: Any) -> Iterator[Visit]:
    if hasattr(measured, "groups") and hasattr(measured, "scores"):
        size = measured.num_generations
        for i, group in enumerate(measured.groups):
            scores = {name: s[i * size : (i + 1) * size] for name, s in measured.scores.values.items()}
            question = normalized_question(group.question)
            yield Visit(question, question, scores, group.totals)
    elif hasattr(measured, "completions"):
        yield from _visits_of_run(measured)
    else:
        raise ValueError(f"pass rates come from gn.baseline, a run, or a list of these, not from {measured!r:.80}.")


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
            yield Visit(_key(messages), question, {n: group[n].tolist() for n in rewards}, group["total"].tolist())


def _key(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else json.dumps([[turn["role"], turn["content"]] for turn in prompt])


def _by_row(rows: Dataset, visits: Sequence[Visit], *, must_match: bool = True) -> list[list[Visit]]:
    """The visits of each row, in order of time."""
    by_prompt = {_key(prompt): row for row, prompt in enumerate(rows["prompt"])}
    by_question = {normalized_question(question): row for row, question in enumerate(rows["question"])}
    found: list[list[Visit]] = [[] for _ in range(len(rows))]
    for visit in visits:
        row = by_prompt.get(visit.key, by_question.get(visit.question))
        if row is not None:
            found[row].append(visit)
    if must_match and not any(found):
        raise ValueError(
            "none of the measured groups belongs to a training question of this task: it was measured on other questions. "
            "Take the baseline or the run of this task."
        )
    return found


def _chosen_reward(visits: Sequence[Visit], reward: str | None) -> str:
    names = list(dict.fromkeys(name for visit in visits for name in visit.scores))
    if reward is None and ("correctness" in names or len(names) == 1):
        return "correctness" if "correctness" in names else names[0]
    if reward not in names:
        said = "which reward says that an answer is right?" if reward is None else f"there is no reward {reward!r}."
        raise ValueError(f"{said} Write reward='<name>' with one of {names}.")
    return reward
