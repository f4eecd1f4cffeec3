"""A folder of `write`, opened again, also after a training in it.

Nothing in it is run when it is opened, and no path or name in it leads out of it. Rewards of the kit are made again from their
recorded parameters and compared with the recorded identity; rewards of the user's own are code, which is only run when that is
asked for by name.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_nb.core.arguments import require_path
from grpo_nb.core.files import inside, put_in_place, shown_path, staged_folder, write_json
from grpo_nb.core.tables import Part, Shown, Table, bold
from grpo_nb.health.monitor import HealthMonitor
from grpo_nb.rewards.base import Reward
from grpo_nb.rewards.rebuild import rebuild_reward
from grpo_nb.runs.card import published_name, write_model_card
from grpo_nb.runs.rows import tidy_row
from grpo_nb.runs.run import Run, open_run, write_trained_questions
from grpo_nb.scaleout.differences import Difference, find_differences
from grpo_nb.settings.settings import EMBEDDED_MODEL, Settings
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.task import Task

FORM = 1
_NEEDED = {"form", "run", "settings", "task", "rewards", "versions", "machine", "number_type", "changes", "trainer"}
_GENERATED = "completions/mean_length"
# All that is read of a folder unless its code is trusted.
_READ = ("origin.json", "train.jsonl", "holdout.jsonl", "chat_template.jinja", "adapter_init", "base", "result", "back")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Project(Shown):
    """A run as a folder, as `write` left it or as a training there has filled it."""

    path: Path
    settings: Settings
    """Of the run that it was written from, for a run here."""
    task: Task
    rewards: list[Callable[..., Any]]
    """Those that could be made again, in their order."""
    missing_rewards: Mapping[str, str]
    """Why the others could not, by name."""
    differences: tuple[Difference, ...]
    """What is not here as it was where the run was made."""
    changes: tuple[str, ...]
    """What the folder does otherwise than the run, because it has to."""
    recorded: Mapping[str, Any] = dataclasses.field(repr=False)
    """All that `origin.json` says."""

    @property
    def is_complete(self) -> bool:
        """Whether every reward is there."""
        return not self.missing_rewards

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

    @property
    def sentence(self) -> str:
        """What is there and what differs, in words."""
        count = len(self.rewards) + len(self.missing_rewards)
        text = (
            f"{self.recorded['run']}, {'trained' if self.is_trained else 'to be trained'} in {shown_path(self.path)}: "
            f"{len(self.task.train)} training and {len(self.task.holdout)} held-out rows, "
            f"{len(self.rewards)} of {count} rewards. "
        )
        if self.missing_rewards:
            text += f"Not made again: {', '.join(self.missing_rewards)}. "
        telling = [d.what for d in self.differences if d.changes_results]
        if telling:
            return f"{text}Other results are to be expected here from: {', '.join(telling)}."
        return f"{text}Nothing was found that would change its results here."

    def _parts(self) -> Iterator[Part]:
        yield bold(self.sentence)
        yield from self.changes
        rows = [
            (d.what, d.then, d.now, "can change results" if d.changes_results else "for information")
            for d in self.differences
        ]
        rows += [(f"reward {name}", "used", "not made again", why) for name, why in self.missing_rewards.items()]
        if rows:
            yield Table(rows, head=("", "then", "here", ""))


def open_project(folder: str | Path, *, trust_code: bool = False) -> Project:
    """Open a folder of `write`: what was trained in it, and what is needed to train it here.

    Args:
        folder: As `write` made it, also after a training in it on another machine.
        trust_code: Run its `rewards.py` for rewards that are not the kit's, with all the rights that you have. Read the file
            first; a folder of somebody else can hold anything.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It is none of these folders, a damaged one, one of a form that this version does not know, or one in which
            a link or a path leads out of it.

    >>> gn.scaleout.open("anywhere").run.plot()  # doctest: +SKIP
    """
    place = require_path("folder", folder, "a folder that gn.scaleout.write made")
    if not place.is_dir():
        raise FileNotFoundError(f"there is no folder {str(place)!r}: write one with gn.scaleout.write(run, folder).")
    for name in _READ:
        for file in (place / name, *(place / name).rglob("*")):
            inside(place, file.relative_to(place).as_posix())
    recorded = _read_record(place)
    model = recorded["settings"].get("model")
    if model not in ("base", EMBEDDED_MODEL) and not (isinstance(model, str) and published_name(model)):
        raise ValueError(f"{str(place / 'origin.json')!r} names the model {model!r}, which is no name on the Hub.")
    own = {"model": str(place / "base") if model == "base" else model, "run_root": "runs"}
    settings = Settings.from_dict({**recorded["settings"], **own})
    task = _read_task(place, recorded["task"], settings)
    own = _run_rewards(place) if trust_code else []
    made: list[tuple[Mapping[str, Any], Callable[..., Any]]] = []
    missing = {}
    for number, entry in enumerate(recorded["rewards"]):
        reward, why = rebuild_reward(entry)
        if reward is None and own:
            reward = own[number]
            if not isinstance(reward, Reward):
                reward.weight = entry["weight"]
        if reward is None:
            missing[entry["name"]] = why
        else:
            made.append((entry, reward))
    return Project(
        path=place, settings=settings, task=task, rewards=[reward for _, reward in made], missing_rewards=missing,
        differences=find_differences(recorded, settings, task, made), changes=tuple(recorded["changes"]), recorded=recorded,
    )  # fmt: skip


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


def _read_task(place: Path, recorded: Mapping[str, Any], settings: Settings) -> Task:
    from datasets import Dataset

    parts = [Dataset.from_list(_lines(place / f"{name}.jsonl")) for name in ("train", "holdout")]
    return Task(
        recorded["name"], AnswerFormat(**recorded["format"]), *parts, recorded["dropped"],
        bool(recorded.get("is_ordered")), chat_template_kwargs=dict(settings.extra.get("chat_template_kwargs") or {}),
    )  # fmt: skip


def _lines(file: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ValueError(f"{str(file)!r} is missing or damaged ({error}): copy the folder again.") from error


def _run_rewards(place: Path) -> list[Callable[..., Any]]:
    """Run the folder's `rewards.py`, which can do all that its user can, and return the rewards that it makes."""
    spec = importlib.util.spec_from_file_location(f"rewards_of_{place.name}", place / "rewards.py")
    # Noted there, and left there, or the source of a class in it could not be read.
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return list(module.REWARDS)
    except Exception as error:  # whatever the code of somebody raises
        raise ValueError(
            f"{str(place / 'rewards.py')!r} could not be run ({type(error).__name__}: {error})."
        ) from error


def _make_run(folder: Path, project: Project) -> None:
    """Fill a folder with what was trained, as `gn.train` would have left it."""
    from grpo_nb.runs.live import png, training_figure
    from grpo_nb.training.recorder import completions_table

    place, recorded = project.path, project.recorded
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
    monitor = HealthMonitor(weights=weights, settings=settings, folder=folder)
    (folder / "completions").mkdir()
    rows = []
    for step in steps:
        row = tidy_row(step["logs"], step["step"], settings.max_steps, settings.beta)
        table = None
        if _GENERATED in row:
            table = completions_table(step, step["step"], settings.num_generations, weights)
            table.to_parquet(folder / "completions" / f"step_{step['step']:06d}.parquet", index=False)
        groups = None if table is None else [list(group) for _, group in table.groupby("group")["completion"]]
        monitor.update(row, groups)
        rows.append(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for source, name in (("result/adapter", "adapter"), ("adapter_init", "start")):
        link(place / source, folder / name, "adapter_*")
    kept = [{key: row[key] for key in ("prompt", "question", "answer")} for row in project.task.holdout]
    (folder / "holdout.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept), "utf-8")
    if (place / "chat_template.jinja").is_file():
        shutil.copyfile(place / "chat_template.jinja", folder / "chat_template.jinja")
    for name in ("train.jsonl", "holdout.jsonl"):
        shutil.copyfile(place / name, folder / "start" / name)
    write_json(folder / "start" / "rewards.json", recorded["remembered"])
    run = Run(folder)
    write_trained_questions(run, project.task.train["question"])
    (folder / "figures").mkdir()
    figure = training_figure(rows, weights, settings.beta, alerts=run.alerts)
    (folder / "figures" / "training.png").write_bytes(png(figure, dpi=150))


def _trained_with(project: Project, there: Mapping[str, Any]) -> Settings:
    """The settings of a training, which may not be those that were written: run.yaml and `--set` change them."""
    settings, written = project.settings, project.recorded["trainer"]
    # These two may have been changed when it was written.
    asked = there["trainer"].items()
    changes = {name: value for name, value in asked if name in ("loss_type", "optim") or written.get(name) != value}
    if (total := there["completions_per_step"]) != settings.batch_size:
        size = min(there["most_per_pass"], total)
        changes |= {"per_device_train_batch_size": size, "gradient_accumulation_steps": total // size}
    fields = {field.name for field in dataclasses.fields(Settings)}
    own = {name: changes.pop(name) for name in fields & changes.keys()}
    # The model is not the trainer's, nor where runs are.
    kept = {"model": settings.model, "run_root": settings.run_root, "extra": {**settings.extra, **changes}}
    return Settings.from_dict({**settings.to_dict(), **own, **kept})


def link(source: Path, folder: Path, pattern: str = "*") -> None:
    """Put the files of a folder into another: as links where both are on one disk, else as copies."""
    folder.mkdir(exist_ok=True)
    for file in source.glob(pattern):
        if file.is_file() and not (folder / file.name).exists():
            try:
                os.link(file.resolve(), folder / file.name)
            except OSError:  # another disk, or one without links
                shutil.copyfile(file, folder / file.name)
