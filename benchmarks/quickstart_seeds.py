"""Does the quickstart pass its own last cell on every seed? Trains it with many, and prints the table of docs/evidence.

    python benchmarks/quickstart_seeds.py --seeds 0 1 2 3 --dtypes float32 bfloat16 [--jobs 2] [--set learning_rate=5e-5 ...]
    python benchmarks/quickstart_seeds.py --table

Two tables are printed: of the training, and of the three held-out measures. Those are correct
answers (right, and in the format), answers in the format, and completions whose last number is
the right one, in the format or not.

Each training is a process of its own, so that peak memory is that of one run. Seeds change the
data, the split, the start of the LoRA and every draw. Results are kept in
benchmarks/results/quickstart_seeds.jsonl; a seed that has all three measures there is not run
again.
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
"""Weights of answer, format and tags; results with other weights are stored separately."""
COLUMNS = (
    "seed",
    "number type",
    "reward, first third",
    "last third",
    "p of the rise",
    "before",
    "after",
    "difference, 95 % interval",
    "verdict",
    "KL, last 10",
    "passes",
    "peak memory, GB",
)


MEASURES = {
    "accuracy": "correct",
    "in_format": "in the format",
    "anywhere": "correct anywhere in the text",
}
"""The three held-out measures, by their names in `Comparison.tests`."""
MEASURE_COLUMNS = (
    "seed",
    "number type",
    "measure",
    "before",
    "after",
    "difference, 95 % interval",
    "p",
)


def measured(comparison: Any) -> dict[str, Any]:
    """Return the three measures of a comparison: both shares with their intervals, and the paired test."""
    measures = {}
    for measure in MEASURES:
        result = comparison.tests[measure]
        measures[measure] = {
            "before": comparison.before.share_of(measure),
            "before, interval": comparison.before.interval_of(measure),
            "after": comparison.after.share_of(measure),
            "after, interval": comparison.after.interval_of(measure),
            "difference": result.difference,
            "interval": result.interval,
            "p": result.p_value,
            "verdict": result.verdict,
        }
    return measures


def train(seed: int, dtype: str, changes: dict[str, object], folder: str) -> dict[str, Any]:
    """The quickstart's cells from the model to the comparison, and what its last cell asks."""
    import grpo_nb as gn

    settings = gn.preset("cpu", seed=seed, dtype=dtype, run_root=folder, **changes)
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, tokenizer=tokenizer)
    kinds = (gn.rewards.correctness, gn.rewards.exact_format, gn.rewards.partial_format)
    rewards = [kind(weight=weight) for kind, weight in zip(kinds, WEIGHTS, strict=True)]
    started = time.perf_counter()
    run = gn.train(model, tokenizer, task, rewards, settings, name=f"seed{seed}")
    seconds = time.perf_counter() - started
    comparison = gn.compare(run, task)
    rise = run.rise()
    rows = run.rows
    return {
        "seed": seed,
        "number type": run.info["dtype"],
        "rewards": [round(row["reward"], 4) for row in rows],
        "reward, first third": rise.first_mean,
        "last third": rise.last_mean,
        "p of the rise": rise.p_value,
        "before": comparison.before.accuracy,
        "after": comparison.after.accuracy,
        "difference": comparison.accuracy_test.difference,
        "interval": comparison.accuracy_test.interval,
        "verdict": comparison.verdict,
        "measures": measured(comparison),
        "sentence": comparison.sentence,
        "changed": comparison.change_counts,
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
            r["seed"],
            r["number type"],
            f"{r['reward, first third']:.2f}",
            f"{r['last third']:.2f}",
            f"{r['p of the rise']:.0e}",
            f"{r['before']:.0%}",
            f"{r['after']:.0%}",
            f"{r['difference']:+.0%} ({low:+.0%} to {high:+.0%})",
            r["verdict"],
            f"{r['KL, last 10']:.3f}",
            "yes" if r["passes"] else "NO",
            f"{r['peak memory, GB']:.1f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    passed = sum(r["passes"] for r in results)
    return "\n".join(lines) + f"\n\n{passed} of {len(results)} pass."


def measures_table(results: list[dict[str, Any]]) -> str:
    """Return the three held-out measures of each training as Markdown."""
    lines = [
        f"| {' | '.join(MEASURE_COLUMNS)} |",
        f"| {' | '.join('---' for _ in MEASURE_COLUMNS)} |",
    ]
    for result in sorted(
        results, key=lambda result: (result["number type"] != "float32", result["seed"])
    ):
        for measure, name in MEASURES.items():
            numbers = result["measures"][measure]
            low, high = numbers["interval"]
            p_value = "< 0.001" if numbers["p"] < 0.001 else f"{numbers['p']:.3f}"
            cells = (
                result["seed"],
                result["number type"],
                name,
                with_interval(numbers["before"], numbers["before, interval"]),
                with_interval(numbers["after"], numbers["after, interval"]),
                f"{100 * numbers['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})",
                p_value,
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def with_interval(share: float, interval: list[float]) -> str:
    """Return a share with its interval in percent."""
    low, high = interval
    return f"{100 * share:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def kept(changes: dict[str, object]) -> list[dict[str, Any]]:
    """Return the stored results with these changes and the current weights."""
    lines = [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.is_file() else []
    return [line for line in lines if line["changes"] == changes and line["weights"] == WEIGHTS]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(20)))
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=("float32", "bfloat16"))
    parser.add_argument(
        "--jobs", type=int, default=1, help="trainings at a time, each with its share of the cores"
    )
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings to change"
    )
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
        found = ask(
            __file__,
            "--only",
            seed,
            dtype,
            "--set",
            *arguments.set,
            env={"OMP_NUM_THREADS": threads},
        )
        with KEPT.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(table([found]).splitlines()[2], flush=True)

    if not arguments.table:
        have = {(r["seed"], r["number type"]) for r in kept(changes) if "measures" in r}
        wanted = [
            pair
            for pair in itertools.product(arguments.seeds, arguments.dtypes)
            if pair not in have
        ]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(one, *zip(*wanted, strict=True)) if wanted else ())
    print("\n" + table(kept(changes)))
    if complete := [result for result in kept(changes) if "measures" in result]:
        print("\n" + measures_table(complete))


if __name__ == "__main__":
    main()
