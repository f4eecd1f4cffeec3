"""From a fresh clone to the first plotted training step, split into install, convert, load and first step.

    python benchmarks/first_step.py

Clones the repository, makes its environment from the registry, and runs the quickstart's calls in it until the first row is
drawn. Downloads are part of the first number, so it says as much about the network as about the kit.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _measure import ROOT, ask

INSIDE = """
import json, time
started = time.perf_counter()
from grpo_nb.models.embedded import embedded_model_folder
embedded_model_folder()
converted = time.perf_counter()
import grpo_nb as gn
settings = gn.preset("cpu", max_steps=1, run_root="runs")
model, tokenizer = gn.load_model(settings)
task = gn.load_task("arithmetic", settings, tokenizer=tokenizer)
loaded = time.perf_counter()
rewards = [gn.rewards.correctness(), gn.rewards.xml_format(), gn.rewards.xml_tags()]
run = gn.train(model, tokenizer, task, rewards, settings)
run.plot()
done = time.perf_counter()
parts = {"import and convert": converted - started, "load": loaded - converted, "first step": done - loaded}
print("RESULT " + json.dumps(parts))
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        started = time.perf_counter()
        subprocess.run([sys.executable, "scripts/bootstrap.py"], cwd=clone, check=True)
        parts = {"install": time.perf_counter() - started}
        python, cache = clone / ".venv" / "bin" / "python", str(Path(folder) / "cache")
        parts |= ask("-c", INSIDE, python=python, env={"GRPO_NB_CACHE": cache}, cwd=clone)
    print("| part | seconds |\n| --- | --- |")
    for name, value in {**parts, "all": sum(parts.values())}.items():
        print(f"| {name} | {value:.0f} |")


if __name__ == "__main__":
    main()
