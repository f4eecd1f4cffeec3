"""Lengths proposed from the data, in tokens, and answers that could not end within the limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.core.words import prompt_lengths
from grpo_nb.tasks.formats import AnswerFormat

if TYPE_CHECKING:
    from datasets import Dataset

_UNIT = 16
# A policy explores beyond the solutions of the data; where nothing better is known, it gets half as much room again.
_ROOM = 1.5


@dataclass(frozen=True)
class LengthProposal:
    """Two lengths and where they come from; `settings.replace(**proposal.changes)` takes them over."""

    max_prompt_length: int
    max_completion_length: int | None
    """None where the data does not tell."""
    sentence: str
    """Where each comes from."""

    @property
    def changes(self) -> dict[str, int]:
        """What is known, as changes to settings."""
        known = {"max_completion_length": self.max_completion_length} if self.max_completion_length else {}
        return {"max_prompt_length": self.max_prompt_length, **known}


def propose_lengths(
    train: Dataset,
    answer_format: AnswerFormat,
    tokenizer: Any,
    baseline: Any,
    quantile: float,
    chat_template_kwargs: Mapping[str, Any],
) -> LengthProposal:
    """Do what `Task.propose_lengths` says."""
    prompts = prompt_lengths(train["prompt"], tokenizer, chat_template_kwargs)
    limit = _rounded(_at(prompts, quantile))
    longer = sum(length > limit for length in prompts)
    said = f"Prompts: of {quantile:.0%} of {len(prompts)} training prompts, rounded up; {longer} are longer."
    if baseline is not None:
        longest, cut = max(baseline.tokens), sum(baseline.is_cut) / len(baseline.is_cut)
        # Nobody knows how long those would have been that were cut, so twice the limit is tried.
        completion = _rounded((2 if cut else _ROOM) * longest)
        room = f"{cut:.0%} of them were cut, so twice that" if cut else "and half as much room again"
        source = f"the longest of {len(baseline.tokens)} that the model generated, {longest}; {room}"
    elif "solution" in train.column_names:
        texts = [answer_format.render(str(row["solution"]), str(row["answer"])) for row in train]
        completion = _rounded(_ROOM * _at(_lengths(texts, tokenizer), 0.95))
        source = f"95% of {len(texts)} texts of the column solution, in the answer format, and half as much room again"
    else:
        completion = None
        source = "not known: no column solution, and no baseline was given (propose_lengths(tokenizer, baseline))"
    return LengthProposal(limit, completion, f"{said} Completions: {source}.")


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
    tokens = _lengths([*shown, *(answer_format.render("", answer) for answer in answers)], tokenizer)
    above = sum(length >= limit for length in tokens[len(shown) :])  # the end token comes on top
    if max(tokens) < limit:
        return []
    who = f"{above} of {len(answers)} answers, in the format without any reasoning" if above else "the example's reply"
    return [
        f"max_completion_length = {limit} tokens is too few for {who}: up to {max(tokens) + 1} tokens. Before the model is "
        f"loaded: settings = settings.replace(max_completion_length={_rounded(_ROOM * max(tokens))})"
    ]


def _lengths(texts: Sequence[str], tokenizer: Any) -> list[int]:
    return [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]


def _at(lengths: Sequence[int], quantile: float) -> int:
    """The smallest length that at least this share does not exceed."""
    return sorted(lengths)[math.ceil(quantile * len(lengths)) - 1]


def _rounded(length: float) -> int:
    return math.ceil(length / _UNIT) * _UNIT
