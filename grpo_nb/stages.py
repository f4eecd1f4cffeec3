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
import html
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grpo_nb.checkpoints import newest_checkpoint
from grpo_nb.config import Settings
from grpo_nb.data import Task
from grpo_nb.metrics import Run, describe, new_run_folder, shown_path, write_json
from grpo_nb.rewards.compose import adaptive_states
from grpo_nb.stage_plans import plan_of, require_same_plan, settings_of, try_rewards

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from grpo_nb.health_alerts import Alert


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
    task: Task | Callable[[Task, StagedRun], Task] | None = None
    """Another task for this stage, or a function of the task and the stages so far: `lambda task, run:
    task.without_flat_groups(run)`."""


class StagedRun:
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
        folders = [self.path / stage["folder"] for stage in self.plan["stages"][: self._count]]
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

    def alerts(self) -> list[Alert]:
        """The health alerts of all stages, `step` counting on as in `rows`; each message begins with its stage."""
        return [
            dataclasses.replace(alert, step=done + alert.step, message=f"{stage}: {alert.message}")
            for stage, done, run, _ in self._in_order()
            for alert in run.alerts()
        ]

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
        from grpo_nb import plots

        infos = [run.info for run in self.runs]
        weights = {name: weight for info in infos for name, weight in plots.weights_of_run(info).items()}
        beta = max((info["settings"]["beta"] for info in infos), default=None)
        alerts = [alert.to_dict() for alert in self.alerts()]
        return plots.training_figure(self.rows, weights, beta, alerts=alerts)

    def summary(self) -> str:
        """A line for each stage, and what the KL is measured against."""
        plan, begun = self.plan, {run.name: run for run in self.runs}
        lines = [f"Stages {self.name}: {self.status}."]
        for number, stage in enumerate(plan["stages"], 1):
            run = begun.get(stage["folder"])
            said = f"{run.status}. {describe(run.rows)}" if run else "not begun."
            lines.append(f"{number}. {stage['name']} ({', '.join(stage['rewards'])}; {stage['steps']} steps): {said}")
        lines.append(f"KL of each stage: to {_REFERENCES[plan['reference']]}.")
        if self.status not in ("finished", "running", "planned"):
            lines.append(f"To go on: gn.train_stages(..., name={self.name!r}, resume='auto')")
        lines.append(f"Folder: {shown_path(self.path)}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        first, *rest = self.summary().splitlines()
        return f"<b>{html.escape(first)}</b>" + "".join(f"<br>{html.escape(line)}" for line in rest)


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
    reference: Literal["start", "base"] = "start",
    resume: bool | Literal["auto"] = False,
) -> StagedRun:
    """Train the stages one after the other on the model's LoRA, each as `train` does, and return them as one.

    Each stage has a new optimizer, warm-up and data order, as its own run would. Adaptive rewards that are used in several
    stages keep what they know. An interrupt ends the stages; what is there stays, and `resume="auto"` goes on with it.

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
        resume: "auto", or True, which is the same, goes on with the staged run of this name, if there is one, after whatever
            ended it: finished stages are not trained again, a stage that was cut short goes on from its newest checkpoint, and
            the end is what it would have been. What a stage has left without a complete checkpoint is set
            aside, and it begins again with the adapter of the stage before.

    Raises:
        ValueError: Stages that cannot work, or that are not those of the run to go on with.
        FileExistsError: A run of that name exists, without `resume`.

    Example, which takes minutes on a CPU and needs the model:

        gn.train_stages(
            model, tokenizer, task,
            [gn.Stage(name="format", rewards=[gn.rewards.xml_tags()], steps=10),
             gn.Stage(name="answer", rewards=[gn.rewards.correctness()], steps=20)],
            settings, name="two-stages",
        )
    """  # fmt: skip
    if reference not in _REFERENCES:
        raise ValueError(f"reference = {reference!r} must be 'start' or 'base'.")
    of_stages = settings_of(stages, settings)
    plan = plan_of(stages, of_stages, task, reference)
    if resume not in (True, False, "auto"):
        raise ValueError(f"resume = {resume!r} must be 'auto' or True to go on with the run called `name`, or False.")
    if resume and name is None:
        raise ValueError(f"resume={resume!r} needs the name of the staged run to go on with: name='...'.")
    from grpo_nb.models import load_adapter
    from grpo_nb.training import train

    # A mistake in the third stage's rewards is found before the first is trained.
    for stage, its_settings in zip(stages, of_stages, strict=True):
        try_rewards(stage, task, its_settings)
    root = of_stages[0].run_root
    folder = Path(root) / str(name)
    is_resumed = bool(resume) and (folder / "stages.json").is_file()
    if is_resumed:
        require_same_plan(StagedRun(folder).plan, plan, folder)
    else:
        if resume:
            _remove_unbegun(folder)
        folder = new_run_folder(root, name)
        model.save_pretrained(folder / "start", selected_adapters=["default"])
        write_json(folder / "stages.json", plan)
    staged = StagedRun(folder, model=model, tokenizer=tokenizer)
    finished = {run.name: run for run in staged.runs if _is_finished(run)}
    if is_resumed:
        load_adapter(model, list(finished.values())[-1].adapter_path if finished else folder / "start")

    known: set[int] = set()
    for number, (stage, its_settings, planned) in enumerate(zip(stages, of_stages, plan["stages"], strict=True)):
        run = finished.get(planned["folder"])
        if run is None:
            goes_on = is_resumed and _can_go_on(folder / planned["folder"])
            if not goes_on:
                _prepare_adaptive(stage, known)
            before = StagedRun(folder, model=model, tokenizer=tokenizer, count=number)
            its_task = stage.task(task, before) if callable(stage.task) else stage.task or task
            run = train(
                model, tokenizer, its_task, stage.rewards, its_settings.replace(run_root=str(folder)),
                name=planned["folder"], reference=reference, resume="auto" if goes_on else None,
            )  # fmt: skip
            if run.status != "finished":
                break
        if is_resumed:
            _take_up_memory(stage, run)
        known |= {id(state) for state, _ in adaptive_states(stage.rewards)}
    _save_figure(staged)
    return staged


def _remove_unbegun(folder: Path) -> None:
    """Make room where a staged run was killed before its plan was written: nothing was trained there."""
    if folder.is_dir() and all(
        file.name == "start" or file.name.startswith(".stages.json") for file in folder.iterdir()
    ):
        shutil.rmtree(folder)


def _can_go_on(folder: Path) -> bool:
    """Whether a stage can go on from a checkpoint. What one without any has left is set aside: nothing measured is lost."""
    if not folder.exists():
        return False
    newest = newest_checkpoint(folder / "checkpoints")
    if (folder / "run.json").is_file() and newest.path is not None:
        return True
    number = 1
    while (aside := folder.with_name(f"{folder.name}.unfinished-{number}")).exists():
        number += 1
    folder.rename(aside)
    why = "; ".join(newest.passed_over) or "it ended before its first one"
    warnings.warn(
        f"The stage {folder.name!r} has no complete checkpoint ({why}): what it left is in {aside.name!r}, and it begins "
        "again from its start.",
        stacklevel=3,
    )
    return False


def _take_up_memory(stage: Stage, run: Run) -> None:
    """Give the rewards of a finished stage what they knew at its end, which a new process does not know."""
    from grpo_nb.resumable import load_reward_states, reward_states

    if not reward_states(stage.rewards):
        return
    checkpoint = newest_checkpoint(run.path / "checkpoints")
    if checkpoint.path is None:
        warnings.warn(
            f"What the rewards of the stage {stage.name!r} have learnt is not known: its last checkpoint is gone or damaged. "
            "Those that later stages use go on with what they hold now.",
            stacklevel=3,
        )
        return
    load_reward_states(stage.rewards, json.loads((checkpoint.path / "observers.json").read_text())["rewards"])


def _is_finished(run: Run) -> bool:
    if run.status == "running":
        raise ValueError(
            f"the stage {run.name!r} is being trained right now by process {run.info['pid']}; two of them would write over "
            "each other. Wait, or end that process."
        )
    return run.status == "finished"


def _prepare_adaptive(stage: Stage, known: set[int]) -> None:
    """Let adaptive rewards go on from the stages before, and those that are new here begin from nothing."""
    for state, decay in adaptive_states(stage.rewards):
        if id(state) in known:
            state.carry_over(decay)
        else:
            state.start_over()


def _save_figure(staged: StagedRun) -> None:
    from grpo_nb.plots import png

    if staged.rows:
        folder = staged.path / "figures"
        folder.mkdir(exist_ok=True)
        (folder / "training.png").write_bytes(png(staged.plot(), dpi=150))
