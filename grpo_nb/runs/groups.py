"""The groups of a step: what was sampled, scored and learnt from; and how they show themselves.

Everything that a model, a user or a data set wrote is escaped. Nothing here needs torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.core.pages import render, style
from grpo_nb.core.words import as_score, shorten
from grpo_nb.lab.numbers import prompt_text
from grpo_nb.lab.views import push
from grpo_nb.rewards.scores import Scores
from grpo_nb.runs.rows import mean

if TYPE_CHECKING:
    import pandas

_LONGEST = 20_000
_OWN_COLUMNS = ("step", "group", "prompt", "completion", "total", "advantage")


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
    """As the trainer had them."""

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
        return standalone("group", group=self)


@dataclass(frozen=True, kw_only=True)
class StepGroups:
    """The groups of one step of a run, as logged. Shows itself as tables."""

    run: str
    step: int
    groups: tuple[GroupScores, ...]
    weights: Mapping[str, float]

    @property
    def without_spread(self) -> int:
        """How many of the groups GRPO learns nothing from."""
        return sum(not group.has_spread for group in self.groups)

    @property
    def table(self) -> pandas.DataFrame:
        """All groups in one table, with the number of the group."""
        import pandas

        return pandas.concat([group.table.assign(group=group.number) for group in self.groups])

    def __repr__(self) -> str:
        return "\n".join([f"Step {self.step} of {self.run}: {len(self.groups)} groups", *map(repr, self.groups)])

    def _repr_html_(self) -> str:
        return standalone("step", step=self)


def groups_of(run: str, step: int, table: pandas.DataFrame, weights: Mapping[str, float]) -> StepGroups:
    """Return the groups of a step of a run by name, from the step's completions and the run's weights."""
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
    return StepGroups(run=run, step=step, groups=tuple(groups), weights=weights)


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
