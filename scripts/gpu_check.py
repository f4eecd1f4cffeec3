"""Prove on a GPU what cannot be proved without one: `make gpu-check`.

Loads a model in 4 bit through the kit, with vLLM where it can be imported and without; trains the quickstart; checks that vLLM
samples from what is trained, that the base weights stay whole through trainings, interrupts and, in 16 bit, merged rollouts,
that a run resumes, that generation paths agree, that exports verify and score as their run; measures step time, tokens a second
and memory; trains the model of the preset for the card for some steps; and executes the quickstart notebook. The first line of
each model loaded is what generates for it. Writes a Markdown page to be pasted into an issue, with GPU, driver, versions and
each check, and prints that. Ends with 0 if all checks hold, 1 if one does not, and 2 at once without a GPU.


A phase is a function that yields rows, each a verdict or a plain number. On a GPU each phase is a process and loads a model of
its own, so that the memory of one is free for the next and a crash costs what that phase had not yet found. A verdict is mostly
a number and its bound; what takes more to find is a function of what was measured, which the tests give faulty ones. A new
phase is a function and a line in `plan_of`.
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

import grpo_nb as gn  # noqa: E402  (nothing more of it is loaded before it is asked for)
from grpo_nb.core.files import write_json, write_text  # noqa: E402
from grpo_nb.core.processes import ChildError, run_command  # noqa: E402

# The absolute difference, a mean over completion tokens, logged only with vLLM and vllm_importance_sampling_correction: by trl
# 1.15 in trainer/grpo_trainer.py, and in its place by unsloth/models/rl_replacements.py, grpo_trainer_compute_loss.
_DIFFERENCE = "sampling/sampling_logp_difference/mean"
_INTERRUPTS = 20
SECONDS = 40 * 60  # of a phase: on a T4 the first loads from the Hub, compiles and records graphs

Found = Iterator["Row"]
WORDS = {True: "holds", False: "FAILS", None: "not checked"}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Row(NamedTuple):
    """One line of the report: a verdict, None where it could not be looked at, or what was measured."""

    name: str
    ok: bool | str | None
    found: str
    bound: str = ""


def at_most(name: str, bound: float, value: float, about: object = "") -> Row:
    """A number and its bound; NaN is not within any."""
    return Row(name, value <= bound, f"{value:.3g} {about}".strip(), f"at most {bound:.3g}")


@dataclasses.dataclass(frozen=True)
class Request:
    """Request to a phase."""

    folder: str
    model: str = ""
    load_in_4bit: bool = True
    use_vllm: bool = True
    questions: int = 60
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Changes of settings and fewer questions, for the tests' rehearsal on a CPU."""

    @property
    def runs(self) -> Path:
        return Path(
            self.folder,
            f"{'vllm' if self.use_vllm else 'plain'}-{4 if self.load_in_4bit else 16}bit",
        )

    def settings(self, preset: str = "cpu", **changes: Any) -> gn.Settings:
        """The quickstart's settings loaded as a GPU loads, or those of the preset for this machine."""
        values = {"fast_inference": self.use_vllm, "run_root": str(self.runs)}
        if preset == "cpu":
            values |= {
                "max_steps": 30,
                "load_in_4bit": self.load_in_4bit,
                "gpu_memory_utilization": 0.5,
            }
            # So that the difference between sampler and trainer is logged, which there is with vLLM alone.
            values["extra"] = {"vllm_importance_sampling_correction": True} if self.use_vllm else {}
        values |= {"model": self.model} if self.model else {}
        return gn.preset(preset, **values | self.changes | changes)


def sampler_agrees(rows: Sequence[Mapping[str, float]]) -> Row:
    """Check at the last step that vLLM sampled from the trained adapter."""
    each, kl = [row.get(_DIFFERENCE, math.nan) for row in rows], rows[-1]["kl"]
    told = f"nats a token; each step {', '.join(f'{one:.3g}' for one in each)}; last KL {kl:.2g}"
    # Both compute the same tokens with other kernels, for which 0.05 are room in 4 bit too; a sampler without the adapter is
    # as far away as the KL says, so the verdict counts only where that is far enough to be seen.
    found = at_most("sampler agrees with trainer", 0.05, each[-1], told)
    return found._replace(ok=None) if found.ok and not kl > 0.02 else found


def numbers_hold(rows: Sequence[Mapping[str, float]], *, is_scaled: bool) -> Row:
    """Every number is finite, but for gradients of the first steps in float16, which loss scaling skips."""
    keys = ("reward", "kl", "loss", "grad_norm")
    infinite = [
        (key, at) for key in keys for at, row in enumerate(rows) if not math.isfinite(row[key])
    ]
    # torch begins with a loss scale of 65536, and skips a step and halves it where gradients overflow
    # (torch/amp/grad_scaler.py, GradScaler.update).
    bad = [(key, at) for key, at in infinite if not (is_scaled and key == "grad_norm" and at < 5)]
    told = "".join(f"; {key} of step {at + 1}" for key, at in bad[:5])
    return at_most(
        "numbers that are not finite", 0, len(bad), f"and {len(infinite) - len(bad)} skipped{told}"
    )


def unchanged(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> Row:
    """Two checksums of the same tensors."""
    moved = sorted(
        tensor for tensor in before.keys() | after.keys() if before.get(tensor) != after.get(tensor)
    )
    return at_most(
        name,
        0,
        len(moved) if before else math.nan,
        f"of {len(before)} tensors moved {' '.join(moved[:1])}",
    )


def alike(name: str, before: Sequence[Any], after: Sequence[Any]) -> Row:
    """Two greedy samplings of the same questions, or what was said of them.

    Rounding alone moves a few on a GPU: near ties, in 4 bit other kernels, and behind vLLM's prefix cache.
    """
    other = sum(a != b for a, b in zip(before, after, strict=True)) / len(before)
    return at_most(name, 0.15, other, f"of {len(before)} differ")


def rewards() -> list[Any]:
    return [
        gn.rewards.correctness(weight=2.0),
        gn.rewards.xml_format(weight=1.0),
        gn.rewards.xml_tags(weight=0.5),
    ]


def loaded(request: Request, settings: gn.Settings) -> Any:
    """Load a model, yield what generates for it and how it is packed, and return it with what the phases do with it."""
    from grpo_nb.config.dtype import compute_dtype
    from grpo_nb.config.vllm_obstacle import has_engine
    from grpo_nb.generation.choice import choose_engine
    from grpo_nb.generation.vllm import model_runner_name

    begun, gpu = time.perf_counter(), gn.machine.find_gpu()
    model, tokenizer = gn.load_model(settings)
    generation = str(choose_engine(model))
    say(f"generation: {generation}")
    yield Row("seconds to load", "measured", f"{time.perf_counter() - begun:.0f}")
    wanted = "vLLM" if request.use_vllm else "Unsloth's" if gpu else "the kit's"
    yield Row("generation", generation.startswith(wanted), generation, wanted)
    if has_engine(model):
        # A GPU uses V2 unless VLLM_USE_V2_MODEL_RUNNER=0; `make test-vllm` proves V1 on a CPU.
        yield Row("model runner", "measured", model_runner_name(model))
    is_packed = any(type(module).__name__ == "Linear4bit" for module in model.modules())
    yield Row(
        "weights as asked", is_packed == settings.load_in_4bit, "4 bit" if is_packed else "16 bit"
    )
    task = gn.load_task("arithmetic", settings, tokenizer=tokenizer, holdout_size=request.questions)
    here = SimpleNamespace(model=model, tokenizer=tokenizer, task=task)
    here.train = functools.partial(gn.train, model, tokenizer, task, rewards())
    here.evaluate = functools.partial(gn.evaluate, (model, tokenizer), task, settings=settings)
    here.is_scaled = compute_dtype(settings, gpu).name == "float16"  # trains with loss scaling
    return here


def answers(here: Any, *, is_base: bool = False) -> list[str]:
    """To the held-out questions, the likeliest."""
    with here.model.disable_adapter() if is_base else contextlib.nullcontext():
        return [row["completion"] for row in here.evaluate().rows]


def digests(model: Any, *, is_base: bool = False) -> dict[str, str]:
    """A checksum of each tensor of a model, or of those that are not of its LoRA."""
    import torch

    return {
        name: hashlib.sha256(
            weight.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        ).hexdigest()
        for name, weight in model.named_parameters()
        if not (is_base and "lora_" in name)
    }


def memory_gb() -> float:
    """Return the used GPU memory, including vLLM's; 0 without a GPU."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info() if torch.cuda.is_available() else (0, 0)
    return (total - free) / 1e9


def trained(run: Any, is_scaled: bool) -> Found:
    """Return the checks of every run, the times of its steps except the first, and the memory."""
    # Before anything is learnt the policy is its own reference: kernels round alike, and a wrong forward gave 0.013.
    yield at_most("KL of the first step", 1e-3, abs(run.rows[0]["kl"]))
    yield numbers_hold(run.rows, is_scaled=is_scaled)
    if "vllm_importance_sampling_correction" in run.settings.extra:
        yield sampler_agrees(run.rows)
    steps = run.metrics.iloc[1:]
    tokens = steps["completions/mean_length"].sum() * run.settings.batch_size
    yield Row("median seconds of a step", "measured", f"{steps['step_time'].median():.3g}")
    yield Row("completion tokens a second", "measured", f"{tokens / steps['step_time'].sum():.4g}")
    yield Row("GB of the GPU in use", "measured", f"{memory_gb():.2f}")


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


def training(request: Request) -> Found:
    """Train, with one set of weights for sampler and trainer: do both compute with it, and is it whole after all that is done?

    In 16 bit with vLLM, Unsloth folds the LoRA into the weights that both share and takes it out again
    (unsloth_zoo/vllm_utils.py, merged_rollout); in 4 bit it does not.
    """
    from grpo_nb.generation import choice, sampling

    here = yield from loaded(request, request.settings())
    base, before, loading = (
        digests(here.model, is_base=True),
        answers(here, is_base=True),
        memory_gb(),
    )
    run, memory = here.train(request.settings(), name="whole"), memory_gb()
    yield from trained(run, here.is_scaled)
    yield Row("reward rises", run.rise().is_clear, run.rise().sentence)
    yield unchanged("base weights after training", base, digests(here.model, is_base=True))
    yield alike("base answers after training, adapter off", before, answers(here, is_base=True))
    own = gn.compare(run).after

    def compared(*_: Any) -> str:
        return "compared"

    with (
        mock.patch.object(choice, "vllm_sampling_obstacle", compared),
        mock.patch.object(sampling.CpuEngine, "obstacle", compared),
    ):
        other = here.evaluate(run=run)
    verdicts = ([row["is_correct"] for row in result.rows] for result in (own, other))
    yield alike("evaluation agrees between generation paths", *verdicts)
    whole, begun = digests(here.model), time.perf_counter()
    told, seconds = answers(here), time.perf_counter() - begun
    moments, hits = random.Random(0), 0
    for _ in range(3 * _INTERRUPTS):
        hits += hits < _INTERRUPTS and interrupted(
            functools.partial(answers, here), moments.uniform(0, seconds)
        )
    yield at_most("interrupts that came too late", 0, _INTERRUPTS - hits, f"of {_INTERRUPTS}")
    yield alike("answers after interrupts", told, answers(here))
    yield unchanged("weights after interrupts", whole, digests(here.model))
    if request.use_vllm and not request.load_in_4bit:
        from unsloth_zoo.vllm_utils import _MERGED_ROLLOUT_STATS as counts

        yield Row("the LoRA was folded into the weights", counts["folds"] > 0 or None, str(counts))
    # `resuming` goes on with this one.
    here.train(request.settings(max_steps=run.settings.max_steps // 2), name="resumed")
    # After the first training all that is made once has been made.
    told = f"GB more than after the first, {memory:.2f}; before that {loading:.2f}"
    yield at_most("memory after a second training", 0.5, memory_gb() - memory, told)
    yield alike("base answers in the end, adapter off", before, answers(here, is_base=True))


def resuming(request: Request) -> Found:
    """The run that a phase before has trained to its half, in a model loaded anew."""
    settings, folder = request.settings(), request.runs / "resumed"
    half = len(gn.open_run(folder).rows)
    here = yield from loaded(request, settings)
    rows = here.train(settings, resume=str(folder)).rows
    goes_on = [int(row["step"]) for row in rows] == list(range(1, settings.max_steps + 1))
    yield Row("resume goes on at the next step", goes_on, f"{half} + {len(rows) - half} steps")
    # The trap: with the trained adapter lost, the first KL after resuming is exactly 0.
    yield Row(
        "resume has the trained adapter",
        rows[half]["kl"] > 0,
        f"KL {rows[half]['kl']:.2g}",
        "above 0",
    )


def done(
    name: str, do: Callable[[], Any], lacks: type[Exception] = gn.machine.EnvironmentProblem
) -> Any:
    """Yield whether something could be done, and return it; what this machine lacks says nothing of the kit."""
    try:
        made = do()
    except Exception as error:  # a result as well, and the others are wanted too
        yield Row(
            name, None if isinstance(error, lacks) else False, f"{type(error).__name__}: {error}"
        )
    else:
        yield Row(name, True, getattr(made, "sentence", ""))
        return made


def exporting(request: Request) -> Found:
    """The run that was trained, merged, as an adapter and as GGUF; each is verified where it is made."""
    # With its rewards, since the main one decides what is correct.
    run = gn.runs.Run(request.runs / "whole", rewards=rewards())
    folder = Path(request.folder, "exports")
    merged = yield from done(
        "merged model verifies", lambda: gn.export_merged(run, folder / "merged")
    )
    yield from done("adapter verifies", lambda: gn.export.export_adapter(run, folder / "adapter"))
    if merged is not None:
        yield from done(
            "GGUF verifies through llama.cpp", lambda: gn.export_gguf(merged, folder / "gguf")
        )
        # In 16 bit, beside the model in training, in 4 bit where that is; `training` has kept its score.
        own, score = run.comparison.after, gn.evaluate(merged.path, run=run).accuracy
        told = f"below the run's interval; {score:.1%}, the run's {own.accuracy:.1%}"
        yield at_most("merged model scores as the run", 0, max(0.0, own.interval[0] - score), told)


def of_the_preset(request: Request) -> Found:
    """The model and the settings of the preset for this card, for a few steps."""
    from grpo_nb.models.sources import resolve_model

    settings = request.settings("auto", max_steps=4)
    # What the Hub does not give says nothing of the kit.
    if (
        yield from done("the model is to be had", lambda: resolve_model(settings.model), OSError)
    ) is not None:
        here = yield from loaded(request, settings)
        yield from trained(here.train(settings, name="preset"), here.is_scaled)


def quickstart_notebook(request: Request) -> Found:
    """The quickstart with the embedded model and a CPU's settings, loaded as a GPU loads."""
    settings, asked = (
        request.settings(),
        ("model", "load_in_4bit", "fast_inference", "gpu_memory_utilization"),
    )
    changes = {name: getattr(settings, name) for name in (*asked, *request.changes)}
    command = [
        sys.executable,
        ROOT / "scripts/run_notebook.py",
        ROOT / "notebooks/00_quickstart.ipynb",
    ]
    command += [
        "--cwd",
        request.folder,
        "--set",
        "PRESET='cpu'",
        "RUN_NAME='quickstart'",
        f"CHANGES={changes!r}",
    ]
    # Ended in time to say why.
    if (
        yield from done(
            "ends well", lambda: run_command(command, seconds=SECONDS - 60, on_line=say)
        )
    ) is not None:
        run = gn.open_run(Path(request.folder, "runs", "quickstart"))
        # The level is chosen by measuring; a model that can do the hardest one has nothing to learn, and that is no fault.
        could = run.comparison.before.accuracy >= 2 / 3
        learnt = run.rise().is_clear and run.comparison.verdict == "better"
        told = f"{run.rise().sentence} Held-out: {run.comparison.sentence}"
        yield Row(
            "it learns", None if could else learnt, told, "the reward rises, and held-out is better"
        )


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def playing(request: Request) -> Found:
    """Sums with a tool that adds, shown once: episodes in training and held out, the engine woken in each round."""
    settings = request.settings(
        max_steps=4, warmup_steps=0, max_prompt_length=640, max_completion_length=160
    )
    here = yield from loaded(request, settings)
    if "tools" not in here.tokenizer.chat_template:
        gn.models.give_tool_template(here.tokenizer)
    hand = gn.lab.ByHand(here.task.with_tools(add))
    a, _, b = hand.row["question"].removeprefix("What is ").removesuffix("?").split()
    hand.say(here.task.format.render("", hand.do("add", a=int(a), b=int(b))))
    options = {"train_size": 20, "holdout_size": 6, "example": hand.example(here.tokenizer)}
    task = gn.load_task("arithmetic", settings, tokenizer=here.tokenizer, **options).with_tools(add)
    run = gn.train(here.model, here.tokenizer, task, rewards(), settings, name="tools")
    # Sampler and trainer are compared on what the model wrote: a tool's tokens are far from what any sampler would write.
    yield from trained(run, here.is_scaled)
    called, failed = (run.metrics[f"tools/{name}_frequency"] for name in ("call", "failure"))
    yield Row(
        "the tool is called",
        bool(called.max() > 0) or None,
        f"{called.max():.2g} a completion at most",
    )
    yield Row(
        "calls are answered",
        bool(failed.min() < 1),
        f"{failed.min():.0%} failed at best",
        "some are not",
    )
    yield from done("episodes held out", lambda: gn.compare(run, task))


def plan_of(has_vllm: bool) -> Iterator[tuple[str, Callable[[Request], Found], dict[str, bool]]]:
    """The phases in their order: (name, function, what is asked besides)."""
    way, asked = f"{'with' if has_vllm else 'without'} vLLM", {"use_vllm": has_vllm}
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
        run_phase(globals()[options.phase[0]], Request(**json.loads(options.phase[1])))
        # Taking down vLLM and CUDA with the interpreter can crash or hang, and the phase has ended well before.
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
    """Run all phases, on a GPU each in a process of its own, and return the rows of each."""
    from grpo_nb.config.vllm_obstacle import vllm_obstacle

    obstacle = vllm_obstacle(request.settings(), gpu)
    report = {
        "all": [Row("vLLM", "measured", "planned" if obstacle is None else f"not used: {obstacle}")]
    }
    for name, function, changes in plan_of(obstacle is None):
        say(f"{name} ...")
        run, begun = run_phase if gpu is None else in_a_process, time.perf_counter()
        report[name] = run(function, dataclasses.replace(request, **changes))
        report[name].append(Row("seconds", "measured", f"{time.perf_counter() - begun:.0f}"))
    return report


def run_phase(function: Callable[[Request], Found], request: Request) -> list[Row]:
    """Run a phase here and return its rows; phase.json has those that there are, should it die."""
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


def in_a_process(function: Callable[[Request], Found], request: Request) -> list[Row]:
    """Run a phase apart; of one that dies or takes too long, what it had found is kept."""
    kept, died = Path(request.folder, "phase.json"), []
    write_json(kept, [])
    command = [
        sys.executable,
        __file__,
        "--phase",
        function.__name__,
        json.dumps(dataclasses.asdict(request)),
    ]
    try:
        run_command(command, seconds=SECONDS, on_line=say)
    except ChildError as error:
        died = [Row("ends", False, str(error))]
    return [Row(*row) for row in json.loads(kept.read_text())] + died


def page(report: dict[str, list[Row]]) -> str:
    """Markdown: how many checks hold, the machine, and every row, without the name of the user's home."""
    from grpo_nb.machine.packages import package_versions

    found = [(phase, row) for phase, rows in report.items() for row in rows]
    verdicts = [row.ok for _, row in found]
    counts = ", ".join(
        f"{verdicts.count(ok)} {word}" for ok, word in WORDS.items() if ok in verdicts
    )
    lines = [f"**gpu-check: {counts}** ({time.strftime('%Y-%m-%d')})", ""]
    lines += ["```", gn.check_environment().table.text(), json.dumps(package_versions()), "```", ""]
    lines += ["| phase | check | verdict | found | bound |", "| --- | --- | --- | --- | --- |"]
    for phase, row in found:
        said = (phase, row.name, WORDS.get(row.ok, row.ok), row.found, row.bound)
        cells = (" ".join(cell.split()).replace("|", "/")[:500] for cell in said)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).replace(str(Path.home()), "~")


if __name__ == "__main__":
    raise SystemExit(main())
