"""Private symbols of PEFT that the kit relies on."""

from __future__ import annotations

from typing import Any

from grpo_nb.upstream.symbols import require_symbol


def single_plain_adapter(layer: Any) -> str | None:
    """Return the name of a layer's only active adapter if it is a plain LoRA on a linear layer.

    A plain LoRA is not merged, is no variant such as DoRA, and has no bias
    (peft/tuners/lora/layer.py, `LoraLayer.__init__`). PEFT has no public function that answers
    this. Without the check the CPU engine would fold DoRA and biases as if they were a plain LoRA,
    and its completions would come from another model.

    An adapter that is switched off (`disable_adapters`) counts as active too. The caller checks
    that.
    """
    import torch
    from peft.tuners.lora import LoraLayer

    if not isinstance(layer, LoraLayer) or layer.merged:
        return None
    if not isinstance(layer.get_base_layer(), torch.nn.Linear):
        return None
    # PEFT also skips active names that have no matrices here (`Linear.forward`).
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    variants = require_symbol(layer, "lora_variant", "peft")
    biases = require_symbol(layer, "lora_bias", "peft")
    if len(active) != 1 or variants or biases.get(active[0]):
        return None
    return active[0]
