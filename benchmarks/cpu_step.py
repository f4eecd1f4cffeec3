"""A GRPO step of the quickstart on a CPU: the kit against unsloth and TRL called by hand, part by part.

    python benchmarks/cpu_step.py [--steps 4] [--rounds 3]

Aim: at most 0.42 of the time of the better stock on a CPU with bfloat16 instructions, 0.38
without, and 0.8 of its peak memory. Same model, data, settings and seeds; in the same number type
also the same samples (their mean length is printed as a check). TRL runs at its best settings for
a CPU: no gradient checkpointing, fused optimizer, no copy of the reference adapter; once in
float32 and, where the CPU has instructions for it, once in bfloat16, which Unsloth then chooses.
Each measurement is a process of its own; the sides alternate.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from typing import Any

from _measure import (
    ask,
    has_bfloat16_instructions,
    machine,
    peak_gb,
    print_header,
    print_row,
    tell,
)

KIT = "kit"
SIDES = ("stock bfloat16", "stock float32", "kit bfloat16", KIT)
PARTS = ("generation", "log-probabilities", "backward", "rest")


def watch(trainer: Any, steps: list[dict[str, float]]) -> None:
    """Make a trainer note how long each part of each step takes."""
    from transformers import TrainerCallback

    spent: dict[str, float] = defaultdict(float)

    def timed(target: Any, name: str, part: str) -> None:
        inner = getattr(target, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                spent[part] += time.perf_counter() - started

        setattr(target, name, call)

    class Clock(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            now = time.perf_counter()
            if spent:
                total = now - self.started
                known = {part: spent[part] for part in PARTS[:-1]}
                steps.append({**known, "rest": total - sum(known.values()), "total": total})
            spent.clear()
            self.started = now

        def on_log(self, *args: Any, logs: dict[str, Any], **kwargs: Any) -> None:
            if "completions/mean_length" in logs:
                self.length = logs["completions/mean_length"]
                lengths.append(self.length)

        on_train_end = on_step_begin

    lengths: list[float] = []
    timed(trainer, "_generate_single_turn", "generation")
    timed(trainer, "_get_per_token_logps_and_entropies", "log-probabilities")
    timed(trainer.accelerator, "backward", "backward")
    trainer.add_callback(Clock())
    trainer.lengths = lengths


def measure(side: str, count: int) -> dict[str, Any]:
    import grpo_nb as gn

    steps: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as out:
        dtype = "bfloat16" if side == "kit bfloat16" else "auto"
        settings = gn.preset("cpu", max_steps=count, run_root=out, dtype=dtype)
        if not side.startswith(KIT):
            return {"steps": steps, "lengths": by_hand(settings, out, steps)}
        from grpo_nb.training import train

        build = train.build_trainer
        built = []

        def with_clock(*args: Any) -> Any:
            built.append(build(*args))
            watch(built[0], steps)
            return built[0]

        train.build_trainer = with_clock
        model, tokenizer = gn.load_model(settings)
        task = gn.load_task("arithmetic", settings)
        gn.train(model, tokenizer, task, rewards(gn), settings, name="bench")
        return {"steps": steps, "lengths": built[0].lengths}


def rewards(gn: Any) -> list[Any]:
    return [gn.rewards.correctness(), gn.rewards.exact_format(), gn.rewards.partial_format()]


def by_hand(settings: Any, out: str, steps: list[dict[str, float]]) -> list[float]:
    """Train as a practitioner would by hand, with the kit's embedded model, task and rewards."""
    import grpo_nb as gn
    from grpo_nb.models.sources import embedded_model_folder

    folder = str(embedded_model_folder())
    import unsloth  # noqa: F401
    from unsloth import FastLanguageModel

    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = FastLanguageModel.from_pretrained(
        folder,
        max_seq_length=304,
        load_in_4bit=False,
        load_in_16bit=True,
        use_gradient_checkpointing=False,
    )
    model = FastLanguageModel.get_peft_model(
        model,
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=0.0,
        random_state=settings.seed,
        use_gradient_checkpointing=False,
        target_modules=list(settings.lora_target_modules),
    )
    task = gn.load_task("arithmetic", settings)
    same = (
        "per_device_train_batch_size",
        "num_generations",
        "max_completion_length",
        "max_steps",
        "learning_rate",
        "lr_scheduler_type",
        "warmup_steps",
        "max_grad_norm",
        "weight_decay",
        "beta",
        "temperature",
        "top_k",
        "loss_type",
        "optim",
        "seed",
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=rewards(gn),
        train_dataset=task.train,
        args=GRPOConfig(
            output_dir=out,
            **{name: getattr(settings, name) for name in same},
            reward_weights=[2.0, 1.0, 1.0],
            adam_beta2=0.99,
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    model.delete_adapter("ref")
    watch(trainer, steps)
    trainer.train()
    return trainer.lengths


def bfloat16_switch(side: str) -> str:
    """Return the value of UNSLOTH_CPU_BF16 for a side; empty lets the kit decide."""
    if side == KIT:
        return ""
    return "1" if "bfloat16" in side else "0"


def medians_of(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median seconds of each part of a step, and the median peak memory in GB."""
    # The first step of a process also warms up.
    steps = [step for run in runs for step in run["steps"][1:]]
    medians = {part: statistics.median(step[part] for step in steps) for part in (*PARTS, "total")}
    medians["peak"] = statistics.median(run["peak"] for run in runs)
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        result = measure(arguments.side, arguments.steps)
        tell({**result, "peak": peak_gb()})
        return
    has_type = has_bfloat16_instructions()
    sides = [side for side in SIDES if has_type or "bfloat16" not in side]
    seen: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(arguments.rounds):
        for side, results in seen.items():
            command = [__file__, "--steps", arguments.steps, "--side", side]
            result = ask(*command, env={"UNSLOTH_CPU_BF16": bfloat16_switch(side)})
            results.append(result)
            totals = [round(step["total"], 1) for step in result["steps"]]
            lengths = [round(length, 2) for length in result["lengths"]]
            peak = f"{result['peak']:.2f}"
            print(f"{side}: s per step {totals}, mean length {lengths}, peak {peak} GB", flush=True)
    medians = {side: medians_of(runs) for side, runs in seen.items()}
    stock_sides = [side for side in sides if not side.startswith(KIT)]
    better = min(stock_sides, key=lambda side: medians[side]["total"])
    print(f"\n{machine()}\n")
    print_header("part", *(f"{side}, s" for side in sides), f"kit / {better}")
    for part in ("total", *PARTS, "peak"):
        values = {side: medians[side][part] for side in sides}
        name = "peak memory, GB" if part == "peak" else part
        ratio = values[KIT] / values[better]
        print_row(name, *(f"{values[side]:.2f}" for side in sides), f"{ratio:.2f}")


if __name__ == "__main__":
    main()
