"""Stages: several trainings one after the other on one adapter, such as first the format, then the answer.

runs/<name>/
  stages.json         the plan: each stage's name, folder, steps, settings and rewards, and what the KL is measured against
  start/              the adapter before the first stage
  01-format/          a run directory like any other
  02-correctness/
  figures/            the curves of all stages in one figure

A stage that was cut short goes on from its checkpoint, as a run of its own would.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.arguments import in_line, require_kind, require_number
from grpo_nb.core.files import inside, shown_path, write_json
from grpo_nb.core.tables import Part, Shown, bold
from grpo_nb.models.load import load_adapter, save_adapter
from grpo_nb.rewards.base import reward_list
from grpo_nb.rewards.identity import describe_difference, differing_parts, may_be_memory, parts_of
from grpo_nb.runs.checkpoints import newest_checkpoint
from grpo_nb.runs.rise import describe
from grpo_nb.runs.run import Run, new_run_folder
from grpo_nb.settings.settings import Settings
from grpo_nb.tasks.task import Task
from grpo_nb.training.arguments import Reference, check_arguments, require_holdout, require_parts
from grpo_nb.training.resume import MAY_CHANGE, differences, make_room, named_folder, remove_unbegun
from grpo_nb.training.run_info import checked_rewards, source_of

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from grpo_nb.runs.alert import Alert


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One training of several: what it pays for, and for how long."""

    name: str
    """Of its folder and in the curves."""
    rewards: Sequence[Callable[..., Any]]
    steps: int | None = None
    """Optimizer steps; `max_steps` of the settings if not given."""
    settings: Settings | None = None
    """Those of `train_stages` if not given."""
    task: Task | Callable[[Task, Any], Task] | None = None
    """Another task for this stage, or a function of the task and the stages so far (a `StagedRun`): `lambda task, run:
    task.without_flat_groups(run)`."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,90}", self.name):
            raise ValueError(
                f"stage name {in_line(self.name)} may hold up to 90 letters, digits, '.', '_' and '-' only."
            )
        object.__setattr__(self, "rewards", reward_list(self.rewards))
        if self.steps is not None:
            require_number("steps", self.steps, 1)
        require_kind("settings", self.settings, (None, Settings), "settings: gn.preset()")
        if not callable(self.task):
            require_kind("task", self.task, (None, Task), "a task, or a function of the task and the stages so far")


class StagedRun(Shown):
    """Several runs on one adapter, read from their folder whenever it is asked. Made by `train_stages` or `open_stages`."""

    def __init__(self, path: str | Path, *, model: Any = None, tokenizer: Any = None, count: int | None = None) -> None:
        self.path = Path(path)
        self._model, self._tokenizer = model, tokenizer
        # A stage may choose its questions from the stages before it, and must choose the same ones when it is resumed.
        self._count = count

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.name

    @property
    def plan(self) -> dict[str, Any]:
        """What `stages.json` says."""
        return json.loads((self.path / "stages.json").read_text())

    @property
    def runs(self) -> list[Run]:
        """The run of each stage begun so far. Only the last one holds the model: the others' adapters are on disk."""
        folders = [inside(self.path, stage["folder"]) for stage in self.plan["stages"][: self._count]]
        begun = [folder for folder in folders if (folder / "run.json").is_file()]
        return [
            Run(folder, model=self._model, tokenizer=self._tokenizer) if folder == begun[-1] else Run(folder)
            for folder in begun
        ]

    @property
    def last(self) -> Run:
        """The run of the last stage begun, for `compare` and `export_merged`.

        Raises:
            ValueError: No stage was begun.
        """
        runs = self.runs
        if not runs:
            raise ValueError(f"{self.name} has not begun its first stage.")
        return runs[-1]

    @property
    def status(self) -> str:
        """`finished` if every stage is; else that of the stage that is not, or `planned`."""
        runs = self.runs
        unfinished = [run.status for run in runs if run.status != "finished"]
        if unfinished:
            return unfinished[0]
        return "finished" if len(runs) == len(self.plan["stages"]) else ("interrupted" if runs else "planned")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of all stages in one line, `step` counting on; `stage` names the stage, `stage_step` is the step in it."""
        total = sum(stage["steps"] for stage in self.plan["stages"])
        return [
            {**row, "step": done + row["step"], "max_steps": total, "stage": stage, "stage_step": row["step"]}
            for stage, done, _, of_stage in self._in_order()
            for row in of_stage
        ]

    @property
    def alerts(self) -> list[Alert]:
        """The health alerts of all stages, `step` counting on as in `rows`; each message begins with its stage."""
        found = []
        for stage, done, run, _ in self._in_order():
            for alert in run.alerts:
                ended = None if alert.is_open else done + alert.ended
                message = f"{stage}: {alert.message}"
                found.append(dataclasses.replace(alert, step=done + alert.step, ended=ended, message=message))
        return found

    def _in_order(self) -> Iterator[tuple[str, int, Run, list[dict[str, float]]]]:
        """Name of each stage begun, the steps done before it, its run, and its rows."""
        names = {stage["folder"]: stage["name"] for stage in self.plan["stages"]}
        done = 0
        for run in self.runs:
            rows = run.rows
            yield names[run.name], done, run, rows
            done += int(rows[-1]["step"]) if rows else 0

    @property
    def metrics(self) -> pandas.DataFrame:
        """`rows` as a table."""
        import pandas

        return pandas.DataFrame(self.rows)

    def plot(self) -> Figure:
        """The curves of all stages in one figure. Totals of stages with other rewards are not comparable."""
        from grpo_nb.runs.live import training_figure

        weights = {name: weight for run in self.runs for name, weight in run.weights.items()}
        beta = max((run.settings.beta for run in self.runs), default=None)
        return training_figure(self.rows, weights, beta, alerts=self.alerts)

    def _parts(self) -> Iterable[Part]:
        """A line for each stage, and what the KL is measured against."""
        yield bold(f"Stages {self.name}: {self.status}.")
        plan, begun = self.plan, {run.name: run for run in self.runs}
        for number, stage in enumerate(plan["stages"], 1):
            run = begun.get(stage["folder"])
            said = f"{run.status}. {describe(run.rows)}" if run else "not begun."
            yield f"{number}. {stage['name']} ({', '.join(stage['rewards'])}; {stage['steps']} steps): {said}"
        yield f"KL of each stage: to {_REFERENCES[plan['reference']]}."
        if self.status not in ("finished", "running", "planned"):
            yield f"To go on: gn.training.train_stages(..., name={self.name!r}, resume='auto')"
        yield f"Folder: {shown_path(self.path)}"


_REFERENCES = {
    "start": "the adapter it started from, which for a new adapter is the base model",
    "base": "the base model",
}


def open_stages(path: str | Path) -> StagedRun:
    """Open a staged run from its folder, finished or not, without loading a model.

    Raises:
        FileNotFoundError: There is none at that path.
    """
    path = Path(path)
    if not (path / "stages.json").is_file():
        raise FileNotFoundError(
            f"{str(path)!r} is no staged run: it has no stages.json. A single run opens with gn.open_run."
        )
    return StagedRun(path)


def train_stages(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    stages: Sequence[Stage],
    settings: Settings | None = None,
    *,
    name: str | None = None,
    reference: Reference = "start",
    resume: str | Path | None = None,
    check_fit: bool = True,
) -> StagedRun:
    """Train the stages one after the other on the model's LoRA, each as `train` does, and return them as one.

    Each stage has a new optimizer and warm-up. Data and draws go on: a stage begins with the questions that the stages before
    have not sampled, unless it brings a task of its own, and its seed is that of the settings plus the number of stages before
    it. Adaptive rewards that are used in several stages keep what they know. An interrupt ends the stages; what is there stays,
    and `resume="auto"` goes on with it.

    Args:
        model: From `load_model`, with a LoRA, trained in place.
        tokenizer: From `load_model`.
        task: Trained on in every stage that brings no other.
        stages: In order.
        settings: For stages that bring none.
        name: Of the folder under `run_root` of the first stage's settings; by default the time it starts.
        reference: What the KL of each stage is measured against: `"start"` holds a stage to the model it began with, so that
            the KL starts at 0 in every stage and bounds how far that stage goes; `"base"` holds all of them to the
            model without adapter, so that a later stage also pays for what the earlier ones have moved.
        resume: None begins new stages. "auto" goes on with the staged run called `name`, or without a name with the newest one
            under the `run_root` of the first stage's settings; where there is none, or the newest is finished and has another
            plan, new stages begin. The path or name of a staged run goes on with that one. Finished stages are not trained
            again, a stage that was cut short goes on from its newest checkpoint, and the end is what it would have been. What a
            stage has left without a complete checkpoint is set aside, and it begins again with the adapter of the stage before.
        check_fit: As for `train`.

    Raises:
        ValueError: Stages that cannot work, or that are not those of the run to go on with.
        FileExistsError: A run of that name exists, without `resume`.
        FileNotFoundError: There is no staged run to go on with at that path.

    Example, which takes minutes on a CPU and needs the model:

        gn.training.train_stages(
            model, tokenizer, task,
            [gn.training.Stage(name="format", rewards=[gn.rewards.xml_tags()], steps=10),
             gn.training.Stage(name="answer", rewards=[gn.rewards.correctness()], steps=20)],
            settings, name="two-stages",
        )
    """  # fmt: skip
    check_arguments(name, resume, reference=reference, check_fit=check_fit)
    require_kind("stages", stages, (list, tuple), "a list of gn.training.Stage(name=..., rewards=[...], steps=...)")
    for stage in stages:
        require_kind("a stage", stage, Stage, "a gn.training.Stage(name=..., rewards=[...], steps=...)")
    of_stages = _settings_of(stages, settings)
    plan = _plan_of(model, tokenizer, task, stages, of_stages, reference)
    from grpo_nb.training.recorder import save_figure
    from grpo_nb.training.resumable import take_up_memory
    from grpo_nb.training.session import train

    root = Path(of_stages[0].run_root)
    folder = _find_stages(root, name, resume, plan)
    is_resumed = folder is not None
    if is_resumed:
        _require_same_plan(StagedRun(folder).plan, plan, folder)
    else:
        folder = new_run_folder(root, name)
        save_adapter(model, folder / "start")
        write_json(folder / "stages.json", plan)
    staged = StagedRun(folder, model=model, tokenizer=tokenizer)
    finished = {run.name: run for run in staged.runs if _is_finished(run)}
    if is_resumed:
        load_adapter(model, list(finished.values())[-1].adapter_path if finished else folder / "start")

    for number, (stage, its_settings, planned) in enumerate(zip(stages, of_stages, plan["stages"], strict=True)):
        run = finished.get(planned["folder"])
        if run is None:
            goes_on = is_resumed and _can_go_on(folder / planned["folder"])
            before = StagedRun(folder, model=model, tokenizer=tokenizer, count=number)
            its_task = stage.task(task, before) if callable(stage.task) else stage.task or task.after(before)
            try:
                run = train(
                    model, tokenizer, its_task, stage.rewards, its_settings.replace(run_root=str(folder)),
                    name=planned["folder"], reference=reference, resume="auto" if goes_on else None, check_fit=check_fit,
                )  # fmt: skip
            except Exception:
                if not is_resumed and {file.name for file in folder.iterdir()} == {"start", "stages.json"}:
                    shutil.rmtree(folder)  # made by this call, and the model still has its adapter
                raise
            if run.status != "finished":
                break
        if is_resumed:
            take_up_memory(stage.rewards, run)
    if staged.rows:
        save_figure(folder, staged.plot())
    return staged


def _find_stages(root: Path, name: str | None, resume: str | Path | None, plan: dict[str, Any]) -> Path | None:
    """The folder of the staged run that `train_stages(..., name=name, resume=resume)` means; None if it begins anew."""
    if resume is None:
        return None
    if resume != "auto":
        return open_stages(named_folder(root, name, resume, "stages.json")).path
    if name is None:
        newest = max(root.glob("*/stages.json"), key=lambda file: file.stat().st_mtime, default=None)
        if newest is not None and StagedRun(newest.parent).status == "finished":
            try:
                _require_same_plan(StagedRun(newest.parent).plan, plan, newest.parent)
            except ValueError:  # the newest are other stages
                return None
        return newest and newest.parent
    folder = root / name
    if (folder / "stages.json").is_file():
        return folder
    remove_unbegun(folder, "stages.json")
    if folder.is_dir() and {file.name for file in folder.iterdir()} == {"start"}:  # killed before the plan was written
        make_room(folder)
    return None


def _can_go_on(folder: Path) -> bool:
    """Whether a stage can go on from a checkpoint. What one without any has left is set aside: nothing measured is lost."""
    if not folder.exists():
        return False
    newest = newest_checkpoint(folder / "checkpoints")
    if (folder / "run.json").is_file() and newest.path is not None:
        return True
    aside = make_room(folder)
    why = "; ".join(newest.passed_over) or "it ended before its first one"
    warnings.warn(
        f"The stage {folder.name!r} has no complete checkpoint ({why}): what it left is in {aside.name!r}, and it begins "
        "again from its start.",
        stacklevel=3,
    )
    return False


def _is_finished(run: Run) -> bool:
    if run.status == "running":
        raise ValueError(
            f"the stage {run.name!r} is being trained right now by process {run.info['pid']}; two of them would write over "
            "each other. Wait, or end that process."
        )
    return run.status == "finished"


def _settings_of(stages: Sequence[Stage], settings: Settings | None) -> list[Settings]:
    """Return the settings of each stage, with its steps.

    Raises:
        ValueError: There is no stage, two have one name, or one has no settings.
    """
    if not stages:
        raise ValueError("stages is empty: give at least one gn.training.Stage(name=..., rewards=[...], steps=...).")
    names, made = [stage.name for stage in stages], []
    for number, stage in enumerate(stages):
        if names.count(stage.name) > 1:
            raise ValueError(f"two stages are named {stage.name!r}: give each a name of its own.")
        own = stage.settings or settings
        if own is None:
            raise ValueError(f"the stage {stage.name!r} has no settings: give them to it, or to train_stages for all.")
        require_kind("settings", own, Settings, "settings: gn.preset()")
        # With another seed: drawn alike, the same prompts would be answered alike.
        made.append(own.replace(max_steps=stage.steps or own.max_steps, seed=own.seed + number))
    return made


def _plan_of(
    model: Any, tokenizer: Any, task: Task, stages: Sequence[Stage], of_stages: Sequence[Settings], reference: str
) -> dict[str, Any]:
    """Return what stages.json says of these stages, after looking at each as `train` would.

    Each reward is called once: a mistake in the third stage's is found before the first is trained.
    """
    from grpo_nb.training.trainer import check_config

    entries = []
    for number, (stage, settings) in enumerate(zip(stages, of_stages, strict=True), 1):
        is_task = isinstance(stage.task, Task)
        its_task = stage.task if is_task else task
        try:
            require_parts(model, tokenizer, its_task, settings)
            require_holdout(its_task, settings)
            weights, _ = checked_rewards(stage.rewards, its_task, settings)
            check_config(settings, weights, model)
        except Exception as error:
            error.add_note(f"This was said of the stage {stage.name!r}; no stage was begun.")
            raise
        entries.append(
            {
                "name": stage.name,
                "folder": f"{number:02d}-{stage.name}",
                "steps": settings.max_steps,
                "rewards": weights,
                "parts": [parts_of(reward) for reward in stage.rewards],
                "settings": settings.to_dict(),
                "task": stage.task.fingerprint if is_task else stage.task and source_of(stage.task),
            }
        )
    # Through JSON, so that a plan just made equals the same one read back.
    return json.loads(json.dumps({"reference": reference, "task": task.fingerprint, "stages": entries}, default=str))


def _require_same_plan(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Compare the stages with those that the staged run was begun with.

    Raises:
        ValueError: They are not the same, with what differs.
    """
    old, new = ({**plan, "stages": [stage["name"] for stage in plan["stages"]]} for plan in (before, now))
    if other := differences(old, new):
        raise ValueError(
            f"the staged run {folder.name!r} was begun with another plan: {'; '.join(other.values())}. Go on with the same, or "
            "choose another name."
        )
    for old, new in zip(before["stages"], now["stages"], strict=True):
        # What a run may change when it is resumed, a stage may; but its length is part of the plan.
        fixed = [key for key in new["settings"] if key not in MAY_CHANGE or key == "max_steps"]
        changed = list(differences(old["settings"], new["settings"], fixed))
        changed += [key for key in ("rewards", "task") if old[key] != new[key]]
        if "rewards" not in changed:
            changed += _other_parameters(new, old["parts"])
        if changed:
            raise ValueError(
                f"the stage {new['name']!r} of {folder.name!r} was planned with other {', '.join(changed)}: going on would mix "
                "two trainings under one name. Go on with the same, or choose another name."
            )


def _other_parameters(stage: dict[str, Any], before: Sequence[dict[str, str]]) -> list[str]:
    """Name the rewards of a stage that have other parameters; warn of what may be but their memory, such as a cache."""
    certain, perhaps = [], []
    for name, old, new in zip(stage["rewards"], before, stage["parts"], strict=True):
        differing = differing_parts(old, new)
        if differing:
            is_memory = all(map(may_be_memory, differing))
            (perhaps if is_memory else certain).append(f"the reward {name!r}: {describe_difference(old, new)}")
    if perhaps and not certain:
        warnings.warn(
            f"The stage {stage['name']!r} goes on with values that were others when it was planned: {'; '.join(perhaps)}. "
            "If they are what a reward keeps between its calls, nothing is wrong.",
            stacklevel=4,
        )
    return [f"parameters of {said}" for said in certain]
