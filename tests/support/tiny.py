"""Arguments of `gn.train` except the rewards: a tiny model, its tokenizer, sums, settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpo_nb as gn

# As those of Qwen3 and its like, but that they end with the tag where the model thinks.
THINKING_TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% if enable_thinking is defined and enable_thinking is false %}
</think>

{% endif %}{% endif %}"""


# Few completions of one group after the other, and updates that a few steps show.
SMALL = {
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "warmup_steps": 0,
    "learning_rate": 2e-2,
    "max_grad_norm": 10.0,
}


def load_tiny(
    folder: Path | str, train_size: int, holdout_size: int, **changes: Any
) -> tuple[Any, Any, gn.tasks.Task, Any]:
    """Return model, tokenizer, a task of `count` questions, and the changed CPU settings."""
    settings = gn.preset("cpu", model=str(folder), **changes)
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task(
        "arithmetic",
        settings,
        train_size=train_size,
        holdout=holdout_size,
        tokenizer=tokenizer,
    )
    return model, tokenizer, task, settings
