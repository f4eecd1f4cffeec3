"""What the kit adds to a training step: metrics row, completions, live figure, at steps 100, 1,000 and 10,000.

    python benchmarks/recorder_overhead.py [--step-seconds 8]

Claims: at most 1 % of a step together, and constant over 10,000 steps. The recorder is given steps of 16 completions like
those of the quickstart; the last 50 steps before each mark are measured, those in between only added to rows, metrics file
and folder. The figure's clock runs ahead by the seconds of a step each time, so that it is drawn as often as in a real run.
CPU time, as other programs on the machine would disturb the time of day. The seconds of a step are an assumption that is
printed (benchmarks/results/kit_overhead.md measured 9 to 10 of the quickstart).
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _measure  # noqa: F401  # the kit of this checkout

from benchmarks.redraw import WEIGHTS, Handle, make_rows

MARKS = (100, 1_000, 10_000)
WINDOW = 50


def make_logs(size: int) -> dict[str, Any]:
    """What TRL keeps of a generation batch, with the texts' lengths of the quickstart."""
    chance = random.Random(1)
    prompt = [
        {"role": "system", "content": "Answer in this format. " * 8},
        {"role": "user", "content": "What is 3 + 4?"},
    ]
    return {
        "prompt": [prompt] * size,
        "completion": [
            [{"role": "assistant", "content": f"<reasoning>\n{i} + 4\n</reasoning>" * 2}] for i in range(size)
        ],
        "rewards": {name: [chance.random() for _ in range(size)] for name in WEIGHTS},
        "advantages": [chance.gauss(0, 1) for _ in range(size)],
    }


def ignore(*args: Any, **kwargs: Any) -> None:
    """A bar that shows nothing."""


class Part:
    """Adds up the CPU time of the calls of one method, and counts those that did something."""

    def __init__(self, owner: Any, name: str) -> None:
        self.seconds, self.done, inner = 0.0, 0, getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            done = inner(*args, **kwargs)
            self.done += bool(done)
            self.seconds += time.process_time() - start
            return done

        setattr(owner, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-seconds", type=float, default=8.0)
    step_seconds = parser.parse_args().step_seconds
    import IPython.display

    import grpo_nb as gn
    from grpo_nb.runs import figure as figures
    from grpo_nb.training.callback import Recorder

    IPython.display.display = lambda *args, **kwargs: Handle()
    # The figure's clock: CPU time of this process, and the seconds that the steps would have taken.
    ahead = 0.0
    figures.time = SimpleNamespace(perf_counter=lambda: time.process_time() + ahead)
    folder = Path(tempfile.mkdtemp())
    settings = gn.preset("cpu", max_steps=MARKS[-1])
    run = gn.runs.Run(folder)
    rewards = [{"name": name, "weight": weight} for name, weight in WEIGHTS.items()]
    run.write_info({"status": "running", "settings": settings.to_dict(), "rewards": rewards})
    logs = make_logs(settings.per_device_train_batch_size)
    recorder = Recorder(run, SimpleNamespace(_logs=logs, is_save_due=lambda save_steps: False), settings)
    recorder.bar = SimpleNamespace(n=0, set_postfix=ignore, update=ignore, refresh=ignore)
    recorder._plot = plot = figures.LivePlot(WEIGHTS, settings.beta)
    figure = Part(plot, "update")
    state, control = SimpleNamespace(global_step=0, max_steps=MARKS[-1]), SimpleNamespace(should_training_stop=False)
    (folder / "completions").mkdir()
    measured, before, first, table = 0.0, (0.0, 0.0, 0, 0), 0.0, []
    for step, row in enumerate(make_rows(MARKS[-1]), 1):
        ahead += step_seconds
        if not any(mark - WINDOW < step <= mark for mark in MARKS):
            recorder.rows.append(row)
            run.write_step(row, None)
            recorder.health.update(row)
            (folder / "completions" / f"step_{step:06d}.parquet").touch()
            continue
        state.global_step = step
        logged = {key: value for key, value in row.items() if key not in ("step", "max_steps", "holdout/accuracy")}
        start = time.process_time()
        recorder.on_log(None, state, control, logs=logged)
        measured += time.process_time() - start
        if not first:
            first, before = measured, (measured, figure.seconds, figure.done, step)
        if step in MARKS:
            now = (measured, figure.seconds, figure.done, step)
            table.append((step, *(b - a for a, b in zip(before, now, strict=True))))
            before = now
        elif any(step == mark - WINDOW + 1 for mark in MARKS[1:]):
            before = (*before[:3], step - 1)
    print(
        f"Assumed: {step_seconds:g} s a step. The first step pays once for pandas, pyarrow and matplotlib: {first:.2f} s.\n"
    )
    print(
        f"| last {WINDOW} steps up to | row, completions and alerts, ms a step | figure, ms a step | redraws | together, % "
        "of a step |"
    )
    print("| --- | --- | --- | --- | --- |")
    for step, everything, drawing, redraws, steps in table:
        rest = 1000 * (everything - drawing) / steps
        share = everything / steps / step_seconds
        print(f"| {step:,} | {rest:.1f} | {1000 * drawing / steps:.1f} | {redraws} | {share:.2%} |")
    last = time.process_time()
    plot.update(recorder.rows, is_last=True)
    print(f"\nThe last figure, drawn in any case: {time.process_time() - last:.2f} s.")


if __name__ == "__main__":
    main()
