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

# Of 20 prompts or solutions, one may be longer.
_MOST = 0.95
# A policy explores beyond what is known, and needs half as much room again.
_ROOM = 1.5


@dataclass(frozen=True)
class LengthProposal:
    """Two lengths and where they come from; `settings.replace(**proposal.changes)` takes them over."""

    changes: dict[str, int]
    """`max_prompt_length` and, where the data tells it, `max_completion_length`."""
    sentence: str
    """Where each comes from."""


def propose_lengths(
    train: Dataset, form: AnswerFormat, tokenizer: Any, baseline: Any, chat_template_kwargs: Mapping[str, Any]
) -> LengthProposal:
    """Do what `Task.propose_lengths` says."""
    changes = {"max_prompt_length": _most_of(prompt_lengths(train["prompt"], tokenizer, chat_template_kwargs))}
    source = "not known: no column solution, and no baseline was given (propose_lengths(tokenizer, baseline))"
    if baseline is not None:
        cut = sum(baseline.is_cut) / len(baseline.is_cut)
        # Nobody knows how long those would have been that were cut, so twice the limit is tried.
        changes["max_completion_length"] = _rounded((2 if cut else _ROOM) * max(baseline.tokens))
        source = f"the longest that the model generated, and room; {cut:.0%} of them were cut"
    elif "solution" in train.column_names:
        texts = [form.render(str(row["solution"]), str(row["answer"])) for row in train]
        changes["max_completion_length"] = _most_of(_lengths(texts, tokenizer), _ROOM)
        source = f"{_MOST:.0%} of the texts of the column solution, in the answer format, and half as much room again"
    return LengthProposal(changes, f"Prompts: {_MOST:.0%} of {len(train)} training prompts. Completions: {source}.")


def too_long_to_end(texts: Sequence[str], tokenizer: Any, limit: int) -> list[str]:
    """What to write where some of these right completions could not end within the limit of tokens."""
    tokens = _lengths(texts, tokenizer)
    above = sum(length >= limit for length in tokens)  # the end token comes on top
    if not above:
        return []
    return [
        f"max_completion_length = {limit} tokens is too few for {above} of {len(texts)} right completions, the answers without "
        f"any reasoning or the example's reply: up to {max(tokens) + 1} tokens. Before the model is loaded: settings = "
        f"settings.replace(max_completion_length={_rounded(_ROOM * max(tokens))})"
    ]


def _lengths(texts: Sequence[str], tokenizer: Any) -> list[int]:
    return [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]


def _most_of(lengths: Sequence[int], room: float = 1.0) -> int:
    """The smallest length that most do not exceed, times the room."""
    return _rounded(room * sorted(lengths)[math.ceil(_MOST * len(lengths)) - 1])


def _rounded(length: float) -> int:
    return 16 * math.ceil(length / 16)
