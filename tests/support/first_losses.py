"""The first updates of a GRPO trainer on fixed completions, to compare two trainers.

Which trainer `trl.GRPOTrainer` is depends on the process: TRL's own, or the one that Unsloth writes
in its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_TWICE = {"num_iterations": 2}
_OTHERS = ("bnpo", "dapo", "cispo", "sapo", "luspo", "vespo")

# What is asked for, by name: what differs from `asked`.
CASES: dict[str, dict[str, Any]] = {
    **{
        f"{loss}, beta 0": {"loss_type": loss, "beta": 0.0}
        for loss in ("bnpo", "grpo", "dapo", "dr_grpo")
    },
    **{f"{loss}, beta 0.04": {"loss_type": loss} for loss in ("bnpo", "grpo", "dapo", "dr_grpo")},
    **{
        f"{loss}, two passes": {"loss_type": loss, "max_steps": 2, "extra": _TWICE}
        for loss in _OTHERS
    },
    "two-sided clip": {"max_steps": 2, "extra": _TWICE | {"delta": 1.5}},
    "by the completion": {
        "loss_type": "grpo",
        "max_steps": 2,
        "extra": _TWICE | {"importance_sampling_level": "sequence"},
    },
    "temperature": {"temperature": 0.7},
}


# Those of `make test`: five losses, one with a KL, each way to clip.
FEW = (
    "grpo, beta 0",
    "dapo, beta 0",
    "dr_grpo, beta 0.04",
    "bnpo, two passes",
    "cispo, two passes",
    "sapo, two passes",
    "two-sided clip",
    "by the completion",
    "temperature",
)


def asked(case: str, folder: Path) -> Any:
    """Return the settings of a case: two micro-batches of one group of four, float32, no vLLM."""
    import grpo_nb as gn

    changes = {"loss_type": "bnpo", "beta": 0.04, "max_steps": 1} | CASES[case]
    extra = {"gradient_checkpointing": False, "use_cpu": True, **changes.pop("extra", {})}
    return gn.preset(
        "t4",
        model=str(folder),
        dtype="float32",
        fast_inference=False,
        load_in_4bit=False,
        lora_dropout=0.0,
        num_generations=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_completion_length=8,
        optim="adamw_torch",
        learning_rate=1e-2,
        warmup_steps=0,
        max_grad_norm=1e3,
        extra=extra,
        **changes,
    )


def updates(
    model: Any, tokenizer: Any, arguments: dict[str, Any], folder: Path
) -> dict[str, list[float]]:
    """Return advantages, and loss, KL and gradient of each update, from this process's trainer.

    Args:
        model: A model with a LoRA. The LoRA gets its effect after the trainer has been built, so
            the reference is the model without it.
        tokenizer: The model's tokenizer.
        arguments: Arguments of `GRPOConfig`.
        folder: Folder for what the trainer writes.

    Returns:
        Lists of numbers by name: `advantages` (one per completion, in the order of the prompts);
        `loss`, `grad_norm` and, with beta above 0, `kl` (one per update); `gradient` (of the first
        update, thinned to 200 numbers).
    """
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    def tail(completions: list[str], **_: Any) -> list[float]:
        return [float(len(text) % 7) for text in completions]

    questions = [
        "What is 2 + 3?",
        "Name a city in the north of France.",
        "Why?",
        "Yes or no: is it raining?",
    ]
    data = Dataset.from_list([{"prompt": question} for question in questions])
    own = {
        "output_dir": str(folder),
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    if "ref" in model.peft_config:  # TRL's copy for the trainer before
        model.delete_adapter("ref")
    for name, weight in model.named_parameters():
        if ".lora_B" in name:
            # TRL copies the adapter as the reference, and Unsloth takes the model without it.
            weight.data.zero_()
    asked = GRPOConfig(**{**arguments, **own})
    trainer = GRPOTrainer(
        model=model, reward_funcs=[tail], args=asked, train_dataset=data, processing_class=tokenizer
    )
    draw = torch.Generator().manual_seed(1)
    named = sorted(model.named_parameters())
    adapter = [weight for name, weight in named if ".lora_" in name and ".ref." not in name]
    for weight in adapter:
        weight.data = torch.randn(weight.shape, generator=draw) * 0.1

    def written(prompts: list[list[int]], *_: Any) -> tuple[list[list[int]], None]:
        """Return completions of 2 to 8 tokens; every third is truncated."""
        lengths = torch.randint(2, 9, (len(prompts),), generator=draw).tolist()
        texts = [torch.randint(1000, 20000, (n,), generator=draw).tolist() for n in lengths]
        torch.manual_seed(
            7
        )  # from here on the trainer draws: in which order the completions are used
        return [
            t if i % 3 == 0 else [*t[:-1], tokenizer.eos_token_id] for i, t in enumerate(texts)
        ], None

    trainer._generate_single_turn = written
    gradients: list[torch.Tensor] = []

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            gradients.append(torch.cat([weight.grad.flatten() for weight in adapter]))

    trainer.add_callback(Watch())
    trainer.train()
    rows = [row for row in trainer.state.log_history if "grad_norm" in row]
    every = max(1, len(gradients[0]) // 200)
    found = {name: [row[name] for row in rows] for name in ("loss", "grad_norm")}
    found["kl"] = [row["kl"] for row in rows] if trainer.beta else []
    return found | {
        "advantages": list(trainer._logs["advantages"]),
        "gradient": gradients[0][::every].tolist(),
    }
