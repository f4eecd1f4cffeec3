"""Describe and read `run.json` (`RunInfo`), and check the shape of a run's other files.

The folder of a run or an export can come from anybody, and from another version of grpo_nb.
Therefore pydantic checks the fields that grpo_nb reads before anything uses them. Errors name the
file, field and value.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, TypeAdapter

# Before Python 3.12, pydantic does not accept the `TypedDict` of `typing`.
from typing_extensions import TypedDict

from grpo_nb.runs.reading import reporting_damage_in
from grpo_nb.tasks.contamination import Contamination
from grpo_nb.tasks.formats import AnswerFormat

#: Version of the format of run.json. When a field changes its meaning, increase it here and in
#: `RunInfo.format_version`.
FORMAT_VERSION = 1
#: A text, which may hold a lone surrogate: `json.loads` makes one of "\ud800", and pydantic's own
#: `str` refuses it.
AnyText = InstanceOf[str]
#: A whole number from 0 to 2**53 - 1. Floats represent all of them exactly.
WholeNumber = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Interval = tuple[Number, Number]


class OpenDict(TypedDict):
    """Base class of the objects in files such as run.json. Fields that are not listed are kept.

    A later version may have added fields without changing the meaning of the others.
    """

    __pydantic_config__ = ConfigDict(extra="allow")


class SavedSettings(OpenDict):
    """Settings of the run. `max_steps` must be there; `Settings.from_dict` checks the others."""

    max_steps: WholeNumber


class SavedTask(OpenDict):
    """Description of the task. The format has the fields of `AnswerFormat`."""

    name: AnyText
    format: dict
    train: WholeNumber
    holdout: WholeNumber
    fingerprint: AnyText


class SavedReward(OpenDict):
    name: AnyText
    weight: Number
    call: AnyText
    source: AnyText
    hash: AnyText
    state: NotRequired[AnyText]
    range: NotRequired[Interval | None]


class SavedGpu(OpenDict):
    name: AnyText


class SavedMachine(OpenDict):
    gpu: SavedGpu | None


# Not an `OpenDict`, which would refuse a metric whose name has a lone surrogate.
class SavedRow(TypedDict):
    """The field that every row of metrics.jsonl has. Its other fields are unchecked."""

    step: WholeNumber


ROWS_SCHEMA = TypeAdapter(list[SavedRow])


class RunInfo(OpenDict):
    """Content of `run.json`: what a run was started with, and how it ended.

    A training fills in this dict, `write_run_info` writes it, and `Run.info` reads it back.
    """

    format_version: NotRequired[Literal[1]]
    """`FORMAT_VERSION`, which `write_run_info` adds."""
    status: Literal["running", "finished", "interrupted", "stopped", "failed"]
    """Status as last written. A crashed run is still "running" here, so `Run.status` checks whether
    its process exists."""
    started: AnyText
    """Time with the offset of the clock, in ISO 8601."""
    settings: SavedSettings
    """`Settings.to_dict()`."""
    task: SavedTask
    """Name, answer format, numbers of questions and fingerprint. Its other fields are unchecked."""
    rewards: list[SavedReward]
    """Record of each reward (`grpo_nb.scoring.record.record_of`)."""
    machine: SavedMachine
    """Platform, cores and GPU."""
    versions: dict
    """Versions of the packages."""
    dtype: AnyText
    """Dtype that the model computed in."""
    engine: AnyText
    """Name of the engine that samples the completions."""
    pid: NotRequired[int | None]
    """Process id of the training."""
    host: NotRequired[AnyText | None]
    """Name of the machine that trains."""
    base_weights_hash: NotRequired[AnyText | None]
    """Hash of the base model's weights."""
    is_base_local: NotRequired[bool | None]
    """True if the base model was a folder. Recorded, because a relative path can look like a
    name on the Hub."""
    reference: NotRequired[AnyText | None]
    """Model that the KL is measured against, in words (`training.kl_reference`)."""
    effective: NotRequired[dict | None]
    """Settings that the trainer really used (`EffectiveSettings`)."""
    grader_description: NotRequired[AnyText | None]
    """Description of the reward that decides which held-out answers are correct."""
    resumed: NotRequired[list[dict] | None]
    """Step and changes of each resumption."""
    adapter_step: NotRequired[int | None]
    """Step of the checkpoint that `adapter/` was copied from."""
    stopped_by: NotRequired[AnyText | None]
    """Alert or observer that ended the training."""
    error: NotRequired[AnyText | None]
    """Error that ended the training."""


RUN_INFO_SCHEMA = TypeAdapter(RunInfo)


def read_run_info(path: Path) -> RunInfo:
    """Read and check a `run.json`. Fields that are null are left out.

    Raises:
        ValueError: The file is damaged, a field is missing or of another type, or it has a later
            `format_version`. The message names file, field and value.
    """
    with reporting_damage_in(path):
        info = RUN_INFO_SCHEMA.validate_python(json.loads(path.read_text("utf-8")))
        # Raises an error if the recorded format is not valid.
        AnswerFormat(**info["task"]["format"])
    recorded = {name: value for name, value in info.items() if value is not None}
    # The first version did not write this field.
    return {"format_version": 1, **recorded}


# Without protected namespaces, because pydantic 2.9 warns about the field `model_id`.
class OpenModel(BaseModel, extra="allow", protected_namespaces=()):
    """Base class of the objects in comparison.json. Fields that are not listed are kept.

    Unlike those of run.json, which a training fills in as a dict, they are read as attributes:
    texts about a comparison also take the `Comparison` of an evaluation.
    """


class SavedEvaluation(OpenModel):
    """One side of a comparison, with the fields of an `Evaluation` except its rows."""

    accuracy: Number
    in_format: Number
    anywhere: Number | None
    accuracy_interval: Interval | None
    in_format_interval: Interval | None
    anywhere_interval: Interval | None
    anywhere_rule: AnyText
    """Explanation of how a correct answer is found anywhere in a completion."""
    is_graded_by_slot: bool
    """True if an answer must be in the answer slot, the place that the format has for it."""
    model_id: AnyText | None
    """Id of the adapter (`Run.adapter_id`), or "" for another model. None: it was not recorded, and
    no verdict checks it."""


class SavedTest(OpenModel):
    """Paired test of one measure."""

    verdict: AnyText


# A dataclass like `Contamination`, because an evaluation makes both. The classes above only read.
@dataclass(frozen=True)
class MajorityBaseline:
    """The most frequent gold answer of the questions, compared with the accuracy of the model."""

    answer: AnyText
    """The most frequent gold answer."""
    share: Number
    """Share of the questions that this answer alone would get right."""
    is_beaten: bool
    """True if the whole 95 % interval of the model's accuracy lies above `share`."""
    sentence: AnyText
    """The comparison in words."""


class SavedComparison(OpenModel):
    """Numbers of a held-out comparison, as read from comparison.json."""

    sentence: AnyText
    verdict: AnyText
    before: SavedEvaluation
    after: SavedEvaluation
    tests: dict[AnyText, SavedTest | None]
    """Test by measure; None for a measure that was not taken on both sides."""
    majority: MajorityBaseline | None
    contamination: Contamination | None

    @property
    def anywhere_verdict(self) -> str | None:
        """Verdict on correct answers anywhere in the completion, None if not measured."""
        test = self.tests.get("anywhere")
        return None if test is None else test.verdict
