"""Sample groups of completions before training, and show whether GRPO gets a learning signal.

A group is the completions of one prompt. GRPO learns only from differences within a group, so the
share of groups whose totals differ decides the verdict. Completions of a group are too alike to
count as independent, so every interval is over groups.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from grpo_nb.checks.advice import Advice, give_advice
from grpo_nb.checks.rows import sample_rows
from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require_types
from grpo_nb.core.progress import progress_bar
from grpo_nb.core.statistics import mean_with_interval, share_interval
from grpo_nb.core.tables import Part, ReprMixin, Table, bold, code
from grpo_nb.core.words import require_whole_number
from grpo_nb.generation.completions import GeneratedCompletion, scoring_arguments
from grpo_nb.models.load_record import require_same_settings
from grpo_nb.models.restoring import (
    restoring_generation_config,
    restoring_modes,
    restoring_random_state,
)
from grpo_nb.rewards.base import RewardFunction, reward_list
from grpo_nb.scoring.advantages import split_into_groups
from grpo_nb.scoring.grader import Grader, deciding_reward, make_grader
from grpo_nb.scoring.scores import SCORE_TOLERANCE, Scores, score
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.read_rows import Row
from grpo_nb.tasks.task import Task

if TYPE_CHECKING:
    import pandas

COMPLETIONS_AT_ONCE = 64
"""Number of completions sampled together.

Groups of the usual sizes then stay together, and their prompt is computed once.
"""

GroupResult = Literal["differs", "all right", "all wrong", "all equal"]
"""`differs`: the totals of the group differ, so it has a learning signal.

In each other group the totals are equal. `all right`, `all wrong`: every answer is correct, or
none. `all equal`: some answers are correct, and the rewards do not show it.
"""

Verdict = Literal["signal", "weak signal", "format only", "no signal"]

CONSEQUENCES: dict[Verdict, str] = {
    "signal": "There is something to learn from. Training shows what comes of it.",
    "weak signal": "Some groups teach something, but this sample is too small or too uniform to "
    "show that at least one group in four does.",
    "format only": "No sampled answer is correct, and the reward for answers is the same within "
    "each group. GRPO would learn what the other rewards score, and no answers until one is "
    "correct by chance.",
    "no signal": "GRPO would have nothing to learn from on these prompts.",
}
"""Consequence of each verdict for the training."""

MIN_DIFFERING_SHARE = 0.25
"""Share of groups that must differ, at the lower end of the interval, for the verdict "signal".

One group in four then teaches something.
"""


@dataclass(frozen=True, kw_only=True, repr=False)
class Baseline(ReprMixin):
    """Groups sampled before training, with the verdict and advice. Made by `baseline`."""

    scores: Scores
    """Scores of all completions, group after group."""
    num_generations: int
    rows: tuple[Row, ...]
    """Data row of each group."""
    is_truncated: tuple[bool, ...]
    """True for each completion that reached the length limit without an end token."""
    format: AnswerFormat
    settings: Settings
    grader: Grader
    """Decides whether an answer is correct."""
    greedy_scores: Scores
    """Scores of the greedy completion of each prompt. Held-out comparisons decode greedily too."""
    majority: tuple[str, float] | None = None
    """Most frequent answer of the task and its share, if the answers are labels."""

    @functools.cached_property
    def group_results(self) -> tuple[GroupResult, ...]:
        """Result of each group: its totals differ, or all, none or some answers are correct."""
        totals = split_into_groups(self.scores.totals, self.num_generations)
        return tuple(map(_result_of_group, totals, self.is_correct_by_group))

    @functools.cached_property
    def result_counts(self) -> Counter[GroupResult]:
        """Number of groups with each result."""
        return Counter(self.group_results)

    @functools.cached_property
    def differing_interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the share of groups whose totals differ."""
        return share_interval([float(result == "differs") for result in self.group_results])

    @functools.cached_property
    def is_correct(self) -> list[bool]:
        """True for each sampled completion with a correct answer."""
        return self._are_correct(self.scores)

    @property
    def is_correct_by_group(self) -> list[Sequence[bool]]:
        """`is_correct` of each group."""
        return split_into_groups(self.is_correct, self.num_generations)

    @property
    def sampled_accuracy(self) -> float:
        """Share of correct answers among the sampled completions."""
        return fmean(self.is_correct)

    def _are_correct(self, scores: Scores) -> list[bool]:
        if not self.grader.reads_slot:
            # The scores of a function are known, so do not call it again.
            return self.grader.are_correct(scores.values[self.grader.name])
        per_row = len(scores) // len(self.rows)
        repeated = [row for row in self.rows for _ in range(per_row)]
        slot_scores = self.grader.score(scores.completions, repeated, self.format)
        return self.grader.are_correct(slot_scores)

    @functools.cached_property
    def readable_share(self) -> float:
        """Share of completions with an answer that the grader can read."""
        # The kit's rewards read an answer only at the end of a completion. For a function, the slot
        # need not be last.
        extract = self.format.extract_final if self.grader.reads_slot else self.format.extract
        return fmean(extract(text) is not None for text in self.scores.completions)

    @property
    def has_answer_signal(self) -> bool:
        """True if groups differ in their answers, and not only in their format.

        One group with a learning signal and with right and wrong answers is enough. So is a group
        in which the reward for answers differs.
        """
        for result, is_correct in zip(self.group_results, self.is_correct_by_group, strict=True):
            if result == "differs" and any(is_correct) and not all(is_correct):
                return True
        answer_reward = self.grader.name
        # If the grader is none of the rewards, nobody knows which one is for answers. Then each
        # weighted reward must differ within some group.
        names = [name for name, weight in self.scores.weights.items() if weight != 0]
        if answer_reward in self.scores.values:
            names = [answer_reward]
        return all((self._spreads(name) > SCORE_TOLERANCE).any() for name in names)

    def _spreads(self, name: str) -> pandas.Series:
        """Return the standard deviation of a reward in each group, with Bessel's correction."""
        import pandas

        groups = split_into_groups(self.scores.values[name], self.num_generations)
        # 0 if fewer than two scores of a group are known.
        return pandas.DataFrame(groups, dtype=float).std(axis=1).fillna(0.0)

    @property
    def verdict(self) -> Verdict:
        """Verdict on the learning signal from prompts like these.

        `no signal`: no group differs.
        `weak signal`: some groups differ, but the sample does not show that one in four does.
        `format only`: enough groups differ, but no answer is correct, and `has_answer_signal` is
        false.
        `signal`: all other cases.
        """
        if self.result_counts["differs"] == 0:
            return "no signal"
        # The lower end is used, because a small sample may show a large share by luck.
        if self.differing_interval[0] < MIN_DIFFERING_SHARE:
            return "weak signal"
        if self.sampled_accuracy == 0 and not self.has_answer_signal:
            return "format only"
        return "signal"

    @functools.cached_property
    def advice(self) -> tuple[Advice, ...]:
        """Changes to make before training, the most important first."""
        return give_advice(self)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        low, high = self.differing_interval
        differing = self.result_counts["differs"]
        others = [
            f"{count} {result}"
            for result, count in self.result_counts.items()
            if result != "differs"
        ]
        rest = f" Other groups: {', '.join(others)}." if others else ""
        return (
            f"{self.verdict.capitalize()}: in {differing} of {len(self.group_results)} groups of "
            f"{self.num_generations} completions the total rewards differ (95 % interval {low:.0%} "
            f"to {high:.0%} of groups).{rest} {CONSEQUENCES[self.verdict]}"
        )

    def _shown_parts(self) -> Iterable[Part]:
        yield bold(self.sentence)
        yield Table(self._facts(), narrow=(0,))
        yield self._reward_table()
        if self.advice:
            yield bold("What to change")
        elif self.verdict == "signal":
            yield bold("Nothing to change before training.")
        for advice in self.advice:
            yield f"advice: {advice.name}: {advice.reason}"
            yield code(f"    {advice.code}")

    def _facts(self) -> list[tuple[str, str]]:
        count = len(self.scores)
        readable_count = self.readable_share * count
        greedy_accuracy = fmean(self._are_correct(self.greedy_scores))
        readable = f"{readable_count:.0f} of {count} completions ({self.readable_share:.0%})"
        correct = (
            f"{self.sampled_accuracy:.0%} of the sampled completions, {greedy_accuracy:.0%} of "
            "the greedy ones, which held-out comparisons judge; counted as correct: "
            f"{self.grader.correctness_rule}"
        )
        truncated = (
            f"{sum(self.is_truncated)} of {count} completions, at the limit of "
            f"{self.settings.max_completion_length} tokens"
        )
        facts = [("answer can be read", readable), ("correct", correct), ("truncated", truncated)]
        if self.majority is not None:
            answer, share = self.majority
            answering = f"always answering {answer!r} would get {share:.0%} of the task's questions"
            facts.append(("majority-class baseline", answering))
        return facts

    def _reward_table(self) -> Table:
        rows = []
        for name, scores in self.scores.values.items():
            weighted_name = f"{name} x {self.scores.weights[name]:g}"
            mean = mean_with_interval(split_into_groups(scores, self.num_generations))
            spreads = self._spreads(name)
            differing = (spreads > SCORE_TOLERANCE).sum()
            rows.append((weighted_name, mean, f"{spreads.mean():.2g}", differing))
        head = ("reward", "mean, 95 % interval", "std within groups", "groups with a signal")
        return Table(rows, head, narrow=(0, 1))


def _result_of_group(totals: Sequence[float], is_correct: Sequence[bool]) -> GroupResult:
    # TRL leaves a completion without any score out of its group.
    known = [total for total in totals if not math.isnan(total)]
    if known and max(known) - min(known) > SCORE_TOLERANCE:
        return "differs"
    if all(is_correct):
        return "all right"
    return "all equal" if any(is_correct) else "all wrong"


@restoring_random_state()
def baseline(
    model: Any,
    tokenizer: Any,
    task: Task,
    rewards: RewardFunction | Sequence[RewardFunction],
    settings: Settings,
    *,
    prompts: int = 8,
) -> Baseline:
    """Sample and score some groups as training would, and report whether GRPO gets a signal.

    The same seed gives the same result on the same machine. Model and random state do not change,
    and rewards forget these calls if they have `state_dict` and `load_state_dict`.

    Args:
        model: The model that training would start from, with its LoRA or adapter.
        tokenizer: Its tokenizer.
        task: Prompts are sampled from its `train`. Nothing of `holdout` is read.
        rewards: As for `train`.
        settings: Settings of the planned training. The baseline uses their temperature, `top_p`,
            `top_k`, length limit, group size and seed.
        prompts: Number of groups, at most the number of training rows. More groups make the
            intervals narrower.

    Raises:
        ValueError, TypeError: An argument is invalid. Nothing has been sampled then.
        RewardError: A reward failed. The message names the reward and the completion.

    Takes half a minute on a CPU with the embedded model:

    >>> before = gn.baseline(model, tokenizer, task, rewards, settings)
    >>> before.verdict in ("signal", "weak signal", "format only", "no signal")
    True
    """
    import torch

    from grpo_nb.generation.sampling import generate

    require_types(
        "gn.baseline(model, tokenizer, task, rewards, settings)",
        model=model,
        tokenizer=tokenizer,
        task=task,
        settings=settings,
    )
    require_whole_number("prompts", prompts, 1)
    rewards = reward_list(rewards)
    # With other settings than those of the loaded model, training would sample something else.
    require_same_settings(model, tokenizer, settings)
    task.settings_for_template(settings)  # raises if the settings ask for another chat template

    # 1. Choose the prompts and the grader. A reward that cannot be called fails here.
    rows = sample_rows(task.train, prompts, settings.seed)
    score(rewards, [""], task.start_episode(rows[0]), tokenizer=tokenizer)
    grader = make_grader(
        deciding_reward(rewards),
        rows,
        task.format,
        tokenizer=tokenizer,
        start_episode=task.start_episode,
    )

    # 2. Sample the groups, and one greedy completion of each prompt.
    def sample(prompt_rows: Sequence[Row], temperature: float) -> list[GeneratedCompletion]:
        bar = progress_bar(len(prompt_rows), desc="baseline", unit="completion")
        with bar, restoring_modes(model):
            torch.manual_seed(settings.seed)
            return generate(
                model,
                tokenizer,
                prompt_rows,
                temperature=temperature,
                sampling_parameters=settings.sampling_besides_temperature,
                max_completion_length=settings.max_completion_length,
                batch_size=COMPLETIONS_AT_ONCE,
                chat_template_kwargs=task.chat_template_kwargs,
                shared_prompts=settings.shared_prompts,
                tools=task.tools,
                progress=lambda done: bar.update(done - bar.n),  # tqdm takes increments
            )

    # Training repeats each prompt once per completion of its group.
    size = settings.num_generations
    repeated = [row for row in rows for _ in range(size)]
    sampled = sample(repeated, settings.temperature)
    # Held-out comparisons decode without the model's generation_config too.
    with restoring_generation_config(model):
        greedy = sample(rows, temperature=0.0)

    # 3. Score them.
    return Baseline(
        scores=score(rewards, **scoring_arguments(sampled, repeated)),
        num_generations=size,
        rows=tuple(rows),
        is_truncated=tuple(answer.is_truncated for answer in sampled),
        format=task.format,
        settings=settings,
        grader=grader,
        greedy_scores=score(rewards, **scoring_arguments(greedy, rows)),
        majority=task.answers.majority,
    )
