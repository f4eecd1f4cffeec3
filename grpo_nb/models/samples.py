"""The result of sampling, from whichever engine."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Samples:
    """Sampled completions, one for each prompt."""

    tokens: list[list[int]]
    """Token ids of each completion, up to and with the end token."""
    log_probs: list[list[float]] | None
    """Log-probability of each token in nats, under the distribution that was sampled from (after
    temperature and the other processors). None for greedy decoding."""
