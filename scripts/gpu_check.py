"""Check on a GPU what cannot be checked without one: `make gpu-check`.

The phases train the quickstart with vLLM and without it, in 4 bit and in 16 bit, and check that

- vLLM samples from the model that is trained,
- the base weights stay the same through training, interrupts and merged rollouts,
- an interrupted run resumes,
- the exports verify and score like their run,
- the model of the card's preset trains, and the quickstart notebook runs.

They also measure seconds per step, tokens per second and memory. The result is a Markdown page to
paste into an issue: the GPU, its driver, the versions and one row for each check.

Exit status: 0 if all checks hold, 1 if one fails, 2 at once if there is no GPU.

To add a phase, write a function that yields rows, and add a line to `plan_of`. On a GPU each phase
is a process of its own, so that it starts with free memory, and a crash loses only its last rows.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import hashlib
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import grpo_nb as gn  # noqa: E402
from grpo_nb.core.files import write_json, write_text  # noqa: E402
from grpo_nb.core.processes import ChildError, run_command  # noqa: E402

# The mean absolute difference of the log-probabilities of sampler and trainer, per token of the
# completions. It is logged only with vLLM and vllm_importance_sampling_correction: by TRL 1.15 in
# trainer/grpo_trainer.py, and by Unsloth in models/rl_replacements.py, grpo_trainer_compute_loss.
_DIFFERENCE = "sampling/sampling_logp_difference/mean"
# Both compute the same tokens with other kernels. 0.05 nats leave room for that, also in 4 bit.
MOST_DIFFERENCE = 0.05
# A sampler that misses the adapter is as far from the trainer as the KL says. Below this KL, that
# distance could not be told from rounding.
LEAST_KL = 0.02
# Before training, policy and reference are the same model. A wrong forward pass gave 0.013.
MOST_FIRST_KL = 1e-3
# The share of greedy answers that rounding may change: near ties, other kernels, a prefix cache.
MOST_CHANGED_ANSWERS = 0.15
MOST_EXTRA_GB = 0.5
# The first steps in float16 may overflow until the loss scale has found its size.
SCALING_STEPS = 5
_INTERRUPTS = 20
# Time limit of a phase: on a T4 the first one loads from the Hub, compiles and records CUDA graphs.
SECONDS = 40 * 60

Rows = Iterator["Row"]
WORDS = {True: "holds", False: "FAILS", None: "not checked"}


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


class Row(NamedTuple):
    """One line of the report.

    `ok` is True or False for a check, None if it could not be made, "measured" for a plain number.
    """

    name: str
    ok: bool | str | None
    found: str
    bound: str = ""


def measured(name: str, found: str) -> Row:
    """Return a row that has no verdict."""
    return Row(name, "measured", found)


def at_most(name: str, bound: float, value: float, about: object = "") -> Row:
    """Check a number against its bound. NaN fails."""
    return Row(name, value <= bound, f"{value:.3g} {about}".strip(), f"at most {bound:.3g}")


@dataclasses.dataclass(frozen=True)
class Request:
    """What a phase is asked to do.

    The tests set `questions` and `changes` (of the settings) to rehearse the phases on a CPU.
    """

    folder: str
    model: str = ""
    load_in_4bit: bool = True
    use_vllm: bool = True
    questions: int = 60
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def runs(self) -> Path:
        """Return the folder of this phase's runs."""
        engine = "vllm" if self.use_vllm else "plain"
        bits = 4 if self.load_in_4bit else 16
        return Path(self.folder, f"{engine}-{bits}bit")

    def settings(self, preset: str = "cpu", **changes: Any) -> gn.Settings:
        """Return the settings of the quickstart, loaded as on a GPU, or those of another preset."""
        values = {"fast_inference": self.use_vllm, "run_root": str(self.runs)}
        if preset == "cpu":
            values["max_steps"] = 30
            values["load_in_4bit"] = self.load_in_4bit
            values["gpu_memory_utilization"] = 0.5
            # With vLLM, this has the trainer log how far it is from the sampler.
            values["extra"] = {"vllm_importance_sampling_correction": True} if self.use_vllm else {}
        if self.model:
            values["model"] = self.model
        return gn.preset(preset, **values | self.changes | changes)


def sampler_agrees(rows: Sequence[Mapping[str, float]]) -> Row:
    """Check at the last step that vLLM sampled from the trained adapter."""
    differences = [row.get(_DIFFERENCE, math.nan) for row in rows]
    last_kl = rows[-1]["kl"]
    each = ", ".join(f"{one:.3g}" for one in differences)
    about = f"nats a token; each step {each}; last KL {last_kl:.2g}"
    row = at_most("sampler agrees with trainer", MOST_DIFFERENCE, differences[-1], about)
    if row.ok and not last_kl > LEAST_KL:
        return row._replace(ok=None)
    return row


def numbers_hold(rows: Sequence[Mapping[str, float]], *, is_scaled: bool) -> Row:
    """Check that reward, KL, loss and gradient are finite.

    In float16 (`is_scaled`) the gradients of the first steps may overflow: torch begins with a loss
    scale of 65,536, and skips the step and halves the scale (torch/amp/grad_scaler.py).
    """
    skipped = 0
    bad = []
    for position, row in enumerate(rows):
        for name in ("reward", "kl", "loss", "grad_norm"):
            if math.isfinite(row[name]):
                continue
            if is_scaled and name == "grad_norm" and position < SCALING_STEPS:
                skipped += 1
            else:
                bad.append(f"; {name} of step {position + 1}")
    about = f"and {skipped} skipped{''.join(bad[:5])}"
    return at_most("numbers that are not finite", 0, len(bad), about)


def unchanged(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> Row:
    """Check that tensors have the same checksums as before. No tensors at all fails."""
    names = sorted(before.keys() | after.keys())
    moved = [tensor for tensor in names if before.get(tensor) != after.get(tensor)]
    count = len(moved) if before else math.nan
    return at_most(name, 0, count, f"of {len(before)} tensors moved {' '.join(moved[:1])}")


def same_answers(name: str, before: Sequence[Any], after: Sequence[Any]) -> Row:
    """Check that greedy answers to the same questions, or their verdicts, are nearly the same."""
    differing = sum(a != b for a, b in zip(before, after, strict=True))
    about = f"of {len(before)} differ"
    return at_most(name, MOST_CHANGED_ANSWERS, differing / len(before), about)


def rewards() -> list[Any]:
    return [
        gn.rewards.correctness(weight=2.0),
        gn.rewards.exact_format(weight=1.0),
        gn.rewards.partial_format(weight=0.5),
    ]


def model_runner_class(engine: Any) -> str:
    """Return the class of an engine's model runner, and which of vLLM's two versions it is.

    vLLM 0.31 uses its Model Runner V2 on a GPU and V1 on a CPU (vllm/config/vllm.py,
    `use_v2_model_runner`). The two share a class name and differ in their module.
    """

    def runner_class(worker: Any) -> str:
        runner = type(worker.model_runner)
        return f"{runner.__module__}.{runner.__qualname__}"

    (name,) = engine.llm_engine.collective_rpc(runner_class)
    version = "V2" if name.startswith("vllm.v1.worker.gpu.") else "V1"
    return f"{name} ({version})"


def loaded(request: Request, settings: gn.Settings) -> Any:
    """Load a model, yield rows on how it was loaded, and return it with its task and actions."""
    from grpo_nb.config.hardware import choose_dtype, has_vllm_engine
    from grpo_nb.generation.choice import choose_engine

    start = time.perf_counter()
    gpu = gn.machine.find_gpu()
    model, tokenizer = gn.load_model(settings)
    engine = choose_engine(model)
    generation = engine.name
    if engine.vllm_obstacle is not None:
        generation += f" ({engine.vllm_obstacle})"
    say(f"generation: {generation}")
    yield measured("seconds to load", f"{time.perf_counter() - start:.0f}")
    without_vllm = "the kit's" if gpu is None else "Unsloth's"
    wanted = "vLLM" if request.use_vllm else without_vllm
    yield Row("generation", generation.startswith(wanted), generation, wanted)
    if has_vllm_engine(model):
        # A GPU uses V2 unless VLLM_USE_V2_MODEL_RUNNER=0. `make test-vllm` proves V1 on a CPU.
        yield measured("model runner", model_runner_class(model.vllm_engine))
    is_4bit = any(type(module).__name__ == "Linear4bit" for module in model.modules())
    found = "4 bit" if is_4bit else "16 bit"
    yield Row("weights as asked", is_4bit == settings.load_in_4bit, found)
    task = gn.load_task("arithmetic", settings, tokenizer=tokenizer, holdout=request.questions)
    here = SimpleNamespace(model=model, tokenizer=tokenizer, task=task)
    here.train = functools.partial(gn.train, model, tokenizer, task, rewards())
    here.evaluate = functools.partial(gn.evaluate, (model, tokenizer), task, settings=settings)
    here.is_scaled = choose_dtype(settings, gpu) == "float16"
    return here


def answers(here: Any, *, is_base: bool = False) -> list[str]:
    """Return the greedy answers to the held-out questions, of the model or of its base."""
    with here.model.disable_adapter() if is_base else contextlib.nullcontext():
        return [row["completion"] for row in here.evaluate().rows]


def digests(model: Any, *, is_base: bool = False) -> dict[str, str]:
    """Return a checksum of each tensor of a model; with `is_base`, without its LoRA."""
    import torch

    found = {}
    for name, weight in model.named_parameters():
        if is_base and "lora_" in name:
            continue
        data = weight.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        found[name] = hashlib.sha256(data).hexdigest()
    return found


def memory_gb() -> float:
    """Return the used GPU memory, including vLLM's; 0 without a GPU."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e9


def trained(run: Any, is_scaled: bool) -> Rows:
    """Yield the checks of any run, the speed of its steps without the first, and the memory."""
    yield at_most("KL of the first step", MOST_FIRST_KL, abs(run.rows[0]["kl"]))
    yield numbers_hold(run.rows, is_scaled=is_scaled)
    if "vllm_importance_sampling_correction" in run.settings.extra:
        yield sampler_agrees(run.rows)
    steps = run.metrics.iloc[1:]
    tokens = steps["completions/mean_length"].sum() * run.settings.completions_per_step
    seconds = steps["step_time"]
    yield measured("median seconds of a step", f"{seconds.median():.3g}")
    yield measured("completion tokens a second", f"{tokens / seconds.sum():.4g}")
    yield measured("GB of the GPU in use", f"{memory_gb():.2f}")


def interrupted(work: Callable[[], Any], delay: float) -> bool:
    """Return True if an interrupt after `delay` seconds ended `work()`."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        work()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    return False


def training(request: Request) -> Rows:
    """Train, interrupt and train again: sampler and trainer use the same, undamaged weights.

    In 16 bit with vLLM, Unsloth merges the LoRA into the shared weights for sampling, and takes it
    out again (unsloth_zoo/vllm_utils.py, merged_rollout). In 4 bit it does not.
    """
    here = yield from loaded(request, request.settings())
    loaded_gb = memory_gb()
    base = digests(here.model, is_base=True)
    base_answers = answers(here, is_base=True)
    run = here.train(request.settings(), name="whole")
    trained_gb = memory_gb()
    yield from trained(run, here.is_scaled)
    yield Row("reward rises", run.rise().is_clear, run.rise().sentence)
    yield unchanged("base weights after training", base, digests(here.model, is_base=True))
    yield same_answers(
        "base answers after training, adapter off", base_answers, answers(here, is_base=True)
    )
    yield generation_paths_agree(here, run)
    yield from interrupting(here)
    if request.use_vllm and not request.load_in_4bit:
        from unsloth_zoo.vllm_utils import _MERGED_ROLLOUT_STATS as counts

        yield Row("the LoRA was folded into the weights", counts["folds"] > 0 or None, str(counts))
    # The phase `resuming` continues this run.
    here.train(request.settings(max_steps=run.settings.max_steps // 2), name="resumed")
    about = f"GB more than after the first, {trained_gb:.2f}; before that {loaded_gb:.2f}"
    extra_gb = memory_gb() - trained_gb
    yield at_most("memory after a second training", MOST_EXTRA_GB, extra_gb, about)
    yield same_answers(
        "base answers in the end, adapter off", base_answers, answers(here, is_base=True)
    )


def generation_paths_agree(here: Any, run: Any) -> Row:
    """Check that model.generate gets the verdicts that the run's own way of sampling got."""
    from grpo_nb.generation import choice, sampling

    def obstacle(*_: Any) -> str:
        return "compared"

    own = gn.compare(run).after
    with (
        mock.patch.object(choice, "vllm_engine_obstacle", obstacle),
        mock.patch.object(sampling.CpuEngine, "model_obstacle", obstacle),
    ):
        other = here.evaluate(run=run)
    own_verdicts = [row["is_correct"] for row in own.rows]
    other_verdicts = [row["is_correct"] for row in other.rows]
    return same_answers("evaluation agrees between generation paths", own_verdicts, other_verdicts)


def interrupting(here: Any) -> Rows:
    """Interrupt sampling at random moments; answers and weights stay what they were."""
    weights = digests(here.model)
    expected = answers(here)
    moments = random.Random(0)
    hits = 0
    start = time.perf_counter()
    answers(here)
    shortest = time.perf_counter() - start
    for _ in range(3 * _INTERRUPTS):
        if hits == _INTERRUPTS:
            break
        delay = moments.uniform(0, shortest)
        start = time.perf_counter()
        if interrupted(functools.partial(answers, here), delay):
            hits += 1
        else:
            # The first call, or one beside other work, takes longer. Its time would put most
            # moments behind the end of the others.
            shortest = min(shortest, time.perf_counter() - start)
    yield at_most("interrupts that came too late", 0, _INTERRUPTS - hits, f"of {_INTERRUPTS}")
    yield same_answers("answers after interrupts", expected, answers(here))
    yield unchanged("weights after interrupts", weights, digests(here.model))


def resuming(request: Request) -> Rows:
    """Load the model again, and continue the run that the phase `training` left half done."""
    settings = request.settings()
    folder = request.runs / "resumed"
    half = len(gn.open_run(folder).rows)
    here = yield from loaded(request, settings)
    rows = here.train(settings, resume=str(folder)).rows
    steps = [int(row["step"]) for row in rows]
    goes_on = steps == list(range(1, settings.max_steps + 1))
    yield Row("resume goes on at the next step", goes_on, f"{half} + {len(rows) - half} steps")
    # If the trained adapter were lost, the first KL after resuming would be exactly 0.
    kl = rows[half]["kl"]
    yield Row("resume has the trained adapter", kl > 0, f"KL {kl:.2g}", "above 0")


def attempt(
    name: str, action: Callable[[], Any], missing: type[Exception] = gn.machine.EnvironmentProblem
) -> Any:
    """Yield a row on whether an action succeeds, and return its result, or None if it failed.

    An exception of the type `missing` means that this machine lacks something: "not checked".
    """
    try:
        result = action()
    except Exception as error:
        # Also a result: the rows after it are wanted as well.
        verdict = None if isinstance(error, missing) else False
        yield Row(name, verdict, f"{type(error).__name__}: {error}")
        return None
    yield Row(name, True, getattr(result, "sentence", ""))
    return result


def exporting(request: Request) -> Rows:
    """Export the trained run as merged model, adapter and GGUF; each export verifies itself."""
    # The main reward decides which answers are correct, so the run is opened with its rewards.
    run = gn.runs.Run(request.runs / "whole", rewards=rewards())
    folder = Path(request.folder, "exports")
    merge = functools.partial(gn.export_merged, run, folder / "merged")
    merged = yield from attempt("merged model verifies", merge)
    save_adapter = functools.partial(gn.export.export_adapter, run, folder / "adapter")
    yield from attempt("adapter verifies", save_adapter)
    if merged is None:
        return
    convert = functools.partial(gn.export_gguf, merged, folder / "gguf")
    yield from attempt("GGUF verifies through llama.cpp", convert)
    # The merged model computes in 16 bit; the run's score is that of the model in training.
    own = run.comparison.after
    score = gn.evaluate(merged.path, run=run).accuracy
    about = f"below the run's interval; {score:.1%}, the run's {own.accuracy:.1%}"
    missing_share = max(0.0, own.accuracy_interval[0] - score)
    yield at_most("merged model scores as the run", 0, missing_share, about)


def of_the_preset(request: Request) -> Rows:
    """Train the model of this card's preset for a few steps."""
    from grpo_nb.models.sources import resolve_model

    settings = request.settings("auto", max_steps=4)
    resolve = functools.partial(resolve_model, settings.model)
    # An OSError comes from the Hub, and says nothing about the kit.
    model = yield from attempt("the model is to be had", resolve, OSError)
    if model is None:
        return
    here = yield from loaded(request, settings)
    yield from trained(here.train(settings, name="preset"), here.is_scaled)


def quickstart_notebook(request: Request) -> Rows:
    """Run the quickstart notebook with the embedded model, loaded as on a GPU."""
    settings = request.settings()
    names = ["model", "load_in_4bit", "fast_inference", "gpu_memory_utilization", *request.changes]
    changes = {name: getattr(settings, name) for name in names}
    script = ROOT / "scripts/run_notebook.py"
    notebook = ROOT / "notebooks/00_quickstart.ipynb"
    command = [sys.executable, script, notebook, "--cwd", request.folder]
    command += ["--set", "PRESET='cpu'", "RUN_NAME='quickstart'", f"CHANGES={changes!r}"]
    # It ends a minute before the phase does, so that its own message is shown.
    execute = functools.partial(run_command, command, seconds=SECONDS - 60, on_line=say)
    lines = yield from attempt("ends well", execute)
    if lines is None:
        return
    run = gn.open_run(Path(request.folder, "runs", "quickstart"))
    # The notebook chooses a level by measuring. A model that masters the hardest level has nothing
    # to learn, and that is no fault.
    is_mastered = run.comparison.before.accuracy >= 2 / 3
    has_learnt = run.rise().is_clear and run.comparison.verdict == "better"
    found = f"{run.rise().sentence} Held-out: {run.comparison.sentence}"
    verdict = None if is_mastered else has_learnt
    yield Row("it learns", verdict, found, "the reward rises, and held-out is better")


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def playing(request: Request) -> Rows:
    """Train on sums with a tool that adds: episodes in training and in the evaluation."""
    changes = {
        "max_steps": 4,
        "warmup_steps": 0,
        "max_prompt_length": 640,
        "max_completion_length": 160,
    }
    settings = request.settings(**changes | request.changes)
    here = yield from loaded(request, settings)
    if "tools" not in here.tokenizer.chat_template:
        gn.models.set_tool_template(here.tokenizer)
    # The prompt shows one call, made by hand.
    episode = gn.lab.ManualEpisode(here.task.with_tools(add))
    a, _, b = episode.row["question"].removeprefix("What is ").removesuffix("?").split()
    total = episode.do("add", a=int(a), b=int(b))
    episode.say(here.task.format.render("", total))
    options = {"train_size": 20, "holdout": 6, "example": episode.example(here.tokenizer)}
    task = gn.load_task("arithmetic", settings, tokenizer=here.tokenizer, **options).with_tools(add)
    run = gn.train(here.model, here.tokenizer, task, rewards(), settings, name="tools")
    yield from trained(run, here.is_scaled)
    calls = run.metrics["tools/call_frequency"].max()
    failures = run.metrics["tools/failure_frequency"].min()
    yield Row("the tool is called", bool(calls > 0) or None, f"{calls:.2g} a completion at most")
    found = f"{failures:.0%} failed at best"
    yield Row("calls are answered", bool(failures < 1), found, "some are not")
    yield from attempt("episodes held out", lambda: gn.compare(run, task))


def plan_of(has_vllm: bool) -> Iterator[tuple[str, Callable[[Request], Rows], dict[str, bool]]]:
    """Yield the phases in their order: name, function, changes of the request."""
    way = "with vLLM" if has_vllm else "without vLLM"
    asked = {"use_vllm": has_vllm}
    yield f"kit, {way}", training, asked
    yield f"resume, {way}", resuming, asked
    yield f"exports, {way}", exporting, asked
    if has_vllm:
        yield "kit, without vLLM", training, {"use_vllm": False}
        yield "kit, 16 bit", training, {"use_vllm": True, "load_in_4bit": False}
    yield f"tools, {way}", playing, asked
    yield "preset's own model", of_the_preset, asked
    yield "quickstart notebook", quickstart_notebook, asked


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="", help="folder or Hub id; by default the embedded model"
    )
    parser.add_argument(
        "--out", type=Path, help="the page; by default benchmarks/results/gpu_check_<card>.md"
    )
    parser.add_argument("--phase", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        name, request = options.phase
        run_phase(globals()[name], Request(**json.loads(request)))
        # Do not shut down vLLM and CUDA with the interpreter: that can crash or hang.
        os._exit(0)
    gpu = gn.machine.find_gpu()
    if gpu is None:
        say("No GPU: the driver names none, so there is nothing to check here.")
        return 2
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        report = check(Request(folder, options.model), gpu)
    card = "".join(letter if letter.isalnum() else "_" for letter in gpu.name.lower())
    file = options.out or ROOT / f"benchmarks/results/gpu_check_{card}.md"
    write_text(file, page(report) + "\n")
    print(f"{page(report)}\n\nWritten to {file}, to be pasted into an issue.")
    return int(any(row.ok is False for rows in report.values() for row in rows))


def check(request: Request, gpu: Any) -> dict[str, list[Row]]:
    """Run all phases and return the rows of each; on a GPU, each phase has its own process."""
    from grpo_nb.config.hardware import vllm_loading_obstacle

    obstacle = vllm_loading_obstacle(request.settings(), gpu)
    planned = "installed" if obstacle is None else f"not used: {obstacle}"
    report = {"all": [measured("vLLM", planned)]}
    run = run_phase if gpu is None else in_a_process
    for name, function, changes in plan_of(obstacle is None):
        say(f"{name} ...")
        start = time.perf_counter()
        rows = run(function, dataclasses.replace(request, **changes))
        rows.append(measured("seconds", f"{time.perf_counter() - start:.0f}"))
        report[name] = rows
    return report


def run_phase(function: Callable[[Request], Rows], request: Request) -> list[Row]:
    """Run a phase and return its rows; each is also saved in phase.json, in case the phase dies."""
    rows: list[Row] = []
    try:
        for row in function(request):
            rows.append(row)
            write_json(Path(request.folder, "phase.json"), rows)
    except Exception as error:
        traceback.print_exc()
        rows.append(Row("ends", False, f"{type(error).__name__}: {error}"))
    write_json(Path(request.folder, "phase.json"), rows)
    return rows


def in_a_process(function: Callable[[Request], Rows], request: Request) -> list[Row]:
    """Run a phase in another process. If it dies or takes too long, keep the rows it found."""
    saved = Path(request.folder, "phase.json")
    write_json(saved, [])
    asked = json.dumps(dataclasses.asdict(request))
    command = [sys.executable, __file__, "--phase", function.__name__, asked]
    failure = []
    try:
        run_command(command, seconds=SECONDS, on_line=say)
    except ChildError as error:
        failure = [Row("ends", False, str(error))]
    return [Row(*row) for row in json.loads(saved.read_text())] + failure


def page(report: dict[str, list[Row]]) -> str:
    """Return the Markdown page: the counts, the machine and every row, without the user's home."""
    from grpo_nb.machine.packages import package_versions

    rows = [(phase, row) for phase, found in report.items() for row in found]
    verdicts = [row.ok for _, row in rows]
    counts = [f"{verdicts.count(ok)} {word}" for ok, word in WORDS.items() if ok in verdicts]
    lines = [f"**gpu-check: {', '.join(counts)}** ({time.strftime('%Y-%m-%d')})", ""]
    lines += ["```", gn.check_environment().table.text(), json.dumps(package_versions()), "```", ""]
    lines += ["| phase | check | verdict | found | bound |", "| --- | --- | --- | --- | --- |"]
    for phase, row in rows:
        verdict = WORDS.get(row.ok, row.ok)
        texts = (phase, row.name, verdict, row.found, row.bound)
        cells = [" ".join(text.split()).replace("|", "/")[:500] for text in texts]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).replace(str(Path.home()), "~")


if __name__ == "__main__":
    raise SystemExit(main())
