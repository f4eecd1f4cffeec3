"""Base plus adapter through peft's own merge, for all kinds of adapters: the whole model is in memory, once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.export.merging import Retained, is_plain, keep_generation_config

if TYPE_CHECKING:
    import torch


class InMemoryMerge:
    """The model in the number type of its files, of which one layer at a time is widened to float32 for its sum.

    Where more was trained than A and B matrices, or the adapter starts by changing the base, all of it is in float32: what was
    trained would be rounded to the base's number type while it is loaded.
    """

    def __init__(self, base: Path, adapter: Path) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        from grpo_nb.models import without_loading_bars

        self._base = base
        with without_loading_bars():
            model = AutoModelForCausalLM.from_pretrained(base, dtype="auto" if is_plain(adapter) else "float32")
        self._model = PeftModel.from_pretrained(model, str(adapter))

    def _layers(self) -> list[Any]:
        from peft.tuners.tuners_utils import BaseTunerLayer

        return [layer for layer in self._model.modules() if isinstance(layer, BaseTunerLayer)]

    def retained(self, candidates: list[str], advance: Callable[[int], None]) -> dict[str, float]:
        """How much of the change each number type would keep (`merging.Retained`)."""
        import torch

        found = Retained(candidates)
        with torch.no_grad():
            for layer in self._layers():
                # An adapter on the experts of a mixture names the parameter that it changes.
                weight = getattr(layer.get_base_layer(), getattr(layer, "parameter_name", "weight"))
                before = _merge_in_float32(layer)
                found.add(before[weight], weight.data - before[weight])
                # Not peft's unmerge, which subtracts again and rounds: the tensors themselves are put back.
                for parameter, data in before.items():
                    parameter.data = data
                layer.merged_adapters.clear()
                advance(weight.numel())
        return found.shares()

    def write(self, target: Path, dtype: str, shard_size: str, advance: Callable[[int], None]) -> None:
        """Merge layer by layer and save."""
        import torch
        from transformers import GenerationConfig

        kind = getattr(torch, dtype)
        with torch.no_grad():
            for layer in self._layers():
                for parameter, before in _merge_in_float32(layer).items():
                    if before.dtype.itemsize == kind.itemsize:
                        # Into the memory it had: what was loaded is mapped from a file, and stays in memory to the last
                        # tensor of that file. The mapping is private, the base's file is not written to.
                        parameter.data = before.view(kind).copy_(parameter.data)
                    else:
                        parameter.data = parameter.data.to(kind)
                    advance(parameter.numel())
            # Nothing is left to merge: this takes peft's layers out, and puts fully trained modules in their places.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "All adapters are already merged")
                merged = self._model.merge_and_unload().to(kind)
        # Not what it was loaded with, which save_pretrained may refuse; the base's file is kept as it is.
        if (self._base / "generation_config.json").is_file():
            merged.generation_config = GenerationConfig()
        merged.save_pretrained(target, max_shard_size=shard_size)
        keep_generation_config(self._base, target)
        del self._model


def _merge_in_float32(layer: Any) -> dict[torch.nn.Parameter, torch.Tensor]:
    """Merge one layer; return its own parameters with their data from before."""
    import torch

    before = {parameter: parameter.data for parameter in layer.get_base_layer().parameters(recurse=False)}
    for parameter, data in before.items():
        # A copy also of what is float32 already: peft adds in place.
        parameter.data = data.to(torch.float32, copy=True)
    layer.merge()
    return before
