"""Begin a run, go on with one or give it back; train, and leave its folder complete whatever ends it."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grpo_nb.config.dtype import dtype_of_model
from grpo_nb.config.planning import plan
from grpo_nb.config.settings import Settings, refuse_keywords
from grpo_nb.core.argument_types import require
from grpo_nb.core.files import put_in_place, require_writable, staged_folder
from grpo_nb.core.progress import is_notebook
from grpo_nb.core.writers import writing_here
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.machine.host import require_disk
from grpo_nb.models.adapter import load_adapter, save_adapter
from grpo_nb.models.identity import base_identity, keep_template
from grpo_nb.models.match import record_of_model
from grpo_nb.rewards.base import RewardFunction
from grpo_nb.runs.card import write_model_card
from grpo_nb.runs.checkpoints import keep_newest, newest_checkpoint
from grpo_nb.runs.figure import LivePlot
from grpo_nb.runs.rows import ACCURACY, best_row
from grpo_nb.runs.run_folder import Run, new_run_folder, next_sequence
from grpo_nb.runs.run_info import RunInfo
from grpo_nb.tasks.task import Task
from grpo_nb.tasks.tools import refusing
from grpo_nb.training.beginning import keep_beginning, keep_generation
from grpo_nb.training.callback import Observer, Recorder, best_adapter
from grpo_nb.training.effective import configurations, effective_settings
from grpo_nb.training.errors import explained
from grpo_nb.training.info import BASE_MODEL, START_ADAPTER, reference_of, run_info
from grpo_nb.training.observers import HoldoutScore
from grpo_nb.training.prepare import CALL, Prepared, build_trainer, prepare, reference_adapter
from grpo_nb.training.resume import Resumption, continued_info, find_run, go_back, hold, starting
from grpo_nb.training.trainer import restore_state, stateful_holders

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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
    kl_reference: Literal["start", "base"] = "start",
    **unknown: Any,
) -> Run:
    """Train the model's LoRA with GRPO (arXiv:2402.03300), with live curves, and return the run.

    Everything that can be checked is checked first: nothing is written and nothing slow starts on bad input. A checkpoint is
    written as `settings.save_steps` says and when the training ends; the first Ctrl-C lets the step end, a second one stops at
    once. What an error or a lost machine costs is the work since the last checkpoint. With `resume="auto"` the same cell can
    be run again and again: it begins, goes on after whatever happened, ends with the same numbers as if nothing had, and then
    gives the finished run back (docs/guide/runs.md).

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
        kl_reference: What the KL is measured against, if `beta` is above 0: the model as it is when this run starts, with
            what its adapter has learnt already, or the `"base"` model without any adapter. The same for a new adapter. On a
            GPU it is the base model in any case, and a warning says so.

    Raises:
        ValueError: Settings, weights or data that cannot work, or that are not those of the run to resume.
        EnvironmentProblem: Too little disk, or memory: on a CPU by the plan beforehand, and while training.
        FileExistsError: A run of that name exists.
        FileNotFoundError: There is no run to resume at that path.
        RewardError: A reward failed, in its trial on the first row or in training: the row and an excerpt of the completion.

    >>> trained = gn.train(model, tokenizer, task, rewards, settings, name="first")
    >>> trained.status, len(trained.metrics)
    ('finished', 2)
    """
    refuse_keywords(train, unknown)
    require(
        CALL.format("train"),
        model=model,
        tokenizer=tokenizer,
        task=task,
        rewards=rewards,
        settings=settings,
    )
    prepared = prepare(model, tokenizer, task, rewards, settings)
    settings = prepared.settings
    # What the run will need against what there is, on the path that it will take.
    path_taken = settings.replace(shared_prompts=prepared.engine.why_not_cpu_engine is None)
    plan(path_taken, prepared.task, model=model, tokenizer=tokenizer).require_fit()
    info = run_info(prepared, dtype_of_model(model, settings, find_gpu()).name)
    info.base = base_identity(model, settings.model)
    record = record_of_model(model)
    info.loader = {} if record is None else record.loader
    # Before `find_run` looks, so that a run that another process begins meanwhile is noticed.
    sequence = next_sequence(Path(settings.run_root))
    with ExitStack() as locks:
        before = find_run(settings, name, resume, info, locks)
        if before is not None and before.is_over:
            return _given_back(before, prepared)
        require_writable(Path(settings.run_root) if before is None else before.run.path)
        require_disk(Path(settings.run_root), _bytes_needed(model), "A run")
        if before is None:
            info.reference = reference_of(model, settings, kl_reference)
        else:
            info = continued_info(before, info)
        with reference_adapter(model):
            # Before the run has a folder: what TRL refuses leaves nothing behind.
            _, alone = configurations(settings, model)
            trainer = build_trainer(prepared)
            info.effective = effective_settings(
                settings, model, pair=(trainer.args, alone)
            ).to_dict()
            scores = [HoldoutScore(prepared)] if settings.holdout_every else []
            if scores:
                info.heldout_judge = scores[0].judged_by
            if before is None:
                with starting(Path(settings.run_root), name, resume, sequence):
                    run = _make_run(prepared, name, info, locks)
                _keep_inputs(run, prepared, info)
                folder = run.path
            else:
                folder = go_back(before)
            run = Run(folder, model=model, tokenizer=tokenizer, rewards=prepared.rewards)
            with writing_here(run.path):
                run.write_info(info)
                _train_and_close(
                    Recorder(run, trainer, settings, [*scores, *observers]), info, before
                )
    return run


def _given_back(found: Resumption, prepared: Prepared) -> Run:
    """Return a finished run as after its training: its adapter in the model, what its rewards learnt, its figure shown."""
    run = Run(
        found.run.path, model=prepared.model, tokenizer=prepared.tokenizer, rewards=prepared.rewards
    )
    load_adapter(prepared.model, run.adapter_path)
    if found.checkpoint.path is not None:
        restore_state(stateful_holders(prepared.rewards), found.checkpoint.path)
    if is_notebook():
        LivePlot(run.weights, run.settings.beta, run.reference).update(
            run.rows, alerts=run.alerts, is_last=True
        )
    warnings.warn(
        f"The run {run.name!r} is finished: it is given back with its adapter, nothing was trained. resume=None: a new run.",
        stacklevel=3,
    )
    return run


def _make_run(prepared: Prepared, name: str | None, info: RunInfo, locks: ExitStack) -> Run:
    """Make the folder of a new run with its `run.json`, locked until `locks` is closed."""
    root = Path(prepared.settings.run_root)
    info.sequence = next_sequence(root)
    run = Run(new_run_folder(root, name))
    hold(run.path, locks)
    run.write_info(info)  # first of all: it is what makes the folder a run
    return run


def _keep_inputs(run: Run, prepared: Prepared, info: RunInfo) -> None:
    """Keep what a new run starts from: its reference adapter, its questions, its first state, its template."""
    if info.reference == START_ADAPTER:
        save_adapter(prepared.model, run.path / "reference")
    run.keep_questions(prepared.task.train["question"], prepared.task.holdout)
    keep_beginning(run, prepared.model, prepared.task)
    keep_template(run.path, prepared.tokenizer)


def _train_and_close(recorder: Recorder, info: RunInfo, before: Resumption | None) -> None:
    """Train, and leave adapter, figure, card and run.json as they belong to the newest checkpoint, whatever ended it."""
    run, trainer, settings, failure = recorder.run, recorder.trainer, recorder.settings, None
    trainer.args.output_dir = str(run.path / "checkpoints")
    trainer.add_callback(recorder)
    trainer.stateful = stateful_holders([*run.rewards, *recorder.observers])
    trainer.record_generation = partial(keep_generation, run, size=settings.num_generations)
    info.status = "failed"  # until something better is known; run.json says running meanwhile
    try:
        with explained(settings, run.path), recorder.stop_button(), refusing():
            _settle_reference(trainer, run, info)
            # Ended after its last step, before the adapter was left, it has none to do; transformers would do one more.
            if before is None or before.checkpoint.step < settings.max_steps:
                trainer.train(resume_from_checkpoint=before and str(before.checkpoint.path))
            if recorder.error is not None:
                raise recorder.error
        is_cut_short = recorder.is_interrupted and trainer.state.global_step < settings.max_steps
        info.stopped_by = recorder.stopped_by
        info.status = (
            "interrupted" if is_cut_short else "stopped" if recorder.stopped_by else "finished"
        )
    except KeyboardInterrupt:
        info.status = "interrupted"
    except Exception as error:
        failure = error
        info.error = f"{type(error).__name__}: {error}"
    not_saved = [f"Not saved: {lost}." for lost in _close(recorder, info)]
    if failure is not None:
        for note in not_saved:
            failure.add_note(note)
        raise failure
    for note in not_saved:
        warnings.warn(note, stacklevel=3)
    if info.status == "finished" and not not_saved:
        keep_newest(run.path / "checkpoints", 1)


def _close(recorder: Recorder, info: RunInfo) -> list[str]:
    """Leave adapter, figure, card and run.json, each as far as possible; return what could not be, with the reason."""
    run, lost = recorder.run, []
    # An error before the first step has changed nothing that is there.
    has_trained = recorder.bar is not None or info.status != "failed"
    leaves = [partial(_leave_adapter, recorder, info)] if has_trained else []
    says = partial(run.write_info, info)  # before the card, which tells the status
    for leave in (*leaves, says, recorder.close, partial(write_model_card, run), says):
        try:
            leave()
        except Exception as error:
            lost.append(f"{type(error).__name__}: {error}")
        info.not_saved = lost
    return lost


def _settle_reference(trainer: Any, run: Run, info: RunInfo) -> None:
    """Have the KL measured to what `run.json` says."""
    model, is_base = (
        trainer.accelerator.unwrap_model(trainer.model),
        info.reference == BASE_MODEL,
    )
    if "ref" in model.peft_config and is_base:
        # TRL adds a frozen copy of the adapter as the reference. While the adapter is still zero, the reference is
        # the base model, and switching the adapter off gives the same without three products per layer.
        model.delete_adapter("ref")
    elif "ref" not in model.peft_config and not is_base:
        raise ValueError(
            f"the run {run.name!r} measures its KL to the adapter that it started from, and Unsloth on a GPU only to the base "
            "model. Go on with it on a CPU, as it began, or begin a new run."
        )


def _leave_adapter(recorder: Recorder, info: RunInfo) -> None:
    """Leave a copy of the newest checkpoint's adapter, or with `keep_adapter="best"` of the best one.

    The model gets it, too.
    """
    run, newest = recorder.run, newest_checkpoint(recorder.run.path / "checkpoints")
    source, step = newest.path, newest.step
    best = best_row(recorder.rows) if recorder.settings.keep_adapter == "best" else None
    if best is not None:
        kept = best_row(row for row in recorder.rows if best_adapter(run, row["step"]).is_dir())
        if kept is not None:
            source, step = best_adapter(run, kept["step"]), kept["step"]
        if kept is not best:
            left = "no adapter of a scored step is left"
            if kept is not None:
                left = f"that of step {step} is the best that is left"
            warnings.warn(
                f'keep_adapter="best": the adapter of step {best["step"]}, whose held-out score '
                f"of {best[ACCURACY]:.1%} is the best, is gone: {left}, and the run's adapter is now that of step {step}.",
                stacklevel=4,
            )
    if source is None:  # it ended before its first checkpoint
        return
    with staged_folder(run.adapter_path) as staged:
        for file in source.glob("adapter_*"):
            shutil.copyfile(file, staged / file.name)
        put_in_place(staged, run.adapter_path)
    load_adapter(run.model, run.adapter_path)
    info.adapter_step = step


def _bytes_needed(model: Any) -> int:
    """Room for a run: three checkpoints (two and the one being written) with Adam's two moments, five adapters, the logs."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return 200_000_000 + sum((8 * p.element_size() + 3 * 8) * p.numel() for p in trained)
