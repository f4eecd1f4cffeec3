"""Does `keep="best"` keep the best adapter of a run that really rises and falls? The embedded model, learning too fast.

    python studies/best_adapter.py [--set learning_rate=1e-3 max_steps=28 ...] > studies/results/best_adapter.md

Trains on sums and scores held-out questions on the way. Then another process opens the run and asks the adapter that was kept,
and that of the last checkpoint, the same questions: each has to score what the curve said at its step.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tempfile
from pathlib import Path

import grpo_nb as gn
from grpo_nb.models.load import load_adapter

TOO_LARGE = {"learning_rate": 1e-3, "max_steps": 28, "holdout_every": 4, "holdout_questions": 32, "beta": 0.0}


def train(changes: dict[str, object], folder: str) -> None:
    """Train, and print the curve of the held-out scores."""
    settings = gn.preset("cpu", **TOO_LARGE, keep="best", run_root=folder, **changes)
    model, tokenizer = gn.load_model(settings)
    count = settings.holdout_questions
    task = gn.load_task("arithmetic", settings, holdout_size=count, tokenizer=tokenizer)
    rewards = [gn.rewards.correctness(weight=2.0), gn.rewards.xml_format(weight=1.0), gn.rewards.xml_tags(weight=1.0)]
    run = gn.train(model, tokenizer, task, rewards, settings, name="best")
    said = {name: getattr(settings, name) for name in TOO_LARGE}
    print(f"Settings: {said}, seed {settings.seed}; {count} held-out questions.\n")
    print("| step | reward | held-out | in the format |\n| --- | --- | --- | --- |")
    for row in run.rows:
        if "holdout/accuracy" in row:
            right, in_format = row["holdout/accuracy"], row["holdout/in_format"]
            print(f"| {row['step']:.0f} | {row['reward']:.2f} | {right:.0%} | {in_format:.0%} |")
    print(f"\n{run.best}\n")


def ask(folder: str) -> None:
    """Ask both adapters of a run the questions that its curve was made of."""
    run = gn.open_run(Path(folder) / "best")
    model, tokenizer = gn.load_model(run.settings)
    last = run.rows[-1]
    kept = {"adapter": run.best.accuracy, f"checkpoints/checkpoint-{last['step']}": last["holdout/accuracy"]}
    for adapter, expected in kept.items():
        load_adapter(model, run.path / adapter)
        answered = gn.evaluate((model, tokenizer), run=run)
        print(f"`{adapter}/`, loaded by another process: {answered.accuracy:.1%}; the curve said {expected:.1%}.")
        if answered.accuracy != expected:
            sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings to change")
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        ask(arguments.ask)
        return
    changes = {name: ast.literal_eval(value) for name, value in (pair.split("=", 1) for pair in arguments.set)}
    with tempfile.TemporaryDirectory() as folder:
        train(changes, folder)
        print(
            subprocess.run(
                [sys.executable, __file__, "--ask", folder], check=True, stdout=subprocess.PIPE, text=True
            ).stdout
        )


if __name__ == "__main__":
    main()
