"""Does 07_tools learn on every seed? Runs the notebook's own cells with many, and prints the table of docs/evidence/tools.md.

    python benchmarks/tools_seeds.py --seeds 0 1 2 3 4 5 6 7
    python benchmarks/tools_seeds.py --table

Each is a process of its own on one thread. A seed changes the split, the start of the LoRA and
every draw, not the villages. Results are kept in benchmarks/results/tools_seeds.jsonl; what
stands there is not run again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from typing import Any

from _measure import ROOT, ask, machine, peak_gb, tell

import grpo_nb

KEPT = ROOT / "benchmarks" / "results" / "tools_seeds.jsonl"
NOTEBOOK = ROOT / "notebooks" / "src" / "07_tools.py"
COLUMNS = (
    "seed",
    "calls, first step",
    "last",
    "before",
    "after",
    "difference, 95 % interval",
    "verdict",
    "chains of three, before",
    "after",
    "verdict",
    "processor, s",
    "peak memory, GB",
)


def train(seed: int, folder: str) -> dict[str, Any]:
    """The cells of the notebook with this seed, and what they found."""
    source = NOTEBOOK.read_text()
    assert source.count("CHANGES = {}") == 1
    source = source.replace("CHANGES = {}", f"CHANGES = {{'seed': {seed}, 'run_root': {folder!r}}}")
    # The shared setup cell, which the source only names, imports the kit. `display` is IPython's.
    cells: dict[str, Any] = {"__name__": "notebook", "gn": grpo_nb, "display": print}
    exec(compile(source, NOTEBOOK, "exec"), cells)
    rows = cells["run"].rows
    sides = {"": cells["comparison"], "three, ": cells["three"]}
    return {
        "seed": seed,
        "rewards": [round(row["reward"], 4) for row in rows],
        "calls": [row["tools/call_frequency"] for row in rows],
        **{f"{name}before": one.before.accuracy for name, one in sides.items()},
        **{f"{name}after": one.after.accuracy for name, one in sides.items()},
        **{f"{name}difference": one.accuracy_test.difference for name, one in sides.items()},
        **{f"{name}interval": one.accuracy_test.interval for name, one in sides.items()},
        **{f"{name}verdict": one.verdict for name, one in sides.items()},
        "processor, s": time.process_time(),
        "peak memory, GB": peak_gb(),
        "machine": machine(),
        "versions": cells["run"].info["versions"],
        "date": time.strftime("%Y-%m-%d"),
    }


def table(results: list[dict[str, Any]]) -> str:
    """The results as Markdown, one row a seed."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join('---' for _ in COLUMNS)} |"]
    for r in sorted(results, key=lambda r: r["seed"]):
        low, high = r["interval"]
        cells = (
            r["seed"],
            f"{r['calls'][0]:.2f}",
            f"{r['calls'][-1]:.2f}",
            f"{r['before']:.0%}",
            f"{r['after']:.0%}",
            f"{r['difference']:+.0%} ({low:+.0%} to {high:+.0%})",
            r["verdict"],
            f"{r['three, before']:.0%}",
            f"{r['three, after']:.0%}",
            r["three, verdict"],
            f"{r['processor, s']:.0f}",
            f"{r['peak memory, GB']:.1f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    count = len(results)
    better = sum(result["verdict"] == "better" for result in results)
    better_on_three = sum(result["three, verdict"] == "better" for result in results)
    lines.append(
        f"\nbetter on {better} of {count}, on chains of three on {better_on_three} of {count}."
    )
    return "\n".join(lines)


def kept() -> list[dict[str, Any]]:
    """Return the stored results."""
    return [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.is_file() else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(8)))
    parser.add_argument("--table", action="store_true", help="only print what was measured")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            tell(train(arguments.only, folder))
        return
    have = {result["seed"] for result in kept()}
    for seed in () if arguments.table else [seed for seed in arguments.seeds if seed not in have]:
        found = ask(__file__, "--only", seed, env={"OMP_NUM_THREADS": "1"})
        with KEPT.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(table([found]).splitlines()[2], flush=True)
    print("\n" + table(kept()))


if __name__ == "__main__":
    main()
