"""Lengths proposed from the data: quantiles of prompts and completions in tokens, and where each number came from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.core.tables import Shown, Table, bold, code
from grpo_nb.core.text import prompt_lengths
from grpo_nb.settings.arguments import check_value
from grpo_nb.tasks.formats import AnswerFormat

if TYPE_CHECKING:
    from datasets import Dataset

_QUANTILES = (0.5, 0.9, 0.95, 0.99, 1.0)
_UNIT = 16
# A policy explores beyond the solutions of the data; where nothing better is known, it gets half as much room again.
_ROOM = 1.5


@dataclass(frozen=True, repr=False)
class LengthProposal(Shown):
    """Quantiles and what follows from them; `settings.replace(**proposal.changes)` takes it over."""

    max_prompt_length: int
    prompt_quantiles: Mapping[float, int]
    prompt_source: str
    max_completion_length: int | None
    """None where the data does not tell."""
    completion_quantiles: Mapping[float, int]
    completion_source: str

    @property
    def changes(self) -> dict[str, int]:
        """What is known, as changes to settings."""
        changes = {"max_prompt_length": self.max_prompt_length}
        if self.max_completion_length is not None:
            changes["max_completion_length"] = self.max_completion_length
        return changes

    def _parts(self) -> Iterable[Table]:
        rows = []
        for name, value, quantiles, source in (
            ("max_prompt_length", self.max_prompt_length, self.prompt_quantiles, self.prompt_source),
            ("max_completion_length", self.max_completion_length, self.completion_quantiles, self.completion_source),
        ):
            proposed = bold("not known" if value is None else value)
            rows.append((code(name), proposed, *(quantiles.get(q, "") for q in _QUANTILES), source))
        yield Table(rows, head=("setting", "proposed", *(f"{q:.0%}" for q in _QUANTILES), "where from"))


def propose_lengths(
    train: Dataset,
    answer_format: AnswerFormat,
    tokenizer: Any,
    baseline: Any = None,
    *,
    quantile: float = 0.95,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> LengthProposal:
    """Do what `Task.propose_lengths` says.

    Args:
        train: The training part of a task.
        answer_format: The format of its answers, in which solutions are counted.
        tokenizer: Of the model to be trained.
        baseline: From `gn.baseline`.
        quantile: Of the prompts to keep.
        chat_template_kwargs: Of the task.

    Raises:
        ValueError: A quantile that is none.
    """
    check_value("quantile", quantile, "float", ": it is the share of prompts to keep", above=0, most=1)
    prompts = prompt_lengths(train["prompt"], tokenizer, chat_template_kwargs)
    limit = _rounded(_at(prompts, quantile))
    dropped = sum(length > limit for length in prompts)
    source = f"{quantile:.0%} of {len(prompts)} training prompts, rounded up; {dropped} are longer"
    tokens, completion, said = _completions(train, answer_format, tokenizer, baseline)
    return LengthProposal(limit, _table(prompts), source, completion, _table(tokens), said)


def _completions(
    train: Dataset, answer_format: AnswerFormat, tokenizer: Any, baseline: Any
) -> tuple[Sequence[int], int | None, str]:
    """Lengths of completions, the limit that follows, and where they come from."""
    if baseline is not None:
        tokens, cut = list(baseline.tokens), sum(baseline.is_cut)
        said = f"{len(tokens)} completions that the model generated before training"
        if not cut:
            return tokens, _rounded(_ROOM * max(tokens)), f"{said}, and half as much room again"
        # Nobody knows how long those would have been, so twice the limit is tried.
        share = f"{100 * cut / len(tokens):.0f} % of them were cut, so twice that"
        return tokens, _rounded(2 * max(tokens)), f"{said}; {share}"
    if "solution" in train.column_names:
        texts = [answer_format.render(str(row["solution"]), str(row["answer"])) for row in train]
        tokens = [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
        said = f"column solution of {len(tokens)} rows in the answer format: 95% of them, and half as much room again"
        return tokens, _rounded(_ROOM * _at(tokens, 0.95)), said
    return [], None, "not known: no column solution, and no baseline was given (propose_lengths(tokenizer, baseline))"


def too_long_to_end(
    answers: Sequence[str], shown: Sequence[str], answer_format: AnswerFormat, tokenizer: Any, limit: int
) -> list[str]:
    """What to write where completions could not end: right answers without any reasoning, or what the example turn shows.

    Args:
        answers: The gold answers.
        shown: What the example turn replies, if there is one.
        answer_format: In which the answers are counted.
        tokenizer: Of the model to be trained.
        limit: `max_completion_length`.
    """
    texts = [*shown, *(answer_format.render("", answer) for answer in answers)]
    tokens = [len(ids) + 1 for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]  # with the end token
    above = sum(length > limit for length in tokens[len(shown) :])
    if max(tokens) <= limit:
        return []
    who = (
        f"{above} of {len(answers)} answers, in the format and without any reasoning"
        if above
        else "the example's reply"
    )
    return [
        f"max_completion_length = {limit} tokens is too few for {who}: up to {max(tokens)} tokens. Before the model is loaded: "
        f"settings = settings.replace(max_completion_length={_rounded(_ROOM * max(tokens))})"
    ]


def _at(lengths: Sequence[int], quantile: float) -> int:
    """The smallest length that at least this share does not exceed."""
    return sorted(lengths)[math.ceil(quantile * len(lengths)) - 1]


def _table(lengths: Sequence[int]) -> dict[float, int]:
    return {q: _at(lengths, q) for q in _QUANTILES} if lengths else {}


def _rounded(length: float) -> int:
    return math.ceil(length / _UNIT) * _UNIT
