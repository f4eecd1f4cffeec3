"""Open a project, and read what was trained in it as a `Run`.

A project is a folder that `write_project` made. No code in it is executed, and paths that lead
outside of it are refused.
"""

import copy
import dataclasses
import json
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_nb.config.arguments import SETTABLE_ARGUMENTS
from grpo_nb.config.settings import EMBEDDED_MODEL, Settings
from grpo_nb.core.files import (
    copy_files,
    put_in_place,
    refuse_links,
    safe_path,
    staged_folder,
)
from grpo_nb.core.tables import Part, ReprMixin
from grpo_nb.health.monitor import HealthMonitor
from grpo_nb.runs.card import is_hub_name, write_model_card
from grpo_nb.runs.groups import completions_table
from grpo_nb.runs.reading import read_json_lines, reporting_damage_in
from grpo_nb.runs.rows import MEAN_LENGTH, duplicates_entry, row_from_logs
from grpo_nb.runs.run_folder import Run
from grpo_nb.runs.run_info import RUN_INFO_SCHEMA, RunInfo, read_run_info

#: Subfolder with a copied base model. Its name also replaces the model's name in origin.json.
COPIED_BASE = "base"
#: Entries of a project that are read, and must hold no link that leads out of the folder.
READ_ENTRIES = (
    "origin.json",
    "train.jsonl",
    "holdout.jsonl",
    "adapter_init",
    "chat_template.jinja",
    COPIED_BASE,
    "result",
    "run",
)
#: Files that `Project.run` needs. train.py writes `finished.json` last.
REQUIRED_FOR_RUN = (
    "result/finished.json",
    "result/steps.jsonl",
    "result/adapter/adapter_model.safetensors",
    "train.jsonl",
)
#: Note for users on the only setting that `write_project` changes with an effect on the training
#: (`project_writing._trainer_arguments`).
BNPO_NOTE = (
    "The loss bnpo becomes dapo. bnpo divides by the tokens of one process, so each number of "
    "processes would learn something else. With one process and one forward pass a step they are "
    "equal."
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Project(ReprMixin):
    """A folder that trains a run again, before or after a training in it."""

    path: Path
    origin: RunInfo
    """Record of what the run was started with, from `origin.json`."""

    @property
    def run(self) -> Run:
        """The run that was trained in the project. The first use makes its folder in `run/`.

        It has the name of the project's folder.

        Raises:
            FileNotFoundError: No training was finished in the project, or a file is missing.
            FileExistsError: `run/` has the run of an earlier training.
            ValueError: A file is damaged.
        """
        # Links are refused once more, because the results may have been copied into the project
        # since it was opened.
        _refuse_links_in_project(self.path)
        for name in REQUIRED_FOR_RUN:
            if not (self.path / name).is_file():
                raise FileNotFoundError(
                    f"{str(self.path)!r} has no {name}: start train.py there, see its README.md. "
                    "If it was trained on another machine, copy the whole folder again."
                )
        summary_file = self.path / "result/finished.json"
        with reporting_damage_in(summary_file):
            summary = json.loads(summary_file.read_text("utf-8"))
        run = Run(self.path / "run" / self.path.resolve().name)
        if not (run.path / "run.json").is_file():
            with staged_folder(run.path) as staged:
                _write_trained_run(staged, self, summary)
                put_in_place(staged, run.path)
            # Written after the move, because the card shows the name of the run's folder.
            write_model_card(run)
        # The start times show if it is the same training. File times come from two clocks.
        elif run.info["started"] != summary["started"]:
            raise FileExistsError(
                f"{str(run.path)!r} is the run of an earlier training, and is kept. Rename that "
                "folder, and the new run takes its place."
            )
        # If the project was moved, the copy of the base model has another path now.
        if run.settings.model != self.base_model:
            run_info = run.read_info()
            run_info.settings["model"] = self.base_model
            run.write_info(run_info)
        return run

    @property
    def base_model(self) -> str:
        """The base model of the run: a name, or the path of the copy in this folder."""
        model = self.origin.settings["model"]
        return str((self.path / COPIED_BASE).resolve()) if model == COPIED_BASE else model

    def _shown_parts(self) -> Iterator[Part]:
        yield f"Training script: {self.path / 'train.py'}"
        if self.origin.settings.get("loss_type") == "bnpo":
            yield BNPO_NOTE


def open_project(folder: str | Path) -> Project:
    """Open a folder that `write_project` made, also after a training in it on another machine.

    Raises:
        FileNotFoundError: The folder has no `origin.json`.
        ValueError: The file is damaged or of another version, or a link, path or name leads
            outside.

    >>> gn.scaleout.open("anywhere").run.plot()  # doctest: +SKIP
    """
    path = Path(folder).expanduser()
    _refuse_links_in_project(path)
    origin_file = path / "origin.json"
    origin = read_run_info(origin_file)
    model = origin.settings.get("model")
    # If a path were allowed, the sender of the folder could choose any model on this machine.
    if model not in (COPIED_BASE, EMBEDDED_MODEL) and not is_hub_name(model):
        raise ValueError(
            f"{str(origin_file)!r} names the model {model!r}, which is not a name on the Hub."
        )
    return Project(path=path, origin=origin)


def _refuse_links_in_project(folder: Path) -> None:
    """Raise `ValueError` if something that is read or written in a project is or holds a link."""
    # Other entries may hold links, such as those of an environment that was made in the folder.
    for name in READ_ENTRIES:
        refuse_links(safe_path(folder, name))


def _write_trained_run(target: Path, project: Project, summary: dict[str, Any]) -> None:
    """Fill a folder with what was trained in a project, as `gn.train` would have left it.

    Raises:
        ValueError: A file of the project is damaged.
    """
    source = project.path
    run = Run(target)
    with reporting_damage_in(f"{source} (origin.json or result/)"):
        origin = project.origin
        rewards = []
        for record in origin.rewards:
            # A reward that was renamed in rewards.py keeps its weight here.
            weight = summary["reward_weights"].get(record["name"], record["weight"])
            rewards.append(record | {"weight": weight})
        settings = _trained_settings(project, summary)
        run_info = dataclasses.replace(
            origin,
            status="finished",
            settings=settings.to_dict(),
            rewards=rewards,
            dtype=summary["dtype"],
            reference=summary["reference"],
            machine=summary["machine"],
            started=summary["started"],
            # Packages that only grpo_nb uses keep the versions with which the project was written.
            versions=origin.versions | summary["versions"],
            engine=f"trl, processes: {summary['processes']} ({summary['strategy']})",
            effective=None,
        )
        RUN_INFO_SCHEMA.validate_python(run_info.to_dict())
        run.write_info(run_info)
        # train.py knows no health rules, so they judge its rows here.
        health = HealthMonitor(
            weights=run.weights, ranges=run.ranges, group_size=settings.num_generations
        )
        for step_record in read_json_lines(source / "result/steps.jsonl"):
            step = operator.index(step_record["step"])
            row = row_from_logs(step_record["logs"], step, settings.max_steps, settings.beta)
            table = None
            # Without this metric the step reused an earlier step's completions.
            if MEAN_LENGTH in row:
                table = completions_table(step_record, step, settings.num_generations, run.weights)
                row |= duplicates_entry(table["completion"], table["group"])
            row["alerts"] = [alert.to_dict() for alert in health.update(row)]
            run.write_step(row, table)
    copy_files(source / "result/adapter", target / "adapter", "adapter_*")
    # Without the start adapter, a comparison would credit this run with earlier stages too.
    copy_files(source / "adapter_init", target / "start", "adapter_*")
    # A comparison of the run warns about held-out questions that were trained on.
    questions = [row["question"] for row in read_json_lines(source / "train.jsonl")]
    run.write_questions(questions, read_json_lines(source / "holdout.jsonl"))
    for folder in (target, target / "adapter"):
        copy_files(source, folder, "chat_template.jinja")


def _trained_settings(project: Project, summary: dict[str, Any]) -> Settings:
    """Return the settings of a training, which run.yaml and `--set` may have changed."""
    settings = copy.deepcopy(project.origin.settings)
    arguments = summary["trainer"]
    written_arguments = project.origin.effective["arguments"]
    for name, value in arguments.items():
        # An unchanged argument leaves the settings as they were written. Arguments that only
        # train.py accepts, such as bf16 and use_vllm, are left out.
        if name in SETTABLE_ARGUMENTS and written_arguments.get(name) != value:
            place = settings if name in settings else settings["extra"]
            place[name] = value
    changes = {
        "model": project.base_model,
        "run_root": "runs",
        # Never `auto`, which could be another dtype on this machine.
        "dtype": summary["dtype"],
        "load_in_4bit": summary["load_in_4bit"],
        # `write_project` has changed bnpo to dapo.
        "loss_type": arguments["loss_type"],
    }
    return Settings.from_dict(settings | changes)
