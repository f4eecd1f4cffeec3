"""The reference of the KL: the base model, or TRL's frozen copy `ref` of the initial adapter."""

import contextlib
from collections.abc import Iterator
from typing import Any

#: The two values of `RunInfo.reference`: the model that the KL of a run is measured against. They
#: are stored in run.json, compared when a run is resumed, and shown in sentences as they are.
BASE_REFERENCE = "the base model"
START_REFERENCE = "the adapter it started from"


def choose_kl_reference(model: Any, earlier_reference: str | None) -> str:
    """Choose the model that the KL is measured against, and return its description.

    TRL adds a frozen copy `ref` of the adapter that the run starts from, and computes the KL with
    the copy. If there is no copy, TRL switches the adapter off, which gives the base model. So
    deleting the copy chooses the base model. On a GPU there is never a copy, because Unsloth
    removes this code from TRL's trainer (unsloth/models/rl.py).

    Args:
        model: The model with its LoRA, after the trainer was built with it.
        earlier_reference: The reference of the run to resume; None for a new run.

    Raises:
        ValueError: A resumed run measured its KL against a copy, which is missing here.
    """
    if earlier_reference is None:
        # In a new LoRA, B is 0. A copy of it would give the same KL as the base model, and only
        # cost time.
        lora_b = [values for name, values in model.named_parameters() if "lora_B.default" in name]
        wants_base = not any(values.any() for values in lora_b)
    else:
        # A resumed run keeps its reference, whatever adapter is in memory.
        wants_base = earlier_reference == BASE_REFERENCE
    if wants_base and "ref" in model.peft_config:
        model.delete_adapter("ref")
    reference = START_REFERENCE if "ref" in model.peft_config else BASE_REFERENCE
    # Only on a GPU is there no copy to keep.
    if earlier_reference not in (None, reference):
        raise ValueError(
            f"this run measures its KL against {earlier_reference}, but on a GPU Unsloth measures "
            "it against the base model. Resume it on a CPU, where it started, or start a new run."
        )
    return reference


@contextlib.contextmanager
def deleting_reference_adapter(model: Any) -> Iterator[None]:
    """Delete TRL's reference adapter `ref` after the block.

    If `ref` stayed, saving the model would write it to a subfolder. transformers' loader loads
    such subfolders and nothing else, so the trained adapter would be lost without a warning.
    """
    try:
        yield
    finally:
        if "ref" in model.peft_config:
            model.delete_adapter("ref")
