"""The adapter of a model that several tests train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def way_back(model: Any) -> Callable[[], None]:
    """Return a function that sets the trained parameters back to what they are now, as loading the model anew does."""
    start = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    def back() -> None:
        for name, parameter in model.named_parameters():
            if name in start:
                parameter.data.copy_(start[name])

    return back
