"""The adapter of a model that several tests train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def way_back(model: Any) -> Callable[[], None]:
    """Return a function that restores the trained parameters, as loading the model anew would."""
    start = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    def back() -> None:
        for name, parameter in model.named_parameters():
            if name in start:
                parameter.data.copy_(start[name])

    return back


def give_effect(model: Any, std: float = 0.05, seed: int = 5) -> None:
    """Fill the second LoRA matrices, which are zero at first, as in the middle of a training."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=std, generator=draw)
