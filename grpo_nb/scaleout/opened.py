"""A folder of `write`, opened again, and what was trained in it as a run like any other.

Nothing in it is run, and no path or name in it leads out of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_nb.core.files import inside, put_in_place, shown_path, staged_folder, write_json
from grpo_nb.core.tables import Part, Shown, bold
from grpo_nb.health.course import sameness
from grpo_nb.health.monitor import HealthMonitor
from grpo_nb.runs.card import published_name, write_model_card
from grpo_nb.runs.rows import tidy_row
from grpo_nb.runs.run import Run, open_run
from grpo_nb.settings.settings import EMBEDDED_MODEL, Settings

FORM = 1
_NEEDED = {"form", "run", "settings", "task", "rewards", "versions", "machine", "number_type", "changes", "trainer"}
_GENERATED = "completions/mean_length"
# All that is read of a folder.
_READ = ("origin.json", "train.jsonl", "holdout.jsonl", "chat_template.jinja", "adapter_init", "base", "result", "back")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Project(Shown):
    """A run as a folder, as `write` left it or as a training there has filled it."""

    path: Path
    changes: tuple[str, ...]
    """What the folder does otherwise than the run, because it has to."""
    recorded: Mapping[str, Any] = dataclasses.field(repr=False)
    """All that `origin.json` says."""

    @property
    def is_trained(self) -> bool:
        """Whether a training in the folder came to its end."""
        return (self.path / "result" / "finished.json").is_file()

    @property
    def run(self) -> Run:
        """What was trained in the folder, as a run like any other, under `back/` in it; made at the first look.

        Raises:
            FileNotFoundError: Nothing was trained to its end there.
            ValueError: The name of the run leads out of the folder.
        """
        if not self.is_trained:
            raise FileNotFoundError(
                f"nothing was trained to its end in {str(shown_path(self.path))!r}: start train.py there, see its README.md."
            )
        # A folder of its own, in which nobody else trains: what is there is replaced.
        target = inside(self.path, f"back/{self.recorded['run']}")
        finished = self.path / "result" / "finished.json"
        if not (target / "run.json").is_file() or (target / "run.json").stat().st_mtime < finished.stat().st_mtime:
            with staged_folder(target) as staged:
                _make_run(staged, self)
                put_in_place(staged, target)
            write_model_card(Run(target))  # which has the name of its folder
        return open_run(target)

    def _parts(self) -> Iterator[Part]:
        state = "trained" if self.is_trained else "to be trained"
        yield bold(f"{self.recorded['run']}, {state} in {shown_path(self.path)}.")
        yield from self.changes


def open_project(folder: str | Path) -> Project:
    """Open a folder of `write`. Nothing in it is run.

    Args:
        folder: As `write` made it, also after a training in it on another machine.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It is none of these folders, a damaged one, one of a form that this version does not know, or one in which
            a link or a path leads out of it.

    >>> gn.scaleout.open("anywhere").run.plot()  # doctest: +SKIP
    """
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise FileNotFoundError(f"there is no folder {str(place)!r}: write one with gn.scaleout.write(run, folder).")
    for name in _READ:
        for file in (place / name, *(place / name).rglob("*")):
            inside(place, file.relative_to(place).as_posix())
    recorded = _read_record(place)
    model = recorded["settings"].get("model")
    if model not in ("base", EMBEDDED_MODEL) and not (isinstance(model, str) and published_name(model)):
        raise ValueError(f"{str(place / 'origin.json')!r} names the model {model!r}, which is no name on the Hub.")
    return Project(path=place, changes=tuple(recorded["changes"]), recorded=recorded)


def _read_record(place: Path) -> dict[str, Any]:
    file = place / "origin.json"
    try:
        recorded = json.loads(file.read_text("utf-8")) if file.is_file() else None
    except ValueError as error:
        raise ValueError(f"{str(file)!r} is damaged ({error}): write the folder again, or copy it again.") from error
    if not isinstance(recorded, dict) or _NEEDED - set(recorded):
        raise ValueError(
            f"{str(place)!r} is no folder of gn.scaleout.write: it has no origin.json of that kind. Write one: "
            "gn.scaleout.write(run, folder)."
        )
    if recorded["form"] != FORM:
        raise ValueError(
            f"{str(place)!r} has the form {recorded['form']!r}, this version of grpo_nb reads {FORM}: write it again."
        )
    return recorded


def _lines(file: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ValueError(f"{str(file)!r} is missing or damaged ({error}): copy the folder again.") from error


def _make_run(folder: Path, project: Project) -> None:
    """Fill a folder with what was trained, as `gn.train` would have left it."""
    from grpo_nb.training.recorder import completions_table

    place, recorded = project.path, project.recorded
    trained_on, held_out = (_lines(place / f"{name}.jsonl") for name in ("train", "holdout"))
    weights = {entry["name"]: entry["weight"] for entry in recorded["rewards"]}
    finished = json.loads((place / "result" / "finished.json").read_text("utf-8"))
    settings = _trained_with(project, finished["run"])
    steps = _lines(place / "result" / "steps.jsonl")
    info = {
        "status": "finished",
        "started": finished["started"],
        "seconds": finished["seconds"],
        "settings": settings.to_dict(),
        "machine": {**recorded["machine"], "platform": finished["platform"], "gpu": None, "device": finished["device"]},
        "versions": {**recorded["versions"], **finished["versions"]},
        "rollout": f"trl, {finished['processes']} processes ({finished['strategy']}), in {place.name}",
        "adapter_step": steps[-1]["step"],
        **{name: recorded[name] for name in ("task", "rewards", "number_type", "reference", "base", "generation")},
    }
    write_json(folder / "run.json", info)
    health = HealthMonitor(weights=weights, settings=settings, ranges=Run(folder).ranges)
    (folder / "completions").mkdir()
    rows = []
    for step in steps:
        row = tidy_row(step["logs"], step["step"], settings.max_steps, settings.beta)
        table = None
        if _GENERATED in row:
            table = completions_table(step, step["step"], settings.num_generations, weights)
            table.to_parquet(folder / "completions" / f"step_{step['step']:06d}.parquet", index=False)
            row |= sameness(list(group) for _, group in table.groupby("group")["completion"])
        if fresh := health.update(row):
            row["alerts"] = [alert.to_dict() for alert in fresh]
        rows.append(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for source, name in (("result/adapter", "adapter"), ("adapter_init", "start")):
        link(place / source, folder / name, "adapter_*")
    if (place / "chat_template.jinja").is_file():
        shutil.copyfile(place / "chat_template.jinja", folder / "chat_template.jinja")
    for name in ("train.jsonl", "holdout.jsonl"):
        shutil.copyfile(place / name, folder / "start" / name)
    write_json(folder / "start" / "rewards.json", recorded["remembered"])
    run = Run(folder)
    run.keep_questions([row["question"] for row in trained_on], held_out)
    run.save_figure()


def _trained_with(project: Project, there: Mapping[str, Any]) -> Settings:
    """The settings of a training, which may not be those that were written: run.yaml and `--set` change them."""
    model, written = project.recorded["settings"]["model"], project.recorded["trainer"]
    # Where the model and the runs are is this machine's, not the folder's, to say.
    own = {"model": str(project.path / "base") if model == "base" else model, "run_root": "runs"}
    settings = Settings.from_dict({**project.recorded["settings"], **own})
    # These two may have been changed when it was written.
    asked = there["trainer"].items()
    changes = {name: value for name, value in asked if name in ("loss_type", "optim") or written.get(name) != value}
    if (total := there["completions_per_step"]) != settings.batch_size:
        size = min(there["most_per_pass"], total)
        changes |= {"per_device_train_batch_size": size, "gradient_accumulation_steps": total // size}
    fields = {field.name for field in dataclasses.fields(Settings)}
    trained = {name: changes.pop(name) for name in fields & changes.keys()}
    return Settings.from_dict({**settings.to_dict(), **trained, **own, "extra": {**settings.extra, **changes}})


def link(source: Path, folder: Path, pattern: str = "*") -> None:
    """Put the files of a folder into another: as links where both are on one disk, else as copies."""
    folder.mkdir(exist_ok=True)
    for file in source.glob(pattern):
        if file.is_file() and not (folder / file.name).exists():
            try:
                os.link(file.resolve(), folder / file.name)
            except OSError:  # another disk, or one without links
                shutil.copyfile(file, folder / file.name)
