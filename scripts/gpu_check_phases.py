"""What gpu_check.py measures, one function a phase. Each loads a model of its own and returns plain numbers and checks.

On a GPU each phase is a process, so that the memory of one is free for the next and a crash costs one phase only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

# Below this share of equal verdicts two generation paths are not answering with the same model. Rounding alone moves a few
# answers: near ties, and in 4 bit other kernels.
_LEAST_AGREEMENT = 0.85


@dataclass(frozen=True)
class Request:
    """What a phase is asked."""

    model: str
    work: str
    steps: int
    device: str
    is_tiny: bool
    load_in_4bit: bool
    use_vllm: bool


def check(ok: bool, detail: str) -> dict[str, Any]:
    """One line of the verdict."""
    return {"ok": bool(ok), "detail": detail}


def settings_for(request: Request, **changes: Any) -> Any:
    """The quickstart's settings, loaded as a GPU loads."""
    import grpo_nb as gn

    values: dict[str, Any] = {
        "max_steps": request.steps, "load_in_4bit": request.load_in_4bit, "fast_inference": request.use_vllm,
        "run_root": str(Path(request.work) / "runs"), "gpu_memory_utilization": 0.5,
    }  # fmt: skip
    if request.model:
        values["model"] = request.model
    if request.is_tiny:
        values |= {"max_completion_length": 12, "learning_rate": 2e-2, "max_grad_norm": 10.0}
    return gn.preset("cpu", **{**values, **changes})


def brevity(completions: list, **columns: object) -> list[float]:
    """A reward that a random model can earn: fewer words are better."""
    return [1 / (1 + len(c[-1]["content"].split())) for c in completions]


def rewards_for(request: Request) -> list[Any]:
    """The quickstart's rewards, or one that a random model can earn."""
    import grpo_nb as gn

    if request.is_tiny:
        return [brevity]
    return [gn.rewards.correctness(weight=2.0), gn.rewards.xml_format(weight=1.0), gn.rewards.xml_tags(weight=0.5)]


def task_for(request: Request, settings: Any, tokenizer: Any) -> Any:
    """The quickstart's task, with few held-out questions."""
    import grpo_nb as gn

    sizes = {"train_size": 20, "holdout_size": 6} if request.is_tiny else {"holdout_size": 60}
    return gn.load_task("arithmetic", settings, tokenizer=tokenizer, **sizes)


class PeakMemory:
    """The most memory in use while it is entered, in GB: of the whole GPU, vLLM's included, or of this process on a CPU.

    Asked of the driver by a program of its own: asking torch would start CUDA here before Unsloth and vLLM set it up.
    """

    _QUERY = ("--query-gpu=memory.used", "--format=csv,noheader,nounits", "--loop-ms=200")

    def __init__(self, device: str) -> None:
        self._is_gpu, self.gb = device != "cpu", 0.0

    def __enter__(self) -> PeakMemory:
        if self._is_gpu:
            from grpo_nb.machine.gpu import nvidia_smi, read_driver

            # The card that CUDA uses, which need not be the first that the driver counts.
            card = read_driver(visible=os.environ.get("CUDA_VISIBLE_DEVICES")).gpus[0].uuid
            command = [nvidia_smi(), *self._QUERY, *([f"--id={card}"] if card else [])]
            self._asking = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def _watch(self) -> None:
        for line in self._asking.stdout:
            if line.strip().isdigit():
                self.gb = max(self.gb, int(line) * 2**20 / 1e9)

    def __exit__(self, *_: object) -> None:
        if self._is_gpu:
            self._asking.terminate()
            self._asking.wait()
            self._thread.join()
        else:
            self.gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def speed(seconds: Sequence[float], lengths: Sequence[float], completions: int) -> dict[str, float]:
    """Median time of a step, the first left out, and completion tokens a second."""
    kept = list(zip(seconds, lengths, strict=True))[1:] or list(zip(seconds, lengths, strict=True))
    step = statistics.median(second for second, _ in kept)
    tokens = sum(length * completions for _, length in kept) / sum(second for second, _ in kept)
    return {"step_seconds": step, "completion_tokens_per_second": tokens}


def through_the_kit(request: Request) -> dict[str, Any]:
    """Load, train, evaluate on both generation paths, merge and verify."""
    import grpo_nb as gn
    from grpo_nb.models import generation_of

    name, settings = _name(request), settings_for(request)
    checks: dict[str, Any] = {}
    with PeakMemory(request.device) as memory:
        begun = time.perf_counter()
        model, tokenizer = gn.load_model(settings)
        load_seconds = time.perf_counter() - begun
        generation = generation_of(model)
        is_packed = any(type(module).__name__ == "Linear4bit" for module in model.modules())
        checks["loads in 4 bit"] = check(
            is_packed == request.load_in_4bit, "Linear4bit layers" if is_packed else "16 bit"
        )
        wanted = "vllm" if request.use_vllm else "kit" if request.device == "cpu" else "unsloth"
        checks["generation"] = check(generation.path == wanted, str(generation))
        task = task_for(request, settings, tokenizer)
        run = gn.train(model, tokenizer, task, rewards_for(request), settings, name=name)
        evaluations = _on_both_paths(model, tokenizer, task, settings)
    rows = run.rows
    checks["reward rises"] = _rises([row["reward"] for row in rows])
    kl = [row["kl"] for row in rows]
    last = statistics.mean(kl[len(kl) // 2 :])
    checks["KL is positive"] = check(
        all(map(math.isfinite, kl)) and last > 0, f"first {kl[0]:.2g}, mean of the second half {last:.2g}"
    )
    checks["evaluation agrees between generation paths"] = evaluations
    checks["merged model verifies"] = _merge(run, Path(request.work) / f"merged-{name}")
    timed = [row["step_time"] for row in rows]
    lengths = [row["completions/mean_length"] for row in rows]
    return {
        "generation": str(generation), "load_seconds": load_seconds, "peak_gb": memory.gb,
        "reward": [row["reward"] for row in rows], "kl": kl, **speed(timed, lengths, settings.batch_size), "checks": checks,
    }  # fmt: skip


def _rises(rewards: list[float]) -> dict[str, Any]:
    """The last third above the first by more than two standard errors of their difference."""
    third = max(len(rewards) // 3, 1)
    first, last = rewards[:third], rewards[-third:]
    error = math.sqrt(sum(statistics.variance(part) / len(part) if len(part) > 1 else 0.0 for part in (first, last)))
    gain = statistics.mean(last) - statistics.mean(first)
    return check(gain > 2 * error, f"{statistics.mean(first):.2f} to {statistics.mean(last):.2f} (+- {error:.2f})")


def _on_both_paths(model: Any, tokenizer: Any, task: Any, settings: Any) -> dict[str, Any]:
    """Greedy answers of the path that training used, and of `model.generate`, on the held-out questions."""
    import grpo_nb as gn
    from grpo_nb.generation import sampling

    limit = settings.max_completion_length
    own = gn.evaluate((model, tokenizer), task, max_completion_length=limit, label="own path")
    with (
        mock.patch.object(sampling, "vllm_rollout_obstacle", lambda model, longest: "compared"),
        mock.patch.object(sampling, "shared_prompt_obstacle", lambda model, longest: "compared"),
    ):
        other = gn.evaluate((model, tokenizer), task, max_completion_length=limit, label="model.generate")
    pairs = list(zip(own.rows, other.rows, strict=True))
    verdicts = statistics.mean(a["is_correct"] == b["is_correct"] for a, b in pairs)
    texts = statistics.mean(a["completion"] == b["completion"] for a, b in pairs)
    return check(
        verdicts >= _LEAST_AGREEMENT,
        f"accuracy {own.accuracy:.1%} and {other.accuracy:.1%} on {len(pairs)} questions; equal verdicts {verdicts:.0%}, "
        f"equal texts {texts:.0%}",
    )


def _merge(run: Any, folder: Path) -> dict[str, Any]:
    import grpo_nb as gn

    try:
        exported = gn.export_merged(run, folder, overwrite=True)
    except Exception as error:  # a check that failed is a result, and the others are wanted too
        return check(False, f"{type(error).__name__}: {error}"[:500])
    return check(True, exported.sentence)


def _half(request: Request) -> int:
    return request.steps // 2


def beginning(request: Request) -> dict[str, Any]:
    """Half the steps of a run that `resuming` goes on with."""
    import grpo_nb as gn

    settings = settings_for(request, max_steps=_half(request))
    model, tokenizer = gn.load_model(settings)
    task = task_for(request, settings, tokenizer)
    gn.train(model, tokenizer, task, rewards_for(request), settings, name=_resumed(request))
    return {"checks": {}}


def resuming(request: Request) -> dict[str, Any]:
    """The rest of the steps in a model loaded anew, against the run that was never stopped."""
    import grpo_nb as gn

    half, settings = _half(request), settings_for(request)
    model, tokenizer = gn.load_model(settings)
    task = task_for(request, settings, tokenizer)
    folder = Path(settings.run_root) / _resumed(request)
    run = gn.train(model, tokenizer, task, rewards_for(request), settings, resume=str(folder))
    rows, whole = run.rows, gn.open_run(Path(settings.run_root) / _name(request)).rows
    compared = ("reward", "kl", "loss", "grad_norm")
    after = [
        max(abs(a[key] - b[key]) for key in compared if key in a and key in b)
        for a, b in zip(rows[half:], whole[half:], strict=True)
    ]
    checks = {
        "resume goes on at the next step": check(
            [int(row["step"]) for row in rows] == list(range(1, request.steps + 1)),
            f"{half} + {len(rows) - half} steps",
        ),
        # The trap: with the trained adapter lost, the first KL after resuming is exactly 0.
        "resume has the trained adapter": check(rows[half]["kl"] > 0, f"first KL afterwards {rows[half]['kl']:.2g}"),
    }
    detail = f"largest difference of {', '.join(compared)} to the run that was not stopped: {max(after):.2g}"
    if request.device == "cpu":
        checks["resume is exact"] = check(max(after) == 0, detail)
    else:  # the order of sums on a GPU is not fixed, so equal numbers are reported and not asked for
        checks["resume follows the same run"] = check(math.isfinite(max(after)), detail)
    return {"difference_after_resume": after, "checks": checks}


def _name(request: Request) -> str:
    return "vllm" if request.use_vllm else "plain"


def _resumed(request: Request) -> str:
    return f"{_name(request)}-resumed"


def by_hand(request: Request) -> dict[str, Any]:
    """The same training as one writes it with unsloth and TRL, without the kit but for its model, task and rewards."""
    settings = settings_for(request)
    from grpo_nb.models import import_unsloth, resolve_model

    import_unsloth()
    from unsloth import FastLanguageModel, is_bfloat16_supported

    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    is_gpu = request.device != "cpu"
    checkpointing = "unsloth" if is_gpu else False
    vllm = {"fast_inference": True, "max_lora_rank": settings.lora_rank, "gpu_memory_utilization": 0.5}
    with PeakMemory(request.device) as memory, contextlib.redirect_stdout(sys.stderr):
        model, tokenizer = FastLanguageModel.from_pretrained(
            resolve_model(settings.model), max_seq_length=settings.max_prompt_length + settings.max_completion_length,
            load_in_4bit=request.load_in_4bit, load_in_16bit=not request.load_in_4bit, use_gradient_checkpointing=checkpointing,
            **(vllm if request.use_vllm else {}),
        )  # fmt: skip
        model = FastLanguageModel.get_peft_model(
            model, r=settings.lora_rank, lora_alpha=settings.lora_alpha, lora_dropout=0.0, random_state=settings.seed,
            target_modules=list(settings.lora_target_modules), use_gradient_checkpointing=checkpointing,
        )  # fmt: skip
        tokenizer.padding_side = "left"
        task = task_for(request, settings, tokenizer)
        rewards = rewards_for(request)
        logs: list[dict[str, float]] = []

        class Keep(TrainerCallback):
            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                if logs and "reward" in logs:
                    kept.append(dict(logs))

        kept = logs
        trainer = GRPOTrainer(
            model=model, processing_class=tokenizer, reward_funcs=rewards, train_dataset=task.train, callbacks=[Keep()],
            args=GRPOConfig(
                output_dir=str(Path(request.work) / "by-hand"), max_steps=settings.max_steps,
                learning_rate=settings.learning_rate,
                per_device_train_batch_size=settings.per_device_train_batch_size, num_generations=settings.num_generations,
                max_completion_length=settings.max_completion_length, lr_scheduler_type=settings.lr_scheduler_type,
                warmup_steps=settings.warmup_steps, max_grad_norm=settings.max_grad_norm, weight_decay=settings.weight_decay,
                beta=settings.beta, temperature=settings.temperature, loss_type=settings.loss_type, seed=settings.seed,
                top_k=-1 if request.use_vllm else 0, optim=settings.optim, adam_beta2=0.99,
                reward_weights=[getattr(r, "weight", 1.0) for r in rewards], gradient_checkpointing=is_gpu,
                bf16=is_bfloat16_supported(), fp16=is_gpu and not is_bfloat16_supported(), logging_steps=1, save_strategy="no",
                report_to="none", disable_tqdm=True, **({"use_vllm": True} if request.use_vllm else {}),
            ),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    timed = [row["step_time"] for row in logs]
    lengths = [row["completions/mean_length"] for row in logs]
    return {
        "peak_gb": memory.gb, "reward": [row["reward"] for row in logs],
        **speed(timed, lengths, settings.batch_size), "checks": {},
    }  # fmt: skip


PHASES = {"kit": through_the_kit, "by hand": by_hand, "begin": beginning, "resume": resuming}


def plan_of(has_vllm: bool) -> Iterator[tuple[str, str, bool]]:
    """The phases in their order: (name, function, with vLLM)."""
    for use_vllm in (True, False) if has_vllm else (False,):
        suffix = "with vLLM" if use_vllm else "without vLLM"
        yield f"kit, {suffix}", "kit", use_vllm
        yield f"by hand, {suffix}", "by hand", use_vllm
        if use_vllm == has_vllm:
            # Two phases: on a GPU the engine of the first has to be gone before the second loads one.
            yield f"begin, {suffix}", "begin", use_vllm
            yield f"resume, {suffix}", "resume", use_vllm


def run_phase(function: str, request: Request) -> dict[str, Any]:
    """Run one phase here, with its time."""
    begun = time.perf_counter()
    found = PHASES[function](request)
    return {**found, "seconds": time.perf_counter() - begun, "request": dataclasses.asdict(request)}
