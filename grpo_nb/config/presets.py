"""Presets of settings for kinds of machines."""

import tomllib
from pathlib import Path
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.machine.gpu import find_gpu

#: Settings of each preset that differ from the defaults.
PRESETS = tomllib.loads(Path(__file__).with_name("presets.toml").read_text("utf-8"))


def preset(name: str = "auto", **changes: Any) -> Settings:
    """Return the settings for a kind of machine, with changes.

    Args:
        name: `cpu`, `t4`, `l4`, `a100`, `h100` or `auto`. `auto` chooses by the memory of the GPU,
            and chooses `cpu` if there is no GPU.
        **changes: Any field of `Settings`.

    Raises:
        ValueError: A preset or setting is unknown, or a value cannot work.

    >>> preset("cpu", max_steps=5).max_steps
    5
    """
    if name == "auto":
        name = _preset_for_this_machine()
    # No similar name is suggested, because it might be the preset of another machine. A list can be
    # searched for a name without a hash too, such as a dict.
    if name not in list(PRESETS):
        raise ValueError(
            f'preset = {name!r} is unknown. Choose from: {", ".join(PRESETS)}; or "auto", '
            "which chooses by the memory of the GPU, and chooses cpu if there is no GPU."
        )
    return Settings.from_dict({**PRESETS[name], **changes})


def _preset_for_this_machine() -> str:
    gpu = find_gpu()
    if gpu is None:
        return "cpu"
    for name, min_memory_gib in (("h100", 70), ("a100", 36), ("l4", 20)):
        if gpu.memory_gib >= min_memory_gib:
            return name
    return "t4"
