"""Rewards as users write them: one with spread in every group, and one that remembers."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any


def hashed(completions: list, **columns: object) -> list[float]:
    """A number made from the text: it measures nothing, and differs within every group."""
    texts = (repr(completion).encode("utf-8", "replace") for completion in completions)
    return [int.from_bytes(sha256(text).digest()[:4], "big") / 0xFFFFFFFF for text in texts]


class Fading:
    """The scores of a reward, fading with their mean so far."""

    def __init__(self, reward: Callable[..., list[float]], decay: float = 0.5) -> None:
        self.reward = reward
        self.decay = decay
        self.mean = 0.0
        self.__name__ = reward.__name__

    def __call__(
        self, completions: list, trainer_state: Any = None, **columns: object
    ) -> list[float]:
        scores = self.reward(completions=completions, **columns)
        faded = [score * (1 - self.mean) for score in scores]
        if trainer_state is not None and not getattr(trainer_state, "is_trial", False):
            self.mean = self.decay * self.mean + (1 - self.decay) * sum(scores) / len(scores)
        return faded

    def state_dict(self) -> dict[str, float]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.mean = state["mean"]
