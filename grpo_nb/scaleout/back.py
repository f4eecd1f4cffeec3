"""A folder of `write`, opened again, and what was trained in it as a run like any other.

Nothing in it is run, and no path or name in it leads out of it.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_nb.config.settings import EMBEDDED_MODEL, Settings
from grpo_nb.core.files import (
    inside,
    put_in_place,
    refuse_links,
    shown_path,
    staged_folder,
)
from grpo_nb.core.tables import Part, Shown, bold
from grpo_nb.runs.card import published_name, write_model_card
from grpo_nb.runs.repetition import repetition_metrics
from grpo_nb.runs.rows import is_whole, parse_json, reading, tidy_row
from grpo_nb.runs.run_folder import Run, open_run
from grpo_nb.runs.run_info import Field, RunInfo, check_fields

FORM = 2
# All that is read of a folder.
_READ = (
    "origin.json",
    "train.jsonl",
    "holdout.jsonl",
    "chat_template.jinja",
    "base",
    "result",
    "back",
)
_SAME = ("task", "rewards", "number_type", "reference", "base", "generation")
_TEXT = Field(lambda value: isinstance(value, str), "a text")
_OBJECT = Field(lambda value: isinstance(value, dict), "an object")
_LIST = Field(lambda value: isinstance(value, list), "a list")
# `inside` checks the name of the run where it becomes a folder.
_ORIGIN = {
    "form": Field(is_whole, "a whole number"),
    "run": _TEXT,
    "changes": _LIST,
    "settings": _OBJECT,
    "trainer": _OBJECT,
    "task": _OBJECT,
    "rewards": _LIST,
    "machine": _OBJECT,
    "versions": _OBJECT,
}


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Project(Shown):
    """A run as a folder, as `write` left it or as a training there has filled it."""

    path: Path
    recorded: Mapping[str, Any]
    """All that `origin.json` says."""

    @property
    def changes(self) -> tuple[str, ...]:
        """What the folder does otherwise than the run, because it has to."""
        return tuple(self.recorded["changes"])

    @property
    def run(self) -> Run:
        """What was trained in the folder, as a run like any other, under `back/` in it; made at the first look.

        Raises:
            FileNotFoundError: Nothing was trained to its end there.
            ValueError: The name of the run leads out of the folder.
        """
        finished = self.path / "result" / "finished.json"
        if not finished.is_file():
            raise FileNotFoundError(
                f"nothing was trained to its end in {str(shown_path(self.path))!r}: start train.py there, see its README.md."
            )
        # A folder of its own, in which nobody else trains: what is there is replaced.
        target = inside(inside(self.path, "back"), self.recorded["run"])
        if (
            not (target / "run.json").is_file()
            or (target / "run.json").stat().st_mtime < finished.stat().st_mtime
        ):
            with staged_folder(target) as staged:
                _make_run(staged, self.path, self.recorded)
                put_in_place(staged, target)
            write_model_card(Run(target))  # which has the name of its folder
        return open_run(target)

    def _parts(self) -> Iterator[Part]:
        yield bold(
            f"{self.recorded['run']}, to be trained by {shown_path(self.path / 'train.py')}."
        )
        yield from self.changes


def open_project(folder: str | Path) -> Project:
    """Open a folder of `write`. Nothing in it is run.

    Args:
        folder: As `write` made it, also after a training in it on another machine.

    Raises:
        FileNotFoundError: Nothing of that kind is there.
        ValueError: It is of a form that this version does not know, or a link, a path or a name in it leads out of it.

    >>> gn.scaleout.open("anywhere").run.plot()  # doctest: +SKIP
    """
    place = Path(folder).expanduser()
    for name in _READ:
        if (inside(place, name)).is_dir():
            refuse_links(place / name, within=place)
    origin = place / "origin.json"
    with reading(origin):
        recorded = parse_json(origin.read_text("utf-8"))
        check_fields("origin.json", recorded, _ORIGIN)
        check_fields("settings", recorded["settings"], {"model": _TEXT})
    if recorded["form"] != FORM:
        raise ValueError(
            f"{str(place)!r} has the form {recorded['form']}, this version reads {FORM}: write it again."
        )
    model = recorded["settings"]["model"]
    if model not in ("base", EMBEDDED_MODEL) and not published_name(model):
        raise ValueError(
            f"{str(place / 'origin.json')!r} names the model {model!r}, which is no name on the Hub."
        )
    return Project(path=place, recorded=recorded)


def _make_run(folder: Path, place: Path, recorded: Mapping[str, Any]) -> None:
    """Fill a folder with what was trained, as `gn.train` would have left it."""
    from grpo_nb.training.recorder import completions_table

    weights = {entry["name"]: entry["weight"] for entry in recorded["rewards"]}
    finished = json.loads((place / "result" / "finished.json").read_text("utf-8"))
    settings, count = _trained_with(place, recorded, finished["trainer"]), finished["processes"]
    info = RunInfo(
        status="finished",
        settings=settings.to_dict(),
        machine={
            **recorded["machine"],
            "platform": finished["platform"],
            "gpu": None,
            "device": finished["device"],
        },
        started=finished["started"],
        seconds=finished["seconds"],
        versions={**recorded["versions"], **finished["versions"]},
        rollout=f"trl, {count} process{'es' * (count > 1)} ({finished['strategy']}), in {place.name}",
        **{name: recorded[name] for name in _SAME},
    )
    info.write(folder / "run.json")
    (folder / "completions").mkdir()
    with (folder / "metrics.jsonl").open("w") as file:
        for step in _lines(place / "result" / "steps.jsonl"):
            row = tidy_row(step["logs"], step["step"], settings.max_steps, settings.beta)
            if "completions/mean_length" in row:  # else the step used completions of an earlier one
                table = completions_table(step, step["step"], settings.num_generations, weights)
                table.to_parquet(
                    folder / "completions" / f"step_{step['step']:06d}.parquet", index=False
                )
                row |= repetition_metrics(
                    list(group) for _, group in table.groupby("group")["completion"]
                )
            file.write(json.dumps(row) + "\n")
    link(place / "result" / "adapter", folder / "adapter", "adapter_*")
    Run(folder).keep_questions([row["question"] for row in _lines(place / "train.jsonl")], [])
    for name in ("holdout.jsonl", "chat_template.jinja"):
        if (place / name).is_file():
            shutil.copyfile(place / name, folder / name)


def _trained_with(place: Path, recorded: Mapping[str, Any], there: Mapping[str, Any]) -> Settings:
    """The settings of a training, which may not be those that were written: run.yaml and `--set` change them."""
    settings, fields = (
        dict(recorded["settings"]),
        {field.name for field in dataclasses.fields(Settings)},
    )
    changed = {
        name: value for name, value in there.items() if recorded["trainer"].get(name) != value
    }
    trained = {
        name: changed[name]
        for name in changed.keys() & (fields - {"model", "run_root", "extra", "num_train_epochs"})
    }
    extra = {name: value for name, value in changed.items() if name not in fields}
    # Where the model and the runs are is this machine's, not the folder's, to say.
    own = {
        "model": str(place / "base") if settings["model"] == "base" else settings["model"],
        "run_root": "runs",
    }
    return Settings.from_dict(
        {**settings, **trained, **own, "extra": {**settings["extra"], **extra}}
    )


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def link(source: Path, folder: Path, pattern: str = "*") -> None:
    """Put the files of a folder into another: as links where both are on one disk, else as copies."""
    folder.mkdir(exist_ok=True)
    for file in source.glob(pattern):
        if file.is_file() and not (folder / file.name).exists():
            try:
                os.link(file.resolve(), folder / file.name)
            except OSError:  # another disk, or one without links
                shutil.copyfile(file, folder / file.name)
