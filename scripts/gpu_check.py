"""Prove on a GPU what cannot be proved without one: `make gpu-check`.

Loads a model in 4 bit through the kit, with vLLM where it can be imported and without; trains the quickstart; checks that vLLM
samples from what is trained, that the base weights stay whole through trainings, interrupts and, in 16 bit, merged rollouts,
that a run resumes, that generation paths agree, that exports verify and score as their run; measures step time, tokens a second
and memory; trains the model of the preset for the card for some steps; and executes the quickstart notebook. The first line of
each model loaded is what generates for it. Writes a Markdown page to be pasted into an issue, with GPU, driver, versions and
each check, and prints that. Ends with 0 if all checks hold, 1 if one does not, and 2 at once without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import grpo_nb as gn  # noqa: E402
from grpo_nb.core.files import write_json, write_text  # noqa: E402
from grpo_nb.core.processes import ChildError, run_command  # noqa: E402
from scripts.gpu_check_phases import SECONDS, Request, Row, plan_of, say  # noqa: E402

WORDS = {True: "holds", False: "FAILS", None: "not checked"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="folder or Hub id; by default the embedded model")
    parser.add_argument("--out", type=Path, help="the page; by default benchmarks/results/gpu_check_<card>.md")
    parser.add_argument("--phase", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        functions = {function.__name__: function for _, function, _ in plan_of(True)}
        run_phase(functions[options.phase[0]], Request(**json.loads(options.phase[1])))
        # Taking down vLLM and CUDA with the interpreter can crash or hang, and the phase has ended well before.
        sys.stderr.flush()
        os._exit(0)
    gpu = gn.machine.find_gpu()
    if gpu is None:
        say("No GPU: the driver names none, so there is nothing to check here.")
        return 2
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        report = check(Request(folder, options.model), gpu)
    card = re.sub(r"[^a-z0-9]+", "_", gpu.name.lower()).strip("_")
    file = options.out or ROOT / f"benchmarks/results/gpu_check_{card}.md"
    write_text(file, page(report) + "\n")
    print(f"{page(report)}\n\nWritten to {file}, to be pasted into an issue.")
    return int(any(row.ok is False for rows in report.values() for row in rows))


def check(request: Request, gpu: Any) -> dict[str, list[Row]]:
    """Run all phases, on a GPU each in a process of its own, and return the rows of each."""
    from grpo_nb.settings.vllm import vllm_obstacle

    obstacle = vllm_obstacle(request.settings(), gpu)
    report = {"all": [Row("vLLM", "measured", "planned" if obstacle is None else f"not used: {obstacle}")]}
    for name, function, changes in plan_of(obstacle is None):
        say(f"{name} ...")
        run, begun = run_phase if gpu is None else in_a_process, time.perf_counter()
        report[name] = run(function, dataclasses.replace(request, **changes))
        report[name].append(Row("seconds", "measured", f"{time.perf_counter() - begun:.0f}"))
    return report


def run_phase(function: Callable[[Request], Iterable[Row]], request: Request) -> list[Row]:
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


def in_a_process(function: Callable[[Request], Iterable[Row]], request: Request) -> list[Row]:
    """Run a phase apart; of one that dies or takes too long, what it had found is kept."""
    kept, died = Path(request.folder, "phase.json"), []
    write_json(kept, [])
    command = [sys.executable, __file__, "--phase", function.__name__, json.dumps(dataclasses.asdict(request))]
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
    counts = ", ".join(f"{verdicts.count(ok)} {word}" for ok, word in WORDS.items() if ok in verdicts)
    packages = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    lines = [f"**gpu-check: {counts}** ({time.strftime('%Y-%m-%d')})", ""]
    lines += ["```", repr(gn.check_environment()), packages, "```", ""]
    lines += ["| phase | check | verdict | found | bound |", "| --- | --- | --- | --- | --- |"]
    for phase, row in found:
        said = (phase, row.name, WORDS.get(row.ok, row.ok), row.found, row.bound)
        cells = (" ".join(cell.split()).replace("|", "/")[:500] for cell in said)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).replace(str(Path.home()), "~")


if __name__ == "__main__":
    raise SystemExit(main())
