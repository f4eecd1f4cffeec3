"""Rewards of the kit made again from the parameters that a run recorded of them. Nothing that a record holds is run."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from typing import Any

from grpo_nb.rewards.base import RewardFunction, kinds, reward_name
from grpo_nb.sandbox.jobs import Limits
from grpo_nb.tasks.formats import AnswerFormat

_HELD = {kind.__name__: kind for kind in (AnswerFormat, Limits)}


def rebuild_reward(entry: Mapping[str, Any]) -> tuple[RewardFunction | None, str]:
    """Make a reward of the kit again from its recorded parts, without running anything that the record holds.

    Classes are looked up by name among the kit's own, values are literals.

    Returns:
        The reward, or None and why.
    """
    parts = entry.get("parts")
    if not parts:
        return None, "its parameters were not recorded; make it by hand"
    kind = kinds().get(parts.get("kind", ""))
    if kind is None:
        return None, "it is not one of the kit's; make it by hand"
    try:
        made = _made(kind, "", parts)
        name = reward_name(made)
    except Exception as error:  # whatever a damaged record, or one made up by somebody, leads to
        return None, f"its parameters do not fit this version of the kit ({error})"
    return (made, "") if name == entry["name"] else (None, f"it would be named {name}")


def _made(kind: type, prefix: str, parts: Mapping[str, str]) -> Any:
    """Make a dataclass from the parts under a prefix; what the record does not name keeps its default."""
    values = {}
    for field in dataclasses.fields(kind):
        path = f"{prefix}{field.name}"
        if not (field.init and field.compare):
            continue
        if path in parts:
            values[field.name] = _value(path, parts)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{path} was not recorded")
    return kind(**values)


def _value(path: str, parts: Mapping[str, str]) -> Any:
    text = parts[path]
    if text in _HELD:
        return _made(_HELD[text], f"{path}.", parts)
    if text in kinds():
        return _made(kinds()[text], f"{path}.", parts)
    if text.startswith(("tuple of ", "list of ")):
        word, _, count = text.partition(" of ")
        held = [_value(f"{path}[{number}]", parts) for number in range(int(count))]
        return tuple(held) if word == "tuple" else held
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"{path} was recorded as {text!r} only") from error
