"""Prove on a GPU what cannot be proved without one: `make gpu-check`, or off-line as below.

    python scripts/gpu_check.py [--model FOLDER_OR_ID] [--wheels FOLDER] [--steps 30] [--out FILE]
    python scripts/gpu_check.py --device cpu --tiny --steps 4 --model FOLDER   # the script itself, without a GPU

Loads a model in 4 bit through the kit, with vLLM where it can be imported and without; tries without learning, primes, trains
the quickstart; checks that the reward rises, the KL is positive, a run resumes, evaluation agrees between generation paths and
each export verifies; measures step time, tokens a second and peak memory against the same thing written by hand with unsloth
and TRL; and executes the quickstart notebook as it is published, which takes longest. Writes one JSON and a Markdown page to be
pasted into an issue, with GPU, driver, versions and each check, and prints that. Ends with 0 if all checks hold, 1 if one does
not, and 2 at once where there is no GPU. With --wheels everything is installed from that folder into an environment that sees
this one's torch, and nothing is downloaded but what the notebook needs (with --model or --small-notebook it needs nothing).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "scripts"))

from gpu_check_phases import LIMITS, Request, plan_of, run_phase  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
_PHASE_SECONDS = 900  # of those that LIMITS does not name
_VERDICTS = {True: "holds", False: "FAILS", None: "not checked"}


def main(arguments: list[str] | None = None) -> int:
    """Run the check; the return value is the exit status."""
    options = _options(arguments)
    if options.phase:
        request = Request(**json.loads(options.request))
        print("RESULT " + json.dumps(run_phase(options.phase, request)), flush=True)
        if request.device != "cpu":
            # Taking down vLLM and CUDA with the interpreter can crash or hang, and the phase has ended well before.
            sys.stderr.flush()
            os._exit(0)
        return 0
    from grpo_nb.machine.gpu import find_gpu

    gpu = None if options.device == "cpu" else find_gpu()
    if options.device != "cpu" and gpu is None:
        print(
            "No GPU: nvidia-smi finds none, so there is nothing to check here. On a machine with one, run the same line. "
            "To try the script itself: --device cpu --tiny --steps 4.",
            file=sys.stderr,
        )
        return 2
    if options.device == "cpu" and options.out and RESULTS in Path(options.out).resolve().parents:
        print(f"{options.out}: results of a CPU do not belong into {RESULTS.name}/.", file=sys.stderr)
        return 2
    if options.wheels and not os.environ.get("GRPO_NB_GPU_CHECK_INSIDE"):
        return _again_inside(options, sys.argv[1:] if arguments is None else arguments)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        report = _check(options, Path(options.work or folder), gpu)
    file = Path(options.out) if options.out else _default_file(report, Path(options.work or "."))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")
    page = file.with_suffix(".md")
    page.write_text(table(report) + "\n", encoding="utf-8")
    print(table(report))
    print(f"\nWritten to {file} and, to be pasted into an issue, {page}.")
    return 0 if report["passed"] else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="folder or Hub id; by default the embedded model")
    parser.add_argument("--wheels", help="folder of wheels to install from, without the network")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--tiny", action="store_true", help="a reward and lengths for a small random model")
    parser.add_argument(
        "--small-notebook",
        action="store_true",
        help="the quickstart by its settings for a CPU: minutes, and no download",
    )
    parser.add_argument("--16bit", dest="is_16bit", action="store_true", help="instead of 4 bit")
    parser.add_argument("--out", help="the JSON; by default benchmarks/results/gpu_check_<card>.json")
    parser.add_argument("--work", help="folder for runs and merged models; by default a temporary one")
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    parser.add_argument("--request", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.steps < 4:  # the first step's learning rate is 0, and resuming needs a trained adapter at half of them
        parser.error(f"--steps {options.steps}: at least 4")
    return options


def _again_inside(options: argparse.Namespace, arguments: list[str]) -> int:
    """Install the wheels into an environment that also sees what is installed here (torch for CUDA), and go on in it."""
    wheels = sorted(str(wheel) for wheel in Path(options.wheels).glob("*.whl"))
    if not wheels:
        print(f"--wheels {options.wheels}: there are no wheels in it.", file=sys.stderr)
        return 2
    folder = Path(options.work or tempfile.mkdtemp(prefix="gpu-check-")) / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    if sys.prefix != sys.base_prefix:
        # What the new one calls the system is the interpreter below this environment, so this one is added by hand, behind.
        packages = subprocess.run(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        (Path(packages) / "outer_environment.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # --no-deps: the folder is what somebody resolved; unsloth's own list cannot be satisfied (requirements-no-deps.txt).
    pip = [sys.executable, "-m", "pip", "--python", str(python)]  # this one's pip, for that one
    command = [*pip, "install", "--quiet", "--no-index", "--no-deps", *wheels]
    done = subprocess.run(command)
    if done.returncode != 0:
        print("The wheels could not be installed; pip's reason stands above.", file=sys.stderr)
        return 1
    surroundings = {**os.environ, "GRPO_NB_GPU_CHECK_INSIDE": "1"}
    return subprocess.run([str(python), str(Path(__file__).resolve()), *arguments], env=surroundings).returncode


def _check(options: argparse.Namespace, work: Path, gpu: Any) -> dict[str, Any]:
    from grpo_nb.machine.packages import package_versions
    from grpo_nb.settings.vllm import vllm_obstacle

    request = Request(
        model=options.model, work=str(work), steps=options.steps, device=options.device, is_tiny=options.tiny,
        load_in_4bit=not options.is_16bit, use_vllm=False, is_small_notebook=options.small_notebook,
    )  # fmt: skip
    begun, obstacle = time.perf_counter(), None
    if gpu is not None:
        from gpu_check_phases import settings_for

        obstacle = vllm_obstacle(settings_for(dataclasses.replace(request, use_vllm=True)), gpu, options.model or None)
    has_vllm = gpu is not None and obstacle is None
    phases: dict[str, Any] = {}
    for name, function, use_vllm in plan_of(has_vllm):
        print(f"{name} ...", file=sys.stderr, flush=True)
        asked = dataclasses.replace(request, use_vllm=use_vllm)
        since = time.perf_counter()
        phases[name] = run_phase(function, asked) if gpu is None else _in_a_process(function, asked)
        phases[name].setdefault("seconds", time.perf_counter() - since)
    checks = {
        f"{name}: {what}": found for name, phase in phases.items() for what, found in phase.get("checks", {}).items()
    }
    for name, phase in phases.items():
        if "error" in phase:
            checks[f"{name}: ends"] = {"ok": False, "detail": phase["error"], "seconds": phase["seconds"]}
    return {
        "device": "cpu" if gpu is None else "gpu",
        "is_gpu_result": gpu is not None,
        "gpu": dataclasses.asdict(gpu) if gpu else None,
        "driver": _driver() if gpu else None,
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cuda_of_torch": _cuda_of_torch(),
        "versions": package_versions(),
        "vllm": "used" if has_vllm else f"not used: {obstacle}" if obstacle else "needs a GPU",
        "steps": options.steps,
        "model": options.model or "embedded",
        "is_tiny": options.tiny,
        "seconds": time.perf_counter() - begun,
        "phases": phases,
        "checks": checks,
        "passed": any(found["ok"] for found in checks.values()) and all(c["ok"] is not False for c in checks.values()),
    }


def _in_a_process(function: str, request: Request) -> dict[str, Any]:
    asked, limit = json.dumps(dataclasses.asdict(request)), LIMITS.get(function, _PHASE_SECONDS)
    command = [sys.executable, str(Path(__file__).resolve()), "--phase", function, "--request", asked]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {limit} seconds"}
    results = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode != 0 or not results:
        return {"error": f"ended with status {done.returncode}; its words stand above"}
    return json.loads(results[-1])


def _driver() -> str:
    from grpo_nb.machine.gpu import ask_nvidia_smi

    return ask_nvidia_smi(["--query-gpu=driver_version", "--format=csv,noheader"]).splitlines()[0].strip()


def _cuda_of_torch() -> str | None:
    import torch

    return torch.version.cuda


def _default_file(report: dict[str, Any], work: Path) -> Path:
    if not report["is_gpu_result"]:
        return work / "gpu_check_cpu.json"
    return RESULTS / f"gpu_check_{re.sub(r'[^a-z0-9]+', '_', report['gpu']['name'].lower()).strip('_')}.json"


def table(report: dict[str, Any]) -> str:
    """The report as Markdown: the machine, each check with its number and seconds, the kit beside the same by hand, phases."""
    verdicts = [found["ok"] for found in report["checks"].values()]
    counts = [f"{verdicts.count(ok)} {word}" for ok, word in _VERDICTS.items() if ok in verdicts]
    gpu, versions = report["gpu"], ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    machine = {
        "GPU": f"{gpu['name']}, {gpu['memory_gib']:.1f} GiB, compute capability {'.'.join(map(str, gpu['compute_capability']))}"
        if gpu else "none: no GPU result",
        "driver, CUDA of torch": f"{report['driver']}, {report['cuda_of_torch']}",
        "Python, system": f"{report['python']}, {report['platform']}",
        "packages": versions,
        "vLLM": report["vllm"],
        "model, steps": f"{report['model']}, {report['steps']}",
        "date, seconds": f"{report['date']}, {report['seconds']:.0f}",
    }  # fmt: skip
    lines = [f"**gpu-check: {', '.join(counts)}**", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in machine.items()]
    lines += ["", "| check | verdict | found | seconds |", "| --- | --- | --- | ---: |"]
    for name, found in report["checks"].items():
        lines.append(f"| {name} | {_VERDICTS[found['ok']]} | {_cell(found['detail'])} | {found['seconds']:.1f} |")
    lines += ["", "| | kit | by hand | ratio |", "| --- | ---: | ---: | ---: |"]
    units = {
        "step_seconds": "s a step", "completion_tokens_per_second": "completion tokens a second",
        "peak_gb": "GB at the peak" + ("" if report["is_gpu_result"] else " (of the whole process)"),
    }  # fmt: skip
    for suffix in ("with vLLM", "without vLLM"):
        kit, hand = (report["phases"].get(f"{who}, {suffix}", {}) for who in ("kit", "by hand"))
        for key, unit in units.items():
            if key in kit and key in hand:
                lines.append(f"| {unit}, {suffix} | {kit[key]:.3g} | {hand[key]:.3g} | {kit[key] / hand[key]:.2f} |")
    lines += ["", "| phase | seconds |", "| --- | ---: |"]
    lines += [f"| {name} | {phase['seconds']:.0f} |" for name, phase in report["phases"].items()]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """As one cell of a Markdown table, at most 500 characters, without the name of the user's home."""
    return " ".join(str(text).replace(str(Path.home()), "~").split()).replace("|", "/")[:500]


if __name__ == "__main__":
    sys.exit(main())
