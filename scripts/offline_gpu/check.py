"""Prove the GPU path on the offline machine, in the root of the kit's tree: `python3 HOME/check.py`.

Imports, loads through vLLM once, and then runs phases of scripts/gpu_check.py with the embedded
model, in the order of most value for a second. Each step has its own limit, and all together take
`--budget` seconds. OUT/report.md is written after each row, so that a kill loses nothing; OUT/log.txt
has all that was said. Works on a copy of the tree.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VERDICTS = {True: "holds", False: "FAILS", None: "not checked"}
# Less than this is not worth a start.
LEAST_SECONDS = 40
# Left for writing the report after a step is killed.
RESERVE_SECONDS = 8
LEFT_OUT_OF_COPY = (".git", ".pack", ".venv*", "runs", "exports", "__pycache__")

Row = list[Any]
"""Name, verdict or "measured", what was found, bound: a row of scripts/gpu_check.py."""


@dataclass(frozen=True)
class Step:
    """One process: a function of this file, or a phase of scripts/gpu_check.py."""

    number: int
    name: str
    seconds: int
    function: str
    """`look` and `smoke` are of this file."""
    needs_vllm: bool = False
    uses_vllm: bool | None = None
    """None: where it works."""
    load_in_4bit: bool = True
    steps_share: float = 1.0
    """Share of `--steps`."""


STEPS = (
    Step(0, "imports, versions, model", 150, "look"),
    Step(1, "vLLM, 4 bit: loads and answers", 200, "smoke", needs_vllm=True),
    Step(2, "kit, vLLM, 4 bit", 260, "training", needs_vllm=True, uses_vllm=True),
    Step(3, "kit, without vLLM, 4 bit", 220, "training", uses_vllm=False, steps_share=0.5),
    Step(4, "kit, vLLM, 16 bit", 240, "training", True, True, load_in_4bit=False),
    Step(5, "resume", 150, "resuming"),
    Step(6, "exports", 120, "exporting"),
    Step(7, "tools", 180, "playing"),
    Step(8, "quickstart notebook", 240, "quickstart_notebook", steps_share=0.7),
)


@dataclass
class Outcome:
    """Results of one step."""

    name: str
    rows: list[Row] = field(default_factory=list)
    ended: str = "runs"


# --- Steps of this file, each in a process of its own ---


def look() -> Iterator[Row]:
    """Import everything, multiply on the card, quantize, and convert the embedded model."""
    import importlib.metadata

    import grpo_nb as gn

    print(gn.check_environment().table.text())
    from grpo_nb.models.unsloth_import import import_unsloth

    begun = time.monotonic()
    import_unsloth()
    import torch
    import trl

    yield ["seconds to import unsloth", "measured", f"{time.monotonic() - begun:.1f}", ""]
    for name in (
        "torch",
        "triton",
        "transformers",
        "trl",
        "peft",
        "bitsandbytes",
        "unsloth",
        "vllm",
    ):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        yield [name, "measured", version, ""]
    yield ["card", "measured", torch.cuda.get_device_name(), ""]
    yield ["trainer", "measured", trl.GRPOTrainer.__name__, ""]
    weights = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    is_finite = bool(torch.isfinite(weights @ weights).all())
    yield ["product on the card", is_finite, "finite" if is_finite else "not finite", ""]
    from bitsandbytes import functional

    packed, state = functional.quantize_4bit(weights, quant_type="nf4")
    error = float((functional.dequantize_4bit(packed, state) - weights).abs().mean())
    yield ["bitsandbytes nf4, mean error", error < 0.2, f"{error:.3g}", "below 0.2"]
    from grpo_nb.models.sources import embedded_model_folder

    yield ["embedded model", "measured", str(embedded_model_folder()), ""]


def smoke() -> Iterator[Row]:
    """Load in 4 bit through vLLM, sample 64 answers twice, and compare with the adapter off."""
    import grpo_nb as gn

    settings = gn.preset("cpu", load_in_4bit=True, fast_inference=True, gpu_memory_utilization=0.5)
    begun = time.monotonic()
    model, tokenizer = gn.load_model(settings, report=print)
    from grpo_nb.config.hardware import has_vllm_engine
    from grpo_nb.generation.choice import choose_engine
    from grpo_nb.generation.sampling import generate

    is_vllm = has_vllm_engine(model)
    engine = choose_engine(model)
    generation = engine.name if is_vllm else f"{engine.name} ({engine.vllm_obstacle})"
    yield ["generation", is_vllm, generation, "vLLM"]
    yield ["seconds to load", "measured", f"{time.monotonic() - begun:.1f}", ""]
    if not is_vllm:
        return
    # Model Runner V2 is in vllm.v1.worker.gpu, V1 is not.
    call_in_worker = model.vllm_engine.llm_engine.collective_rpc
    (module,) = call_in_worker(lambda worker: type(worker.model_runner).__module__)
    yield ["model runner", "measured", module, ""]
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {number // 8} + {number % 8}?"}]}
        for number in range(64)
    ]
    for name in ("seconds for 64 answers, first call", "seconds for 64 answers"):
        begun = time.monotonic()
        generate(model, tokenizer, rows, max_completion_length=48, temperature=1.0)
        yield [name, "measured", f"{time.monotonic() - begun:.2f}", ""]
    with_adapter = generate(model, tokenizer, rows[:16], max_completion_length=32)
    with model.disable_adapter():
        base = generate(model, tokenizer, rows[:16], max_completion_length=32)
    # A new adapter has no effect yet; kernels with and without it round differently.
    same = sum(one.text == other.text for one, other in zip(with_adapter, base, strict=True))
    yield ["untrained adapter answers as the base", same >= 14, f"{same} of 16 equal", "14 of 16"]


def run_own(name: str, kept: Path) -> None:
    """Run `look` or `smoke`, and keep its rows as they come."""
    rows: list[Row] = []
    has_failed = False
    try:
        for row in {"look": look, "smoke": smoke}[name]():
            print(*row, flush=True)
            rows.append(row)
            kept.write_text(json.dumps(rows))
            has_failed |= row[1] is False
    finally:
        kept.write_text(json.dumps(rows))
    # Taking down vLLM and CUDA with the interpreter can hang.
    sys.stdout.flush()
    os._exit(3 if has_failed else 0)


# --- The driver ---


def copy_tree(tree: Path, work: Path) -> Path:
    """Copy the kit's tree, with a quickstart that does not try to install anything."""
    copied = work / "tree"
    shutil.copytree(
        tree, copied, ignore=shutil.ignore_patterns(*LEFT_OUT_OF_COPY), dirs_exist_ok=True
    )
    notebook = copied / "notebooks" / "00_quickstart.ipynb"
    text = notebook.read_text("utf-8")
    cell = "install(report=print)"
    if cell not in text:
        raise SystemExit(f"{notebook.name} has no cell {cell}: adapt scripts/offline_gpu/check.py.")
    notebook.write_text(text.replace(cell, "pass  # nothing can be fetched here"), "utf-8")
    return copied


def command_of(
    step: Step, *, work: Path, vllm_works: bool, steps: int, questions: int
) -> list[str]:
    """Return the command line of a step."""
    if step.function in ("look", "smoke"):
        return [sys.executable, str(HERE / "check.py"), "--own", step.function, str(work)]
    changes: dict[str, Any] = {"gpu_memory_utilization": 0.5}
    if step.function in ("training", "resuming", "quickstart_notebook"):
        # `resuming` goes on with a run that `training` made, so it has the same settings.
        changes["max_steps"] = max(round(steps * step.steps_share), 8)
    request = {
        "folder": str(work),
        "load_in_4bit": step.load_in_4bit,
        "use_vllm": vllm_works if step.uses_vllm is None else step.uses_vllm,
        "questions": questions,
        "changes": changes,
    }
    return [sys.executable, "scripts/gpu_check.py", "--phase", step.function, json.dumps(request)]


def read_rows(kept: Path) -> list[Row] | None:
    """Return the rows that a step has kept; None while it writes them."""
    try:
        return json.loads(kept.read_text())
    except ValueError:
        return None


def run_step(
    command: Sequence[str],
    outcome: Outcome,
    *,
    seconds: float,
    kept: Path,
    cwd: Path,
    environment: dict[str, str],
    log: Any,
    on_change: Callable[[], None],
) -> int | None:
    """Run a step to its end or limit, and fill `outcome`; return its exit status, None if killed."""
    kept.write_text("[]")
    begun = time.monotonic()
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=environment,
        start_new_session=True,
    )
    while child.poll() is None and time.monotonic() - begun < seconds:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.5)
        outcome.rows = read_rows(kept) or outcome.rows
        outcome.ended = f"runs, {time.monotonic() - begun:.0f} s"
        on_change()
    status = child.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    outcome.rows = read_rows(kept) or outcome.rows
    how = "killed at its limit" if status is None else f"ended with {status}"
    outcome.ended = f"{how} after {time.monotonic() - begun:.0f} s"
    on_change()
    return status


def cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "/")[:500]


def report(outcomes: Sequence[Outcome]) -> str:
    """Return all rows as a Markdown page."""
    verdicts = [row[1] for outcome in outcomes for row in outcome.rows]
    counts = f"{verdicts.count(True)} hold, {verdicts.count(False)} FAIL"
    lines = [counts, "", "| step | check | verdict | found | bound |", "|---|---|---|---|---|"]
    for outcome in outcomes:
        for name, verdict, found, bound in outcome.rows:
            cells = (outcome.name, name, VERDICTS.get(verdict, verdict), found, bound)
            lines.append(f"| {' | '.join(map(cell, cells))} |")
        lines.append(f"| {outcome.name} | ended | {outcome.ended} | | |")
    return "\n".join(lines) + "\n"


def check(options: argparse.Namespace, home: Path, tree: Path) -> list[Outcome]:
    """Run the steps within the budget, and write the report after each row."""
    from unpack import environment

    begun = time.monotonic()
    out = options.out
    work = home / "work"
    for folder in (out, work):
        folder.mkdir(parents=True, exist_ok=True)
    copied = copy_tree(tree, work)
    names = environment(home)
    names["PYTHONPATH"] = os.pathsep.join((names["PYTHONPATH"], str(copied)))
    outcomes: list[Outcome] = []
    has_vllm = (home / "site" / "vllm").is_dir() and not options.without_vllm
    vllm_works = has_vllm

    def write() -> None:
        (out / "report.md").write_text(report(outcomes))

    with (out / "log.txt").open("a") as log:
        for step in STEPS:
            left = options.budget - (time.monotonic() - begun)
            passed = work / f"passed-{step.number}"
            is_first = step.number < 2
            is_wanted = is_first or not options.only or step.number in options.only
            # The first two need to pass once on this machine.
            if not is_wanted or passed.exists() or (step.function == "smoke" and not has_vllm):
                continue
            outcome = Outcome(step.name)
            outcomes.append(outcome)
            if step.needs_vllm and not vllm_works:
                outcome.ended = "left out: vLLM did not start"
            elif left < LEAST_SECONDS:
                outcome.ended = "left out: no time"
            else:
                log.write(f"\n===== {step.number} {step.name}\n")
                log.flush()
                status = run_step(
                    command_of(
                        step,
                        work=work,
                        vllm_works=vllm_works,
                        steps=options.steps,
                        questions=options.questions,
                    ),
                    outcome,
                    seconds=min(step.seconds, left - RESERVE_SECONDS),
                    kept=work / "phase.json",
                    cwd=copied,
                    environment=os.environ | names,
                    log=log,
                    on_change=write,
                )
                if is_first and status == 0:
                    passed.touch()
                if step.function == "smoke" and status != 0:
                    vllm_works = False
                if step.function == "look" and status != 0:
                    write()
                    break
            write()
    return outcomes


def main() -> int:
    if sys.argv[1:2] == ["--own"]:
        run_own(sys.argv[2], Path(sys.argv[3], "phase.json"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", type=float, default=520, help="seconds for all steps (520)")
    parser.add_argument("--only", type=int, nargs="+", default=[], help="numbers of steps")
    parser.add_argument("--steps", type=int, default=20, help="of a training (20)")
    parser.add_argument("--questions", type=int, default=32, help="held out (32)")
    parser.add_argument("--without-vllm", action="store_true", help="whatever is there")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "offline_gpu_out")))
    options = parser.parse_args()
    tree = Path.cwd()
    if not (tree / "scripts" / "gpu_check.py").is_file():
        parser.error(f"{tree} is not the root of the kit's tree: there is no scripts/gpu_check.py.")
    options.out = options.out.absolute()
    outcomes = check(options, HERE, tree)
    print(report(outcomes))
    return int(any(row[1] is False for outcome in outcomes for row in outcome.rows))


if __name__ == "__main__":
    raise SystemExit(main())
