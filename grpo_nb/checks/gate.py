"""The baseline gate: sample some groups before training and say in words whether GRPO will get a signal.

GRPO learns from differences within a group alone, so the share of groups whose totals differ is what counts here. Not covered:
what the signal is worth, which only training shows, and rewards that pay for nonsense, which `check_rewards` looks for.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.checks.advice import Advice, advise
from grpo_nb.checks.groups import GROUP_SAID, Sampled, in_groups
from grpo_nb.checks.probes import PLAIN, completion
from grpo_nb.checks.sample import check_options
from grpo_nb.core.progress import progress_bar
from grpo_nb.core.randomness import kept_modes
from grpo_nb.core.tables import Html, Shown, Table, bold, escaped, html_of
from grpo_nb.core.words import require_number, shorten
from grpo_nb.models.match import require_same_settings
from grpo_nb.rewards.answers import correctness
from grpo_nb.rewards.base import RewardFunction, range_of, reward_list, reward_name
from grpo_nb.rewards.judging import answer_reward, judge_in_words
from grpo_nb.rewards.scores import score
from grpo_nb.settings.presets import preset
from grpo_nb.settings.settings import Settings
from grpo_nb.tasks.task import Task

if TYPE_CHECKING:
    import pandas
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SHOWN_GROUPS = 12
_CODE_STYLE = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;min-width:14em"


@dataclass(frozen=True, kw_only=True, repr=False)
class Baseline(Shown, Sampled):
    """Groups sampled from a model before training, their scores, and what they show. Made by `baseline`."""

    @property
    def sentence(self) -> str:
        """The verdict in words; it speaks of what was sampled and of what the interval allows, no more."""
        counts, count = self.counts, len(self.groups)
        low, high = self.useful_interval
        rest = ", ".join(f"{n} {GROUP_SAID[kind]}" for kind, n in counts.items() if n and kind != "differs")
        number = f"{counts['differs']} of {count}" if counts["differs"] else f"none of {count}"
        text = (
            f"{self.verdict}: in {number} groups of {self.num_generations} the totals differ "
            f"(95 % interval {low:.0%} to {high:.0%} of groups){f'; {rest}' if rest else ''}. "
        )
        if self.verdict == "no signal":
            return text + "On these prompts GRPO would have nothing to learn from."
        if self.verdict == "form only":
            learnt = " and ".join(r.name for r in self.rewards if r.weight and r.groups_that_differ)
            return text + (
                f"None of them differs in {' or '.join(self.unearned)}, and none of the sampled answers is right: GRPO would "
                f"learn what earns {learnt}, and nothing of the answers until one is right by chance."
            )
        silent = [r.name for r in self.rewards if r.weight and not r.groups_that_differ]
        if silent:
            text += f"No group differs in {' or '.join(silent)}: the differences come from the other rewards. "
        elif len(self.rewards) > 1:
            text += "By reward: " + ", ".join(f"{r.name} in {r.groups_that_differ}" for r in self.rewards) + ". "
        return text + (
            "There is something to learn from; what comes of it, training shows."
            if self.verdict == "signal"
            else "Some groups teach something, but the sample does not show that one in four does."
        )

    @functools.cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What to change, with the numbers behind it and the line to write; the most important first."""
        return advise(self)

    @property
    def table(self) -> pandas.DataFrame:
        """One row per completion: group, question, answer, completion, each reward, total, advantage, tokens, cut."""
        import pandas

        groups = pandas.DataFrame(
            {"group": range(len(self.groups)), "question": self.questions, "answer": self.answers}
        )
        before = groups.loc[groups.index.repeat(self.num_generations)].reset_index(drop=True)
        advantages = self.scores.advantages(self.num_generations)
        after = pandas.DataFrame({"advantage": advantages, "tokens": self.tokens, "is_cut": self.is_cut})
        return pandas.concat([before, self.scores.table, after], axis=1)

    def _parts(self) -> Iterable[Any]:
        yield bold(self.sentence)
        yield Table(list(self._facts.items()), narrow=(0,))
        yield bold("Each reward")
        rows = [
            {
                "reward": f"{r.name} x {r.weight:g}",
                "mean, 95 % interval": r.estimate,
                "lowest to highest": f"{_said(r.lowest)} to {_said(r.highest)}",
                "spread in a group": _said(r.spread),
                "groups that differ": f"{r.groups_that_differ} of {len(self.groups)}",
                "a right answer gets": _said(r.right),
                "an empty one gets": _said(r.empty),
            }
            for r in self.rewards
        ]
        yield Table([tuple(row.values()) for row in rows], tuple(rows[0]), narrow=range(len(rows[0])))
        if self.advice:
            advised = [
                (bold(a.kind), a.what, Html(a.line, f"<div style='{_CODE_STYLE}'>{escaped(a.line)}</div>"))
                for a in self.advice
            ]
            table = Table(advised, ("", "what the sample shows", "line to change"))
            yield bold("What to change")
            yield Html("\n".join(map(repr, self.advice)), table.html())
        else:
            yield "Nothing to change before training."
        yield Html("", html_of([bold("Group by group"), self._group_table]))
        if (left := len(self.groups) - _SHOWN_GROUPS) > 0:
            yield Html("", f"{left} more groups in <code>.table</code>.")

    @property
    def _facts(self) -> dict[str, str]:
        count, settings = len(self.scores), self.settings
        drawn = f"{len(self.groups)} prompts x {self.num_generations} completions"
        return {
            "sampled": f"{drawn}, temperature {settings.temperature:g}, seed {self.seed}",
            "groups": "; ".join(f"{n} {GROUP_SAID[kind]}" for kind, n in self.counts.items() if n),
            "total, 95 % interval": f"{self.total}{'' if self.total.interval else ', no interval from groups all alike'}",
            "answer can be read": f"{round(self.slot_share * count)} of {count} completions ({self.slot_share:.0%})",
            **self._right_facts,
            "cut at the limit": f"{sum(self.is_cut)} of {count} completions ({self.cut_share:.0%}), "
            f"limit {settings.max_completion_length} tokens",
            "length in tokens": ", ".join(f"{name} {value:.0f}" for name, value in self.lengths.items()),
        }

    @property
    def _right_facts(self) -> dict[str, str]:
        """How often it is right already, sampled and at its likeliest, and what stands for nothing at all."""
        sampled, greedy = self.right_shares
        said = f"{sampled:.0%} of the sampled completions"
        if not math.isnan(greedy):
            said += f", {greedy:.0%} of the likeliest ones, which held-out comparisons look at"
        if self.judge is not None:
            said += f"; right is {judge_in_words(self.judge, self.rows)}"
        floor = (
            {"floor": f"always answering {self.floor[0]!r} would get {self.floor[1]:.0%} of the task's"}
            if self.floor
            else {}
        )
        return {"right": said, **floor}

    @property
    def _group_table(self) -> Table:
        """The groups with their best and worst completion."""
        has_worst, rows = self.counts["differs"] > 0, []
        texts = in_groups(self.scores.completions, self.num_generations)
        for group, completions in list(zip(self.groups, texts, strict=True))[:_SHOWN_GROUPS]:
            ranked = sorted(zip(group.totals, completions, strict=True), key=_rank)
            shown = [_completion(*ranked[-1])]
            if has_worst:
                shown.append(_completion(*ranked[0]) if group.kind == "differs" else "all the same")
            question, gold = shorten(group.question, 200), shorten(group.answer, 80)
            asked = Html(f"{question} ({gold})", f"{escaped(question)}<br>gold: <b>{escaped(gold)}</b>")
            rows.append((asked, "differ" if group.kind == "differs" else GROUP_SAID[group.kind], *shown))
        head = ("best completion", "worst completion") if has_worst else ("a completion",)
        return Table(rows, ("prompt", "totals", *head))


def _rank(pair: tuple[float, str]) -> float:
    return -math.inf if math.isnan(pair[0]) else pair[0]


def _said(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.2f}"


def _completion(total: float, text: str) -> Html:
    said = shorten(text, 300) or "(empty)"
    return Html(said, f"<div style='{_CODE_STYLE}'>{escaped(said)}</div><b>total {_said(total)}</b>")


def baseline(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    rewards: RewardFunction | Sequence[RewardFunction],
    settings: Settings | None = None,
    *,
    prompts: int = 8,
    num_generations: int | None = None,
    seed: int | None = None,
) -> Baseline:
    """Sample some training prompts, a group each, as training would, score them, and say whether GRPO gets a signal.

    The same seed gives the same result on the same machine. Model and random state are left as they were. The rewards are tried
    on a right answer and on an empty completion first, so that one that cannot be called fails before anything is sampled.

    Args:
        model: As training would start from: with its untrained LoRA, or with an adapter to go on from.
        tokenizer: Its tokenizer.
        task: Prompts are drawn at random from its `train`; nothing of `holdout` is looked at.
        rewards: As `train` takes them.
        settings: Those of the training to come; `preset("auto")` if not given. Temperature, `top_p`, `top_k`, length limit
            and group size are taken from it.
        prompts: How many groups; fewer if there are not as many. More make the intervals narrower.
        num_generations: Completions in a group, if not those of `settings`.
        seed: Of the choice of prompts and of the sampling; that of `settings` if not given.

    Raises:
        ValueError, TypeError: Fewer than 1 prompt or 2 completions, rewards that TRL would mix up, or an argument that
            cannot be; nothing has been sampled then.
        RewardError: A reward failed; the message names it and the completion.

    Half a minute on a CPU with the embedded model:

    >>> gate = gn.baseline(model, tokenizer, task, rewards, settings)
    >>> gate.verdict in ("signal", "weak signal", "form only", "no signal")
    True
    """
    check_options(settings, num_generations)
    require_number("prompts", prompts, 1)
    if isinstance(rewards, Settings):
        raise TypeError("the rewards are missing: gn.baseline(model, tokenizer, task, rewards, settings).")
    rewards = reward_list(rewards)
    settings = settings or preset("auto")
    require_same_settings(model, tokenizer, settings)
    task.rendered_by(settings)
    size = settings.num_generations if num_generations is None else num_generations
    seed = settings.seed if seed is None else seed
    require_number("seed", seed, 0, 2**32 - 1)
    chosen = sorted(random.Random(seed).sample(range(len(task.train)), min(prompts, len(task.train))))
    rows = [task.train[i] for i in chosen]
    golds = [completion(task.format, PLAIN, row["answer"]) for row in rows]
    right = score(rewards, golds, rows, tokenizer=tokenizer)
    empty = score(rewards, [""] * len(rows), rows, tokenizer=tokenizer)
    repeated = [row for row in rows for _ in range(size)]
    how = {"chat_template_kwargs": task.chat_template_kwargs}
    sampled = _sample(model, tokenizer, [row["prompt"] for row in repeated], settings, size, seed, **how)
    greedy = _sample(model, tokenizer, [row["prompt"] for row in rows], settings, 1, seed, temperature=0.0, **how)
    scores = score(rewards, [c.text for c in sampled], repeated, completion_ids=[list(c.ids) for c in sampled])
    return Baseline(
        scores=scores,
        num_generations=size,
        questions=tuple(str(row["question"]) for row in rows),
        answers=tuple(str(row["answer"]) for row in rows),
        tokens=tuple(c.tokens for c in sampled),
        is_cut=tuple(c.is_cut for c in sampled),
        right=right,
        empty=empty,
        format=task.format,
        settings=settings,
        task_name=task.name,
        has_example=any(
            turn["role"] == "assistant" and task.format.answer_open.strip() in turn["content"]
            for turn in rows[0]["prompt"]
        ),
        ranges={reward_name(r): ends for r in rewards if (ends := range_of(r))},
        seed=seed,
        greedy=tuple(c.text for c in greedy),
        available=len(task.train),
        rows=tuple(rows),
        judge=answer_reward(rewards) or correctness(format=task.format),
        floor=task.answers.floor,
    )


def _sample(
    model: Any, tokenizer: Any, prompts: list[Any], settings: Settings, size: int, seed: int, **changes: Any
) -> list[Any]:
    import torch

    from grpo_nb.generation.sampling import generate

    bar = progress_bar(len(prompts), desc="baseline", unit="completion")
    with bar, torch.random.fork_rng(), kept_modes(model):
        torch.manual_seed(seed)
        return generate(
            model,
            tokenizer,
            prompts,
            max_completion_length=settings.max_completion_length,
            **{"temperature": settings.temperature, "sampling": settings.sampling, **changes},
            # Whole groups, so that the prompt of each is computed once.
            batch_size=size * max(1, 64 // size),
            progress=lambda done: bar.update(done - bar.n),
        )
