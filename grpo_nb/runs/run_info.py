"""Write and read `RunInfo`, the content of `run.json`, and check the shape of a run's other files.

A run's folder can come from anybody, and from another version of grpo_nb. So the fields that every
reader of a run needs are checked first. Errors name the file, the field and the value.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from grpo_nb.core.files import write_json
from grpo_nb.core.words import in_line
from grpo_nb.runs.alert import alert_from
from grpo_nb.runs.rows import is_number, is_step, parse_json, reading
from grpo_nb.tasks.formats import AnswerFormat

#: Version of `run.json` that is written. Raise it when a field changes its meaning, and read the
#: older versions in `read_run_info`. A file without a version is read as version 1.
FORMAT_VERSION = 1
STATUSES = ("running", "finished", "interrupted", "stopped", "failed")


class Field(NamedTuple):
    """One field of a JSON file."""

    is_valid: Callable[[Any], bool]
    words: str
    """Description of the allowed values, for the message."""


@dataclass(kw_only=True)
class RunInfo:
    """Content of `run.json`: what a run was started with, and how it ended.

    Optional fields that are None are left out of the file.
    """

    status: str
    """One of `STATUSES`. `Run.status` also tells a crashed run from a running one."""
    started: str
    """Time with the offset of the clock, in ISO 8601."""
    settings: dict[str, Any]
    """`Settings.to_dict()`."""
    task: dict[str, Any]
    """Name, answer format, numbers of questions, fingerprint and tools."""
    rewards: list[dict[str, Any]]
    """Record of each reward: name, weight, call, source, hash and range."""
    machine: dict[str, Any]
    """Platform, cores, memory and GPU."""
    versions: dict[str, str | None]
    """Versions of the packages."""
    number_type: str | None
    """Dtype that the model computed in."""
    rollout: str | None
    """`shared prompts` if the completions of a group share the computation of their prompt on a
    CPU; otherwise `stock`, TRL's own way, with the reason."""
    format_version: int = FORMAT_VERSION
    """Version of this file's format."""
    pid: int | None = None
    """Number of the process that trains."""
    process_start: float | None = None
    """Start of that process, in seconds after the boot of its machine."""
    host: str | None = None
    """Name of its machine."""
    generation: str | None = None
    """Engine that samples the completions, and the reason if it is not vLLM."""
    base: str | None = None
    """Identity of the base model's weights."""
    loader: dict[str, Any] | None = None
    """Further arguments of Unsloth's loader."""
    reference: str | None = None
    """Model that the KL is measured against, in words (`training.run_start`)."""
    effective: dict[str, Any] | None = None
    """`EffectiveSettings.to_dict()`."""
    heldout_judge: str | None = None
    """Description of the reward that decides which held-out answers are correct."""
    seconds: float | None = None
    """Duration of a training elsewhere (`grpo_nb.scaleout`)."""
    resumed: list[dict[str, Any]] | None = None
    """Time, step and changes of each resumption."""
    adapter_step: int | None = None
    """Step of the adapter that the run left."""
    stopped_by: str | None = None
    """Alert or observer that ended the training."""
    error: str | None = None
    """Error that ended the training."""
    not_saved: list[str] | None = None
    """Files that could not be saved at the end, with the reasons."""

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {
            name: value for name, value in vars(self).items() if value is not None or name in _RUN
        }

    def write(self, path: Path) -> None:
        """Write the file."""
        write_json(path, self.to_dict())


def read_run_info(path: Path) -> RunInfo:
    """Read a `run.json`, and check the fields that every run has. Unknown fields are left out.

    Raises:
        ValueError: The file is damaged, a field is missing or of another type, or a later version
            of grpo_nb wrote the file. The message names file, field and value.
    """
    with reading(path):
        content = parse_json(path.read_text("utf-8"))
        check_fields("run.json", content, {})
        version = content.get("format_version", 1)
        if version > FORMAT_VERSION:
            raise ValueError(f"format version {version}, and this one reads up to {FORMAT_VERSION}")
        check_fields("run.json", content, _RUN)
        check_fields("task", content["task"], _TASK)
        AnswerFormat(**content["task"]["format"])
        check_fields("settings", content["settings"], {"max_steps": _COUNT})
        for reward in content["rewards"]:
            check_fields("a reward", reward, _REWARD)
    names = {field.name for field in dataclasses.fields(RunInfo)}
    return RunInfo(**{name: value for name, value in content.items() if name in names})


def check_row(row: Mapping[str, Any]) -> None:
    """Check the step and the alerts of one row of `metrics.jsonl`.

    Raises:
        ValueError: One of them is of another type.
    """
    check_fields("the row", row, {"step": _COUNT})
    for values in row.get("alerts", ()):
        alert_from(values)


def check_comparison(saved: Any) -> None:
    """Check that a `comparison.json` has the fields that a run shows of it.

    Raises:
        ValueError: A field is missing, or of another type.
    """
    check_fields("comparison.json", saved, _COMPARISON)
    for side in ("before", "after"):
        check_fields(side, saved[side], _EVALUATION)


def check_fields(where: str, values: Any, fields: Mapping[str, Field]) -> None:
    """Check that an object of a JSON file has these fields, each of the right type.

    Other fields are allowed.

    Raises:
        ValueError: A field is missing or of another type. The message names the first one.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{where} = {in_line(values)} must be an object")
    for name, field in fields.items():
        if name not in values:
            raise ValueError(f"{where} has no field {name!r}")
        if not field.is_valid(values[name]):
            raise ValueError(f"{name} = {in_line(values[name])} must be {field.words}")


def _is_a(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _is_time(value: Any) -> bool:
    try:
        datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_interval(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value))


_TEXT = Field(_is_a(str), "a text")
_TEXT_OR_NONE = Field(_is_a(str, NoneType), "a text or null")
_OBJECT = Field(_is_a(dict), "an object")
_COUNT = Field(is_step, "a whole number, at least 0")
_NUMBER = Field(is_number, "a number")
_NUMBER_OR_NONE = Field(lambda value: value is None or is_number(value), "a number or null")
_INTERVAL_OR_NONE = Field(
    lambda value: value is None or _is_interval(value), "two numbers in a list, or null"
)
_RUN = {
    "status": Field(lambda value: value in STATUSES, f"one of {', '.join(STATUSES)}"),
    "started": Field(_is_time, "a time, such as 2026-11-28T10:00:00+0000"),
    "settings": _OBJECT,
    "task": _OBJECT,
    "rewards": Field(_is_a(list), "a list"),
    "machine": _OBJECT,
    "versions": _OBJECT,
    "number_type": _TEXT_OR_NONE,
    "rollout": _TEXT_OR_NONE,
}
_TASK = {
    "name": _TEXT,
    "format": _OBJECT,
    "train": _COUNT,
    "holdout": _COUNT,
    "fingerprint": _TEXT,
}
_REWARD = {"name": _TEXT, "weight": _NUMBER, "call": _TEXT, "source": _TEXT, "hash": _TEXT}
_COMPARISON = {
    "sentence": _TEXT,
    "verdict": _TEXT,
    "before": _OBJECT,
    "after": _OBJECT,
    "tests": _OBJECT,
}
_EVALUATION = {
    "accuracy": _NUMBER,
    "format_share": _NUMBER,
    "anywhere_share": _NUMBER_OR_NONE,
    "interval": _INTERVAL_OR_NONE,
    "format_interval": _INTERVAL_OR_NONE,
    "anywhere_interval": _INTERVAL_OR_NONE,
    "anywhere_note": _TEXT,
    "compares_gold": Field(_is_a(bool), "true or false"),
    "model_id": _TEXT_OR_NONE,
}
