"""Write and read `RunInfo`, the content of `run.json`, and check the shape of a run's other files.

Each file is checked for its shape before anything uses it. A run's folder can come from anybody,
and from another version of grpo_nb. Errors name the file, the field and the value, so that no
reader of a run has to expect a missing field or a text in place of a number.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from grpo_nb.core.files import shown_path, write_json
from grpo_nb.core.words import in_line
from grpo_nb.runs.alert import alert_from
from grpo_nb.runs.rows import is_number, is_step, is_whole, parse_json, reading
from grpo_nb.tasks.formats import AnswerFormat

#: Version of `run.json` that is written. Raise it when a field changes its meaning, and read the
#: older versions in `read_run_info`. A file without a version is read as version 1.
FORMAT_VERSION = 1
STATUSES = ("running", "finished", "interrupted", "stopped", "failed")
# Metrics that must be numbers, because figure, sentences and health rules calculate with them.
_MEASURED = (
    "reward",
    "reward_std",
    "kl",
    "loss",
    "grad_norm",
    "entropy",
    "learning_rate",
    "step_time",
    "frac_reward_zero_std",
)
_MEASURED_PREFIXES = ("rewards/", "completions/", "holdout/", "tools/")


class Field(NamedTuple):
    """One field of a JSON file."""

    is_valid: Callable[[Any], bool]
    words: str
    """Description of the allowed values, for the message."""
    is_required: bool = True


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
    """Start of that process, in seconds since the epoch."""
    host: str | None = None
    """Name of its machine."""
    sequence: int | None = None
    """Number of the run among those of its folder."""
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
        content = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_optional = field.default is not dataclasses.MISSING
            if value is not None or not is_optional:
                content[field.name] = value
        return content

    def write(self, path: Path) -> None:
        """Write the file."""
        write_json(path, self.to_dict())


def read_run_info(path: Path) -> RunInfo:
    """Read a `run.json` and check every field that grpo_nb uses. Unknown fields are left out.

    Raises:
        ValueError: The file is damaged, a field is missing or of another type, or a later version
            of grpo_nb wrote the file. The message names file, field and value.
    """
    with reading(path):
        content = parse_json(path.read_text("utf-8"))
        version = content.get("format_version", 1) if isinstance(content, dict) else 1
        check_fields("run.json", {"format_version": version}, {"format_version": _COUNT})
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{shown_path(path)} has format version {version}, and this version of grpo_nb reads "
            f"up to {FORMAT_VERSION}: open the run with the version of grpo_nb that wrote it, or a "
            "later one."
        )
    _check_run_info(path, content)
    names = {field.name for field in dataclasses.fields(RunInfo)}
    return RunInfo(**{name: value for name, value in content.items() if name in names})


def _check_run_info(path: Path, info: Any) -> None:
    """Check every field that grpo_nb uses."""
    with reading(path):
        check_fields("run.json", info, _RUN)
        if info["status"] == "running":
            check_fields("run.json of a running run", info, _PROCESS)
        check_fields("task", info["task"], _TASK)
        AnswerFormat(**info["task"]["format"])
        # Only what a list of runs needs. `Run.settings` checks all settings of this version.
        check_fields("settings", info["settings"], _SETTINGS)
        check_fields("extra", info["settings"].get("extra", {}), _EXTRA)
        for reward in info["rewards"]:
            check_fields("a reward", reward, _REWARD)
        check_fields("machine", info["machine"], _MACHINE)
        if info["machine"].get("gpu") is not None:
            check_fields("gpu", info["machine"]["gpu"], {"name": _TEXT})
        for entry in info.get("resumed") or ():
            check_fields("an entry of resumed", entry, _RESUMED)


def check_row(row: Mapping[str, Any]) -> None:
    """Check one row of `metrics.jsonl`: its step, the numbers that grpo_nb reads, and its alerts.

    Raises:
        ValueError: One of them is of another type.
    """
    check_fields("the row", row, _ROW)
    for name, value in row.items():
        is_measured = name in _MEASURED or name.startswith(_MEASURED_PREFIXES)
        # A reward that gives None for all completions has no mean.
        is_missing = value is None and not name.startswith("holdout/")
        if is_measured and not is_missing and not isinstance(value, (int, float)):
            raise ValueError(f"{in_line(name)} = {in_line(value)} must be a number")
    for values in row.get("alerts", ()):
        alert_from(values)


def check_comparison(saved: Any) -> None:
    """Check the numbers of a `comparison.json` that a run shows of it.

    Raises:
        ValueError: A field is missing, or of another type.
    """
    check_fields("comparison.json", saved, _COMPARISON)
    check_fields("tests", saved["tests"], {"anywhere": _or_none(_OBJECT)})
    for side in ("before", "after", "base"):
        if side != "base" or saved[side] is not None:
            check_fields(side, saved[side], _EVALUATION)


def check_fields(where: str, values: Any, fields: Mapping[str, Field]) -> None:
    """Check that an object of a JSON file has these fields, each of the right type.

    Other fields are allowed.

    Raises:
        ValueError: A field is missing or of another type. The message names the first one.
    """
    if not isinstance(values, dict):
        raise ValueError(
            f"{where} = {in_line(values)} must be an object with the fields {', '.join(fields)}"
        )
    for name, field in fields.items():
        if name not in values:
            if field.is_required:
                raise ValueError(f"{where} has no field {name!r}")
        elif not field.is_valid(values[name]):
            raise ValueError(f"{name} = {in_line(values[name])} must be {field.words}")


def _is_a(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _is_time(value: Any) -> bool:
    try:
        # `astimezone` also rejects times that `sort_key` cannot compare.
        datetime.datetime.fromisoformat(value).astimezone()
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _is_range(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and len(value) == 2 and all(map(is_number, value))
    )


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_object_of(*types: type) -> Callable[[Any], bool]:
    def is_valid(value: Any) -> bool:
        return isinstance(value, dict) and all(isinstance(item, types) for item in value.values())

    return is_valid


def _or_none(field: Field) -> Field:
    """Return a field that may also be null."""
    return field._replace(is_valid=lambda value: value is None or field.is_valid(value))


def _optional(field: Field) -> Field:
    """Return a field that may be missing."""
    return field._replace(is_required=False)


_TEXT = Field(_is_a(str), "a text")
_TEXT_OR_NONE = Field(_is_a(str, NoneType), "a text or null")
_OBJECT = Field(_is_a(dict), "an object")
_LIST = Field(_is_a(list), "a list")
_COUNT = Field(is_step, "a whole number, at least 0")
_RANGE = Field(_is_range, "two numbers")
_TEXTS = Field(_is_texts, "a list of texts")
_RUN = {
    "status": Field(lambda value: value in STATUSES, f"one of {', '.join(STATUSES)}"),
    "started": Field(_is_time, "a time, such as 2026-11-28T10:00:00+0000"),
    "settings": _OBJECT,
    "task": _OBJECT,
    "rewards": _LIST,
    "machine": _OBJECT,
    "versions": Field(_is_object_of(str, NoneType), "an object of texts"),
    "number_type": _TEXT_OR_NONE,
    "rollout": _TEXT_OR_NONE,
    "host": _optional(_TEXT_OR_NONE),
    "sequence": _optional(_COUNT),
    "reference": _optional(_TEXT_OR_NONE),
    "generation": _optional(_TEXT_OR_NONE),
    "error": _optional(_TEXT_OR_NONE),
    "stopped_by": _optional(_TEXT_OR_NONE),
    "heldout_judge": _optional(_TEXT_OR_NONE),
    "loader": _optional(_OBJECT),
    "effective": _optional(_OBJECT),
    "adapter_step": _optional(_COUNT),
    "resumed": _optional(_LIST),
    "not_saved": _optional(_TEXTS),
}
_PROCESS = {
    "pid": Field(lambda value: is_whole(value) and value > 0, "the number of a process"),
    "process_start": Field(is_number, "a number of seconds", is_required=False),
    "host": _TEXT,
}
_SETTINGS = {"max_steps": _COUNT, "extra": _optional(_OBJECT)}
_EXTRA = {"chat_template_kwargs": _optional(_or_none(_OBJECT))}
_TASK = {
    "name": _TEXT,
    "format": Field(_is_object_of(str, bool), "an object of texts"),
    "train": _COUNT,
    "holdout": _COUNT,
    "fingerprint": _TEXT,
    "tools": _optional(_LIST),
}
_REWARD = {
    "name": _TEXT,
    "weight": Field(is_number, "a number"),
    "kind": _optional(_TEXT_OR_NONE),
    "parameters": _optional(_OBJECT),
    "call": _TEXT,
    "source": _TEXT,
    "hash": _TEXT,
    "state": _optional(_TEXT_OR_NONE),
    "range": _optional(_RANGE),
}
_MACHINE = {"gpu": _or_none(_OBJECT), "cores": _optional(_or_none(_COUNT))}
_RESUMED = {"step": _COUNT, "changed": _optional(_TEXTS)}
_ROW = {
    "step": _COUNT,
    "max_steps": Field(is_whole, "a whole number", is_required=False),
    "alerts": _optional(_LIST),
}
_SHARE = Field(_is_share, "a share from 0 to 1")
_COMPARISON = {
    "sentence": _TEXT,
    "verdict": _TEXT,
    "before": _OBJECT,
    "after": _OBJECT,
    "base": _or_none(_OBJECT),
    "tests": _OBJECT,
    "majority": _or_none(_OBJECT),
    "contamination": _or_none(_OBJECT),
}
_EVALUATION = {
    "accuracy": _SHARE,
    "interval": _RANGE,
    "format_share": _SHARE,
    "format_interval": _RANGE,
    "anywhere_share": _or_none(_SHARE),
    "anywhere_interval": _RANGE,
    "anywhere_note": _TEXT,
    "compares_gold": Field(_is_a(bool), "true or false"),
    "model_id": _TEXT_OR_NONE,
}
EXPORT_FIELDS = {"path": _TEXT, "kind": _TEXT, "sentence": _TEXT}
