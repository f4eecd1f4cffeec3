"""The baseline: sample some groups before training and say in words whether GRPO will get a signal.

GRPO learns from differences within a group alone, so the share of groups whose totals differ is what counts here. Not covered:
what the signal is worth, which only training shows, and rewards that pay for nonsense, which `check_rewards` looks for.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from grpo_nb.checks.groups import LEVEL, NO_SPREAD, estimate, in_groups
from grpo_nb.checks.layouts import PLAIN, completion
from grpo_nb.config.presets import preset
from grpo_nb.config.settings import Settings, refuse_keywords
from grpo_nb.core.argument_types import require
from grpo_nb.core.progress import progress_bar
from grpo_nb.core.tables import Html, Shown, Table, bold, code
from grpo_nb.core.words import as_score, require_number, shorten
from grpo_nb.generation.samples import as_scored
from grpo_nb.models.match import require_same_settings
from grpo_nb.models.modes import kept_modes
from grpo_nb.rewards.answers import correctness
from grpo_nb.rewards.base import RewardFunction, reward_list
from grpo_nb.scoring.right_by import (
    FunctionJudge,
    Judge,
    choose_judge,
    judge_in_words,
    judge_scores,
    right_by,
)
from grpo_nb.scoring.scores import Scores, score
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.task import Task

if TYPE_CHECKING:
    import pandas

Verdict = Literal["signal", "weak signal", "form only", "no signal"]
GroupKind = Literal["differs", "all right", "all wrong", "all equal"]
ENOUGH = 0.25
"""Share of groups that must differ, at the interval's lower end, for "signal": at most four sampled for one that teaches."""
_MANY_CUT, _MOSTLY_CUT, _FEW_SLOTS, _FEWEST_READ = 0.1, 0.5, 0.05, 8
_SHOWN_GROUPS = 12
_ROWS_OF_A_LABEL = 3
"""Rows of one answer, on average, from which on it is a label."""


class Advice(NamedTuple):
    """One thing to change."""

    kind: str
    """A short name such as `example turn`; for code, which should not read prose."""
    what: str
    """What was seen, with its numbers, and why it matters."""
    line: str
    """The line of code to write."""

    def __repr__(self) -> str:
        return f"advice: {self.kind}: {self.what}\n    {self.line}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Baseline(Shown):
    """Groups sampled from a model before training, their scores, and what they show. Made by `baseline`."""

    scores: Scores
    """Of all completions, the completions of a group next to each other."""
    num_generations: int
    rows: tuple[Mapping[str, Any], ...]
    """The data row of each group."""
    tokens: tuple[int, ...]
    is_cut: tuple[bool, ...]
    """Length of each completion, and whether it ended at the limit without an end token."""
    right: Scores
    empty: Scores
    """For each group, what a right answer in the format gets, and an empty completion."""
    format: AnswerFormat
    settings: Settings
    greedy: tuple[str, ...] = ()
    """The likeliest completion of each prompt, which is what held-out comparisons look at."""
    judge: Judge
    """The reward whose opinion says what is right."""
    greedy_scores: tuple[float, ...] = ()
    """Scores of `greedy` by the judge, where that is a function; NaN for None."""
    floor: tuple[str, float] | None = None
    """Of labels: the most frequent one of the task, and its share."""
    has_labels: bool = False
    """True if the answers of the task are words that come again and again."""

    # What was measured.

    @functools.cached_property
    def groups(self) -> tuple[GroupKind, ...]:
        """Of each group, whether its totals differ, or that of which completion they all have."""
        totals = in_groups(self.scores.totals, self.num_generations)
        return tuple(map(_kind_of, totals, self.right.totals, self.empty.totals))

    @functools.cached_property
    def counts(self) -> dict[GroupKind, int]:
        """How many groups there are of each kind; they add up to the number of groups."""
        return {kind: self.groups.count(kind) for kind in get_args(GroupKind)}

    @functools.cached_property
    def useful_interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the share of groups that differ."""
        from scipy.stats import binomtest

        interval = binomtest(self.counts["differs"], len(self.groups)).proportion_ci(
            LEVEL, method="wilson"
        )
        return float(interval.low), float(interval.high)

    @functools.cached_property
    def by_reward(self) -> pandas.DataFrame:
        """By reward: weight, mean with its 95 % interval over groups, lowest and highest score, spread within groups.

        `groups` is how many groups differ in it; `right` and `empty` are what a right answer in the format and an empty
        completion get. NaN stands for None.
        """
        import pandas

        scores = pandas.DataFrame(self.scores.values, dtype=float)
        # With Bessel's correction, as TRL takes it; 0 where fewer than two scores of a group are known.
        deviations = scores.groupby(scores.index // self.num_generations).std().fillna(0.0)
        means = {
            name: estimate(in_groups(values, self.num_generations))
            for name, values in self.scores.values.items()
        }
        columns = {
            "weight": pandas.Series(self.scores.weights, dtype=float),
            "mean": pandas.Series(means),
            "lowest": scores.min(),
            "highest": scores.max(),
            "spread": deviations.mean(),
            "groups": (deviations > NO_SPREAD).sum(),
            "right": pandas.DataFrame(self.right.values, dtype=float).mean(),
            "empty": pandas.DataFrame(self.empty.values, dtype=float).mean(),
        }
        return pandas.DataFrame(columns).loc[list(means)]

    @functools.cached_property
    def right_shares(self) -> tuple[float, float]:
        """Share of right answers among the sampled completions, and among the likeliest one of each prompt (NaN: not asked)."""
        sampled_scores, greedy_scores = None, None
        if isinstance(self.judge, FunctionJudge):
            sampled_scores, greedy_scores = self.scores.values[self.judge.name], self.greedy_scores
        shares = []
        for texts, scores in (
            (self.scores.completions, sampled_scores),
            (self.greedy, greedy_scores),
        ):
            repeated = [row for row in self.rows for _ in range(len(texts) // len(self.rows))]
            right = right_by(self.judge, texts, repeated, self.format, scores=scores)
            shares.append(sum(right) / len(right) if right else math.nan)
        return shares[0], shares[1]

    @functools.cached_property
    def slot_share(self) -> float:
        """Share of completions with one answer slot that can be read: without it no reward for answers pays."""
        return sum(self.format.extract(text) is not None for text in self.scores.completions) / len(
            self.scores
        )

    @property
    def has_example(self) -> bool:
        """Whether the prompts hold an assistant turn that shows the format."""
        shown = [turn["content"] for turn in self.rows[0]["prompt"] if turn["role"] == "assistant"]
        return any(self.format.answer_open.strip() in text for text in shown)

    @property
    def _flat(self) -> pandas.DataFrame:
        """Of `by_reward` those with a weight that gave one score to the whole sample, or none."""
        table = self.by_reward
        return table[(table["weight"] != 0) & ~(table["highest"] - table["lowest"] > NO_SPREAD)]

    @property
    def _unearned(self) -> list[str]:
        """Those of them that give more to a right answer."""
        return list(self._flat.query(f"right > highest + {NO_SPREAD}").index)

    # What it says.

    @property
    def verdict(self) -> Verdict:
        """`no signal`: no group differs. `signal`: at least one group in four does at the interval's lower end. Else weak.

        `form only`: it would be a signal, but no answer is right and the rewards for answers gave the same to all.
        """
        if self.counts["differs"] == 0:
            return "no signal"
        if self.useful_interval[0] < ENOUGH:
            return "weak signal"
        return "form only" if self._unearned and self.right_shares[0] == 0 else "signal"

    @property
    def sentence(self) -> str:
        """The verdict in words; it speaks of what was sampled and of what the interval allows, no more."""
        counts, (low, high) = self.counts, self.useful_interval
        rest = "".join(f"; {n} {kind}" for kind, n in counts.items() if n and kind != "differs")
        text = (
            f"{self.verdict}: in {counts['differs'] or 'none'} of {len(self.groups)} groups of {self.num_generations} the "
            f"totals differ (95 % interval {low:.0%} to {high:.0%} of groups){rest}. "
        )
        if self.verdict == "no signal":
            return text + "On these prompts GRPO would have nothing to learn from."
        if self.verdict == "form only":
            return text + (
                f"None of them differs in {' or '.join(self._unearned)}, and none of the sampled answers is right: GRPO would "
                "learn what the other rewards pay, and nothing of the answers until one is right by chance."
            )
        if self.verdict == "signal":
            return text + "There is something to learn from; what comes of it, training shows."
        return (
            text
            + "Some groups teach something, but the sample does not show that one in four does."
        )

    @functools.cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What to change, with the numbers behind it and the line to write; the most important first.

        Thresholds are round numbers, not tests: a piece of advice says what was seen and leaves the choice to the reader.
        """
        count, size, n, settings = (
            len(self.groups),
            self.num_generations,
            len(self.scores),
            self.settings,
        )
        wrong, right, differ = (self.counts[kind] for kind in ("all wrong", "all right", "differs"))
        read, begun = round(self.slot_share * n), self._tagged(self.scores.completions)
        limit, warmth = settings.max_completion_length, settings.temperature
        has_slots, is_form = self.slot_share >= _FEW_SLOTS, self.verdict == "form only"
        # A slot can be read in a text that is not in the format, which no format reward scores.
        is_exact = any(map(self.format.is_exact, self.scores.completions))
        lacks_format = not has_slots or (not is_exact and bool(self._unearned))
        inexact = ", and none is exactly in the format" if has_slots else ""
        # Of answers that were cut or cannot be read nobody knows how hard they were.
        cut = [
            text
            for text, is_cut in zip(self.scores.completions, self.is_cut, strict=True)
            if is_cut
        ]
        is_read = read >= max(ENOUGH * n, _FEWEST_READ) and len(cut) < _MOSTLY_CUT * n
        # Half and half is no reason to change either way: the questions are as different as they should be.
        is_hard, is_easy = (
            2 * wrong >= count and wrong > right,
            2 * right >= count and right > wrong,
        )
        # A text that ends nowhere near the format is not short of room, and twice the room would only cost twice the time.
        is_begun = has_slots or self._tagged(cut) > 0
        # A model that writes on and on where one word is asked for is not short of room.
        is_short = len(cut) >= _MANY_CUT * n and is_begun and not self._asks_for_labels
        distinct = (
            sum(len(set(group)) for group in in_groups(self.scores.completions, size)) / count
        )
        is_rare, is_alike = 4 * differ < 3 * count, 2 * distinct <= size
        batch = -(-settings.batch_size // (2 * size)) * 2 * size
        more = f", per_device_train_batch_size={batch}, gradient_accumulation_steps=1" * (
            batch != settings.batch_size
        )
        change, load = (
            "settings = settings.replace({})",
            "task = gn.load_task(..., {})  # the rest as before",
        )
        tried = [
            (lacks_format and not self.has_example, "example turn",
             f"an answer can be read in {read or 'none'} of {n} completions, and any mark of the "
             f"format {self.format.name!r} stands in {begun or 'none'} of {n}{inexact}. "
             "The prompts show no example; a small model needs to see one.",
             load.format('example=("a question", "short reasoning", "its answer")')),
            (lacks_format and self.has_example, "priming",
             f"an answer can be read in {read or 'none'} of {n} completions{inexact}, although "
             "the prompts show an example. A few supervised steps on right answers teach the format, "
             "and GRPO starts from there.",
             "SFTTrainer(model, sft_config, turns, ...).train()  # docs/guide/train.md has the recipe"),
            (is_read and (is_form or is_hard), "easier data",
             "the questions are too hard to begin with: no sampled answer is right" if is_form else
             f"the questions are too hard to begin with: in {wrong} of {count} groups none earned more than an empty one",
             load.format("filter=lambda row: ...")),
            (is_easy, "harder data", f"in {right} of {count} groups every completion is right: nothing is left to learn",
             load.format("filter=lambda row: ...")),
            (is_short, "longer completions",
             f"{len(cut)} of {n} completions were cut at {limit} tokens, {self._tagged(cut)} of them with the format begun: "
             "what they would have answered is not seen. The model has to be loaded again for a longer limit.",
             change.format(f"max_completion_length={2 * limit}")),
            (is_rare and (is_alike or differ > 0), "larger group or warmer",
             f"{differ} of {count} groups differ, and one of {size} holds {distinct:.1f} different completions at temperature "
             f"{warmth:g}: {'equal ones score the same' if is_alike else 'a larger one is likelier to hold two scores'}.",
             change.format(f"temperature={1.0 if warmth < 1 else round(warmth + 0.2, 2)}" if is_alike
                           else f"num_generations={2 * size}{more}")),
        ]  # fmt: skip
        # Where no answer can be read, the form is why rewards are not earned, and its advice says what to do.
        for name, reward in self._flat.iterrows():
            gave, paid = as_score(reward["highest"]), as_score(reward["right"])
            what = f"{name} gave {gave} to all {n} completions, a right answer gets {paid}: no advantage comes from it."
            tried.append((has_slots, "flat reward", what, "gn.check_rewards(rewards, task)"))
        return tuple(Advice(kind, what, line) for is_needed, kind, what, line in tried if is_needed)

    @property
    def _asks_for_labels(self) -> bool:
        """True if every answer is a label of one word."""
        has_labels = self.floor is not None or self.has_labels
        return has_labels and all(len(str(row["answer"]).split()) == 1 for row in self.rows)

    def _tagged(self, texts: Iterable[str]) -> int:
        """How many of these hold any mark of the format."""
        return sum(any(tag in text for tag in self.format.tags) for text in texts)

    # How it is shown.

    @property
    def table(self) -> pandas.DataFrame:
        """One row per completion: group, question, answer, completion, each reward, total, advantage, tokens, cut."""
        import pandas

        size = self.num_generations
        asked = [
            (i, row["question"], row["answer"])
            for i, row in enumerate(self.rows)
            for _ in range(size)
        ]
        after = {
            "advantage": self.scores.advantages(size),
            "tokens": self.tokens,
            "is_cut": self.is_cut,
        }
        before = pandas.DataFrame(asked, columns=["group", "question", "answer"])
        return pandas.concat([before, self.scores.table, pandas.DataFrame(after)], axis=1)

    def _parts(self) -> Iterable[Any]:
        yield bold(self.sentence)
        size, warmth, limit = (
            self.num_generations,
            self.settings.temperature,
            self.settings.max_completion_length,
        )
        count = len(self.scores)
        sampled, greedy = self.right_shares
        right = f"{sampled:.0%} of the sampled completions"
        if not math.isnan(greedy):
            right += f", {greedy:.0%} of the likeliest ones, which held-out comparisons look at"
        facts = [
            ("sampled", f"{len(self.rows)} prompts x {size} completions at temperature {warmth:g}"),
            ("total, 95 % interval", estimate(in_groups(self.scores.totals, size))),
            (
                "answer can be read",
                f"{self.slot_share * count:.0f} of {count} completions ({self.slot_share:.0%})",
            ),
            ("right", f"{right}; right is {judge_in_words(self.judge, self.rows)}"),
            (
                "cut at the limit",
                f"{sum(self.is_cut)} of {count} completions, limit {limit} tokens",
            ),
        ]
        if self.floor is not None:
            facts.append(
                (
                    "floor",
                    f"always answering {self.floor[0]!r} would get {self.floor[1]:.0%} of the task's",
                )
            )
        yield Table(facts, narrow=(0,))
        names = ("lowest", "highest", "spread", "groups", "right", "empty")
        each = self.by_reward.iterrows()
        lines = [
            (f"{name} x {r['weight']:g}", r["mean"], *(as_score(r[key]) for key in names))
            for name, r in each
        ]
        head = (
            *names[:2],
            "spread in a group",
            "groups that differ",
            "a right answer gets",
            "an empty one gets",
        )
        yield Table(lines, ("reward", "mean, 95 % interval", *head), narrow=range(len(names) + 2))
        yield bold("What to change" if self.advice else "Nothing to change before training.")
        advised = [(bold(advice.kind), advice.what, code(advice.line)) for advice in self.advice]
        yield Html("\n".join(map(repr, self.advice)), Table(advised, wide=(2,)).html())
        best = (
            self.table.sort_values("total", na_position="first")
            .groupby("group")
            .last()[:_SHOWN_GROUPS]
        )
        shown = [
            (
                shorten(f"{row.question} ({row.answer})", 200),
                kind,
                shorten(row.completion, 300),
                as_score(row.total),
            )
            for row, kind in zip(best.itertuples(), self.groups, strict=False)
        ]
        head = (
            f"the first {len(best)} of {len(self.groups)} groups",
            "totals",
            "best completion",
            "its total",
        )
        yield Html("", Table(shown, head).html())


def _kind_of(totals: Sequence[float], right: float, empty: float) -> GroupKind:
    known = [total for total in totals if not math.isnan(total)]
    if len(known) > 1 and max(known) - min(known) > NO_SPREAD:
        return "differs"
    # Rewards that pay a right answer no more than nothing, such as those that run code, cannot say what right is.
    if not known or not right > empty + NO_SPREAD:
        return "all equal"
    if known[0] >= right - NO_SPREAD:
        return "all right"
    return "all wrong" if known[0] <= empty + NO_SPREAD else "all equal"


def baseline(
    model: Any,
    tokenizer: Any,
    task: Task,
    rewards: RewardFunction | Sequence[RewardFunction],
    settings: Settings | None = None,
    *,
    prompts: int = 8,
    **unknown: Any,
) -> Baseline:
    """Sample some training prompts, a group each, as training would, score them, and say whether GRPO gets a signal.

    The same seed gives the same result on the same machine. Model and random state are left as they were. The rewards are tried
    on a right answer and on an empty completion first, so that one that cannot be called fails before anything is sampled.

    Args:
        model: As training would start from: with its untrained LoRA, or with an adapter to go on from.
        tokenizer: Its tokenizer.
        task: Prompts are drawn at random from its `train`; nothing of `holdout` is looked at.
        rewards: As `train` takes them.
        settings: Those of the training to come; `preset("auto")` if not given. Temperature, `top_p`, `top_k`, length limit,
            group size and seed are taken from it.
        prompts: How many groups; fewer if there are not as many. More make the intervals narrower.

    Raises:
        ValueError, TypeError: Fewer than 1 prompt, rewards that TRL would mix up, or an argument that
            cannot be; nothing has been sampled then.
        RewardError: A reward failed; the message names it and the completion.

    Half a minute on a CPU with the embedded model:

    >>> gate = gn.baseline(model, tokenizer, task, rewards, settings)
    >>> gate.verdict in ("signal", "weak signal", "form only", "no signal")
    True
    """
    refuse_keywords(baseline, unknown)
    given = {
        "model": model,
        "tokenizer": tokenizer,
        "task": task,
        "rewards": rewards,
        "settings": settings,
    }
    require(
        "gn.baseline(model, tokenizer, task, rewards, settings)", optional=("settings",), **given
    )
    require_number("prompts", prompts, 1)
    rewards = reward_list(rewards)
    settings = settings or preset("auto")
    require_same_settings(model, tokenizer, settings)
    task.rendered_by(settings)
    size = settings.num_generations
    chosen = sorted(
        random.Random(settings.seed).sample(range(len(task.train)), min(prompts, len(task.train)))
    )
    rows = [task.train[i] for i in chosen]
    golds = [completion(task.format, PLAIN, row["answer"]) for row in rows]
    right = score(rewards, golds, list(map(task.begun, rows)), tokenizer=tokenizer)
    empty = score(rewards, [""] * len(rows), list(map(task.begun, rows)), tokenizer=tokenizer)
    tried_with = {"tokenizer": tokenizer, "begun": task.begun}
    judge = choose_judge(rewards, rows, task.format, **tried_with)
    judge = judge or correctness(format=task.format)
    repeated = [row for row in rows for _ in range(size)]
    how = {"chat_template_kwargs": task.chat_template_kwargs, "tools": task.tools}
    sampled = _sample(model, tokenizer, repeated, settings, size, **how)
    greedy = _sample(model, tokenizer, rows, settings, 1, temperature=0.0, **how)
    scores = score(rewards, **as_scored(sampled, repeated))
    greedy_scores = []
    if isinstance(judge, FunctionJudge):
        texts = [answer.text for answer in greedy]
        asked = as_scored(greedy, rows)
        greedy_scores = judge_scores(judge, texts, rows, task.format, scored=asked)
    return Baseline(
        scores=scores,
        num_generations=size,
        rows=tuple(rows),
        tokens=tuple(c.tokens for c in sampled),
        is_cut=tuple(c.is_cut for c in sampled),
        right=right,
        empty=empty,
        format=task.format,
        settings=settings,
        greedy=tuple(c.text for c in greedy),
        judge=judge,
        greedy_scores=tuple(greedy_scores),
        floor=task.answers.floor,
        has_labels=_has_labels(task),
    )


def _has_labels(task: Task) -> bool:
    """Return True if the task's answers are no numbers, and each comes several times."""
    labels = {str(answer).casefold() for answer in task.train["answer"]}
    return task.answers.kind in ("choice", "text") and len(task.train) >= _ROWS_OF_A_LABEL * len(
        labels
    )


def _sample(
    model: Any, tokenizer: Any, rows: list[Any], settings: Settings, size: int, **changes: Any
) -> list[Any]:
    import torch

    from grpo_nb.generation.sampling import generate

    how = {"temperature": settings.temperature, "sampling": settings.sampling, **changes}
    # Whole groups, so that the prompt of each is computed once.
    how |= {
        "max_completion_length": settings.max_completion_length,
        "batch_size": size * max(1, 64 // size),
    }
    prompts, bar = (
        [row["prompt"] for row in rows],
        progress_bar(len(rows), desc="baseline", unit="completion"),
    )
    with bar, torch.random.fork_rng(), kept_modes(model):
        torch.manual_seed(settings.seed)
        return generate(
            model,
            tokenizer,
            prompts,
            **how,
            rows=rows,
            progress=lambda done: bar.update(done - bar.n),
        )
