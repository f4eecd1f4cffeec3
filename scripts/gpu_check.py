"""Prove on a GPU what cannot be proved without one: `make gpu-check`.

Loads a model in 4 bit through the kit, with vLLM where it can be imported and without; trains the quickstart; checks that vLLM
samples from what is trained, that the base weights stay whole through trainings, interrupts and, in 16 bit, merged rollouts,
that a run resumes, that generation paths agree, that exports verify and score as their run; measures step time, tokens a second
and memory; trains the model of the preset for the card for some steps; and executes the quickstart notebook. The first line of
each model loaded is what generates for it. Writes one JSON and a Markdown page to be pasted into an issue, with GPU, driver,
versions and each check, and prints that. Ends with 0 if all checks hold, 1 if one does not, and 2 at once without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "scripts"))

from gpu_check_phases import NOTEBOOK_SECONDS, Request, Row, plan_of, run_phase, settings_for, with_row  # noqa: E402

from grpo_nb.core.files import write_json  # noqa: E402
from grpo_nb.core.processes import ChildError, run_command  # noqa: E402
from grpo_nb.machine.gpu import find_gpu, read_gpu  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
_PHASE_SECONDS = 40 * 60  # on a T4 the first loads from the Hub, compiles and records graphs
_VERDICTS = {True: "holds", False: "FAILS", None: "not checked"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="folder or Hub id; by default the embedded model")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--published", action="store_true", help="the notebook by the preset for the card: hours")
    parser.add_argument("--16bit", dest="is_16bit", action="store_true", help="instead of 4 bit")
    parser.add_argument("--out", type=Path, help="the JSON; by default benchmarks/results/gpu_check_<card>.json")
    parser.add_argument("--work", help="folder for runs and merged models; by default a temporary one")
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    parser.add_argument("--request", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        run_phase(options.phase, Request(**json.loads(options.request)), _tell)
        # Taking down vLLM and CUDA with the interpreter can crash or hang, and the phase has ended well before.
        sys.stderr.flush()
        os._exit(0)
    if options.steps < 4:  # the first step's learning rate is 0, and resuming needs a trained adapter at half of them
        parser.error(f"--steps {options.steps}: at least 4")
    gpu = find_gpu()
    if gpu is None:
        print("No GPU: the driver names none, so there is nothing to check here.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        request = Request(
            model=options.model, work=options.work or folder, steps=options.steps, device="gpu", is_tiny=False,
            load_in_4bit=not options.is_16bit, use_vllm=True, is_published=options.published,
        )  # fmt: skip
        report = check(request, gpu)
    card = re.sub(r"[^a-z0-9]+", "_", gpu.name.lower()).strip("_")
    file = options.out or RESULTS / f"gpu_check_{card}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, report)
    page = file.with_suffix(".md")
    page.write_text(table(report) + "\n", encoding="utf-8")
    print(f"{table(report)}\n\nWritten to {file} and, to be pasted into an issue, {page}.")
    return 0 if report["passed"] else 1


def check(request: Request, gpu: Any) -> dict[str, Any]:
    """Run all phases, on a GPU each in a process of its own, and return the report."""
    from grpo_nb.machine.packages import package_versions
    from grpo_nb.settings.vllm import vllm_obstacle

    begun, obstacle = time.perf_counter(), vllm_obstacle(settings_for(request), gpu)
    Path(request.work).mkdir(parents=True, exist_ok=True)
    phases: dict[str, Any] = {}
    for name, function, changes in plan_of(obstacle is None):
        print(f"{name} ...", file=sys.stderr, flush=True)
        asked = dataclasses.replace(request, **changes)
        phases[name] = run_phase(function, asked) if gpu is None else _in_a_process(function, asked)
    import torch  # after the phases, which without a GPU import unsloth here

    checks = {f"{name}: {what}": found for name, phase in phases.items() for what, found in phase["checks"].items()}
    card, generated = "none: no GPU result", [phase["generation"] for phase in phases.values() if "generation" in phase]
    if gpu is not None:
        capability = ".".join(map(str, gpu.compute_capability))
        card = f"{gpu.name}, {gpu.memory_gib:.1f} GiB, compute capability {capability}, driver {read_gpu().driver}"
    machine = {
        "GPU": card,
        "generation": f"{generated[0] if generated else 'no model was loaded'}; vLLM: {obstacle or 'planned'}",
        "Python, system": f"{platform.python_version()}, {platform.platform()}",
        "packages": ", ".join(f"{name} {version}" for name, version in package_versions().items()),
        "CUDA of torch": str(torch.version.cuda),
        "model, steps": f"{request.model or 'embedded'}, {request.steps}",
        "date, seconds": f"{time.strftime('%Y-%m-%d')}, {time.perf_counter() - begun:.0f}",
    }
    verdicts = [found["ok"] for found in checks.values()]
    passed = any(verdicts) and False not in verdicts
    return {"is_gpu_result": gpu is not None, "machine": machine, "passed": passed, "phases": phases, "checks": checks}


def _tell(found: dict[str, Any]) -> None:
    """Keep what a phase has found so far, for the process that asked."""
    write_json(Path(found["request"]["work"]) / "phase.json", found)


def _in_a_process(function: str, request: Request) -> dict[str, Any]:
    """Run a phase apart; of one that dies or takes too long, what it had found is kept."""
    _tell({"checks": {}, "request": dataclasses.asdict(request)})
    command = [sys.executable, __file__, "--phase", function, "--request", json.dumps(dataclasses.asdict(request))]
    begun, row = time.perf_counter(), None
    # The notebook ends its own, with its reason.
    limit = NOTEBOOK_SECONDS + 300 if function == "quickstart notebook" else _PHASE_SECONDS
    try:
        run_command(command, seconds=limit, on_line=lambda line: print(line, file=sys.stderr, flush=True))
    except ChildError as error:
        row = Row("ends", False, str(error))
    found, seconds = json.loads((Path(request.work) / "phase.json").read_text()), time.perf_counter() - begun
    return {**(with_row(found, row, seconds) if row else found), "seconds": seconds}


def table(report: dict[str, Any]) -> str:
    """The report as Markdown: the machine, each check with its number, and the phases with their speed and memory."""
    verdicts = [found["ok"] for found in report["checks"].values()]
    counts = [f"{verdicts.count(ok)} {word}" for ok, word in _VERDICTS.items() if ok in verdicts]
    lines = [f"**gpu-check: {', '.join(counts)}**", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in report["machine"].items()]
    lines += ["", "| check | verdict | found | bound | seconds |", "| --- | --- | --- | --- | ---: |"]
    for name, found in report["checks"].items():
        said = f"{_VERDICTS[found['ok']]} | {_cell(found['detail'])} | {_cell(found['bound'])}"
        lines.append(f"| {name} | {said} | {found['seconds']:.1f} |")
    measured = {
        "seconds": "seconds", "load_seconds": "of which loading", "step_seconds": "a step", "used_gb": "GB in use at the end",
        "completion_tokens_per_second": "completion tokens a second",
    }  # fmt: skip
    lines += ["", f"| phase | {' | '.join(measured.values())} |", f"| --- |{' ---: |' * len(measured)}"]
    for name, phase in report["phases"].items():
        numbers = (f"{phase[key]:,.4g}" if key in phase else "" for key in measured)
        lines.append(f"| {name} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def _cell(text: object) -> str:
    """As one cell of a Markdown table, at most 500 characters, without the name of the user's home."""
    return " ".join(str(text).replace(str(Path.home()), "~").split()).replace("|", "/")[:500]


if __name__ == "__main__":
    raise SystemExit(main())
