"""Open a project, and read what was trained in it as a `Run`.

A project is a folder that `write_project` made. No code in it is executed, and paths that lead
outside of it are refused.
"""

import copy
import json
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.config.arguments import SETTABLE_ARGUMENTS
from grpo_nb.config.settings import EMBEDDED_MODEL, Settings
from grpo_nb.core.files import copy_files, put_in_place, refuse_links, safe_path, staged_folder
from grpo_nb.core.tables import Part, ReprMixin
from grpo_nb.health.history import duplicates_entry
from grpo_nb.health.monitor import HealthMonitor
from grpo_nb.runs.card import is_hub_name, write_model_card
from grpo_nb.runs.groups import completions_table
from grpo_nb.runs.reading import read_json_lines, reporting_damage_in
from grpo_nb.runs.rows import MEAN_LENGTH_KEY, row_from_logs
from grpo_nb.runs.run_folder import Run
from grpo_nb.runs.run_info import RUN_INFO_SCHEMA, RunInfo, read_run_info
from grpo_nb.runs.writing import write_questions, write_run_info, write_step

#: Subfolder with a copied base model. run.yaml and origin.json have this word in place of the
#: model's path; only the embedded model keeps its name in origin.json.
COPIED_BASE = "base"
#: Entries of a project that are read or written, and so must hold no link that leads elsewhere.
CHECKED_ENTRIES = (
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
    "adapter_init/adapter_model.safetensors",
    "train.jsonl",
)
#: Fields of `RunInfo` that train.py writes under the same names in `finished.json`.
FIELDS_OF_TRAIN_PY = ("dtype", "engine", "machine", "reference", "started")
#: Record of a reward that the original run did not have, or that has a new name in rewards.py.
NEW_REWARD = {"kind": "", "call": "a function", "source": "see rewards.py", "hash": ""}
#: Note for users. Of the settings that `write_project` replaces, the loss is the only one that
#: affects the training (`project_writing._trainer_arguments`).
BNPO_NOTE = (
    "The loss bnpo becomes dapo. bnpo divides by the tokens of one process, so each number of "
    "processes would learn something else. With one process and one forward pass a step they are "
    "equal."
)


@dataclass(frozen=True, repr=False)
class Project(ReprMixin):
    """A folder that trains a run again, before or after a training in it."""

    path: Path
    origin: RunInfo
    """Record of the original run, from `origin.json`."""

    @property
    def run(self) -> Run:
        """The run that was trained in the project. The first use makes its folder in `run/`.

        The run has the name of the project's folder. If you rename the folder, a run with the new
        name is made next to the earlier one.

        Raises:
            FileNotFoundError: No training was finished in the project, or a file is missing.
            FileExistsError: `run/` has the run of an earlier training.
            ValueError: A file is damaged, or the training used another base model.
        """
        # 1. Check and read the results. Links are refused once more, because the results may have
        # been copied into the project since it was opened.
        _refuse_links_in_project(self.path)
        for name in REQUIRED_FOR_RUN:
            if not (self.path / name).is_file():
                raise FileNotFoundError(
                    f"{str(self.path)!r} has no {name}: start train.py there, see its README.md. "
                    "If it was trained on another machine, copy the whole folder again."
                )
        finished_file = self.path / "result/finished.json"
        with reporting_damage_in(finished_file):
            finished = json.loads(finished_file.read_text("utf-8"))
            started = finished["started"]
            trained_model = finished["model"]
            written_model = self.origin["effective"]["model"]
        # run.yaml can be changed. An export with the wrong base model would be wrong silently.
        if trained_model != written_model:
            raise ValueError(
                f"the project was written for the model {written_model!r}, but was trained with "
                f"{trained_model!r}, so the result is not a run of that model. Train again with "
                "the first name in run.yaml. If both have the same weights, write the first name "
                "as the model in result/finished.json."
            )
        # 2. Make the run, unless an earlier use has made it.
        run = Run(self.path / "run" / self.path.resolve().name)
        if not (run.path / "run.json").is_file():
            with staged_folder(run.path) as staged:
                _write_trained_run(staged, self, finished)
                put_in_place(staged, run.path)
            # Written after the move, because the card shows the name of the run's folder.
            write_model_card(run)
        elif run.info["started"] != started:
            # The times of files may come from the clocks of two machines, so start times decide.
            raise FileExistsError(
                f"{str(run.path)!r} is the run of an earlier training, and is kept. Rename that "
                "folder, and the new run takes its place."
            )
        # 3. Correct the path of the copied base model if the project was moved.
        if run.settings.model != self.base_model:
            run_info = run.info
            run_info["settings"]["model"] = self.base_model
            write_run_info(run, run_info)
        return run

    @property
    def base_model(self) -> str:
        """The base model of the run: a name, or the path of the copy in this folder."""
        model = self.origin["settings"]["model"]
        return str((self.path / COPIED_BASE).resolve()) if model == COPIED_BASE else model

    def _shown_parts(self) -> Iterator[Part]:
        yield f"Training script: {self.path / 'train.py'}"
        if self.origin["settings"].get("loss_type") == "bnpo":
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
    model = origin["settings"].get("model")
    # With a path, the sender of the folder could choose a model anywhere on this machine.
    if model not in (COPIED_BASE, EMBEDDED_MODEL) and not is_hub_name(model):
        raise ValueError(
            f"{str(origin_file)!r} names the model {model!r}, which is not a name on the Hub."
        )
    return Project(path=path, origin=origin)


def _refuse_links_in_project(folder: Path) -> None:
    """Raise `ValueError` if something that is read or written in a project is or holds a link."""
    # Other entries may hold links, such as those of an environment that was made in the folder.
    for name in CHECKED_ENTRIES:
        refuse_links(safe_path(folder, name))


def _write_trained_run(target: Path, project: Project, finished: dict[str, Any]) -> None:
    """Fill a folder with what was trained in a project, as `gn.train` would have left it.

    Args:
        target: The folder of the run.
        project: The project, whose `result/` is read.
        finished: Content of `result/finished.json`: how the run was trained.

    Raises:
        ValueError: A file of the project is damaged.
    """
    source = project.path
    run = Run(target)
    with reporting_damage_in(f"{source} (origin.json or result/)"):
        write_run_info(run, _trained_run_info(project, finished))
        _write_steps(run, source / "result/steps.jsonl")
    copy_files(source / "result/adapter", target / "adapter", "adapter_*")
    # A comparison measures the trained adapter against this one, so that it does not count what
    # earlier runs taught.
    copy_files(source / "adapter_init", target / "start", "adapter_*")
    # A comparison of the run warns about held-out questions that were trained on.
    with reporting_damage_in(source / "train.jsonl"):
        questions = [row["question"] for row in read_json_lines(source / "train.jsonl")]
    write_questions(run, questions, read_json_lines(source / "holdout.jsonl"))
    # Some models have no chat template. Then nothing is copied.
    for folder in (target, target / "adapter"):
        copy_files(source, folder, "chat_template.jinja")


def _trained_run_info(project: Project, finished: dict[str, Any]) -> RunInfo:
    """Return the `RunInfo` of what was trained in a project."""
    origin = project.origin
    # rewards.py and the weights may have been changed before the training.
    records = {record["name"]: record for record in origin["rewards"]}
    rewards = [
        records.get(name, NEW_REWARD) | {"name": name, "weight": weight}
        for name, weight in finished["reward_weights"].items()
    ]
    return RUN_INFO_SCHEMA.validate_python(
        {
            **origin,
            **{name: finished[name] for name in FIELDS_OF_TRAIN_PY},
            "status": "finished",
            "settings": _trained_settings(project, finished).to_dict(),
            "rewards": rewards,
            # Packages that only grpo_nb uses keep the versions of the original run.
            "versions": origin["versions"] | finished["versions"],
            "effective": None,
        }
    )


def _write_steps(run: Run, file: Path) -> None:
    """Write the rows, alerts and completions of the steps that train.py has logged."""
    settings = run.settings
    weights = run.weights
    # train.py knows no health rules, so they judge its rows here.
    health = HealthMonitor(weights=weights, ranges=run.ranges, group_size=settings.num_generations)
    for step_record in read_json_lines(file):
        # Refuses 1.5, which `int` would round.
        step = operator.index(step_record["step"])
        row = row_from_logs(step_record["logs"], step, settings.max_steps, settings.beta)
        table = None
        # A step that reuses the completions of an earlier step does not log this metric.
        if MEAN_LENGTH_KEY in row:
            table = completions_table(step_record, step, settings.num_generations, weights)
            row.update(duplicates_entry(table["completion"], table["group"]))
        row["alerts"] = [alert.to_dict() for alert in health.update(row)]
        write_step(run, row, table)


def _trained_settings(project: Project, finished: dict[str, Any]) -> Settings:
    """Return the settings of a training, which run.yaml and `--set` may have changed."""
    settings = copy.deepcopy(project.origin["settings"])
    arguments = finished["trainer"]
    written_arguments = project.origin["effective"]["trainer"]
    for name, value in arguments.items():
        # Take over changes only, because the settings may write an unchanged value in another way
        # than the argument. grpo_nb has no settings for bf16, use_vllm and others.
        if name in SETTABLE_ARGUMENTS and written_arguments.get(name) != value:
            # Arguments that are not settings of their own belong in `extra`.
            target = settings if name in settings else settings["extra"]
            target[name] = value
    settings |= {
        "model": project.base_model,
        # The sender of the folder must not choose where the next run is written.
        "run_root": "runs",
        # Never `auto`, which could be another dtype on this machine.
        "dtype": finished["dtype"],
        "load_in_4bit": finished["load_in_4bit"],
        # `write_project` has replaced bnpo in run.yaml, so the loop above sees no change.
        "loss_type": arguments["loss_type"],
    }
    return Settings.from_dict(settings)
