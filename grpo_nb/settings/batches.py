"""Whole groups: which batches, accumulations and group sizes go together, and the nearest that do.

The rule is TRL's (trl 1.15, trainer/grpo_config.py, `GRPOConfig.__post_init__`): the completions generated at a time are
`per_device_train_batch_size x processes x steps_per_generation`, where the last is `gradient_accumulation_steps` unless it is
given, and must be a multiple of `num_generations`. What divides for one process divides for any number of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from grpo_nb.settings.arguments import check_value


def generation_batch_size(micro: int, accumulation: int, extra: Mapping[str, Any]) -> int:
    """Completions generated at a time, by one process.

    >>> generation_batch_size(4, 2, {}), generation_batch_size(4, 2, {"steps_per_generation": 6})
    (8, 24)
    """
    stated = extra.get("generation_batch_size")
    if stated is not None:
        return stated
    steps = extra.get("steps_per_generation")
    return micro * (accumulation if steps is None else steps)


def check_batch(micro: int, accumulation: int, group: int, extra: Mapping[str, Any]) -> None:
    """Refuse batches that would cut a group, before anything is loaded.

    Args:
        micro: `per_device_train_batch_size`, completions in a forward pass.
        accumulation: `gradient_accumulation_steps`.
        group: `num_generations`.
        extra: For `steps_per_generation`, `generation_batch_size` and `unsloth_grpo_mini_batch`.

    Raises:
        ValueError: With the nearest settings that work, each as a line to paste.
    """
    steps, size = (extra.get(name) for name in ("steps_per_generation", "generation_batch_size"))
    if steps is not None and size is not None:
        raise ValueError("extra holds steps_per_generation and generation_batch_size; one is enough: leave one out.")
    for name in ("steps_per_generation", "generation_batch_size", "unsloth_grpo_mini_batch"):
        check_value(f"extra[{name!r}]", extra.get(name), "int | None", least=1)
    if size is not None and size % micro:
        up = -(-size // math.lcm(micro, group)) * math.lcm(micro, group)
        raise ValueError(
            f"generation_batch_size {size} in extra cannot be divided into forward passes of per_device_train_batch_size "
            f'= {micro}: each pass takes as many of the completions generated. Write extra={{"generation_batch_size": {up}}}.'
        )
    total = generation_batch_size(micro, accumulation, extra)
    mini = extra.get("unsloth_grpo_mini_batch")
    if mini is not None and mini > total:
        raise ValueError(
            f"unsloth_grpo_mini_batch = {mini} is more than the {total} completions generated at a time: write {total}."
        )
    if total % group:
        what, nearest = _whole_groups(micro, accumulation, group, extra, total)
        raise ValueError(
            f"{what} cannot be divided into groups of num_generations = {group}: a group must be whole, or its advantages "
            "mean nothing. (TRL refuses it; Unsloth on a GPU changes the batch size by itself.) The nearest that work:"
            + "".join(f"\n  {line}" for line in nearest)
        )


def _whole_groups(
    micro: int, accumulation: int, group: int, extra: Mapping[str, Any], total: int
) -> tuple[str, list[str]]:
    """What is being divided, and what to write instead: another batch, another accumulation, another group."""
    near = range(2, min(total, 4 * group) + 1)
    divisors = sorted((n for n in near if total % n == 0), key=lambda n: abs(n - group))[:2]
    groups = [f"num_generations={n}  ({total} completions, {_prompts(total // n)})" for n in sorted(divisors)]
    if extra.get("generation_batch_size") is not None:
        sizes = _multiples_around(total, math.lcm(micro, group))
        lines = [f'extra={{"generation_batch_size": {n}}}  ({_prompts(n // group)})' for n in sizes]
        return f"generation_batch_size {total} in extra", lines + groups
    steps = extra.get("steps_per_generation")
    name = "gradient_accumulation_steps" if steps is None else "steps_per_generation"
    steps = accumulation if steps is None else steps
    lines = [
        f"per_device_train_batch_size={n}  ({n * steps} completions, {_prompts(n * steps // group)})"
        for n in _multiples_around(micro, group // math.gcd(group, steps))
    ]
    for n in _multiples_around(steps, group // math.gcd(group, micro)):
        written = f"{name}={n}" if name == "gradient_accumulation_steps" else f'extra={{"{name}": {n}}}'
        lines.append(f"{written}  ({micro * n} completions, {_prompts(micro * n // group)})")
    return f"per_device_train_batch_size {micro} x {name} {steps} = {total} completions", lines + groups


def _prompts(count: int) -> str:
    return "1 prompt" if count == 1 else f"{count} prompts"


def _multiples_around(value: int, unit: int) -> list[int]:
    below = value // unit * unit
    return [n for n in (below, below + unit) if n]
