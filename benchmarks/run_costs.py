"""What runs and exports cost here and in another checkout: time, memory and size on the disk.

    python benchmarks/run_costs.py --against ../other-checkout [--rounds 3]

Each part runs in a process of its own, the checkouts in turns. Peak memory is that of the process
or of its largest child.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _measure import ROOT, ask, print_header, print_row, tell

# Short steps, so that the time of a checkpoint is not lost in the noise of the sampling.
STEPS = 12
DRAWN_STEPS = 1_000


def megabytes(folder: Path) -> float:
    """Return the size of all files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that `work()` took, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def peak_gb() -> float:
    """Return the largest memory of this process or of one of its ended children."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(one).ru_maxrss for one in who) / 1e6


def train(folder: Path) -> dict[str, float]:
    """Train with a checkpoint after each step, and with one at the end; each twice."""
    import grpo_nb as gn

    changes = {"max_steps": STEPS, "max_completion_length": 8, "num_generations": 4}
    changes |= {"per_device_train_batch_size": 8, "dtype": "float32", "run_root": str(folder)}
    settings = gn.preset("cpu", **changes)
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, tokenizer=tokenizer)
    rewards = [gn.rewards.correctness(weight=2.0)]
    # The first training also pays for what a process does once, so it is not counted.
    gn.train(model, tokenizer, task, rewards, settings, name="first")
    seconds = {0: [], 1: []}
    for name, save_steps in (("one", 0), ("each", 1), ("one-again", 0), ("each-again", 1)):
        chosen = settings.replace(save_steps=save_steps)
        taken, _ = timed(
            lambda name=name, chosen=chosen: gn.train(
                model, tokenizer, task, rewards, chosen, name=name
            )
        )
        seconds[save_steps].append(taken)
    return {
        "checkpoint, s": (min(seconds[1]) - min(seconds[0])) / (STEPS - 1),
        "run folder, MB": megabytes(folder / "one"),
    }


def draw(folder: Path) -> dict[str, float]:
    """Draw a run of many steps, made from the rows of the trained one."""
    import grpo_nb as gn

    path = folder / "one" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    many = [rows[step % len(rows)] | {"step": step + 1} for step in range(DRAWN_STEPS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in many))

    def drawn() -> None:
        gn.open_run(folder / "one").plot().savefig(io.BytesIO(), format="png")

    drawn()
    seconds = statistics.median(timed(drawn)[0] for _ in range(5))
    path.write_text("\n".join(lines) + "\n")
    return {f"open and draw {DRAWN_STEPS:,} steps, s": seconds}


def merge(folder: Path) -> dict[str, float]:
    """Export the run as one model, verified."""
    import grpo_nb as gn

    seconds, _ = timed(lambda: gn.export_merged(folder / "one", folder / "merged"))
    return {
        "merged export, s": seconds,
        "merged export, peak GB": peak_gb(),
        "merged export, MB": megabytes(folder / "merged"),
    }


def two_processes(folder: Path) -> dict[str, float]:
    """Write the run as a folder for plain TRL, and train it there with two processes."""
    import grpo_nb as gn

    # Checkouts before November 2026 call the function `write`.
    write_project = getattr(gn.scaleout, "write_project", None) or gn.scaleout.write
    project = folder / "project"
    written, _ = timed(lambda: write_project(folder / "one", project))
    # The TRL of the head of train.py, which trains on a CPU without Unsloth.
    head = (project / "train.py").read_text()
    trl = re.search(r"trl==[0-9.]+", head)[0]
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
    subprocess.run([*install, str(folder / "trl"), trl], check=True)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "cpu2.yaml"]
    command = [*launch, "train.py", "--processes", "2"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder / "trl")}
    trained, done = timed(
        lambda: subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr[-3000:])
    return {
        "write the folder, s": written,
        "folder, MB": megabytes(project),
        "two processes, s": trained,
    }


PARTS = {part.__name__: part for part in (train, draw, merge, two_processes)}


def measure(checkout: Path) -> dict[str, float]:
    """Run all parts with the package of a checkout."""
    numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in PARTS:
            numbers |= ask(__file__, part, folder, checkout, env={"HF_HUB_OFFLINE": "1"})
    return numbers


def main() -> None:
    """Print a table with the medians of both checkouts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    checkouts = (chosen.against.resolve(), ROOT)
    rounds = [[measure(checkout) for checkout in checkouts] for _ in range(chosen.rounds)]
    print_header("", "other checkout", "this one", "ratio")
    for name in rounds[0][0]:
        other, own = (
            statistics.median(pair[side][name] for pair in rounds) for side in range(len(checkouts))
        )
        print_row(name, f"{other:.3g}", f"{own:.3g}", f"{own / other:.2f}")


if __name__ == "__main__":
    if sys.argv[1] in PARTS:
        part, folder, checkout = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
        sys.path.insert(0, checkout)
        tell(PARTS[part](folder))
    else:
        main()
