"""What sampling gives, whichever engine writes it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Samples:
    """Sampled completions: for each row its token ids and, where they were drawn, the log-probability of each."""

    tokens: list[list[int]]
    log_probs: list[list[float]] | None
    """In nats, under the distribution drawn from, after temperature and the other processors; None for greedy text."""


@dataclass(frozen=True)
class Completion:
    """One generated completion."""

    text: str
    tokens: int
    is_cut: bool
    """It reached the length limit without an end token."""
    ids: tuple[int, ...] = field(default=(), repr=False)
    """The token ids as sampled, with the end token: what a trainer hands to rewards as `completion_ids`."""
