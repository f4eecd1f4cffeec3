"""A training step on a quiet machine and beside one busy process: the kit, and unsloth and TRL by hand.

    python benchmarks/busy_step.py [--pairs 3] [--rounds 1]

Holds if the kit's step takes at most 1.05 of the best on a quiet machine, and beside one busy process
at most 3 times as long as on a quiet one. The quickstart's model and task, with a group of 4 and
completions of up to 24 tokens, so that a slow step ends. The learning rate is so small that all steps
write completions of the same length. Each side is a process of its own; in it quiet and busy steps
alternate. A step during which other programs used the machine is thrown away (/proc/stat).

- `kit`: as it is.
- `kit, libgomp's own`: the same with GOMP_SPINCOUNT=300000, which is libgomp's value where nobody sets
  one; as a user's own value it switches off all that the kit does about waiting.
- `kit, passive`: with OMP_WAIT_POLICY=PASSIVE.
- `stock`: unsloth and TRL called by hand, with libgomp's own.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _measure import ask, machine, print_header, print_row, tell

SIDES: dict[str, dict[str, str]] = {
    "kit": {},
    "kit, libgomp's own": {"GOMP_SPINCOUNT": "300000"},
    "kit, passive": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"},
    "stock": {"GOMP_SPINCOUNT": "300000"},
}
SETTINGS = {
    "num_generations": 4,
    "per_device_train_batch_size": 4,
    "max_completion_length": 24,
    "learning_rate": 1e-12,
}
QUIET_MOST = 1.05
BUSY_MOST = 3.0
# Cores' worth of time that others may use during a step that counts.
FOREIGN_CORES = 0.15


def read_busy_seconds() -> float:
    """Return the processor time that all programs have used since the machine started."""
    first_line = Path("/proc/stat").read_text().split("\n", 1)[0]
    # The fields are user, nice, system, idle, iowait, irq, softirq and steal. The fields after them
    # are the time of guests, which `user` already includes. Some systems have fewer fields.
    fields = [int(field) for field in first_line.split()[1:9]]
    idle = sum(fields[3:5])
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK")


class Step:
    """Measures the time of one step, and the processor time of other programs meanwhile."""

    def __init__(self) -> None:
        self.at = time.perf_counter()
        self.all = read_busy_seconds()
        self.own = time.process_time()

    def end(self) -> tuple[float, float]:
        """Return the seconds of the step, and how many cores other programs used on average."""
        seconds = time.perf_counter() - self.at
        others = read_busy_seconds() - self.all - (time.process_time() - self.own)
        return seconds, others / seconds


def measure(side: str, pairs: int) -> dict[str, Any]:
    """Train a few steps; a busy process runs beside every second one."""
    import cpu_step

    import grpo_nb as gn

    samples: list[dict[str, Any]] = []
    weights: list[str] = []
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.kill(busy.pid, signal.SIGSTOP)
    steps = 2 * pairs + 1  # the first warms up

    def attach(trainer: Any, _steps: list[Any]) -> None:
        from transformers import TrainerCallback

        class Clock(TrainerCallback):
            def on_step_begin(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
                self.is_busy = state.global_step > 0 and state.global_step % 2 == 0
                if self.is_busy:
                    os.kill(busy.pid, signal.SIGCONT)
                self.step = Step()

            def on_step_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
                seconds, others = self.step.end()
                os.kill(busy.pid, signal.SIGSTOP)
                # Let the kit notice that the machine is quiet again.
                time.sleep(1.5)
                if state.global_step > 1:
                    samples.append({"is_busy": self.is_busy, "seconds": seconds, "others": others})

            def on_train_end(
                self, _args: Any, _state: Any, _control: Any, model: Any, **_: Any
            ) -> None:
                digest = hashlib.sha256()
                for name, weight in model.named_parameters():
                    if "lora_" in name:
                        digest.update(weight.detach().numpy().tobytes())
                weights.append(digest.hexdigest()[:12])

        trainer.add_callback(Clock())
        trainer.lengths = []

    cpu_step.watch = attach
    try:
        with tempfile.TemporaryDirectory() as out:
            settings = gn.preset("cpu", max_steps=steps, run_root=out, **SETTINGS)
            if side == "stock":
                cpu_step.by_hand(settings, out, [])
            else:
                from grpo_nb.training import train

                build = train.build_trainer

                def with_clock(*arguments: Any) -> Any:
                    trainer = build(*arguments)
                    attach(trainer, [])
                    return trainer

                train.build_trainer = with_clock
                model, tokenizer = gn.load_model(settings)
                task = gn.load_task("arithmetic", settings)
                gn.train(model, tokenizer, task, cpu_step.rewards(gn), settings, name="bench")
    finally:
        busy.kill()
    return {"samples": samples, "weights": weights[0]}


def accepted(samples: list[dict[str, Any]], is_busy: bool) -> list[float]:
    """Return the seconds of the steps during which nothing else used the machine."""
    # The busy process uses one core, or less where it shares one.
    most = FOREIGN_CORES + (1.0 if is_busy else 0.0)
    return [
        sample["seconds"]
        for sample in samples
        if sample["is_busy"] == is_busy and sample["others"] <= most
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pairs", type=int, default=3, help="quiet and busy steps of a process (3)"
    )
    parser.add_argument("--rounds", type=int, default=1, help="processes of each side (1)")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        tell(measure(options.side, options.pairs))
        return 0
    samples: dict[str, list[dict[str, Any]]] = {side: [] for side in options.sides}
    weights: dict[str, set[str]] = {side: set() for side in options.sides}
    for _ in range(options.rounds):
        for side in options.sides:
            result = ask(__file__, "--side", side, "--pairs", options.pairs, env=SIDES[side])
            samples[side] += result["samples"]
            weights[side].add(result["weights"])
            shown = []
            for sample in result["samples"]:
                state = "busy" if sample["is_busy"] else "quiet"
                shown.append(f"{state} {sample['seconds']:.2f} ({sample['others']:.2f})")
            print(f"{side}: {', '.join(shown)}; weights {result['weights']}", flush=True)
    print(f"\n{machine()}\n")
    print_header("side", "quiet, s", "busy, s", "busy / quiet", "steps that count")
    quiet: dict[str, float] = {}
    ratio: dict[str, float] = {}
    for side, listed in samples.items():
        times = [accepted(listed, is_busy) for is_busy in (False, True)]
        medians = [statistics.median(one) if one else float("nan") for one in times]
        quiet[side] = medians[0]
        ratio[side] = medians[1] / medians[0]
        counts = f"{len(times[0])} + {len(times[1])} of {len(listed)}"
        seconds = [f"{median:.2f}" for median in medians]
        print_row(side, *seconds, f"{ratio[side]:.1f}", counts)
    kit_sides = [side for side in options.sides if side != "stock"]
    if "kit" not in kit_sides:
        return 0
    if any(math.isnan(quiet[side] + ratio["kit"]) for side in kit_sides):
        print("\nOther programs used the machine: no verdict. Run it again when nothing else runs.")
        return 2
    best = min(quiet[side] for side in kit_sides)
    kit_weights = set().union(*(weights[side] for side in kit_sides))
    same = len(kit_weights) == 1
    holds = quiet["kit"] <= QUIET_MOST * best and ratio["kit"] <= BUSY_MOST and same
    print(
        f"\nkit: {quiet['kit'] / best:.2f} of the best quiet step (at most {QUIET_MOST}), "
        f"{ratio['kit']:.1f} times as long beside one busy process (at most {BUSY_MOST:g}); "
        f"the same weights on all sides of the kit: {same}. {'Holds' if holds else 'FAILS'}."
    )
    return int(not holds)


if __name__ == "__main__":
    raise SystemExit(main())
