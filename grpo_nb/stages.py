"""Stages: several trainings one after the other on one adapter, such as first the format, then the answer.

runs/<name>/
  stages.json         the plan: each stage's name, folder, steps, settings and rewards, and what the KL is measured against
  start/              the adapter before the first stage
  01-format/          a run directory like any other
  02-correctness/
  figures/            the curves of all stages in one figure

Not covered: going on in the middle of a stage. One that did not finish is trained again from its start.
"""

from __future__ import annotations

import hashlib
import html
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grpo_nb.config import Settings
from grpo_nb.data import Task
from grpo_nb.metrics import Run, describe, new_run_folder, shown_path, write_json
from grpo_nb.rewards.base import weights_by_name
from grpo_nb.rewards.compose import adaptive_states

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# What load_model has made of the model cannot change between stages.
_OF_THE_MODEL = ("model", "load_in_4bit", "lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules")


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

    def __init__(self, path: str | Path, *, model: Any = None, tokenizer: Any = None) -> None:
        self.path = Path(path)
        self._model, self._tokenizer = model, tokenizer

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
        folders = [self.path / stage["folder"] for stage in self.plan["stages"]]
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
        rows: list[dict[str, Any]] = []
        names = {stage["folder"]: stage["name"] for stage in self.plan["stages"]}
        total = sum(stage["steps"] for stage in self.plan["stages"])
        done = 0
        for run in self.runs:
            of_stage = run.rows
            rows += [
                {**row, "step": done + row["step"], "max_steps": total, "stage": names[run.name], "stage_step": row["step"]}
                for row in of_stage
            ]  # fmt: skip
            done += int(of_stage[-1]["step"]) if of_stage else 0
        return rows

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
        return plots.training_figure(self.rows, weights, beta)

    def summary(self) -> str:
        """A line for each stage, and what the KL is measured against."""
        plan, begun = self.plan, {run.name: run for run in self.runs}
        lines = [f"Stages {self.name}: {self.status}."]
        for number, stage in enumerate(plan["stages"], 1):
            run = begun.get(stage["folder"])
            said = f"{run.status}. {describe(run.rows)}" if run else "not begun."
            lines.append(f"{number}. {stage['name']} ({', '.join(stage['rewards'])}; {stage['steps']} steps): {said}")
        lines.append(f"KL of each stage: to {_REFERENCES[plan['reference']]}.")
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
    resume: bool = False,
    check_fit: bool = True,
) -> StagedRun:
    """Train the stages one after the other on the model's LoRA, each as `train` does, and return them as one.

    Each stage has a new optimizer, warm-up and data order, as its own run would. Adaptive rewards that are used in several
    stages keep what they know. An interrupt ends the stages; what is finished stays.

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
        resume: Go on with the staged run of this name, if there is one: finished stages are not trained again, and a
            stage that did not finish is trained from its start, with the adapter of the stage before.
        check_fit: As for `train`.

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
    of_stages = _settings_of(stages, settings)
    plan = _plan(stages, of_stages, task, reference)
    if resume and name is None:
        raise ValueError("resume=True needs the name of the staged run to go on with: name='...'.")
    from grpo_nb.models import load_adapter
    from grpo_nb.training import train

    # A mistake in the third stage's rewards is found before the first is trained.
    for stage, its_settings in zip(stages, of_stages, strict=True):
        _try_rewards(stage, task, its_settings)
    root = of_stages[0].run_root
    folder = Path(root) / str(name)
    is_resumed = resume and (folder / "stages.json").is_file()
    if is_resumed:
        _require_same_plan(StagedRun(folder).plan, plan, folder)
    else:
        folder = new_run_folder(root, name)
        model.save_pretrained(folder / "start", selected_adapters=["default"])
        write_json(folder / "stages.json", plan)
    staged = StagedRun(folder, model=model, tokenizer=tokenizer)
    finished = {run.name: run for run in staged.runs if _is_finished(run)}
    if is_resumed:
        load_adapter(model, list(finished.values())[-1].adapter_path if finished else folder / "start")

    known: set[int] = set()
    for stage, its_settings, planned in zip(stages, of_stages, plan["stages"], strict=True):
        if planned["folder"] not in finished:
            was_begun = _set_aside(folder / planned["folder"])
            _prepare_adaptive(stage, known, was_begun)
            its_task = stage.task(task, staged) if callable(stage.task) else stage.task or task
            run = train(
                model, tokenizer, its_task, stage.rewards, its_settings.replace(run_root=str(folder)),
                name=planned["folder"], reference=reference, check_fit=check_fit,
            )  # fmt: skip
            if run.status != "finished":
                break
        known |= {id(state) for state, _ in adaptive_states(stage.rewards)}
    _save_figure(staged)
    return staged


def _is_finished(run: Run) -> bool:
    if run.status == "running":
        raise ValueError(
            f"the stage {run.name!r} is being trained right now by process {run.info['pid']}; two of them would write over "
            "each other. Wait, or end that process."
        )
    return run.status == "finished"


def _prepare_adaptive(stage: Stage, known: set[int], was_begun: bool) -> None:
    """Let adaptive rewards go on from the stages before, and those that are new here begin from nothing."""
    for state, decay in adaptive_states(stage.rewards):
        if id(state) not in known:
            state.start_over()
        elif not was_begun:  # else it still has what the stage began with, and goes back to it at step 0
            state.carry_over(decay)


def _settings_of(stages: Sequence[Stage], settings: Settings | None) -> list[Settings]:
    if not stages:
        raise ValueError("stages is empty: give at least one gn.Stage(name=..., rewards=[...], steps=...).")
    made: list[Settings] = []
    for stage in stages:
        own = stage.settings or settings
        if own is None:
            raise ValueError(f"the stage {stage.name!r} has no settings: give them to it, or to train_stages for all.")
        made.append(own.replace(max_steps=stage.steps) if stage.steps is not None else own)
        for field in _OF_THE_MODEL:
            if getattr(made[-1], field) != getattr(made[0], field):
                raise ValueError(
                    f"the stage {stage.name!r} has {field} = {getattr(made[-1], field)!r}, the first one "
                    f"{getattr(made[0], field)!r}: the stages train one adapter on one model, which is loaded already."
                )
    names = [stage.name for stage in stages]
    for stage_name in names:
        if names.count(stage_name) > 1:
            raise ValueError(f"two stages are named {stage_name!r}: give each a name of its own.")
        if not stage_name or not all(c.isascii() and (c.isalnum() or c in "._-") for c in stage_name):
            raise ValueError(f"stage name {stage_name!r} may hold letters, digits, '.', '_' and '-' only.")
    return made


def _plan(stages: Sequence[Stage], settings: Sequence[Settings], task: Task, reference: str) -> dict[str, Any]:
    entries = []
    for number, (stage, own) in enumerate(zip(stages, settings, strict=True), 1):
        weights = weights_by_name(stage.rewards)
        if not weights:
            raise ValueError(f"the stage {stage.name!r} has no rewards.")
        entries.append(
            {
                "name": stage.name,
                "folder": f"{number:02d}-{stage.name}",
                "steps": own.max_steps,
                "rewards": weights,
                "code": [_code_hash(reward) for reward in stage.rewards],
                "settings": own.to_dict(),
                "task": _task_mark(stage.task),
            }
        )
    # Through JSON, so that a plan just made equals the same one read back.
    return json.loads(json.dumps({"reference": reference, "task": task.fingerprint, "stages": entries}, default=str))


def _task_mark(task: Task | Callable[..., Task] | None) -> str | None:
    if task is None:
        return None
    return task.fingerprint if isinstance(task, Task) else _code_hash(task)


def _code_hash(reward: Callable[..., Any]) -> str:
    from grpo_nb.run_info import source_of

    return hashlib.sha256(source_of(reward).encode()).hexdigest()


def _try_rewards(stage: Stage, task: Task, settings: Settings) -> None:
    from grpo_nb.run_info import checked_rewards

    try:
        checked_rewards(list(stage.rewards), stage.task if isinstance(stage.task, Task) else task, settings)
    except Exception as error:
        error.add_note(f"This was a reward of the stage {stage.name!r}; no stage was begun.")
        raise


def _require_same_plan(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    for key in ("reference", "task"):
        if before[key] != now[key]:
            raise ValueError(
                f"the staged run {folder.name!r} has another {key}: {before[key]!r}, not {now[key]!r}. Go on with the same, or "
                "choose another name."
            )
    if [s["name"] for s in before["stages"]] != [s["name"] for s in now["stages"]]:
        raise ValueError(
            f"the staged run {folder.name!r} has the stages {[s['name'] for s in before['stages']]}, not "
            f"{[s['name'] for s in now['stages']]}. Go on with the same, or choose another name."
        )
    for old, new in zip(before["stages"], now["stages"], strict=True):
        # Where runs lie says nothing about what they are.
        old_settings, new_settings = ({**s["settings"], "run_root": ""} for s in (old, new))
        changed = [key for key in new_settings if old_settings.get(key) != new_settings[key]]
        changed += ["rewards"] if (old["rewards"], old["code"]) != (new["rewards"], new["code"]) else []
        changed += ["task"] if old["task"] != new["task"] else []
        if changed:
            raise ValueError(
                f"the stage {new['name']!r} of {folder.name!r} was planned with other {', '.join(changed)}: going on would mix "
                "two trainings under one name. Go on with the same, or choose another name."
            )


def _set_aside(folder: Path) -> bool:
    """Rename what an unfinished stage has left, and say whether there was any: nothing that was measured is lost."""
    if not folder.exists():
        return False
    number = 1
    while (aside := folder.with_name(f"{folder.name}.unfinished-{number}")).exists():
        number += 1
    folder.rename(aside)
    warnings.warn(
        f"The stage {folder.name!r} had not finished: what it left is in {aside.name!r}, and it begins again from its start.",
        stacklevel=3,
    )
    return True


def _save_figure(staged: StagedRun) -> None:
    from grpo_nb.plots import png

    if staged.rows:
        folder = staged.path / "figures"
        folder.mkdir(exist_ok=True)
        (folder / "training.png").write_bytes(png(staged.plot(), dpi=150))
