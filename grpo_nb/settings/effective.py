"""What will really run: the table "you asked / will run / why", worked out before anything is loaded.

Each rule names the function it was read in (unsloth and unsloth_zoo 2026.10.9, trl 1.15, transformers 5.17). The rules for a
CPU are tested against trainers built here, those for a GPU by running Unsloth's own lines of code, taken from the installed
source, on the same values. Not covered: what a `model` of a certain family makes Unsloth change while it loads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.tables import Html, Shown, Table, bold, code, escaped
from grpo_nb.machine.gpu import Gpu
from grpo_nb.settings.number_types import number_type
from grpo_nb.settings.presets import find_machine
from grpo_nb.settings.settings import Settings, require_settings
from grpo_nb.settings.vllm import VllmObstacle, vllm_obstacle

_SAME_NAME = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations", "max_completion_length",
    "max_steps", "learning_rate", "lr_scheduler_type", "max_grad_norm", "weight_decay", "beta", "temperature", "top_p", "top_k",
    "loss_type", "optim", "seed",
)  # fmt: skip
_NOT_SET = "not set"
_CPU_LOADER = "unsloth_zoo/cpu/loader.py, FastCPUModel.from_pretrained"
_CPU_TRAINER = "unsloth_zoo/cpu/trainer.py, normalize_cpu_training_arguments"
_LORA = "unsloth/models/llama.py, FastLlamaModel.get_peft_model"
_GPU_TRAINER = "unsloth/models/rl.py, _patch_trl_rl_trainers"
_CONFIG = "trl/trainer/grpo_config.py, GRPOConfig.__post_init__"
_TRAINER = "trl/trainer/grpo_trainer.py, GRPOTrainer.__init__"
_SHARING = "grpo_nb/generation/shared_prompts.py, shared_prompt_obstacle"
# Unsloth's variable, on unless it is 0, by which its trainer scores a group behind one copy of its prompt (without vLLM).
SHARED_SCORING = "UNSLOTH_GRPO_PREFIX_GROUPER"


@dataclass(frozen=True)
class Effect:
    """One row: what was asked for, what will run, why, and where that was read."""

    name: str
    asked: Any
    runs: Any
    why: str
    source: str

    @property
    def is_changed(self) -> bool:
        """False where the value stays but means something else than it seems, or was left to the kit."""
        return self.asked not in ("auto", self.runs)


class EffectiveSettings(Shown):
    """The table "you asked / will run / why". `arguments` holds what the trainer's `args` will hold, by name.

    Its rules are the changes that the kit, Unsloth and TRL make, in the order in which they make them, and a row for each.
    """

    def __init__(self, settings: Settings, gpu: Gpu | None, obstacle: VllmObstacle | None) -> None:
        chosen = number_type(settings, gpu)
        self.asked = requested_arguments(settings, gpu=gpu, number_type=chosen.name, has_vllm=obstacle is None)
        self.settings, self.arguments, self.rows = settings, dict(self.asked), []
        self._machine = f"{gpu.name} ({gpu.memory_gib:.0f} GiB)" if gpu else "a CPU"
        self._tell("dtype", chosen.name, chosen.why, "grpo_nb/settings/number_types.py")
        if gpu is None:
            self._of_the_kit_on_cpu()
            self._of_unsloth_on_cpu()
        else:
            self._of_the_kit_on_gpu(obstacle)
            self._of_unsloth_on_gpu(chosen.name, gpu)
        self._of_trl(is_gpu=gpu is not None)

    def _tell(self, name: str, runs: Any, why: str, source: str) -> None:
        asked = self.asked.get(name, vars(self.settings).get(name, _NOT_SET))
        self.rows.append(Effect(name, asked, runs, why, source))

    def _change(self, name: str, value: Any, why: str, source: str) -> None:
        """Set an argument of the trainer, with a row if it had another value or none."""
        if self.arguments.get(name, _NOT_SET) != value:
            self.arguments[name] = value
            self._tell(name, value, why, source)

    def __getitem__(self, name: str) -> Effect:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{name!r} has no row: it runs as asked")

    def __contains__(self, name: str) -> bool:
        return any(row.name == name for row in self.rows)

    def _parts(self) -> Iterable[str | Table]:
        changed = sum(row.is_changed for row in self.rows)
        given = vars(self.settings).keys() - {"extra"} | set(self.settings.extra)
        same = f"the other {len(given - {row.name for row in self.rows})} settings run as asked"
        yield f"On {self._machine}, {changed} will run differently from what was asked; {same}."
        rows = []
        for row in self.rows:
            runs = _shown(row.runs)
            source = f"<br><span style='opacity:.65;font-size:85%'>{escaped(row.source)}</span>"
            why = Html(f"{row.why} [{row.source}]", escaped(row.why) + source)
            rows.append((code(row.name), _shown(row.asked), bold(runs) if row.is_changed else runs, why))
        yield Table(rows, head=("setting", "you asked", "will run", "why"))

    def _of_the_kit_on_cpu(self) -> None:
        if self.settings.fast_inference:
            why = "vLLM needs a GPU. The kit's own rollout generates here, each distinct prompt computed once."
            self._tell("fast_inference", False, why, f"{_CPU_LOADER}, which would raise")
        if self.settings.load_in_4bit:
            why = (
                "On a CPU 4 bit is about a tenth slower than 16, and merging loads the model again; layers narrower than 64 "
                "are loaded in 16 bit."
            )
            self._tell("load_in_4bit", True, why, _CPU_LOADER)

    def _of_the_kit_on_gpu(self, obstacle: VllmObstacle | None) -> None:
        settings = self.settings
        if settings.fast_inference and obstacle is not None:
            why = f"{obstacle.reason}, so Unsloth's own, slower generation is used. {obstacle.fix}."
            self._tell("fast_inference", False, why, "grpo_nb/settings/vllm.py, vllm_obstacle")
        if settings.shared_prompts:
            why = "A rollout of the kit for CPUs. On a GPU, vLLM's prefix cache or Unsloth's generation does that work."
            self._tell("shared_prompts", False, why, _SHARING)
        if not (settings.fast_inference and obstacle is None) and os.environ.get(SHARED_SCORING, "0") == "0":
            why = (
                "Without vLLM Unsloth would score the completions of a group behind one copy of their prompt. Only its own "
                "attention (llama, mistral, gemma, gemma2, qwen2, qwen3) does that rightly; elsewhere all but one completion "
                f'lose the prompt. With one of these, for speed: os.environ["{SHARED_SCORING}"] = "1" before the import.'
            )
            self._tell(SHARED_SCORING, "0", why, "unsloth/utils/prefix_grouper.py")
        if settings.lora_dropout:
            why = "Unsloth's fast LoRA kernels want 0; with dropout the layers run through PEFT, more slowly."
            self._tell("lora_dropout", settings.lora_dropout, why, _LORA)

    def _of_unsloth_on_cpu(self) -> None:
        arguments = self.arguments
        arguments["use_cpu"] = True
        optimizer, has_no_code = arguments["optim"].lower(), ("8bit", "paged", "bnb", "npu", "xla", "apex")
        if optimizer == "adamw_torch" or any(tag in optimizer for tag in has_no_code):
            why = "The same optimizer, fused, which is faster over a LoRA's many small tensors."
            if optimizer != "adamw_torch":
                why = "This optimizer has no code for a CPU. The state of a LoRA is small, so nothing is lost."
            self._change("optim", "adamw_torch_fused", why, _CPU_TRAINER)
        if arguments.get("tf32"):
            self._change("tf32", None, "A number format of GPUs.", _CPU_TRAINER)
        if arguments.get("dataloader_pin_memory"):
            self._change("dataloader_pin_memory", False, "Only useful for copies to a GPU.", _CPU_TRAINER)
        if arguments.get("gradient_checkpointing"):
            kwargs = {"use_reentrant": False, **(arguments.get("gradient_checkpointing_kwargs") or {})}
            why = "The way of checkpointing that works with a LoRA on a CPU."
            self._change("gradient_checkpointing_kwargs", kwargs, why, _CPU_TRAINER)
            if self.settings.shared_prompts:
                why = (
                    "Checkpointing drops the key/value cache that sharing needs, and on a CPU memory is rarely short: leave "
                    "gradient_checkpointing out, or set shared_prompts=False."
                )
                self._tell("shared_prompts", True, why, _SHARING)

    def _of_unsloth_on_gpu(self, number_type: str, gpu: Gpu) -> None:
        arguments = self.arguments
        if number_type == "float32" and gpu.compute_capability >= (8, 0):
            why = (
                "Unsloth's trainer computes a float32 model's products in bfloat16 where the GPU has it (autocast). Weights "
                "and LoRA stay in float32; a GPU without it, such as a T4, computes in float32."
            )
            self._change("bf16", True, why, _GPU_TRAINER)
        loss = arguments["loss_type"] = arguments["loss_type"].lower()
        if arguments.get("use_vllm") and not arguments.get("top_k"):
            where = "unsloth/models/rl_replacements.py, grpo_config_fix_vllm_top_k"
            self._change("top_k", -1, "The same for vLLM, which writes -1 for no limit.", where)
        if loss == "dr_grpo":
            scale = arguments.get("scale_rewards", "group")
            if scale is None:
                arguments["scale_rewards"] = True
            elif scale is True or scale == "group":
                why = (
                    "The Dr. GRPO paper (arXiv:2503.20783) does not divide advantages by the spread of their group. To divide "
                    'all the same: extra={"scale_rewards": None}.'
                )
                self._change("scale_rewards", False, why, _GPU_TRAINER)
        if loss == "dapo":
            if arguments.get("mask_truncated_completions") is None:
                why = (
                    "The DAPO paper (arXiv:2503.14476) leaves completions that were cut out of the loss; if all are cut, "
                    'nothing is learnt. To keep them: extra={"mask_truncated_completions": False}.'
                )
                self._change("mask_truncated_completions", True, why, _GPU_TRAINER)
            if arguments.get("epsilon_high") is None:
                low = arguments.get("epsilon", 0.2)
                why = f'The DAPO paper\'s upper clip. For one equal to the lower: extra={{"epsilon_high": {low}}}.'
                self._change("epsilon_high", 0.28, why, _GPU_TRAINER)
        if arguments["beta"]:
            why = "Its KL is capped at 10 for each token, and logged as the mean of the completions' means, TRL's over tokens."
            if loss == "dapo":
                why += " Unsloth prints a warning: the DAPO paper has no KL term. Without it there is no KL curve."
            self._tell("beta", arguments["beta"], why, "unsloth_zoo/rl_replacements.py, grpo_compute_loss")
        if loss == "cispo" and arguments.get("epsilon_high") is None:
            why = "CISPO caps the importance weight at this value itself; the ScaleRL paper (arXiv:2510.13786) takes 5."
            self._change("epsilon_high", 5.0, why, _GPU_TRAINER)
        if arguments.get("mask_truncated_completions") is None:
            arguments["mask_truncated_completions"] = False
        if arguments.get("use_vllm") and "vllm_importance_sampling_correction" not in arguments:
            why = (
                "TRL corrects for the difference between vLLM's probabilities and those of training, Unsloth does not unless "
                'asked: extra={"vllm_importance_sampling_correction": True}.'
            )
            self._change("vllm_importance_sampling_correction", False, why, _GPU_TRAINER)
        if arguments.get("gradient_checkpointing"):
            kwargs = {**(arguments.get("gradient_checkpointing_kwargs") or {}), "use_reentrant": True}
            arguments["gradient_checkpointing_kwargs"] = kwargs

    def _of_trl(self, *, is_gpu: bool) -> None:
        settings, arguments = self.settings, self.arguments
        if isinstance(arguments.get("scale_rewards"), bool):
            arguments["scale_rewards"] = "group" if arguments["scale_rewards"] else "none"
        total, step = settings.generation_batch_size, settings.batch_size
        steps = total // settings.per_device_train_batch_size
        arguments |= {"generation_batch_size": total, "steps_per_generation": steps}
        if total != step:
            updates = total * arguments.get("num_iterations", 1) / step
            why = (
                f"{total} completions are generated at a time and used for {updates:g} optimizer steps of {step}, so the "
                "later of them learn from an older policy; the clipped ratio corrects for that."
                if total > step
                else f"each optimizer step of {step} completions generates {step / total:g} times, {total} at a time."
            )
            self._tell("generation_batch_size", total, why, _CONFIG)
        loss = arguments["loss_type"]
        if loss == "cispo" and arguments.get("epsilon_high") is None:
            why = (
                "Left out, it is epsilon, and CISPO caps the importance weight at this value itself: every weight would be "
                'cut. Write extra={"epsilon_high": 5.0}, as the ScaleRL paper (arXiv:2510.13786) and Unsloth on a GPU do.'
            )
            self._tell("epsilon_high", arguments.get("epsilon", 0.2), why, _TRAINER)
        of_paper = {"dapo": ("mask_truncated_completions", True), "dr_grpo": ("scale_rewards", False)}.get(loss)
        if not is_gpu and of_paper is not None and of_paper[0] not in arguments:
            why = (
                f"On a CPU TRL's own defaults apply. On a GPU Unsloth would set {of_paper[0]}={of_paper[1]}"
                f"{' and epsilon_high=0.28' if loss == 'dapo' else ''}, so the same settings train differently there: write "
                "them into extra for one behaviour on both."
            )
            self._tell("loss_type", loss, why, _TRAINER)
        level = arguments.get("importance_sampling_level", "token")
        if level == "sequence" and loss in ("bnpo", "dr_grpo", "dapo", "cispo"):
            why = 'This loss then weighs each completion by its length. For GSPO as in arXiv:2507.18071: loss_type="grpo".'
            self._tell("importance_sampling_level", level, why, _TRAINER)
        if "num_train_epochs" in settings.extra:
            why = f"max_steps = {settings.max_steps} decides how long the run is."
            where = "transformers/trainer.py, Trainer.set_initial_training_values"
            self._tell("num_train_epochs", "ignored", why, where)


def requested_arguments(settings: Settings, *, gpu: Gpu | None, number_type: str, has_vllm: bool) -> dict[str, Any]:
    """What the kit hands to `GRPOConfig`, but for the bookkeeping of a run (folders, logging, saving).

    Args:
        settings: Of the run.
        gpu: That trains, or None for a CPU.
        number_type: `float32`, `bfloat16` or `float16`: what it computes in.
        has_vllm: Whether vLLM generates: for a loaded model, whether it has an engine.
    """
    vllm = {"use_vllm": True} if settings.fast_inference and gpu is not None and has_vllm else {}
    return {
        **{name: getattr(settings, name) for name in _SAME_NAME},
        "warmup_steps": settings.warmup,
        **vllm,
        "adam_beta2": 0.99,  # a run of tens of steps forgets the first gradients sooner than 0.999 lets it
        "bf16": number_type == "bfloat16",
        "fp16": number_type == "float16",
        "gradient_checkpointing": gpu is not None,
        **settings.extra,
    }


def effective_settings(settings: Settings, machine: str | Gpu | None = None) -> EffectiveSettings:
    """Say which settings will not run as written, on this machine or another, and why, before anything is loaded.

    Args:
        settings: Of the run.
        machine: `cpu`, `t4`, `l4`, `a100`, `h100` or a `Gpu`; by default what is here. On another machine vLLM is taken to be
            installed and to work; here its versions are compared, but it is not imported, which `load_model` does.

    Raises:
        ValueError: An unknown machine.

    >>> table = effective_settings(Settings(optim="adamw_8bit"), "cpu")
    >>> table["optim"].runs
    'adamw_torch_fused'
    """
    require_settings(settings)
    gpu, is_here = find_machine(machine)
    obstacle = vllm_obstacle(settings, gpu, settings.model, try_import=False) if is_here else None
    return EffectiveSettings(settings, gpu, obstacle)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else repr(value)
