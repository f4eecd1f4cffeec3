"""Compare `gn.train` with Unsloth and TRL by hand: same model, data, settings and seeds.

    python benchmarks/kit_overhead.py [--steps 4] [--rounds 3]

Claim: time per step at most 1.02, peak memory at most 1.05. Both sides take TRL's own path
(`shared_prompts=False`), so that only the kit's additions differ: run directory, completions,
figure. A second pair shows what the shared-prompt path makes of it. Each measurement is a process
of its own; the sides alternate; ratios of medians are printed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time

from _measure import ask, peak_gb, print_header, print_row, tell

SETTINGS = {"seed": 7, "max_completion_length": 32}


def by_hand(steps: int) -> list[float]:
    """The few lines a practitioner would write, with the kit's embedded model and task."""
    import grpo_nb as gn

    settings = gn.preset("cpu", max_steps=steps, **SETTINGS)
    from grpo_nb.models.sources import embedded_model_folder

    folder = str(embedded_model_folder())
    import unsloth  # noqa: F401
    from unsloth import FastLanguageModel

    from transformers import PrinterCallback, TrainerCallback
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
        r=16,
        lora_alpha=32,
        lora_dropout=0.0,
        use_gradient_checkpointing=False,
        random_state=7,
        target_modules=list(settings.lora_target_modules),
    )
    task = gn.load_task("arithmetic", settings)
    rewards = [gn.rewards.correctness(), gn.rewards.exact_format(), gn.rewards.partial_format()]

    class Clock(TrainerCallback):
        at: list[float] = []  # noqa: RUF012

        def on_step_begin(self, *args: object, **kwargs: object) -> None:
            self.at.append(time.perf_counter())

        on_train_end = on_step_begin

    with tempfile.TemporaryDirectory() as out:
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=rewards,
            train_dataset=task.train,
            callbacks=[Clock()],
            args=GRPOConfig(
                output_dir=out,
                per_device_train_batch_size=16,
                num_generations=8,
                max_completion_length=32,
                max_steps=steps,
                learning_rate=1e-4,
                lr_scheduler_type="constant_with_warmup",
                warmup_steps=4,
                max_grad_norm=0.2,
                weight_decay=0.0,
                beta=0.04,
                temperature=1.0,
                top_k=0,
                loss_type="bnpo",
                seed=7,
                optim="adamw_torch_fused",
                adam_beta2=0.99,
                reward_weights=[2.0, 1.0, 1.0],
                gradient_checkpointing=False,
                bf16=False,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
        )
        trainer.remove_callback(PrinterCallback)
        # TRL's copy of the untrained adapter is dropped on both sides: it is the same reference at a higher price.
        model.delete_adapter("ref")
        trainer.train()
    return [b - a for a, b in itertools.pairwise(Clock.at)]


def with_kit(steps: int, shared: bool) -> list[float]:
    """The same through the kit, with the live figure drawn as in a notebook."""
    import grpo_nb as gn
    from grpo_nb.training import recorder, train

    with tempfile.TemporaryDirectory() as out:
        settings = gn.preset(
            "cpu", max_steps=steps, run_root=out, shared_prompts=shared, **SETTINGS
        )
        model, tokenizer = gn.load_model(settings)
        task = gn.load_task("arithmetic", settings)
        rewards = [gn.rewards.correctness(), gn.rewards.exact_format(), gn.rewards.partial_format()]
        at: list[float] = []

        class Clock(recorder.TrainerCallback):
            def on_step_begin(self, *args: object, **kwargs: object) -> None:
                at.append(time.perf_counter())

            on_train_end = on_step_begin

        class Handle:
            def update(self, *args: object, **kwargs: object) -> None:
                pass

        import IPython.display

        # The figure is drawn and encoded, but shown to nobody.
        IPython.display.display = lambda *args, **kwargs: Handle()
        recorder.is_notebook = lambda: True
        build = train.build_trainer

        def with_clock(*args: object) -> object:
            built = build(*args)
            built.add_callback(Clock())
            return built

        train.build_trainer = with_clock
        gn.train(model, tokenizer, task, rewards, settings, name="bench")
    return [b - a for a, b in itertools.pairwise(at)]


SIDES = {
    "by hand": by_hand,
    "kit, TRL's path": lambda steps: with_kit(steps, False),
    "kit, shared prompts": lambda steps: with_kit(steps, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--live-memory",
        action="store_true",
        help="return freed memory at once: steps are slower, but peaks no longer vary by 40 %%",
    )
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        tell({"times": SIDES[arguments.side](arguments.steps), "peak": peak_gb()})
        return
    # A fixed threshold switches off glibc's growing one, which keeps freed blocks.
    environment = {"MALLOC_MMAP_THRESHOLD_": "131072"} if arguments.live_memory else {}
    # float32 on every side. By hand, Unsloth would use bfloat16 if the processor has it.
    environment["UNSLOTH_CPU_BF16"] = "0"
    seen: dict[str, list[dict]] = {side: [] for side in SIDES}
    for _ in range(arguments.rounds):
        for side in SIDES:
            command = [__file__, "--steps", arguments.steps, "--side", side]
            result = ask(*command, env=environment)
            seen[side].append(result)
            times = [round(seconds, 2) for seconds in result["times"]]
            print(side, times, round(result["peak"], 2), flush=True)
    step: dict[str, float] = {}
    peak: dict[str, float] = {}
    for side, runs in seen.items():
        # The first step of a process also warms up.
        step[side] = statistics.median(t for run in runs for t in run["times"][1:])
        peak[side] = statistics.median([run["peak"] for run in runs])
    print_header("side", "s per step", "ratio", "peak memory, GB", "ratio")
    for side in SIDES:
        step_ratio = step[side] / step["by hand"]
        peak_ratio = peak[side] / peak["by hand"]
        cells = [f"{step[side]:.2f}", f"{step_ratio:.3f}", f"{peak[side]:.2f}", f"{peak_ratio:.3f}"]
        print_row(side, *cells)


if __name__ == "__main__":
    main()
