"""The first update of a GRPO trainer on fixed episodes, to compare two trainers.

Run as a child it is the trainer that Unsloth writes for a GPU, whose gradients are printed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# No call, one, several, two in one message, a tool that is not there, an argument that is none,
# words before a call.
_SAID = [
    ["<call>guess(number=4)</call>", "<call>guess(number=6)</call>", "Done."],
    ["<call>guess(number=2)</call>", "I give up."],
    ["No."],
    [
        "<call>guess(number=1)</call><call>guess(number=7)</call>",
        "<call>guess(number=5)</call>",
        "Yes, that is it.",
    ],
    [
        "<call>guess(number=3)</call>",
        "It is higher than three, so <call>guess(number=6)</call>",
        "Good.",
    ],
    ["<call>nothing(x=3)</call>", "Oh."],
    ["<call>guess(number=6)</call>", "Done."],
    ["<call>guess(wrong=6)</call>", "<call>guess(number=6)</call>", "Done."],
]
_ASKED = ["Guess my number from 1 to 7.", "Guess my number, it is from 1 to 7 I believe."]


class Guess:
    """A number to be guessed."""

    def reset(self, secret: int, **row: Any) -> None:
        self.secret = secret
        self.tries = 0
        self.found = False

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: The guess.
        """
        self.tries = self.tries + 1
        self.found = self.found or number == self.secret
        return "right" if number == self.secret else "higher" if number < self.secret else "lower"


def won(environments: list[Guess], completions: list, **columns: Any) -> list[float]:
    games = zip(environments, completions, strict=True)
    return [float(game.found) - 0.1 * game.tries + 0.01 * len(turns) for game, turns in games]


def update(
    kind: type, model: Any, tokenizer: Any, folder: Path, passes: int = 1, **config: Any
) -> dict[str, Any]:
    """The gradient of the first update, as a list, and what was logged.

    Args:
        kind: `trl.GRPOTrainer`, as the process has it, or a class of the kit's.
        model: With a LoRA, which gets an effect here.
        tokenizer: With a template for tools.
        folder: For what the trainer writes.
        passes: Micro-batches of the update.
        config: Of `GRPOConfig`.
    """
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig

    if "ref" in model.peft_config:
        model.delete_adapter("ref")
    adapter = [
        (name, weight) for name, weight in sorted(model.named_parameters()) if ".lora_" in name
    ]
    for name, weight in adapter:
        weight.requires_grad_(True)
        weight.grad = None
        if ".lora_B" in name:
            # TRL copies this as the reference, and Unsloth takes the model without it.
            weight.data.zero_()
    at = [0] * len(_SAID)
    waiting = list(range(len(_SAID)))

    def written(prompts: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        texts = [_SAID[i][at[i]] for i in waiting]
        assert len(texts) == len(prompts)
        for i in waiting:
            at[i] += 1
        waiting[:] = [i for i, text in zip(waiting, texts, strict=True) if "<call>" in text]
        return [
            tokenizer(text + "<|im_end|>", add_special_tokens=False)["input_ids"] for text in texts
        ], None

    values = {
        "per_device_train_batch_size": 8 // passes,
        "gradient_accumulation_steps": passes,
        "num_generations": 4,
        "seed": 1,
        "max_completion_length": 120,
        "max_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "beta": 0.0,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "max_grad_norm": 1e9,
        "gradient_checkpointing": False,
        "temperature": 1.0,
        "scale_rewards": "group",
        "epsilon_high": 0.2,
        "mask_truncated_completions": False,
        "max_tool_calling_iterations": 8,
        "output_dir": str(folder),
    }
    rows = [{"prompt": [{"role": "user", "content": text}], "secret": 6} for text in _ASKED]
    engine = {}
    if hasattr(kind, "is_between_generations"):  # the kit's
        from grpo_nb.cpu.engine import CpuEngine

        engine = {"engine": CpuEngine(model)}
    trainer = kind(
        model=model,
        processing_class=tokenizer,
        reward_funcs=won,
        args=GRPOConfig(**{**values, **config}),
        train_dataset=Dataset.from_list(rows),
        environment_factory=Guess,
        **engine,
    )
    draw = torch.Generator().manual_seed(1)
    for _, weight in adapter:
        weight.data = torch.randn(weight.shape, generator=draw) * 0.05
    trainer._generate_single_turn = written
    gradients: list[torch.Tensor] = []

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            gradients.append(torch.cat([weight.grad.flatten() for _, weight in adapter]))

    trainer.add_callback(Watch())
    trainer.train()
    row = next(row for row in trainer.state.log_history if "grad_norm" in row)
    return {
        "gradient": gradients[0].tolist(),
        "row": row,
        "completions": list(trainer._logs["completion"]),
    }


def written_trainers(model: Path, folder: Path, losses: list[str]) -> dict[str, Any]:
    """Return the `update` of each loss by the trainer that Unsloth writes, from its own process.

    The first loss is also run with padding that ends turns.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.tool_updates", model, folder, *losses],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "CI": "1"},
        cwd=folder,
        timeout=600,
    )
    told = [
        line.partition("RESULT ")[2]
        for line in done.stdout.splitlines()
        if line.startswith("RESULT ")
    ]
    assert told, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(told[-1])


def loaded(folder: Path) -> tuple[Any, Any]:
    """A small model in float32, and its tokenizer with a template for tools."""
    import grpo_nb as gn

    model, tokenizer = gn.load_model(
        gn.preset("cpu", model=str(folder), lora_dropout=0.0, dtype="float32")
    )
    return model, gn.models.set_tool_template(tokenizer)


def main(folder: Path, place: Path, losses: list[str]) -> dict[str, Any]:
    from grpo_nb.models.unsloth_import import import_unsloth

    import_unsloth()
    import unsloth.models.rl  # noqa: F401 writes the trainers, and puts them in place of TRL's

    from trl import GRPOTrainer

    assert GRPOTrainer.__name__ == "UnslothGRPOTrainer"
    model, tokenizer = loaded(folder)
    model._unsloth_user_float32 = True  # as its loader marks float32 that was asked for
    found = {loss: update(GRPOTrainer, model, tokenizer, place, loss_type=loss) for loss in losses}
    tokenizer.pad_token = tokenizer.eos_token
    return found | {"padded": update(GRPOTrainer, model, tokenizer, place, loss_type=losses[0])}


if __name__ == "__main__":
    print("RESULT", json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
