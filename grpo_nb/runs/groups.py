"""The groups of a step: what was sampled, scored and learnt from; the same under other weights; and how they show themselves.

Everything that a model, a user or a data set wrote is escaped. Nothing here needs torch.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.checks.groups import in_groups
from grpo_nb.core.pages import render, style
from grpo_nb.core.text import as_score, shorten
from grpo_nb.lab.numbers import prompt_text
from grpo_nb.lab.views import push
from grpo_nb.rewards.scores import ScaleRewards, Scores, group_advantages, reweight
from grpo_nb.runs.rows import mean

if TYPE_CHECKING:
    import pandas

_LONGEST = 20_000
_OWN_COLUMNS = ("step", "group", "prompt", "completion", "total", "advantage")
_SCALES: tuple[ScaleRewards, ...] = ("group", "batch", "none")
# Advantages are logged from float32; a group whose totals differ by rounding alone divides that by 0.0001.
_TOLERANCE = 0.01


@dataclass(frozen=True, kw_only=True)
class GroupScores:
    """One group of a step: its prompt, and its completions with scores, totals and advantages. Shows itself as a table."""

    number: int
    prompt: str
    """All turns, one after another."""
    question: str
    """The last turn of the user."""
    scores: Scores
    advantages: tuple[float, ...]
    """As the trainer had them; of a re-scored group as it would have had them."""
    was: GroupScores | None = None
    """Of a re-scored group: the group as logged."""

    @property
    def order(self) -> list[int]:
        """The numbers of the completions, from the highest advantage to the lowest."""
        return sorted(range(len(self.advantages)), key=lambda i: (math.isnan(self.advantages[i]), -self.advantages[i]))

    @property
    def has_spread(self) -> bool:
        """Whether its totals differ: otherwise GRPO learns nothing from it."""
        known = [total for total in self.scores.totals if not math.isnan(total)]
        return len(known) > 1 and max(known) - min(known) > 1e-9

    @property
    def mean_total(self) -> float:
        """The mean of the totals."""
        return mean(self.scores.totals)

    @property
    def table(self) -> pandas.DataFrame:
        """One row per completion in the order of the advantages: text, each reward's score, total, advantage."""
        table = self.scores.table
        table["advantage"] = list(self.advantages)
        return table.iloc[self.order].rename_axis("completion number")

    def __repr__(self) -> str:
        lines = [f"Group {self.number}: {' '.join(self.question.split())[:100]}"]
        for i in self.order:
            text = " ".join(self.scores.completions[i].split())
            lines.append(f"{self.advantages[i]:+8.3f}  total {self.scores.totals[i]:7.4g}  {text[:80]!r}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return standalone("rescored" if self.was else "group", group=self)


@dataclass(frozen=True, kw_only=True)
class StepGroups:
    """The groups of one step of a run, as logged or under other weights. Shows itself as tables."""

    run: str
    step: int
    groups: tuple[GroupScores, ...]
    weights: Mapping[str, float]
    scale_rewards: ScaleRewards
    """How the run divides advantages: found in its numbers, its settings being tried first."""
    is_reproduced: bool
    """Whether the logged advantages follow from the logged scores by TRL's formula."""
    is_rescored: bool = False

    @property
    def without_spread(self) -> int:
        """How many of the groups GRPO learns nothing from."""
        return sum(not group.has_spread for group in self.groups)

    def reweighted(self, weights: Mapping[str, float]) -> StepGroups:
        """Return the same completions and scores under other weights: re-scored, not re-trained.

        Totals, advantages and order are what this step would have had. Under other weights from the start, the model would
        have become another one and would have written other completions.

        Args:
            weights: By reward name; those not named stay.

        Raises:
            ValueError: A name that is no reward of the run, or a weight that is not finite.
        """
        logged = [group.was or group for group in self.groups]
        changed = [reweight(group.scores, weights) for group in logged]
        totals = [total for scores in changed for total in scores.totals]
        size = len(changed[0])
        advantages = group_advantages(totals, size, scale_rewards=self.scale_rewards)
        groups = tuple(
            dataclasses.replace(group, scores=scores, advantages=own, was=group)
            for group, scores, own in zip(logged, changed, in_groups(tuple(advantages), size), strict=True)
        )
        return dataclasses.replace(self, groups=groups, weights=dict(changed[0].weights), is_rescored=True)

    @property
    def table(self) -> pandas.DataFrame:
        """All groups in one table, with the number of the group."""
        import pandas

        return pandas.concat([group.table.assign(group=group.number) for group in self.groups])

    def __repr__(self) -> str:
        head = f"Step {self.step} of {self.run}" + (", re-scored, not re-trained" if self.is_rescored else "")
        return "\n".join([f"{head}: {len(self.groups)} groups", *map(repr, self.groups)])

    def _repr_html_(self) -> str:
        return standalone("step", step=self)


@dataclass(frozen=True, kw_only=True)
class Change:
    """A group of a step beside an earlier one: the same prompt where it was sampled before, otherwise the run's first group."""

    step: int
    now: GroupScores
    early_step: int
    early: GroupScores
    is_same_prompt: bool
    searched: int
    """Steps that were searched for the prompt, from the first on."""

    @property
    def means(self) -> dict[str, tuple[float, float]]:
        """Mean score then and now by reward, unweighted, and of the total."""
        names = [*self.now.scores.values]
        pairs = {name: (mean(self.early.scores.values[name]), mean(self.now.scores.values[name])) for name in names}
        return pairs | {"total": (self.early.mean_total, self.now.mean_total)}

    def __repr__(self) -> str:
        which = "the same prompt" if self.is_same_prompt else "another prompt"
        lines = [f"Step {self.early_step} ({which}) and step {self.step}:"]
        return "\n".join([*lines, *(f"  {name}: {a:.4g} -> {b:.4g}" for name, (a, b) in self.means.items())])

    def _repr_html_(self) -> str:
        return standalone("change", change=self)


def groups_of(
    run: str, step: int, table: pandas.DataFrame, weights: Mapping[str, float], settings: Mapping[str, Any]
) -> StepGroups:
    """Return the groups of a step of a run by name, from the step's completions, and from its weights and settings."""
    weights = {name: float(weight) for name, weight in weights.items() if name in table}
    # A reward that run.json does not know, of a run that somebody else wrote, is shown and weighs nothing.
    weights |= {name: 0.0 for name in table.columns if name not in weights and name not in _OWN_COLUMNS}
    groups = []
    for at, part in table.groupby("group", sort=True):
        asked = _messages(part["prompt"].iloc[0])
        scores = Scores(
            completions=tuple(part["completion"]),
            values={name: tuple(float(value) for value in part[name]) for name in weights},
            weights=weights,
        )
        groups.append(
            GroupScores(
                number=int(at), prompt=prompt_text({"prompt": asked}), question=_question(asked), scores=scores,
                advantages=tuple(float(value) for value in part["advantage"]),
            )
        )  # fmt: skip
    scale, is_reproduced = _find_scale(groups, settings)
    return StepGroups(
        run=run, step=step, groups=tuple(groups), weights=weights, scale_rewards=scale, is_reproduced=is_reproduced
    )


def _find_scale(groups: Sequence[GroupScores], settings: Mapping[str, Any]) -> tuple[ScaleRewards, bool]:
    """What the trainer divided advantages by. Unsloth changes `scale_rewards` behind some losses, so the numbers decide."""
    usual = "none" if settings.get("loss_type") == "dr_grpo" else "group"
    asked = settings.get("extra", {}).get("scale_rewards", usual)
    asked = {True: "group", False: "none"}.get(asked, asked)
    totals = [total for group in groups for total in group.scores.totals]
    logged = [advantage for group in groups for advantage in group.advantages]
    size = len(groups[0].advantages)
    if any(len(group.advantages) != size for group in groups):
        return asked, False
    for scale in (asked, *(scale for scale in _SCALES if scale != asked)):
        made = group_advantages(totals, size, scale_rewards=scale)
        if all(abs(a - b) <= _TOLERANCE * (1 + abs(b)) for a, b in zip(made, logged, strict=True)):
            return scale, True
    return asked, False


def view(name: str, **values: Any) -> str:
    """Return a view of a run or of its parts as HTML, from `templates`."""
    return render(f"runs/templates/{name}.jinja", number=as_score, push=push, shown=_shown, **values)


def standalone(name: str, **values: Any) -> str:
    """Return a view with the style it needs, so that it can stand by itself."""
    return f'{style("runs/viewer.css")}<div class="gn-lab">{view(name, **values)}</div>'


def _shown(text: str, limit: int = _LONGEST) -> str:
    return shorten(text, limit)


def _messages(raw: str) -> list[dict[str, Any]] | str:
    if not raw.startswith("[{"):
        return raw
    try:
        return json.loads(raw)
    except json.JSONDecodeError:  # a plain prompt that begins like a list
        return raw


def _question(messages: list[dict[str, Any]] | str) -> str:
    if isinstance(messages, str):
        return messages
    asked = [turn for turn in messages if turn.get("role") == "user"] or messages
    return str(asked[-1].get("content", ""))
