"""Right answers that could not end within the limit of tokens."""

import math
from collections.abc import Sequence
from typing import Any

# A policy explores beyond what is known, and needs half as much room again.
_ROOM = 1.5


def too_long_to_end(texts: Sequence[str], tokenizer: Any, limit: int) -> list[str]:
    """What to write where some of these right completions could not end within the limit of tokens."""
    tokens = [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]
    above = sum(length >= limit for length in tokens)  # the end token comes on top
    if not above:
        return []
    needed = 16 * math.ceil(_ROOM * max(tokens) / 16)
    return [
        f"max_completion_length = {limit} tokens is too few for {above} of {len(texts)} right completions, the answers without "
        f"any reasoning or the example's reply: up to {max(tokens) + 1} tokens. Before the model is loaded: settings = "
        f"settings.replace(max_completion_length={needed})"
    ]
