"""Reading of `run.json` and the other JSON files of a run: each is checked for its shape before anything uses it.

A run's folder can come from anybody, and from another version of the kit. What is wrong is named here, with the file, so that
no reader of a run has to expect a missing field or a text in place of a number.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grpo_nb.core.words import in_line
from grpo_nb.runs.alert import alert_from
from grpo_nb.runs.rows import ACCURACY, is_number, is_whole, parse_json, reading
from grpo_nb.tasks.formats import AnswerFormat

STATUSES = ("running", "finished", "interrupted", "stopped", "failed")
# Rows are read as numbers under these names, by the figure, the sentences and the health rules.
_MEASURED = (
    "reward",
    "reward_std",
    "kl",
    "loss",
    "grad_norm",
    "entropy",
    "learning_rate",
    "step_time",
    ACCURACY,
)
_MEASURED_PREFIXES = ("rewards/", "completions/")


class Field(NamedTuple):
    """One field of a JSON file."""

    is_valid: Callable[[Any], bool]
    words: str
    """What a value must be, for the message."""
    is_required: bool = True


def read_run_info(path: Path) -> dict[str, Any]:
    """Read a `run.json` and check every field that the kit uses.

    Raises:
        ValueError: The file is damaged, or a field is missing or of another type; names file, field and value.
    """
    with reading(path):
        info = parse_json(path.read_text("utf-8"))
        check_fields("run.json", info, _RUN)
        if info["status"] == "running":
            check_fields("run.json of a running run", info, _PROCESS)
        check_fields("task", info["task"], _TASK)
        AnswerFormat(**info["task"]["format"])
        # `Run.settings` checks all of them, for this version; a run of another one can still be listed.
        check_fields("settings", info["settings"], _SETTINGS)
        check_fields("extra", info["settings"].get("extra", {}), _EXTRA)
        for reward in info["rewards"]:
            check_fields("a reward", reward, _REWARD)
        check_fields("machine", info["machine"], _MACHINE)
        if info["machine"].get("gpu") is not None:
            check_fields("gpu", info["machine"]["gpu"], {"name": _TEXT})
        for entry in info.get("resumed") or ():
            check_fields("an entry of resumed", entry, _RESUMED)
        return info


def check_row(row: Mapping[str, Any]) -> None:
    """Check one row of `metrics.jsonl`: its step, the numbers that the kit reads, and its alerts.

    Raises:
        ValueError: One of them is of another type.
    """
    check_fields("the row", row, _ROW)
    for name, value in row.items():
        is_measured = name in _MEASURED or name.startswith(_MEASURED_PREFIXES)
        # A reward that gives None for all completions has no mean.
        if is_measured and value is not None and not isinstance(value, (int, float)):
            raise ValueError(f"{in_line(name)} = {in_line(value)} must be a number")
    for values in row.get("alerts", ()):
        alert_from(values)


def check_comparison(saved: Any) -> None:
    """Check the numbers of a `comparison.json` that a run shows of it.

    Raises:
        ValueError: A field is missing, or of another type.
    """
    check_fields("comparison.json", saved, {"sentence": _TEXT, "before": _OBJECT, "after": _OBJECT})
    for side in ("before", "after"):
        check_fields(side, saved[side], _EVALUATION)
    if saved.get("base") is not None:
        check_fields("base", saved["base"], _EVALUATION)


def check_fields(where: str, values: Any, fields: Mapping[str, Field]) -> None:
    """Check that an object of a JSON file has these fields, each of the right type; more fields do no harm.

    Raises:
        ValueError: Names the first that is missing, or is something else.
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


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_time(value: Any) -> bool:
    try:
        # Also that it can be put in order with other times.
        datetime.datetime.fromisoformat(value).astimezone()
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _is_range(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and len(value) == 2 and all(map(is_number, value))
    )


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_object_or_none(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_text_by_text(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text_or_none, value.values()))


def _is_format(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(held, (str, bool)) for held in value.values())


def _is_count(value: Any) -> bool:
    return is_whole(value) and value >= 0


_TEXT = Field(_is_text, "a text")
_OPTIONAL_TEXT = Field(_is_text_or_none, "a text", is_required=False)
_OBJECT = Field(_is_object, "an object")
_OPTIONAL_OBJECT = Field(_is_object, "an object", is_required=False)
_LIST = Field(lambda value: isinstance(value, list), "a list")
_COUNT = Field(_is_count, "a whole number, at least 0")
_OPTIONAL_COUNT = Field(_is_count, "a whole number, at least 0", is_required=False)
_RUN = {
    "status": Field(lambda value: value in STATUSES, f"one of {', '.join(STATUSES)}"),
    "started": Field(_is_time, "a time, such as 2026-11-28T10:00:00+0000"),
    "settings": _OBJECT,
    "task": _OBJECT,
    "rewards": _LIST,
    "machine": _OBJECT,
    "versions": Field(_is_text_by_text, "an object of texts"),
    "number_type": Field(_is_text_or_none, "a text"),
    "rollout": Field(_is_text_or_none, "a text"),
    "host": _OPTIONAL_TEXT,
    "sequence": _OPTIONAL_COUNT,
    "reference": _OPTIONAL_TEXT,
    "generation": _OPTIONAL_TEXT,
    "error": _OPTIONAL_TEXT,
    "stopped_by": _OPTIONAL_TEXT,
    "loader": _OPTIONAL_OBJECT,
    "effective": _OPTIONAL_OBJECT,
    "adapter_step": _OPTIONAL_COUNT,
    "resumed": Field(lambda value: isinstance(value, list), "a list", is_required=False),
    "not_saved": Field(_is_texts, "a list of texts", is_required=False),
}
_PROCESS = {
    "pid": Field(lambda value: is_whole(value) and value > 0, "the number of a process"),
    "process_start": Field(is_number, "a number of seconds", is_required=False),
    "host": _TEXT,
}
_SETTINGS = {"max_steps": _COUNT, "extra": _OPTIONAL_OBJECT}
_EXTRA = {"chat_template_kwargs": Field(_is_object_or_none, "an object", is_required=False)}
_TASK = {
    "name": _TEXT,
    "format": Field(_is_format, "an object of texts"),
    "train": _COUNT,
    "holdout": _COUNT,
    "fingerprint": _TEXT,
    "tools": Field(lambda value: isinstance(value, list), "a list", is_required=False),
}
_REWARD = {
    "name": _TEXT,
    "weight": Field(is_number, "a number"),
    "kind": _OPTIONAL_TEXT,
    "parameters": _OPTIONAL_OBJECT,
    "call": _TEXT,
    "source": _TEXT,
    "hash": _TEXT,
    "state": _OPTIONAL_TEXT,
    "range": Field(_is_range, "two numbers", is_required=False),
}
_MACHINE = {
    "gpu": Field(_is_object_or_none, "an object"),
    "cores": Field(
        lambda value: value is None or _is_count(value), "a whole number", is_required=False
    ),
}
_RESUMED = {"step": _COUNT, "changed": Field(_is_texts, "a list of texts", is_required=False)}
_ROW = {
    "step": _COUNT,
    "max_steps": Field(is_whole, "a whole number", is_required=False),
    "alerts": Field(lambda value: isinstance(value, list), "a list", is_required=False),
}
_SHARE_OR_NONE = Field(
    lambda value: value is None or (is_number(value) and 0 <= value <= 1),
    "a share from 0 to 1",
    is_required=False,
)
_INTERVAL = Field(_is_range, "two numbers", is_required=False)
_LENGTH = Field(lambda value: value is None or is_number(value), "a number", is_required=False)
_EVALUATION = {
    "accuracy": Field(lambda value: is_number(value) and 0 <= value <= 1, "a share from 0 to 1"),
    "interval": _INTERVAL,
    "format_share": _SHARE_OR_NONE,
    "format_interval": _INTERVAL,
    "anywhere_share": _SHARE_OR_NONE,
    "anywhere_interval": _INTERVAL,
    "cut_share": _SHARE_OR_NONE,
    "mean_length": _LENGTH,
}
EXPORT_FIELDS = {"path": _TEXT, "kind": _TEXT, "sentence": _TEXT}
