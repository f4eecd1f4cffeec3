"""Does the quickstart pass its own last cell on every seed? Trains it with many, and prints the table of docs/evidence.

    python benchmarks/quickstart_seeds.py --seeds 0 1 2 3 --dtypes float32 bfloat16 [--jobs 2] [--set learning_rate=5e-5 ...]
    python benchmarks/quickstart_seeds.py --table

Each training is a process of its own, so that peak memory is that of one run. Seeds change the data, the split, the start of
the LoRA and every draw. Results are kept in benchmarks/results/quickstart_seeds.jsonl; what stands there is not run again.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from _measure import ROOT, ask, machine, peak_gb, tell

KEPT = ROOT / "benchmarks" / "results" / "quickstart_seeds.jsonl"
WEIGHTS = [2.0, 1.0, 0.5]
"""Of the answer, the format and the tags; results with others are kept apart."""
COLUMNS = (
    "seed", "number type", "reward, first third", "last third", "p of the rise", "before", "after",
    "difference, 95 % interval", "verdict", "KL, last 10", "passes", "peak memory, GB",
)  # fmt: skip


def train(seed: int, dtype: str, changes: dict[str, object], folder: str) -> dict[str, Any]:
    """The quickstart's cells from the model to the comparison, and what its last cell asks."""
    import grpo_nb as gn

    settings = gn.preset("cpu", seed=seed, dtype=dtype, run_root=folder, **changes)
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, tokenizer=tokenizer)
    kinds = (gn.rewards.correctness, gn.rewards.xml_format, gn.rewards.xml_tags)
    rewards = [kind(weight=weight) for kind, weight in zip(kinds, WEIGHTS, strict=True)]
    started = time.perf_counter()
    run = gn.train(model, tokenizer, task, rewards, settings, name=f"seed{seed}")
    seconds = time.perf_counter() - started
    comparison = gn.compare(run, task)
    rise = run.rise()
    rows = run.rows
    return {
        "seed": seed,
        "number type": run.info["number_type"],
        "rewards": [round(row["reward"], 4) for row in rows],
        "reward, first third": rise.first,
        "last third": rise.last,
        "p of the rise": rise.p_value,
        "before": comparison.before.accuracy,
        "after": comparison.after.accuracy,
        "difference": comparison.result.difference,
        "interval": comparison.result.interval,
        "verdict": comparison.verdict,
        "KL, last 10": sum(row["kl"] for row in rows[-10:]) / 10,
        "passes": rise.is_clear and rows[-1]["kl"] > 0 and comparison.verdict == "better",
        "training, s": seconds,
        "peak memory, GB": peak_gb(),
        "changes": changes,
        "weights": WEIGHTS,
        "machine": machine(),
        "versions": run.info["versions"],
        "date": time.strftime("%Y-%m-%d"),
    }


def table(results: list[dict[str, Any]]) -> str:
    """The results as Markdown, one row a training."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join('---' for _ in COLUMNS)} |"]
    for r in sorted(results, key=lambda r: (r["number type"] != "float32", r["seed"])):
        low, high = r["interval"]
        cells = (
            r["seed"], r["number type"], f"{r['reward, first third']:.2f}", f"{r['last third']:.2f}",
            f"{r['p of the rise']:.0e}", f"{r['before']:.0%}", f"{r['after']:.0%}",
            f"{r['difference']:+.0%} ({low:+.0%} to {high:+.0%})", r["verdict"], f"{r['KL, last 10']:.3f}",
            "yes" if r["passes"] else "NO", f"{r['peak memory, GB']:.1f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    passed = sum(r["passes"] for r in results)
    return "\n".join(lines) + f"\n\n{passed} of {len(results)} pass."


def kept(changes: dict[str, object]) -> list[dict[str, Any]]:
    """What was measured so far with these changes, under the weights of today."""
    lines = [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.is_file() else []
    return [line for line in lines if line["changes"] == changes and line["weights"] == WEIGHTS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(20)))
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=("float32", "bfloat16"))
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, each with its share of the cores")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings to change")
    parser.add_argument("--table", action="store_true", help="only print what was measured")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    pairs = (change.split("=", 1) for change in arguments.set)
    changes = {name: ast.literal_eval(value) for name, value in pairs}
    if arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            tell(train(int(arguments.only[0]), arguments.only[1], changes, folder))
        return

    def one(seed: int, dtype: str) -> None:
        threads = str(max((os.cpu_count() or 1) // arguments.jobs, 1))
        found = ask(__file__, "--only", seed, dtype, "--set", *arguments.set, env={"OMP_NUM_THREADS": threads})
        with KEPT.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(table([found]).splitlines()[2], flush=True)

    if not arguments.table:
        have = {(r["seed"], r["number type"]) for r in kept(changes)}
        wanted = [pair for pair in itertools.product(arguments.seeds, arguments.dtypes) if pair not in have]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(one, *zip(*wanted, strict=True)) if wanted else ())
    print("\n" + table(kept(changes)))


if __name__ == "__main__":
    main()
