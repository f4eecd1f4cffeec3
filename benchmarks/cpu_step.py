"""A GRPO step of the quickstart on a CPU: the kit against unsloth and TRL called by hand, part by part.

    python benchmarks/cpu_step.py [--steps 4] [--rounds 3]

Claim: at most 0.4 of the time and 0.8 of the peak memory. Same model, data, settings and seeds, so the same samples (their mean
length is printed as a check). TRL runs at its best settings for a CPU: no gradient checkpointing, fused optimizer, the dtype
Unsloth chooses, no copy of the reference adapter. Each measurement is a process of its own; the sides alternate.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

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


def measure(is_kit: bool, count: int) -> dict[str, Any]:
    import grpo_nb as gn

    steps: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as out:
        settings = gn.preset("cpu", max_steps=count, run_root=out)
        if not is_kit:
            return {"steps": steps, "lengths": by_hand(settings, out, steps)}
        from grpo_nb import training

        build, built = training._build_trainer, []

        def with_clock(*args: Any) -> Any:
            built.append(build(*args))
            watch(built[0], steps)
            return built[0]

        training._build_trainer = with_clock
        model, tokenizer = gn.load_model(settings)
        task = gn.load_task("arithmetic", settings)
        gn.train(model, tokenizer, task, rewards(gn), settings, name="bench")
        return {"steps": steps, "lengths": built[0].lengths}


def rewards(gn: Any) -> list[Any]:
    return [gn.rewards.correctness(), gn.rewards.xml_format(), gn.rewards.xml_tags()]


def by_hand(settings: Any, out: str, steps: list[dict[str, float]]) -> list[float]:
    """What a practitioner would write, with the kit's embedded model, task and rewards."""
    import grpo_nb as gn
    from grpo_nb.models import embedded_model_folder

    folder = str(embedded_model_folder())
    import unsloth  # noqa: F401
    from unsloth import FastLanguageModel

    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = FastLanguageModel.from_pretrained(
        folder, max_seq_length=304, load_in_4bit=False, load_in_16bit=True, use_gradient_checkpointing=False
    )
    model = FastLanguageModel.get_peft_model(
        model, r=settings.lora_rank, lora_alpha=settings.lora_alpha, lora_dropout=0.0, random_state=settings.seed,
        use_gradient_checkpointing=False, target_modules=list(settings.lora_target_modules),
    )  # fmt: skip
    task = gn.load_task("arithmetic", settings)
    same = (
        "per_device_train_batch_size", "num_generations", "max_completion_length", "max_steps", "learning_rate",
        "lr_scheduler_type", "warmup_steps", "max_grad_norm", "weight_decay", "beta", "temperature", "top_k", "loss_type",
        "optim", "seed",
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=rewards(gn), train_dataset=task.train,
        args=GRPOConfig(
            output_dir=out, **{name: getattr(settings, name) for name in same}, reward_weights=[2.0, 1.0, 1.0],
            adam_beta2=0.99, bf16=False, gradient_checkpointing=False, logging_steps=1, save_strategy="no",
            report_to="none", disable_tqdm=True,
        ),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    model.delete_adapter("ref")
    watch(trainer, steps)
    trainer.train()
    return trainer.lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=("stock", "kit"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        result = measure(arguments.side == "kit", arguments.steps)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        print("RESULT", json.dumps({**result, "peak": peak}))
        return
    seen: dict[str, list[dict[str, Any]]] = {"stock": [], "kit": []}
    for _ in range(arguments.rounds):
        for side, results in seen.items():
            command = [sys.executable, __file__, "--steps", str(arguments.steps), "--side", side]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
            line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
            results.append(json.loads(line.removeprefix("RESULT ")))
            totals = [round(step["total"], 1) for step in results[-1]["steps"]]
            lengths = [round(length, 2) for length in results[-1]["lengths"]]
            print(f"{side}: s per step {totals}, mean length {lengths}, peak {results[-1]['peak']:.2f} GB", flush=True)
    print("\n| part | stock, s | kit, s | ratio |\n| --- | --- | --- | --- |")
    for part in ("total", *PARTS):
        # The first step of a process also pays for warming up, on both sides.
        stock, kit = (
            statistics.median(step[part] for run in seen[side] for step in run["steps"][1:])
            for side in ("stock", "kit")
        )
        print(f"| {part} | {stock:.2f} | {kit:.2f} | {kit / stock:.2f} |")
    stock, kit = (statistics.median(run["peak"] for run in seen[side]) for side in ("stock", "kit"))
    print(f"| peak memory, GB | {stock:.2f} | {kit:.2f} | {kit / stock:.2f} |")


if __name__ == "__main__":
    main()
