"""Does the quickstart learn on every seed? Trains it with several, and prints the table of docs/quickstart_seeds.md.

    python benchmarks/quickstart_seeds.py --seeds 3407 0 1 2 [--set learning_rate=5e-5 ...]

Each seed is a process of its own, so that peak memory is that of one run. Seeds change the data, the split, the LoRA's start
and every draw.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

COLUMNS = (
    "seed", "first 3", "last 10", "ratio", "before", "after", "difference, 95 % interval", "KL, last 10",
    "training, s", "peak memory, GB",
)  # fmt: skip


def one_seed(seed: int, changes: dict[str, object], folder: str) -> dict[str, object]:
    import grpo_nb as gn

    settings = gn.preset("cpu", seed=seed, run_root=folder, **changes)
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, tokenizer=tokenizer)
    rewards = [gn.rewards.correctness(weight=2.0), gn.rewards.xml_format(weight=1.0), gn.rewards.xml_tags(weight=1.0)]
    started = time.perf_counter()
    run = gn.train(model, tokenizer, task, rewards, settings, name=f"seed{seed}")
    seconds = time.perf_counter() - started
    comparison = gn.compare(run, task)
    rewards_seen = [row["reward"] for row in run.rows]
    first, last = sum(rewards_seen[:3]) / 3, sum(rewards_seen[-10:]) / 10
    return {
        "seed": seed,
        "rewards": rewards_seen,
        "first 3": first,
        "last 10": last,
        "ratio": last / first,
        "before": comparison.before.accuracy,
        "after": comparison.after.accuracy,
        "difference": comparison.difference,
        "interval": comparison.interval,
        "verdict": comparison.verdict,
        "KL, last 10": sum(row["kl"] for row in run.rows[-10:]) / 10,
        "training, s": seconds,
        # ru_maxrss is in KiB on Linux.
        "peak memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def table(results: list[dict]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join('---' for _ in COLUMNS)} |"]
    for r in results:
        low, high = r["interval"]
        cells = (
            r["seed"], f"{r['first 3']:.2f}", f"{r['last 10']:.2f}", f"{r['ratio']:.1f}", f"{r['before']:.0%}",
            f"{r['after']:.0%}", f"{r['difference']:+.0%} ({low:+.0%} to {high:+.0%})", f"{r['KL, last 10']:.3f}",
            f"{r['training, s']:.0f}", f"{r['peak memory, GB']:.1f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3407, 0, 1, 2, 3])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings to change")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    pairs = (change.split("=", 1) for change in arguments.set)
    changes = {name: ast.literal_eval(value) for name, value in pairs}
    if arguments.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            print("RESULT", json.dumps(one_seed(arguments.only, changes, folder)))
        return
    results = []
    for seed in arguments.seeds:
        command = [sys.executable, __file__, "--only", str(seed), "--set", *arguments.set]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
        results.append(json.loads(line.removeprefix("RESULT ")))
        print(table(results[-1:]).splitlines()[-1], flush=True)
    import grpo_nb as gn
    from grpo_nb.environment import package_versions

    record = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": package_versions(),
        "settings": gn.preset("cpu", **changes).to_dict(),
        "results": results,
    }
    (ROOT / "benchmarks" / "results" / "quickstart_seeds.json").write_text(json.dumps(record, indent=1) + "\n")
    print("\n" + table(results))


if __name__ == "__main__":
    main()
