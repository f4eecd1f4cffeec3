"""Begin a run or go on with one, write its `run.json`, train, and leave its folder complete whatever ends it."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from grpo_nb.core.files import put_in_place, staged_folder, write_json, writing_here
from grpo_nb.core.progress import is_notebook
from grpo_nb.health.monitor import HealthMonitor
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.machine.host import require_disk
from grpo_nb.models.identity import base_identity, keep_template
from grpo_nb.models.load import LOADED_WITH, generation_of, load_adapter, save_adapter
from grpo_nb.rewards.base import RewardFunction
from grpo_nb.rewards.record import differences
from grpo_nb.runs.card import write_model_card
from grpo_nb.runs.checkpoints import find_damage, keep_newest
from grpo_nb.runs.live import LivePlot
from grpo_nb.runs.run import Run, new_run_folder
from grpo_nb.settings.number_types import number_type_of
from grpo_nb.settings.planning import plan
from grpo_nb.settings.settings import Settings
from grpo_nb.tasks.task import Task
from grpo_nb.training.arguments import Reference, check_arguments
from grpo_nb.training.beginning import keep_beginning, keep_generation
from grpo_nb.training.effective import configurations, effective_settings
from grpo_nb.training.errors import explained
from grpo_nb.training.observers import HealthAlerts, HoldoutScore, Observer
from grpo_nb.training.recorder import Recorder
from grpo_nb.training.resumable import ResumableTrainer, remembering, states_of, take_up_memory
from grpo_nb.training.resume import Resumption, continued_info, find_run, go_back
from grpo_nb.training.run_info import BASE_MODEL, START_ADAPTER, reference_of, run_info
from grpo_nb.training.trainer import Prepared, build_trainer, lead_to, reference_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_RUN_BYTES = 200_000_000


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    rewards: Sequence[RewardFunction],
    settings: Settings,
    *,
    name: str | None = None,
    resume: str | Path | None = None,
    observers: Sequence[Observer] = (),
    reference: Reference = "start",
) -> Run:
    """Train the model's LoRA with GRPO (arXiv:2402.03300), with live curves, and return the run.

    Everything that can be checked is checked first: nothing is written and nothing slow starts on bad input. Checkpoints
    are written as `settings.save_steps` says, and whatever ends the training: an interrupt saves the last complete step and
    returns a usable run, an error saves it and is raised. With `resume="auto"` the same cell can be run again and again: it
    begins, goes on after whatever happened, ends with the same numbers as if nothing had, and then gives the finished run back
    (docs/guide/runs.md).

    Args:
        model: From `load_model`, with a LoRA. It is trained in place; a second call goes on from where it is, but for a
            resumed run, whose checkpoint is loaded.
        tokenizer: From `load_model`.
        task: From `load_task`. Prompts longer than `settings.max_prompt_length` are dropped and counted.
        rewards: Reward functions with TRL's signature. An attribute `weight` is passed on as its `reward_weights`.
        settings: From `preset`.
        name: Of the run's folder under `settings.run_root`; by default the time it starts.
        resume: None begins a new run. "auto" goes on with the newest run under `settings.run_root` (the one called `name`, if
            given), and gives it back if it is finished: with its adapter in the model, and nothing is trained. Where there is
            none, or the newest is a finished one of other settings, data or rewards, a new one begins. The path or name of a
            run goes on with that one. A finished one goes on if `max_steps` is more now.
        observers: Asked at each logged step; they may add to its row and may stop the training (`gn.training.Observer`).
        reference: What the KL is measured against, if `beta` is above 0: the model as it is when this run starts, with
            what its adapter has learnt already, or the `"base"` model without any adapter. The same for a new adapter. On a
            GPU it is the base model in any case, and a warning says so.

    Raises:
        ValueError: Rewards or settings that cannot work, or that are not those of the run to resume.
        EnvironmentProblem: Too little disk, or memory: on a CPU by the plan beforehand, and while training.
        FileExistsError: A run of that name exists.
        FileNotFoundError: There is no run to resume at that path.
        RewardError: A reward failed, with the row and an excerpt of the completion.

    >>> trained = gn.train(model, tokenizer, task, rewards, settings, name="first")
    >>> trained.status, len(trained.metrics)
    ('finished', 2)
    """
    check_arguments(name, resume, observers, reference)
    prepared = Prepared.checked(model, tokenizer, task, rewards, settings)
    settings = prepared.settings
    # What the run will need against what there is, on the path that it will take.
    path_taken = settings.replace(shared_prompts=prepared.obstacle is None)
    plan(path_taken, prepared.task, model=model, tokenizer=tokenizer).require_fit()
    info = run_info(prepared, number_type_of(model, settings, find_gpu()).name)
    info["generation"] = str(generation_of(model))
    info["base"] = base_identity(model, settings.model)
    info["loader"] = getattr(model, LOADED_WITH, {})
    resumption = find_run(settings, name, resume, info)
    if resumption is not None and resumption.is_over:
        return _given_back(resumption.run, prepared, info)
    if resumption is None:
        require_disk(Path(settings.run_root), _bytes_needed(model), "A run")
        info["reference"] = reference_of(model, settings, reference)
    else:
        info = continued_info(resumption, settings, info)
        require_disk(resumption.run.path, _bytes_needed(model), "Going on with the run")
    with reference_adapter(model):
        # Before the run has a folder: what TRL refuses leaves nothing behind.
        _, alone = configurations(settings, model)
        trainer = build_trainer(prepared, ResumableTrainer)
        info["effective"] = effective_settings(settings, model, pair=(trainer.args, alone)).to_dict()
        folder = _begin(prepared, name, info) if resumption is None else go_back(resumption)
        run = Run(folder, model=model, tokenizer=tokenizer, rewards=prepared.rewards)
        with writing_here(run.path):
            write_json(run.path / "run.json", info)
            # The health rules come last: they read what all others add to the row.
            health = HealthMonitor(
                weights=prepared.weights,
                settings=settings,
                ranges=run.ranges,
                rows=run.rows,
                stop_on=settings.stop_on_alert,
            )
            alerts = HealthAlerts(health, None if is_notebook() else tqdm.write)
            scores = [HoldoutScore(prepared)] if settings.holdout_every else []
            recorder = Recorder(run, settings, prepared.weights, [*scores, *observers, alerts])
            _run_training(trainer, prepared, recorder, info, resumption)
    return run


def _given_back(run: Run, prepared: Prepared, info: Mapping[str, Any]) -> Run:
    """Return a finished run as after its training: its adapter in the model, what its rewards learnt, its figure shown."""
    load_adapter(prepared.model, run.adapter_path)
    take_up_memory(prepared.rewards, run)
    if is_notebook():
        LivePlot(run.weights, run.settings.beta, run.reference).update(run.rows, alerts=run.alerts, is_last=True)
    other = [
        f" Its reward {old['name']!r} is not as it was: {differences(old, new)}."
        for old, new in zip(run.info["rewards"], info["rewards"], strict=True)
        if differences(old, new)
    ]
    warnings.warn(
        f"The run {run.name!r} is finished: it is given back with its adapter in the model, and nothing was trained. For a new "
        f"run: another name, or resume=None.{''.join(other)}",
        stacklevel=4,
    )
    return Run(run.path, model=prepared.model, tokenizer=prepared.tokenizer, rewards=prepared.rewards)


def _begin(prepared: Prepared, name: str | None, info: Mapping[str, Any]) -> Path:
    """Make the folder of a new run."""
    model, task = prepared.model, prepared.task
    run = Run(new_run_folder(prepared.settings.run_root, name))
    write_json(run.path / "run.json", info)  # first of all: it is what makes the folder a run
    if info["reference"] == START_ADAPTER:
        save_adapter(model, run.path / "reference")
    run.keep_questions(task.train["question"], task.holdout)
    keep_beginning(run, model, task, states_of(remembering(prepared.rewards)))
    keep_template(run.path, prepared.tokenizer)
    return run.path


def _run_training(
    trainer: Any, prepared: Prepared, recorder: Recorder, info: dict[str, Any], resumption: Resumption | None
) -> None:
    """Train, and leave the folder complete, whatever ends it."""
    run, settings, failure = recorder.run, prepared.settings, None
    info["status"] = "failed"  # until something better is known; run.json says running meanwhile
    try:
        try:
            lead_to(trainer, run.path, recorder)
            recorder.trainer, trainer.recorder, trainer.rewards = trainer, recorder, prepared.rewards
            trainer.keep = partial(keep_generation, run, size=settings.num_generations)
            _settle_reference(trainer, info)
            if resumption is not None:
                trainer.go_on_from(resumption.checkpoint.path)
            if resumption is not None and resumption.step >= settings.max_steps:
                # It ended after its last step, before the adapter was saved. transformers would do one step more.
                trainer.restore_only()
            else:
                trainer.train(resume_from_checkpoint=resumption and str(resumption.checkpoint.path))
            info["status"] = "stopped" if recorder.stopped_by else "finished"
            info["stopped_by"] = recorder.stopped_by
        except KeyboardInterrupt:
            info["status"] = "interrupted"
        except Exception as error:
            failure = explained(error, run.path, settings, recorder.step)
            info["error"] = f"{type(failure).__name__}: {failure}"
        recorder.interrupts.close()
        info["not_saved"] = _save_all(trainer, recorder, info)
    except BaseException:  # a second interrupt, while saving
        info["status"] = "interrupted" if failure is None else "failed"
        raise
    finally:
        recorder.interrupts.close()
        if getattr(trainer, "stock_reason", None):
            info["rollout"] = f"shared prompts, but for some batches stock ({trainer.stock_reason})"
        info["seconds"] = recorder.seconds
        with _noting("run.json", info.setdefault("not_saved", [])):
            write_json(run.path / "run.json", info)
    if failure is not None:
        for lost in info["not_saved"]:
            failure.add_note(f"Not saved: {lost}")
        raise failure
    if info["not_saved"]:
        warnings.warn(f"Not saved: {'; '.join(info['not_saved'])}.", stacklevel=4)


def _settle_reference(trainer: ResumableTrainer, info: Mapping[str, Any]) -> None:
    run = trainer.recorder.run
    trainer.reference = None if info["reference"] == BASE_MODEL else run.path / "reference"
    model = trainer.accelerator.unwrap_model(trainer.model)
    if "ref" in model.peft_config and trainer.reference is None:
        # TRL adds a frozen copy of the adapter as the reference. While the adapter is still zero, the reference is
        # the base model, and switching the adapter off gives the same without three products per layer.
        model.delete_adapter("ref")
    elif "ref" not in model.peft_config and trainer.reference is not None:
        raise ValueError(
            f"the run {run.name!r} measures its KL to the adapter that it started from, and Unsloth on a GPU only to the base "
            "model. Go on with it on a CPU, as it began, or begin a new run."
        )


def _save_all(trainer: ResumableTrainer, recorder: Recorder, info: dict[str, Any]) -> list[str]:
    """Save checkpoint, adapter, figure and card, each as far as possible; return what could not be, with the reason."""
    lost: list[str] = []
    run = recorder.run
    if trainer.note is not None:
        if recorder.interrupts.is_holding:
            lost.append("the adapter: an error came while its weights were changed; the last checkpoint is whole")
        else:
            with _noting("the checkpoint", lost):
                trainer.save()
            with _noting("the adapter", lost):
                _save_adapter(trainer, recorder, info)
        if info["status"] == "finished" and not lost:
            keep_newest(run.path / "checkpoints", 1, recorder.kept_step)
    with _noting("the figure", lost):
        recorder.close()
    if run.adapter_path.is_dir():
        with _noting("the model card", lost):
            # Its status is that of run.json, which says running until here.
            write_json(run.path / "run.json", dict(info))
            write_model_card(run)
    return lost


def _save_adapter(trainer: ResumableTrainer, recorder: Recorder, info: dict[str, Any]) -> None:
    """Leave the adapter of the last step, or that of the best step with the last beside it; the model has it, too.

    Raises:
        FileNotFoundError: The best step was scored before it was to be kept, and its weights are gone. The last is left.
    """
    path, model = recorder.run.adapter_path, trainer.accelerator.unwrap_model(trainer.model)
    last, best = path.with_name("adapter-last"), recorder.kept_step
    is_other = best is not None and best != recorder.step
    checkpoint = Path(trainer.args.output_dir) / f"checkpoint-{best}"
    is_there = is_other and find_damage(checkpoint) is None
    with staged_folder(last if is_there else path) as staged:
        save_adapter(model, staged)
        put_in_place(staged, last if is_there else path)
    if is_there:
        with staged_folder(path) as staged:
            for file in checkpoint.glob("adapter_*"):
                shutil.copyfile(file, staged / file.name)
            put_in_place(staged, path)
        load_adapter(model, path)
    else:
        shutil.rmtree(last, ignore_errors=True)  # of the run before it went on
    info["adapter_step"] = best if is_there else recorder.step
    if is_other and not is_there:
        raise FileNotFoundError(
            f"that of the best held-out step, {best}, is not there, for its checkpoint was not kept; adapter/ is the last one"
        )


@contextlib.contextmanager
def _noting(what: str, lost: list[str]) -> Iterator[None]:
    """Go on with what can still be saved when one thing cannot be, and keep the reason."""
    try:
        yield
    except Exception as error:
        lost.append(f"{what}: {error}")


def _bytes_needed(model: Any) -> int:
    """Room for a run: three checkpoints (two and the one being written) with Adam's two moments, adapters, the logs."""
    trained = [p for p in model.parameters() if p.requires_grad]
    adapter = sum(p.numel() * p.element_size() for p in trained)
    moments = sum(8 * p.numel() for p in trained)
    return _RUN_BYTES + 3 * (adapter + moments) + 3 * adapter
