"""Lengths proposed from the data: quantiles of prompts and completions in tokens, and where each number came from."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.data import prompt_lengths

if TYPE_CHECKING:
    from grpo_nb.data import Task

_QUANTILES = (0.5, 0.9, 0.95, 0.99, 1.0)
_UNIT = 16
# A policy explores beyond the solutions of the data; where nothing better is known, it gets half as much room again.
_ROOM = 1.5


@dataclass(frozen=True)
class LengthProposal:
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

    def _rows(self) -> list[tuple[str, ...]]:
        rows = []
        for name, value, quantiles, source in (
            ("max_prompt_length", self.max_prompt_length, self.prompt_quantiles, self.prompt_source),
            ("max_completion_length", self.max_completion_length, self.completion_quantiles, self.completion_source),
        ):
            seen = [str(quantiles.get(q, "")) for q in _QUANTILES]
            rows.append((name, "not known" if value is None else str(value), *seen, source))
        return rows

    def __repr__(self) -> str:
        head = ("setting", "proposed", *(f"{q:.0%}" for q in _QUANTILES), "where from")
        rows = [head, *self._rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        return "\n".join("  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in rows)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{text}</th>" for text in ("setting", "proposed", *(f"{q:.0%}" for q in _QUANTILES)))
        body = ""
        for name, value, *seen, source in self._rows():
            cells = "".join(f"<td>{html.escape(text)}</td>" for text in seen)
            body += (
                f"<tr><td style='text-align:left'><code>{name}</code></td><td><b>{value}</b></td>{cells}"
                f"<td style='text-align:left'>{html.escape(source)}</td></tr>"
            )
        return f"<table><thead><tr>{head}<th style='text-align:left'>where from</th></tr></thead><tbody>{body}</tbody></table>"


def propose_lengths(task: Task, tokenizer: Any, baseline: Any = None, *, quantile: float = 0.95) -> LengthProposal:
    """Do what `Task.propose_lengths` says.

    Raises:
        ValueError: A quantile that is none.
    """
    if not 0 < quantile <= 1:
        raise ValueError(f"quantile = {quantile!r} must be above 0 and at most 1: it is the share of prompts to keep.")
    prompts = prompt_lengths(task.train["prompt"], tokenizer)
    kept = _at(prompts, quantile)
    limit = _rounded(kept)
    dropped = sum(length > limit for length in prompts)
    source = f"{quantile:.0%} of {len(prompts)} training prompts, rounded up; {dropped} are longer"
    tokens, completion, said = _completions(task, tokenizer, baseline)
    return LengthProposal(limit, _table(prompts), source, completion, _table(tokens), said)


def _completions(task: Task, tokenizer: Any, baseline: Any) -> tuple[Sequence[int], int | None, str]:
    if baseline is not None:
        tokens, cut = list(baseline.tokens), sum(baseline.is_cut)
        said = f"{len(tokens)} completions that the model generated before training"
        if cut:
            # Nobody knows how long those would have been, so twice the limit is tried.
            return (
                tokens,
                _rounded(2 * max(tokens)),
                f"{said}; {100 * cut / len(tokens):.0f} % of them were cut, so twice that",
            )
        return tokens, _rounded(_ROOM * max(tokens)), f"{said}, and half as much room again"
    if "solution" in task.train.column_names:
        texts = [task.format.render(str(row["solution"]), str(row["answer"])) for row in task.train]
        tokens = [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
        said = (
            f"the column solution of {len(tokens)} rows in the answer format: 95% of them, and half as much room again"
        )
        return tokens, _rounded(_ROOM * _at(tokens, 0.95)), said
    return [], None, "not known: no column solution, and no baseline was given (propose_lengths(tokenizer, baseline))"


def _at(lengths: Sequence[int], quantile: float) -> int:
    """The smallest length that at least this share does not exceed."""
    return sorted(lengths)[math.ceil(quantile * len(lengths)) - 1]


def _table(lengths: Sequence[int]) -> dict[float, int]:
    return {q: _at(lengths, q) for q in _QUANTILES} if lengths else {}


def _rounded(length: float) -> int:
    return math.ceil(length / _UNIT) * _UNIT
