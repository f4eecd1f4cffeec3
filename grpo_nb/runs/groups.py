"""The groups of a step, with their completions, scores and advantages, as tables.

Everything that a model, a user or a data set wrote is escaped. Nothing here needs torch.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.core.pages import render, style_tag
from grpo_nb.core.tables import verbatim
from grpo_nb.core.words import displayable, format_score, shorten
from grpo_nb.rewards.base import completion_text
from grpo_nb.scoring.advantages import NO_PUSH_BELOW, effect_in_words
from grpo_nb.tasks.tools import transcript

if TYPE_CHECKING:
    import pandas

#: Columns that each table of completions has, besides those of the rewards.
REQUIRED_COLUMNS = ("step", "group", "prompt", "completion", "total", "advantage")
#: Columns that grpo_nb itself writes, `turns` only with tools. No reward may have such a name,
#: and a text that a reward logs under such a name is left out.
RESERVED_COLUMNS = (*REQUIRED_COLUMNS, "turns")


def completion_texts(table: pandas.DataFrame) -> pandas.Series:
    """Return the text of each completion; with tools, the transcript of its episode."""
    if "turns" not in table:
        return table["completion"]
    episodes = table["turns"].map(json.loads)
    # Arguments of a tool call can hold a lone surrogate, which pandas cannot store.
    return episodes.map(lambda turns: displayable(transcript(turns)))


def completions_table(
    batch: Mapping[str, Any],
    step: int,
    group_size: int,
    weights: Mapping[str, float],
    has_tools: bool = False,
) -> pandas.DataFrame:
    """Return the last generation batch of a trainer as the table that `Run.completions` returns.

    Args:
        batch: TRL's record of the batch (`upstream.trl.last_generation`).
        step: The trainer's step.
        group_size: Completions per prompt. The rows of a group are consecutive, because TRL's
            RepeatSampler repeats each prompt `num_generations` times.
        weights: The weight of each reward by name.
        has_tools: True if each completion is an episode, whose turns are kept too.
    """
    import pandas

    # TRL keeps the scores in deques, one for each reward.
    scores = pandas.DataFrame(batch["rewards"])
    table = pandas.DataFrame(
        {
            "step": step,
            "group": scores.index // group_size,
            "prompt": [json.dumps(messages) for messages in batch["prompt"]],
            "completion": [completion_text(completion) for completion in batch["completion"]],
        }
    )
    if has_tools:
        # Unlike the messages of a prompt, turns can hold values of tools that JSON does not know.
        table["turns"] = [json.dumps(turns, default=str) for turns in batch["completion"]]
    table = table.join(scores)
    # pandas aligns the weights by the names of the rewards. As in TRL, scores that are None or NaN
    # do not count; a completion without any score has the total NaN.
    table["total"] = (scores * pandas.Series(weights)).sum(axis=1, min_count=1)
    table["advantage"] = list(batch["advantages"])
    # Rewards can log a value for each completion (TRL's `log_extra`), such as a judge's reason.
    for name, values in batch.get("extra", {}).items():
        # If a reward logs fewer values than there are completions, nobody knows whose they are.
        if name not in (*table, *RESERVED_COLUMNS) and len(values) == len(table):
            # `ignore` keeps None and NaN, which the template does not show.
            logged = pandas.Series(values, dtype=object)
            # A judge's reply can hold a lone surrogate, which no parquet file can store.
            table[name] = logged.map(lambda value: displayable(str(value)), na_action="ignore")
    return table


@dataclass(frozen=True, eq=False)
class CompletionGroup:
    """A prompt with its completions and their scores. Shows itself as a table."""

    number: int
    """Number of the group in its step."""
    table: pandas.DataFrame
    """One row per completion as in `Run.completions`, from the highest advantage to the lowest."""
    weights: Mapping[str, float]

    @property
    def transcripts(self) -> pandas.Series:
        """Text of each completion, as `completion_texts` returns it."""
        return completion_texts(self.table)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Messages of the prompt."""
        return json.loads(self.table["prompt"].iloc[0])

    @property
    def question(self) -> str:
        """Last message of the prompt, which the completions answer."""
        return self.messages[-1]["content"]

    @property
    def title(self) -> str:
        """Step and number of the group."""
        return f"Step {self.table['step'].iloc[0]}, group {self.number}"

    @property
    def shown_rows(self) -> list[tuple[str, dict[str, Any], str]]:
        """Rows of the view: numbers of the completions, such as `3` or `4 to 6`, row and text.

        Neighbours that are equal in every column share a row of the view.
        """
        rows = zip(self.table.to_dict("records"), self.transcripts, strict=True)
        shown = []
        last = 0
        # Compared as text, because NaN is not equal to itself.
        for _, equal_rows in itertools.groupby(rows, key=str):
            equal_rows = list(equal_rows)
            first = last + 1
            last += len(equal_rows)
            numbers = str(first) if first == last else f"{first} to {last}"
            row, text = equal_rows[0]
            shown.append((numbers, row, text))
        return shown

    @property
    def text_columns(self) -> list[str]:
        """Names of columns with texts of the rewards, such as a judge's reasons."""
        others = [*RESERVED_COLUMNS, *self.weights]
        return list(self.table.columns.difference(others, sort=False))

    @property
    def has_signal(self) -> bool:
        """True if the advantages differ, so that GRPO learns from the group.

        Advantages are compared, not totals: with
        `multi_objective_aggregation="normalize_then_sum"`, equal totals can have different
        advantages, and different totals equal ones.
        """
        advantages = self.table["advantage"]
        return bool(advantages.max() - advantages.min() > NO_PUSH_BELOW)

    def __repr__(self) -> str:
        # As Python literals, so that a terminal executes no control characters.
        texts = self.transcripts.str[:80].map(repr)
        columns = self.table[["advantage", "total"]].assign(completion=texts)
        return f"{self.title}: {self.question[:100]!r}\n{columns.to_string(index=False)}"

    def _repr_html_(self) -> str:
        return _html_of_view("group", group=self, shows_title=True)


@dataclass(frozen=True, eq=False)
class StepGroups:
    """The groups of one step, of a run or of a dry run. Shows itself as tables."""

    title: str
    groups: tuple[CompletionGroup, ...]
    """The groups, in the order of their numbers."""

    @classmethod
    def from_table(
        cls, title: str, table: pandas.DataFrame, weights: Mapping[str, float]
    ) -> StepGroups:
        """Split the completions of a step, as `Run.completions` returns them, into groups."""
        # A stable sort keeps completions with the same advantage in the order of sampling.
        ordered = table.sort_values("advantage", ascending=False, kind="stable")
        groups = tuple(
            CompletionGroup(number, rows, weights) for number, rows in ordered.groupby("group")
        )
        return cls(title, groups)

    @property
    def signal_count(self) -> int:
        """Number of groups with a learning signal (`CompletionGroup.has_signal`)."""
        return sum(group.has_signal for group in self.groups)

    def __repr__(self) -> str:
        return "\n".join([self.title, *map(repr, self.groups)])

    def _repr_html_(self) -> str:
        return _html_of_view("step", step=self, shows_title=False)


def _html_of_view(name: str, **values: Any) -> str:
    """Return a view from `templates` as HTML, together with its style sheet."""
    markup = render(
        f"runs/templates/{name}.jinja",
        format_score=format_score,
        verbatim=verbatim,
        effect_in_words=effect_in_words,
        shorten=shorten,
        **values,
    )
    return f'{style_tag()}<div class="gn-panel">{markup}</div>'
