"""What gpu_check.py measures: a phase is a function that yields rows, each a verdict, and dicts, which are plain numbers.

On a GPU each phase is a process and loads a model of its own, so that the memory of one is free for the next and a crash costs
what that phase had not yet found. What a row says is decided by functions of measurements, which the tests give faulty ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import hashlib
import itertools
import math
import random
import re
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import grpo_nb as gn  # nothing of it is loaded before it is asked for

ROOT = Path(__file__).resolve().parent.parent
# Below this share of equal answers two samplings are not of the same model. Rounding alone moves a few on a GPU: near ties, in
# 4 bit other kernels, and behind vLLM's prefix cache.
_LEAST_AGREEMENT = 0.85
_FIRST_KL = 1e-3  # the policy is its own reference: kernels round alike, and a wrong forward was seen to give 0.013
# vLLM and the trainer compute the same tokens with other kernels, for which 0.05 nats a token are room in 4 bit too; a sampler
# without the adapter is as far away as the KL says, so the verdict counts only where that is far enough to be seen.
_NATS, _FAR_KL = 0.05, 0.02
# The absolute difference, a mean over completion tokens, logged only with vLLM and vllm_importance_sampling_correction: by trl
# 1.15 in trainer/grpo_trainer.py, and in its place by unsloth/models/rl_replacements.py, grpo_trainer_compute_loss.
_DIFFERENCE = "sampling/sampling_logp_difference/mean"
# torch begins with a loss scale of 65536 in float16, and skips a step and halves it where gradients overflow
# (torch/amp/grad_scaler.py, GradScaler.update).
_SKIPPED = 5
_FAST = 1e-3  # ten times the quickstart's: two updates take the embedded model to a KL of 0.042 (measured on a CPU)
_INTERRUPTS = 20
_GROWTH_GB = 0.5
_NUMBERS = ("reward", "kl", "loss", "grad_norm")
# The quickstart by the preset of a T4 is 100 steps, whose time is one of the things to be found out.
NOTEBOOK_SECONDS = 3 * 3600


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
    is_published: bool = False

    @property
    def name(self) -> str:
        """Of its runs."""
        return ("vllm" if self.use_vllm else "plain") + ("" if self.load_in_4bit else "-16bit")

    @property
    def least(self) -> float:
        """The share of answers that must be the same twice."""
        return 1.0 if self.device == "cpu" else _LEAST_AGREEMENT


class Row(NamedTuple):
    """A verdict on what was measured; None where it could not be looked at, which is neither."""

    name: str
    ok: bool | None
    detail: str
    bound: str = ""


Found = Iterator[Row | dict[str, Any]]


def rises(rewards: Sequence[float]) -> Row:
    """The last third against the first, by the error of their difference."""
    third = max(len(rewards) // 3, 1)
    first, last = rewards[:third], rewards[-third:]
    error = math.sqrt(sum(statistics.variance(part) / len(part) if len(part) > 1 else 0.0 for part in (first, last)))
    gain = statistics.mean(last) - statistics.mean(first)
    told = f"{statistics.mean(first):.2f} to {statistics.mean(last):.2f} (+- {error:.2f})"
    return Row("reward rises", gain > 2 * error, told, "last third above the first by two standard errors")


def first_kl(rows: Sequence[Mapping[str, float]]) -> Row:
    """Before anything is learnt the policy is the model it is compared with."""
    kl = rows[0]["kl"]
    return Row("KL of the first step", abs(kl) < _FIRST_KL, f"{kl:.2g}", f"below {_FIRST_KL:g}")


def sampler_agrees(rows: Sequence[Mapping[str, float]]) -> Row:
    """Whether vLLM sampled from what was trained, at the last step, when the adapter is far from none."""
    name, bound = "sampler agrees with trainer", f"below {_NATS} nats a token, where the KL is above {_FAR_KL}"
    each, kl = [row.get(_DIFFERENCE, math.nan) for row in rows], rows[-1]["kl"]
    told = f"mean difference of log-probabilities {', '.join(f'{one:.3g}' for one in each)}; last KL {kl:.2g}"
    return Row(name, each[-1] < _NATS and (kl > _FAR_KL or None), told, bound)


def numbers_hold(rows: Sequence[Mapping[str, float]], *, is_scaled: bool) -> Row:
    """Every number is finite, but for the gradients of the first steps in float16, which loss scaling skips."""
    skipped = len(list(itertools.takewhile(lambda row: not math.isfinite(row["grad_norm"]), rows))) if is_scaled else 0
    bad = [
        f"{key} of step {row['step']:g}"
        for at, row in enumerate(rows) for key in _NUMBERS
        if not math.isfinite(row[key]) and not (key == "grad_norm" and at < skipped)
    ]  # fmt: skip
    told = f"not finite: {', '.join(bad[:5]) or 'none'}; loss scaling skipped {skipped} steps"
    return Row("numbers are finite", not bad and skipped <= _SKIPPED, told, f"in float16 {_SKIPPED} skipped at first")


def follows(resumed: Sequence[Mapping[str, float]], whole: Sequence[Mapping[str, float]], *, is_exact: bool) -> Row:
    """A resumed run beside the one that was not stopped; gradients that loss scaling skipped are left out."""
    pairs = [(a[key], b[key]) for a, b in zip(resumed, whole, strict=True) for key in _NUMBERS[:3]]
    norms = [(a["grad_norm"], b["grad_norm"]) for a, b in zip(resumed, whole, strict=True)]
    pairs += [pair for pair in norms if all(map(math.isfinite, pair))]
    differences = [abs(a - b) for a, b in pairs]
    most = max(differences) if all(map(math.isfinite, differences)) else math.nan
    told = f"largest difference of {', '.join(_NUMBERS)} {most:.2g}"
    if is_exact:
        return Row("resume is exact", most == 0, told, "0")
    # The order of sums on a GPU is not fixed, so equal numbers are reported and not asked for.
    return Row("resume follows the same run", math.isfinite(most), told, "finite")


def unchanged(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> Row:
    """Two checksums of the same tensors."""
    moved = [tensor for tensor in before.keys() | after.keys() if before.get(tensor) != after.get(tensor)]
    told = f"{len(moved)} of {len(before)} tensors moved{f', {min(moved)} among them' if moved else ''}"
    return Row(name, bool(before) and not moved, told, "none moved")


def same_answers(name: str, before: Sequence[str], after: Sequence[str], least: float) -> Row:
    """Two greedy samplings of the same questions."""
    same = statistics.mean(a == b for a, b in zip(before, after, strict=True))
    return Row(name, same >= least, f"{same:.0%} of {len(before)} answers are the same", f"{least:.0%}")


def survives(hits: int, before: Sequence[str], after: Sequence[str], least: float) -> Row:
    """Answers after interrupts, all of which have to have come while it sampled."""
    name, ok, found, bound = same_answers("answers after interrupts", before, after, least)
    return Row(name, ok and hits == _INTERRUPTS, f"{hits} interrupts; {found}", f"{_INTERRUPTS}; {bound}")


def paths_agree(own: Any, other: Any) -> Row:
    """Two evaluations of one model on two generation paths."""
    pairs = list(zip(own.rows, other.rows, strict=True))
    verdicts, texts = (statistics.mean(a[key] == b[key] for a, b in pairs) for key in ("is_correct", "completion"))
    told = (
        f"accuracy {own.accuracy:.1%} and {other.accuracy:.1%}; equal verdicts {verdicts:.0%}, equal texts {texts:.0%}"
    )
    bound = f"verdicts {_LEAST_AGREEMENT:.0%}"
    return Row("evaluation agrees between generation paths", verdicts >= _LEAST_AGREEMENT, told, bound)


def memory_holds(gb: Sequence[float]) -> Row:
    """What is in use after each training of one kernel; after the first all that is made once has been made."""
    told = f"{', '.join(f'{one:.2f}' for one in gb)} GB after loading and each training"
    return Row("memory after a second training", gb[-1] - gb[1] < _GROWTH_GB, told, f"at most {_GROWTH_GB} GB more")


def scores_alike(merged: float, run: float, interval: Sequence[float]) -> Row:
    """The merged model's share of right answers, in 16 bit, beside that of the model in training."""
    told = f"{merged:.1%}, the run's {run:.1%} ({interval[0]:.1%} to {interval[1]:.1%})"
    return Row("merged model scores as the run", merged >= interval[0], told, "not below the run's interval")


def settings_for(request: Request, preset: str = "cpu", **changes: Any) -> Any:
    """The quickstart's settings loaded as a GPU loads, or those of the preset for this machine."""
    values = {"fast_inference": request.use_vllm, "run_root": str(Path(request.work) / "runs")}
    if preset == "cpu":
        values |= {"max_steps": request.steps, "load_in_4bit": request.load_in_4bit, "gpu_memory_utilization": 0.5}
    values |= {"model": request.model} if request.model else {}
    if request.is_tiny:
        values |= {"max_completion_length": 40, "learning_rate": 2e-2, "max_grad_norm": 10.0}  # priming's turns have 30
    return gn.preset(preset, **{**values, **changes})


def brevity(completions: list, **columns: object) -> list[float]:
    """A reward that a random model can earn: fewer words are better."""
    return [1 / (1 + len(c[-1]["content"].split())) for c in completions]


def loaded(request: Request, settings: Any) -> Any:
    """Load a model, and yield what generates for it and the time of it; return it with the quickstart's task and rewards.

    A random model is paid for what it can earn. Few questions are held out.
    """
    from grpo_nb.models.load import generation_of

    begun = time.perf_counter()
    model, tokenizer = gn.load_model(settings)
    generation = generation_of(model)
    print(f"generation: {generation}", file=sys.stderr, flush=True)
    yield {"generation": generation, "load_seconds": time.perf_counter() - begun}
    wanted = "vLLM" if request.use_vllm else "the kit's" if request.device == "cpu" else "Unsloth's"
    yield Row("generation", generation.startswith(wanted), generation, wanted)
    is_packed = any(type(module).__name__ == "Linear4bit" for module in model.modules())
    yield Row("weights as asked", is_packed == settings.load_in_4bit, "Linear4bit layers" if is_packed else "16 bit")
    r, sizes, rewards = gn.rewards, {"train_size": 20, "holdout_size": 6}, [brevity]
    if not request.is_tiny:
        rewards = [r.correctness(weight=2.0), r.xml_format(weight=1.0), r.xml_tags(weight=0.5)]
        sizes = {"holdout_size": 60}
    task = gn.load_task("arithmetic", settings, tokenizer=tokenizer, **sizes)
    train = functools.partial(gn.train, model, tokenizer, task, rewards)
    return SimpleNamespace(model=model, tokenizer=tokenizer, task=task, rewards=rewards, train=train)


def is_scaled(settings: Any) -> bool:
    """Whether it trains with loss scaling."""
    from grpo_nb.settings.number_types import number_type

    return number_type(settings, gn.machine.find_gpu()).name == "float16"


def digests(model: Any, *, is_base: bool = False) -> dict[str, str]:
    """A checksum of each tensor of a model, or of those that are not of its LoRA."""
    import torch

    weights = (
        (name, p.detach().cpu().reshape(-1))
        for name, p in model.named_parameters()
        if not is_base or "lora_" not in name
    )
    return {name: hashlib.sha256(weight.view(torch.uint8).numpy()).hexdigest() for name, weight in weights}


def memory_gb(device: str) -> float:
    """What is in use now: of the whole GPU, vLLM's included, or by this process on a CPU."""
    import psutil
    import torch

    gc.collect()
    if device == "cpu":
        return psutil.Process().memory_info().rss / 1e9
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e9


def speed(rows: Sequence[Mapping[str, float]], completions: int) -> dict[str, Any]:
    """The rewards, the median time of a step, the first left out, and completion tokens a second."""
    kept = rows[1:] or rows
    seconds = [row["step_time"] for row in kept]
    tokens = sum(row["completions/mean_length"] * completions for row in kept) / sum(seconds)
    numbers = {"step_seconds": statistics.median(seconds), "completion_tokens_per_second": tokens}
    return {"reward": [row["reward"] for row in rows], **numbers}


def through_the_kit(request: Request) -> Found:
    """Load, train, compare on held-out questions, and answer them on both generation paths."""
    from grpo_nb.generation import sampling

    settings = settings_for(request)
    here = yield from loaded(request, settings)
    run = here.train(settings, name=request.name)
    kl = [row["kl"] for row in run.rows]
    last = statistics.mean(kl[len(kl) // 2 :])
    yield rises([row["reward"] for row in run.rows])
    yield first_kl(run.rows)
    yield Row("KL is positive", last > 0, f"mean of the second half {last:.2g}")
    yield numbers_hold(run.rows, is_scaled=is_scaled(settings))
    own, asked = gn.compare(run, here.task).after, (here.model, here.tokenizer)
    compared = functools.partial(mock.patch.object, sampling, new=lambda model, longest: "compared")
    with compared("vllm_rollout_obstacle"), compared("shared_prompt_obstacle"):
        other = gn.evaluate(asked, here.task, max_completion_length=settings.max_completion_length)
    yield paths_agree(own, other)
    yield {"kl": kl, "used_gb": memory_gb(request.device), **speed(run.rows, settings.batch_size)}


def interrupted(work: Callable[[], Any], delay: float) -> bool:
    """Whether Ctrl-C, sent to the main thread `delay` seconds from now, ended `work()`."""
    timer = threading.Timer(delay, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    try:
        timer.start()
        work()
        timer.cancel()
        timer.join()  # one that was just sent is raised here at the latest
    except KeyboardInterrupt:
        return True
    return False


def handing_over(request: Request) -> Found:
    """One set of weights for sampler and trainer: do both compute with it, and is it whole after training and interrupts?

    In 16 bit with vLLM, Unsloth folds the LoRA into the weights that both share and takes it out again
    (unsloth_zoo/vllm_utils.py, merged_rollout); in 4 bit it does not. At a learning rate at which three steps are seen.
    """
    settings = settings_for(request)
    settings = settings.replace(
        max_steps=3 + _SKIPPED * is_scaled(settings), warmup_steps=0, learning_rate=max(settings.learning_rate, _FAST),
        extra={"vllm_importance_sampling_correction": True} if request.use_vllm else {},
    )  # fmt: skip
    here = yield from loaded(request, settings)
    from grpo_nb.evaluation import subjects

    decoding = subjects.Decoding(max_completion_length=settings.max_completion_length)

    def answers(*, is_base: bool = False) -> list[str]:
        asked = (here.model, here.tokenizer, here.task.holdout["prompt"], decoding)
        with here.model.disable_adapter() if is_base else contextlib.nullcontext():
            return [one.text for one in subjects.answers_of_model(*asked)]

    base, before, memory = digests(here.model, is_base=True), answers(is_base=True), [memory_gb(request.device)]
    rows = here.train(settings, name=f"{request.name}-first").rows
    memory.append(memory_gb(request.device))
    yield first_kl(rows)
    yield numbers_hold(rows, is_scaled=is_scaled(settings))
    if request.use_vllm:  # else it is not logged
        yield sampler_agrees(rows)
    yield unchanged("base weights after training", base, digests(here.model, is_base=True))
    yield same_answers("base answers after training, adapter off", before, answers(is_base=True), request.least)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has Ctrl-C ignored
    whole, told, begun = digests(here.model), answers(), time.perf_counter()
    answers()
    seconds, moments, hits = time.perf_counter() - begun, random.Random(settings.seed), 0
    for _ in range(3 * _INTERRUPTS):
        hits += hits < _INTERRUPTS and interrupted(answers, moments.uniform(0, seconds))
    yield survives(hits, told, answers(), request.least)
    yield unchanged("weights after interrupts", whole, digests(here.model))
    if request.use_vllm and not request.load_in_4bit:
        from unsloth_zoo.vllm_utils import _MERGED_ROLLOUT_STATS as counts

        yield Row("the LoRA was folded into the weights", counts["folds"] > 0 or None, str(counts))
    here.train(settings, name=f"{request.name}-second")
    yield memory_holds([*memory, memory_gb(request.device)])
    yield same_answers("base answers in the end, adapter off", before, answers(is_base=True), request.least)


def of_the_preset(request: Request) -> Found:
    """The model and the settings of the preset for this card, for a few steps."""
    from grpo_nb.models.load import resolve_model

    settings = settings_for(request, "auto", max_steps=4)
    try:
        resolve_model(settings.model)
    except OSError as problem:  # what the Hub does not give says nothing of the kit
        yield Row("the model is to be had", None, str(problem))
        return
    here = yield from loaded(request, settings)
    rows = here.train(settings, name=f"{request.name}-preset").rows
    yield first_kl(rows)
    yield numbers_hold(rows, is_scaled=is_scaled(settings))
    yield {"model": settings.model, "used_gb": memory_gb(request.device), **speed(rows, settings.batch_size)}


def exporting(request: Request) -> Found:
    """The run that the kit trained, merged, as an adapter and as GGUF; each is verified where it is made."""
    run = gn.open_run(Path(settings_for(request).run_root) / request.name)
    folder = Path(request.work) / f"exports-{request.name}"
    merged = yield from exported("merged model verifies", lambda: gn.export_merged(run, folder / "merged"))
    yield from exported("adapter verifies", lambda: gn.export.export_adapter(run, folder / "adapter"))
    if merged is not None:
        yield from exported("GGUF verifies through llama.cpp", lambda: gn.export_gguf(merged, folder / "gguf"))
        own = run.comparison.after  # `through_the_kit` has kept it: of the model in training, in 4 bit where that is
        yield scores_alike(gn.evaluate(merged.path, run=run).accuracy, own.accuracy, own.interval)


def exported(name: str, make: Callable[[], Any]) -> Any:
    """Yield whether an export is made, and return it."""
    try:
        made = make()
    except gn.machine.EnvironmentProblem as problem:  # what this machine lacks says nothing of the kit
        yield Row(name, None, str(problem))
    except Exception as error:  # a check that failed is a result, and the others are wanted too
        yield Row(name, False, f"{type(error).__name__}: {error}")
    else:
        yield Row(name, True, made.sentence)
        return made


def quickstart_notebook(request: Request) -> Found:
    """The quickstart with the embedded model and a CPU's settings, or as published, by the preset for this machine."""
    from grpo_nb.core.processes import ChildError, run_command

    folder = Path(request.work) / "notebook"
    folder.mkdir(parents=True, exist_ok=True)
    values, changes = ["RUN_NAME='quickstart'"], {"model": request.model} if request.model else {}
    if not request.is_published:
        values.append("PRESET='cpu'")
        kept = ("load_in_4bit", "fast_inference", "gpu_memory_utilization")
        changes |= {name: getattr(settings_for(request), name) for name in kept}
    changes |= {"max_steps": request.steps, "max_completion_length": 12} if request.is_tiny else {}
    notebook = ROOT / "notebooks" / "00_quickstart.ipynb"
    command = [sys.executable, ROOT / "scripts" / "run_notebook.py", notebook, "--cwd", folder]
    command += [part for value in (*values, f"CHANGES={changes!r}") for part in ("--set", value)]
    try:
        lines = run_command(command, seconds=NOTEBOOK_SECONDS, on_line=functools.partial(print, file=sys.stderr))
        ends = itertools.dropwhile(lambda line: not line.startswith("All steps done"), lines)
        yield Row("ends well", True, " ".join(ends))
    except ChildError as error:
        yield Row("ends well", False, failure_of(error.lines))
        return
    run = gn.open_run(folder / "runs" / "quickstart")
    rise, held_out = run.rise(), run.comparison
    # The level is chosen by measuring; a model that can do the hardest one has nothing to learn, and that is no fault.
    ok = None if held_out.before.accuracy >= 2 / 3 else rise.is_clear and held_out.verdict == "better"
    yield Row(
        "it learns", ok, f"{rise.sentence} Held-out: {held_out.sentence}", "the reward rises, and held-out is better"
    )


def failure_of(lines: Sequence[str]) -> str:
    """What ended a notebook: its last error, with the words in which that says why."""
    text = "\n".join(lines)
    errors = list(re.finditer(r"^\s*(\w+(?:Error|Problem|Interrupt|Exception)\b.*)$", text, re.MULTILINE))
    return errors[-1][1] if errors else " ".join(lines[-3:])


def resuming(request: Request) -> Found:
    """Half the steps of a run; then, asked again, the rest of them, against the run that was never stopped."""
    half, settings = request.steps // 2, settings_for(request)
    folder = Path(settings.run_root) / f"{request.name}-resumed"
    here = yield from loaded(request, settings)
    if not folder.is_dir():
        here.train(settings.replace(max_steps=half), name=folder.name)
        return
    rows = here.train(settings, resume=str(folder)).rows
    goes_on = [int(row["step"]) for row in rows] == list(range(1, request.steps + 1))
    yield Row("resume goes on at the next step", goes_on, f"{half} + {len(rows) - half} steps")
    # The trap: with the trained adapter lost, the first KL after resuming is exactly 0.
    kl = rows[half]["kl"]
    yield Row("resume has the trained adapter", kl > 0, f"first KL afterwards {kl:.2g}", "above 0")
    whole = gn.open_run(folder.with_name(request.name)).rows
    yield follows(rows[half:], whole[half:], is_exact=request.device == "cpu")


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def playing(request: Request) -> Found:
    """Sums with a tool that adds, shown once: episodes in training and held out, the engine woken in each round."""
    extra = {"vllm_importance_sampling_correction": True} if request.use_vllm else {}
    settings = settings_for(
        request, max_steps=4, max_completion_length=160, max_prompt_length=640, warmup_steps=0, extra=extra
    )
    here = yield from loaded(request, settings)
    if "tools" not in here.tokenizer.chat_template:
        gn.models.give_tool_template(here.tokenizer)
    form, options = here.task.format, {"train_size": 20, "holdout_size": 6, "tokenizer": here.tokenizer}
    hand = gn.lab.ByHand(here.task.with_tools(add))
    a, _, b = hand.row["question"].removeprefix("What is ").removesuffix("?").split()
    hand.say(form.render("", hand.do("add", a=int(a), b=int(b))))
    task = gn.load_task("arithmetic", settings, example=hand.example(here.tokenizer), **options).with_tools(add)
    run = gn.train(here.model, here.tokenizer, task, here.rewards, settings, name=f"{request.name}-tools")
    yield first_kl(run.rows)
    yield numbers_hold(run.rows, is_scaled=is_scaled(settings))
    if (
        request.use_vllm
    ):  # of the tokens that the model wrote: those of a tool are far from what any sampler would write
        yield sampler_agrees(run.rows)
    calls = [row["tools/call_frequency"] for row in run.rows]
    yield Row("the tool is called", max(calls) > 0 or None, f"{', '.join(f'{one:.2g}' for one in calls)} a completion")
    failed = [row["tools/failure_frequency"] for row in run.rows]
    yield Row(
        "calls are answered", min(failed) < 1, f"{', '.join(f'{one:.0%}' for one in failed)} failed", "some are not"
    )
    held_out = gn.compare(run, task)
    yield {"held_out": held_out.sentence, "used_gb": memory_gb(request.device), **speed(run.rows, settings.batch_size)}


PHASES: dict[str, Callable[[Request], Found]] = {
    "kit": through_the_kit, "hand-over": handing_over, "begin": resuming,
    "resume": resuming, "exports": exporting, "preset": of_the_preset, "quickstart notebook": quickstart_notebook,
    "tools": playing,
}  # fmt: skip


def plan_of(has_vllm: bool) -> Iterator[tuple[str, str, dict[str, bool]]]:
    """The phases in their order: (name, function, what is asked besides)."""
    for use_vllm in (True, False) if has_vllm else (False,):
        # The engine of "begin" has to be gone before "resume".
        more = ["hand-over", "begin", "resume", "exports"] if use_vllm == has_vllm else []
        for name in ("kit", *more):
            yield f"{name}, {'with' if use_vllm else 'without'} vLLM", name, {"use_vllm": use_vllm}
    if has_vllm:
        yield "hand-over, 16 bit", "hand-over", {"use_vllm": True, "load_in_4bit": False}
    yield "tools", "tools", {"use_vllm": has_vllm}
    yield "preset's own model", "preset", {"use_vllm": has_vllm}
    yield "quickstart notebook", "quickstart notebook", {"use_vllm": has_vllm}


def with_row(found: dict[str, Any], row: Row, seconds: float) -> dict[str, Any]:
    """What a phase has found, and a row more."""
    return {**found, "checks": {**found["checks"], row.name: {**row._asdict(), "seconds": seconds}}}


def run_phase(function: str, request: Request, tell: Callable[[dict], Any] = lambda _: None) -> dict[str, Any]:
    """Run one phase here. What it has found so far is told after each row, for one that dies."""
    begun = since = time.perf_counter()
    found: dict[str, Any] = {"checks": {}, "request": dataclasses.asdict(request)}
    try:
        for part in PHASES[function](request):
            found = with_row(found, part, time.perf_counter() - since) if isinstance(part, Row) else found | part
            since = time.perf_counter() if isinstance(part, Row) else since
            tell(found)
    except Exception as error:
        traceback.print_exc()
        found = with_row(found, Row("ends", False, f"{type(error).__name__}: {error}"), time.perf_counter() - since)
    tell(found := {**found, "seconds": time.perf_counter() - begun})
    return found
