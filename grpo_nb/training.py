"""Build and run the GRPO trainer, and write down everything as it happens.

On a CPU the trainer is the one of `grpo_nb.shared_trainer`; on a GPU it is the one that Unsloth made of TRL's. Nothing else
differs. Only these two modules and `grpo_nb.priming` import trl.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import json
import math
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grpo_nb.config import Settings, did_you_mean
from grpo_nb.data import Task
from grpo_nb.environment import find_gpu, package_versions, require_disk, total_memory_gib
from grpo_nb.losses import check_loss
from grpo_nb.metrics import Run, new_run_folder, tidy_row, write_json
from grpo_nb.models import import_unsloth, is_bfloat16_supported
from grpo_nb.plots import LivePlot, is_notebook, png, training_figure
from grpo_nb.reporting import check_reporting
from grpo_nb.rewards.base import name_of, weights_by_name

import_unsloth()

from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo_nb import shared_prompts
from grpo_nb.shared_trainer import SharedPromptGRPOTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RewardFunction = Callable[..., Sequence[float | None]]
Reference = Literal["start", "base"]
_RUN_BYTES = 200_000_000


class _Recorder(TrainerCallback):
    """Writes each logged step to the run directory and shows it: a live figure in a notebook, a bar in a terminal."""

    def __init__(self, run: Run, settings: Settings, weights: dict[str, float]) -> None:
        self.run, self.settings, self.weights = run, settings, weights
        self.rows: list[dict[str, float]] = []
        self.trainer: GRPOTrainer | None = None
        self.live = LivePlot(weights, settings.beta) if is_notebook() else None
        self.bar: Any = None
        self._metrics = (run.path / "metrics.jsonl").open("a")
        (run.path / "completions").mkdir()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.live is None:
            from tqdm import tqdm

            self.bar = tqdm(total=state.max_steps, desc="training", unit="step")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs is None or "loss" not in logs:  # the trainer's closing summary
            return
        row = tidy_row(logs, state.global_step, state.max_steps, self.settings.beta)
        self.rows.append(row)
        self._metrics.write(json.dumps(row) + "\n")
        self._metrics.flush()
        if "reward" in logs:  # a step that goes on with the samples of the one before has neither
            self._write_completions(state.global_step)
        if self.live is not None:
            self.live.update(self.rows)
        else:
            self._advance_bar(row)

    def _write_completions(self, step: int) -> None:
        import pandas

        logs = self.trainer._logs  # the last generation batch, which TRL keeps whether or not it prints it
        count = len(logs["completion"])
        table: dict[str, Any] = {
            "step": [step] * count,
            # Rows of a group are consecutive: RepeatSampler repeats each prompt num_generations times.
            "group": [i // self.settings.num_generations for i in range(count)],
            "prompt": [json.dumps(p) if not isinstance(p, str) else p for p in logs["prompt"]],
            "completion": [c if isinstance(c, str) else c[-1]["content"] for c in logs["completion"]],
        }
        scores = {name: list(values) for name, values in logs["rewards"].items()}
        table |= scores
        columns = [(scores[name], weight) for name, weight in self.weights.items()]
        table["total"] = [
            math.fsum(w * values[i] for values, w in columns if not math.isnan(values[i])) for i in range(count)
        ]
        table["advantage"] = list(logs["advantages"])
        file = self.run.path / "completions" / f"step_{step:06d}.parquet"
        staged = file.with_suffix(".partial")
        pandas.DataFrame(table).to_parquet(staged, index=False)
        staged.replace(file)

    def _advance_bar(self, row: dict[str, float]) -> None:
        shown = {"reward": f"{row['reward']:.2f}"} if "reward" in row else {}
        shown["KL"] = f"{row['kl']:z.3f}" if "kl" in row else "not measured"
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(row["step"] - self.bar.n)

    def close(self) -> None:
        self._metrics.close()
        if self.bar is not None:
            self.bar.close()
        if self.live is not None:
            self.live.update(self.rows, is_last=True)
        if self.rows:
            folder = self.run.path / "figures"
            folder.mkdir(exist_ok=True)
            figure = training_figure(self.rows, self.weights, self.settings.beta)
            (folder / "training.png").write_bytes(png(figure, dpi=150))


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    rewards: Sequence[RewardFunction],
    settings: Settings,
    *,
    name: str | None = None,
    reference: Reference = "start",
) -> Run:
    """Train the model's LoRA with GRPO (arXiv:2402.03300), with live curves, and return the run.

    Everything that can be checked is checked first: nothing is written and nothing slow starts on bad input. An
    interrupt keeps the adapter of the last step and returns a usable run; an error keeps what was logged and is raised.

    Args:
        model: From `load_model`, with a LoRA. It is trained in place; a second call goes on from where it is.
        tokenizer: From `load_model`.
        task: From `load_task`. Prompts longer than `settings.max_prompt_length` are dropped and counted.
        rewards: Reward functions with TRL's signature. An attribute `weight` is passed on as its `reward_weights`.
        settings: From `preset`.
        name: Of the run's folder under `settings.run_root`; by default the time it starts.
        reference: What the KL is measured against, if `beta` is above 0: the model as it is when this run starts, with
            what its adapter has learnt already, or the `"base"` model without any adapter. The same for a new adapter.

    Raises:
        ValueError: Rewards or settings that cannot work.
        EnvironmentProblem: Too little disk.
        FileExistsError: A run of that name exists.
    """
    if reference not in ("start", "base"):
        raise ValueError(f"reference = {reference!r} must be 'start' or 'base'.")
    rewards = list(rewards)
    task = task.fit(tokenizer, settings.max_prompt_length)
    weights = _checked_rewards(rewards, task)
    _check_extra(settings)
    check_loss(settings)
    check_reporting(settings)
    require_disk(Path(settings.run_root), _RUN_BYTES, "A run")
    obstacle = _stock_reason(model, settings)

    run = Run(new_run_folder(settings.run_root, name), model=model, tokenizer=tokenizer)
    info = _run_info(settings, task, rewards, weights, obstacle)
    info["reference"] = _describe_reference(model, settings.beta, reference)
    write_json(run.path / "run.json", info)
    # For comparisons and exports of this run by another process, on the same held-out questions.
    task.holdout.select_columns(["prompt", "question", "answer"]).to_json(run.path / "holdout.jsonl")
    recorder = _Recorder(run, settings, weights)
    started = time.perf_counter()
    status = "failed"
    trainer = None
    try:
        with _reference_adapter(model):
            trainer = _build_trainer(model, tokenizer, task, rewards, settings, weights, run, recorder, obstacle)
            if reference == "base" and "ref" in model.peft_config:
                model.delete_adapter("ref")  # without it TRL takes the model with its adapter switched off
            try:
                trainer.train()
                status = "finished"
            except KeyboardInterrupt:
                status = "interrupted"
            _save_adapter(trainer, run)
    except BaseException as error:
        info["error"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        if getattr(trainer, "stock_reason", None):
            info["rollout"] = f"shared prompts, but for some batches stock ({trainer.stock_reason})"
        write_json(run.path / "run.json", {**info, "status": status, "seconds": time.perf_counter() - started})
        recorder.close()
    with contextlib.suppress(OSError):  # empty unless `extra` asked for checkpoints
        (run.path / "checkpoints").rmdir()
    from grpo_nb.export import write_model_card

    write_model_card(run)
    return run


def _stock_reason(model: Any, settings: Settings) -> str | None:
    """Why TRL's own path computes this run, or None if prompts are shared; a warning where the user could not know."""
    if not settings.shared_prompts:
        return "it is switched off"
    longest = settings.max_prompt_length + settings.max_completion_length
    obstacle = shared_prompts.shared_prompt_obstacle(model, longest)
    if obstacle is not None and find_gpu() is None:
        warnings.warn(f"Prompts are not shared, and a step takes about three times as long: {obstacle}.", stacklevel=3)
    return obstacle


def _build_trainer(
    model: Any,
    tokenizer: Any,
    task: Task,
    rewards: list[RewardFunction],
    settings: Settings,
    weights: dict[str, float],
    run: Run,
    recorder: _Recorder,
    obstacle: str | None,
) -> GRPOTrainer:
    trainer_class = GRPOTrainer if obstacle else SharedPromptGRPOTrainer
    loaded = {name: p.data for name, p in model.named_parameters() if p.requires_grad}
    arguments = _grpo_arguments(settings, weights, run.path)
    if task.is_ordered:
        arguments.setdefault("shuffle_dataset", False)
    trainer = trainer_class(
        model=model,
        processing_class=tokenizer,
        reward_funcs=rewards,
        args=GRPOConfig(**arguments),
        train_dataset=task.train,
        callbacks=[recorder],
    )
    # Their rows of dicts in a cell or terminal are what the figure and the bar replace.
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    recorder.trainer = trainer
    # TRL rounds the adapter of a quantized model to bfloat16, where small updates vanish; Unsloth's trainer on a GPU does not.
    for name, parameter in model.named_parameters():
        source = loaded.get(name.replace(".ref.", ".default."))
        if source is not None and parameter.dtype != source.dtype:
            parameter.data = source.clone() if ".ref." in name else source
    if "ref" in model.peft_config and _is_untrained(model):
        # TRL adds a frozen copy of the adapter as the reference. While the adapter is still zero, the reference is
        # the base model, and switching the adapter off gives the same without three products per layer.
        model.delete_adapter("ref")
    return trainer


def _grpo_arguments(settings: Settings, weights: dict[str, float], folder: Path) -> dict[str, Any]:
    on_gpu = find_gpu() is not None
    has_bf16 = is_bfloat16_supported()
    same_name = (
        "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations", "max_completion_length",
        "max_steps", "learning_rate", "lr_scheduler_type", "warmup_steps", "max_grad_norm", "weight_decay", "beta",
        "temperature", "top_p", "top_k", "loss_type", "optim", "seed",
    )  # fmt: skip
    vllm = {"use_vllm": True} if settings.fast_inference and on_gpu else {}
    return {
        **{name: getattr(settings, name) for name in same_name},
        **vllm,
        "output_dir": str(folder / "checkpoints"),
        "reward_weights": list(weights.values()),
        "adam_beta2": 0.99,  # a run of tens of steps forgets the first gradients sooner than 0.999 lets it
        "bf16": has_bf16,
        "fp16": on_gpu and not has_bf16,
        "gradient_checkpointing": on_gpu,
        "logging_steps": 1,
        # A NaN in the loss is shown, not replaced by the last good value.
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **settings.extra,
    }


def _check_extra(settings: Settings) -> None:
    """The installed GRPOConfig decides: TRL raises on unknown names, Unsloth's only warns."""
    known = set(inspect.signature(GRPOConfig).parameters)
    fields = {f.name for f in dataclasses.fields(Settings)}
    for name in settings.extra:
        if name in fields:
            raise ValueError(
                f"extra holds {name!r}, which is a setting of its own: write {name}={settings.extra[name]!r}."
            )
        if name not in known:
            raise ValueError(f"extra holds {name!r}, which the installed GRPOConfig lacks{did_you_mean(name, known)}")


def _checked_rewards(rewards: list[RewardFunction], task: Task) -> dict[str, float]:
    """Return weight by name, after calling each reward once on the first row: what is missing shows before training."""
    if not rewards:
        raise ValueError("rewards is empty: without a reward there is nothing to learn from.")
    weights = weights_by_name(rewards)
    row = task.train[0]
    text = task.format.render("reasoning", row["answer"])
    columns = {key: [value] for key, value in row.items() if key != "prompt"}
    for name, reward in zip(weights, rewards, strict=True):
        try:
            scores = reward(
                prompts=[row["prompt"]],
                completions=[[{"role": "assistant", "content": text}]],
                completion_ids=[[0]],
                trainer_state=None,
                log_extra=lambda column, values: None,
                log_metric=lambda key, value: None,
                **columns,
            )
        except Exception as error:
            error.add_note(f"This came from the reward {name!r}, tried on the first training row before any training.")
            raise
        if not isinstance(scores, (list, tuple)) or len(scores) != 1:
            raise ValueError(f"the reward {name!r} returned {scores!r} for one completion: return a list of one float.")
        if scores[0] is not None and not isinstance(scores[0], (int, float)):
            raise ValueError(f"the reward {name!r} returned {scores[0]!r}, a {type(scores[0]).__name__}, not a float.")
    return weights


def _is_untrained(model: Any) -> bool:
    return all(not p.detach().any() for n, p in model.named_parameters() if "lora_B.default" in n)


def _describe_reference(model: Any, beta: float, reference: Reference) -> str:
    if beta == 0 or reference == "base" or _is_untrained(model):
        return "the base model"
    return "the adapter it started from"


@contextlib.contextmanager
def _reference_adapter(model: Any) -> Iterator[None]:
    """Take away the reference adapter that TRL leaves behind: with it, a later load restores only the zeros in it."""
    try:
        yield
    finally:
        if "ref" in model.peft_config:
            model.delete_adapter("ref")


def _save_adapter(trainer: GRPOTrainer, run: Run) -> None:
    model = trainer.accelerator.unwrap_model(trainer.model)
    staged = run.path / ".adapter"
    model.save_pretrained(staged, selected_adapters=["default"])
    staged.rename(run.adapter_path)


def _source_of(reward: RewardFunction) -> str:
    target = reward if inspect.isroutine(reward) else type(reward)
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):
        return "source not available (defined interactively without a file)"


def _run_info(
    settings: Settings, task: Task, rewards: list[RewardFunction], weights: dict[str, float], obstacle: str | None
) -> dict[str, Any]:
    gpu = find_gpu()
    sources = {name_of(reward): _source_of(reward) for reward in rewards}
    return {
        "status": "running",
        "pid": os.getpid(),
        "host": platform.node(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "settings": settings.to_dict(),
        "task": {
            "name": task.name,
            "format": dataclasses.asdict(task.format),
            "train": len(task.train),
            "holdout": len(task.holdout),
            "dropped": dict(task.dropped),
            "fingerprint": task.fingerprint,
        },
        "rewards": [
            {
                "name": name,
                "weight": weight,
                "call": repr(reward),
                "source": sources[name],
                "sha256": hashlib.sha256(sources[name].encode()).hexdigest(),
            }
            for (name, weight), reward in zip(weights.items(), rewards, strict=True)
        ],
        "machine": {
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "memory_gib": round(total_memory_gib(), 1),
            "gpu": dataclasses.asdict(gpu) if gpu else None,
        },
        "versions": package_versions(),
        "rollout": f"stock ({obstacle})" if obstacle else "shared prompts",
    }
