"""What gpu_check.py measures, one function a phase. Each loads a model of its own and returns plain numbers and checks.

On a GPU each phase is a process, so that the memory of one is free for the next and a crash costs one phase only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

# Below this share of equal verdicts two generation paths are not answering with the same model. Rounding alone moves a few
# answers: near ties, and in 4 bit other kernels.
_LEAST_AGREEMENT = 0.85
# The quickstart by the preset of a T4 is 100 steps, whose time is one of the things to be found out.
_NOTEBOOK_SECONDS = 3 * 3600
ROOT = Path(__file__).resolve().parent.parent


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
    is_small_notebook: bool = False


class Checks:
    """The verdicts of a phase, each with the seconds since the one before it, in which its number was made."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self._since = time.perf_counter()

    def add(self, name: str, ok: bool | None, detail: str) -> None:
        """Note a verdict; None where it could not be looked at, which is neither."""
        now = time.perf_counter()
        self.found[name] = {"ok": None if ok is None else bool(ok), "detail": detail, "seconds": now - self._since}
        self._since = now


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
        values |= {"max_completion_length": 40, "learning_rate": 2e-2, "max_grad_norm": 10.0}  # priming's turns have 30
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
    """Load, train, and evaluate on both generation paths."""
    import grpo_nb as gn
    from grpo_nb.models.load import generation_of

    settings, checks = settings_for(request), Checks()
    with PeakMemory(request.device) as memory:
        begun = time.perf_counter()
        model, tokenizer = gn.load_model(settings)
        load_seconds = time.perf_counter() - begun
        generation = generation_of(model)
        is_packed = any(type(module).__name__ == "Linear4bit" for module in model.modules())
        checks.add(
            "weights as asked", is_packed == request.load_in_4bit, "Linear4bit layers" if is_packed else "16 bit"
        )
        wanted = "vllm" if request.use_vllm else "kit" if request.device == "cpu" else "unsloth"
        checks.add("generation", generation.path == wanted, str(generation))
        task = task_for(request, settings, tokenizer)
        run = gn.train(model, tokenizer, task, rewards_for(request), settings, name=_name(request))
        rows = run.rows
        checks.add("reward rises", *_rises([row["reward"] for row in rows]))
        kl = [row["kl"] for row in rows]
        last = statistics.mean(kl[len(kl) // 2 :])
        told = f"first {kl[0]:.2g}, mean of the second half {last:.2g}"
        checks.add("KL is positive", all(map(math.isfinite, kl)) and last > 0, told)
        agreement = _on_both_paths(model, tokenizer, task, settings)
        checks.add("evaluation agrees between generation paths", *agreement)
    timed = [row["step_time"] for row in rows]
    lengths = [row["completions/mean_length"] for row in rows]
    return {
        "generation": str(generation), "load_seconds": load_seconds, "peak_gb": memory.gb,
        "reward": [row["reward"] for row in rows], "kl": kl, **speed(timed, lengths, settings.batch_size),
        "checks": checks.found,
    }  # fmt: skip


def _rises(rewards: list[float]) -> tuple[bool, str]:
    """The last third above the first by more than two standard errors of their difference."""
    third = max(len(rewards) // 3, 1)
    first, last = rewards[:third], rewards[-third:]
    error = math.sqrt(sum(statistics.variance(part) / len(part) if len(part) > 1 else 0.0 for part in (first, last)))
    gain = statistics.mean(last) - statistics.mean(first)
    return gain > 2 * error, f"{statistics.mean(first):.2f} to {statistics.mean(last):.2f} (+- {error:.2f})"


def _on_both_paths(model: Any, tokenizer: Any, task: Any, settings: Any) -> tuple[bool, str]:
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
    return verdicts >= _LEAST_AGREEMENT, (
        f"accuracy {own.accuracy:.1%} and {other.accuracy:.1%} on {len(pairs)} questions; equal verdicts {verdicts:.0%}, "
        f"equal texts {texts:.0%}"
    )


def trying(request: Request) -> dict[str, Any]:
    """What comes before a training: a dry run, beside the training that the kit made with the same settings; and priming."""
    import grpo_nb as gn

    settings, checks = settings_for(request), Checks()
    model, tokenizer = gn.load_model(settings)
    task, rewards = task_for(request, settings, tokenizer), rewards_for(request)
    before = _trained_tensors(model)
    dry = gn.dry_run(model, tokenizer, task, rewards, settings, steps=1)
    moved = _moved(model, before)
    checks.add(
        "a dry run scores and changes nothing", not moved, f"{moved} of {len(before)} tensors moved. {dry.sentence}"
    )
    first = gn.open_run(Path(settings.run_root) / _name(request)).completions(1)
    same = sum(a == b for a, b in zip(dry.table["completion"], first["completion"], strict=True))
    # Sampling on a GPU need not give the same text twice, so it is reported there and not asked for.
    alike = same == len(first) or request.device != "cpu"
    checks.add("a dry run is a training's first step", alike, f"{same} of {len(first)} completions are the same")
    short = {"steps": 4, "examples": 8, "held_out": 4, "learning_rate": 5e-3} if request.is_tiny else {}
    primed = gn.training.prime(model, tokenizer, task, settings, **short)
    is_learnt = primed.loss_after < primed.loss_before
    checks.add("priming lowers the held-out loss", is_learnt and _moved(model, before) > 0, primed.sentence)
    more = settings.replace(max_steps=2, warmup_steps=0)
    rows = gn.train(model, tokenizer, task, rewards, more, name=f"{_name(request)}-primed").rows
    kl = [row["kl"] for row in rows]
    finite = all(math.isfinite(row[key]) for row in rows for key in ("reward", "kl", "loss", "grad_norm"))
    checks.add(
        "a primed model trains", finite and len(rows) == 2, f"KL to the primed model {kl[0]:.2g}, then {kl[-1]:.2g}"
    )
    return {"checks": checks.found}


def _trained_tensors(model: Any) -> dict[str, Any]:
    return {name: weight.detach().cpu().clone() for name, weight in model.named_parameters() if weight.requires_grad}


def _moved(model: Any, before: dict[str, Any]) -> int:
    """How many of the tensors that are trained are not what they were."""
    return sum(not weight.equal(before[name]) for name, weight in _trained_tensors(model).items())


def exporting(request: Request) -> dict[str, Any]:
    """The run that the kit trained, merged, as an adapter and as GGUF; each is verified where it is made."""
    import grpo_nb as gn

    run, checks = gn.open_run(Path(settings_for(request).run_root) / _name(request)), Checks()
    folder = Path(request.work) / f"exports-{_name(request)}"
    merged = _exported(checks, "merged model verifies", lambda: gn.export_merged(run, folder / "merged"))
    _exported(checks, "adapter verifies", lambda: gn.export.export_adapter(run, folder / "adapter"))
    through_llama_cpp = "GGUF verifies through llama.cpp"
    if merged is None:
        checks.add(through_llama_cpp, None, "it is made of the merged model, which did not verify")
    else:
        _exported(checks, through_llama_cpp, lambda: gn.export_gguf(merged, folder / "gguf"))
    return {"checks": checks.found}


def _exported(checks: Checks, name: str, make: Callable[[], Any]) -> Any:
    from grpo_nb.core.errors import EnvironmentProblem

    try:
        made = make()
    except EnvironmentProblem as problem:  # what this machine lacks says nothing of the kit
        checks.add(name, None, str(problem))
    except Exception as error:  # a check that failed is a result, and the others are wanted too
        checks.add(name, False, f"{type(error).__name__}: {error}")
    else:
        checks.add(name, True, made.sentence)
        return made


def quickstart_notebook(request: Request) -> dict[str, Any]:
    """The quickstart as it is published, by the preset for this machine; what its last cell demands is the verdict."""
    from grpo_nb.core.processes import ChildError, run_command

    folder, checks = Path(request.work) / "notebook", Checks()
    folder.mkdir(parents=True, exist_ok=True)
    changes: dict[str, Any] = {"model": request.model} if request.model else {}
    values = ["RUN_NAME='quickstart'"]
    if request.is_small_notebook:
        values.append("PRESET='cpu'")
        changes |= {
            "load_in_4bit": request.load_in_4bit,
            "fast_inference": request.use_vllm,
            "gpu_memory_utilization": 0.5,
        }
    if request.is_tiny:
        changes |= {"max_steps": request.steps, "max_completion_length": 12}
    values.append(f"CHANGES={changes!r}")
    command = [
        sys.executable, ROOT / "scripts" / "run_notebook.py", ROOT / "notebooks" / "00_quickstart.ipynb", "--cwd", folder,
    ]  # fmt: skip
    command += [part for value in values for part in ("--set", value)]
    try:
        run_command(command, seconds=_NOTEBOOK_SECONDS, on_line=lambda line: print(line, file=sys.stderr, flush=True))
    except ChildError as error:
        checks.add("ends with 'It worked'", False, failure_of(error.lines))
        return {"checks": checks.found}
    checks.add("ends with 'It worked'", *notebook_result(folder / "runs" / "quickstart"))
    return {"checks": checks.found}


def failure_of(lines: Sequence[str]) -> str:
    """What ended a notebook: its last error, with the words in which that says why."""
    text = "\n".join(lines)
    errors = list(re.finditer(r"^\s*(\w+(?:Error|Problem|Interrupt|Exception)\b.*)$", text, re.MULTILINE))
    return errors[-1][1] if errors else " ".join(lines[-3:])


def notebook_result(folder: Path) -> tuple[bool, str]:
    """What the run of the quickstart says of itself: reward, held-out answers, export."""
    import grpo_nb as gn

    run = gn.open_run(folder)
    rise, comparison, (exported, *_) = run.rise(), run.comparison, run.exports
    return rise.is_clear and comparison.verdict == "better", (
        f"{len(run.rows)} steps of {run.settings.model}. {rise.sentence} Held-out: {comparison.sentence} {exported.sentence}"
    )


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

    half, settings, checks = _half(request), settings_for(request), Checks()
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
    goes_on = [int(row["step"]) for row in rows] == list(range(1, request.steps + 1))
    checks.add("resume goes on at the next step", goes_on, f"{half} + {len(rows) - half} steps")
    # The trap: with the trained adapter lost, the first KL after resuming is exactly 0.
    kl = rows[half]["kl"]
    checks.add("resume has the trained adapter", kl > 0, f"first KL afterwards {kl:.2g}")
    detail = f"largest difference of {', '.join(compared)} to the run that was not stopped: {max(after):.2g}"
    if request.device == "cpu":
        checks.add("resume is exact", max(after) == 0, detail)
    else:  # the order of sums on a GPU is not fixed, so equal numbers are reported and not asked for
        checks.add("resume follows the same run", math.isfinite(max(after)), detail)
    return {"difference_after_resume": after, "checks": checks.found}


def _name(request: Request) -> str:
    return "vllm" if request.use_vllm else "plain"


def _resumed(request: Request) -> str:
    return f"{_name(request)}-resumed"


def by_hand(request: Request) -> dict[str, Any]:
    """The same training as one writes it with unsloth and TRL, without the kit but for its model, task and rewards."""
    settings = settings_for(request)
    from grpo_nb.models.load import resolve_model
    from grpo_nb.models.unsloth import import_unsloth

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
                warmup_steps=settings.warmup, max_grad_norm=settings.max_grad_norm, weight_decay=settings.weight_decay,
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


PHASES = {
    "kit": through_the_kit, "exports": exporting, "by hand": by_hand, "before training": trying, "begin": beginning,
    "resume": resuming, "quickstart notebook": quickstart_notebook,
}  # fmt: skip
# In seconds: the notebook is ended by its own phase, with its reason.
LIMITS = {"exports": 3600, "quickstart notebook": _NOTEBOOK_SECONDS + 300}


def plan_of(has_vllm: bool) -> Iterator[tuple[str, str, bool]]:
    """The phases in their order: (name, function, with vLLM)."""
    for use_vllm in (True, False) if has_vllm else (False,):
        suffix = "with vLLM" if use_vllm else "without vLLM"
        yield f"kit, {suffix}", "kit", use_vllm
        yield f"by hand, {suffix}", "by hand", use_vllm
        # On what the kit has trained, and after it.
        yield f"before training, {suffix}", "before training", use_vllm
        if use_vllm == has_vllm:
            # Two phases: on a GPU the engine of the first has to be gone before the second loads one.
            yield f"begin, {suffix}", "begin", use_vllm
            yield f"resume, {suffix}", "resume", use_vllm
            yield "exports", "exports", use_vllm
    yield "quickstart notebook", "quickstart notebook", has_vllm  # last, because it takes longest


def run_phase(function: str, request: Request) -> dict[str, Any]:
    """Run one phase here, with its time."""
    begun = time.perf_counter()
    found = PHASES[function](request)
    return {**found, "seconds": time.perf_counter() - begun, "request": dataclasses.asdict(request)}
