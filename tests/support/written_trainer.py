"""The kit's training with the trainer that Unsloth writes for a GPU, on a CPU.

It runs in a separate process, where that trainer takes TRL's place.

Run as a child it prints what came of it. With `--vllm` a real engine samples, with `--held-out`
each step is scored on held-out questions too.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import first_losses


def trained_elsewhere(
    place: Path, words: Path, *more: str, is_compiled: bool = True
) -> dict[str, Any]:
    """Return the result of `main` in a child process with `CI` set, where torch is stricter.

    Args:
        place: An empty folder.
        words: A model folder, for its tokenizer.
        more: `--vllm`, `--held-out`.
        is_compiled: Whether torch compiles what Unsloth asks it to.
    """
    own = {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "HF_HUB_OFFLINE": "1", "CI": "1"}
    own |= {} if is_compiled else {"TORCH_COMPILE_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.written_trainer", place, words, *more],
        cwd=place,
        capture_output=True,
        text=True,
        env=os.environ | own,
        timeout=600,
    )
    told = [
        line.partition("RESULT ")[2]
        for line in done.stdout.splitlines()
        if line.startswith("RESULT ")
    ]
    assert told, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(told[-1])


def small_model(folder: Path, words: Path) -> None:
    """A Llama of two layers with heads as wide as vLLM's attention on a CPU asks for."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(words)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        head_dim=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(place: Path, words: Path, *, use_vllm: bool, held_out: bool) -> dict[str, Any]:
    """Do a dry run, then train for three steps; return the record and what was observed."""
    import grpo_nb as gn
    from grpo_nb.models.unsloth_import import import_unsloth

    import_unsloth()
    import unsloth.models.rl  # noqa: F401 writes the trainers, and puts them in place of TRL's

    import torch

    from tests.run_fixtures import brevity
    from tests.support.real_vllm import trained_tensors

    small_model(place / "model", words)
    settings = gn.preset(
        "cpu",
        model=str(place / "model"),
        max_steps=3,
        max_completion_length=8,
        num_generations=4,
        learning_rate=2e-2,
        per_device_train_batch_size=4,
        shared_prompts=False,
        warmup_steps=0,
        max_grad_norm=10.0,
        beta=0.05,
        lora_dropout=0.0,
        run_root=str(place / "runs"),
        holdout_every=1 if held_out else 0,
        holdout_questions=4,
    )
    model, tokenizer = gn.load_model(settings)
    # As its loader marks float32 that was asked for; else it turns float16 autocast on.
    model._unsloth_user_float32 = True
    seen: dict[str, Any] = {"calls": 0, "changed": []}
    from grpo_nb.training import prepare, trainer

    seen["trainer"] = trainer.GRPOTrainer.__name__
    if use_vllm:
        _with_engine(model, seen)
        stock = prepare.passed_arguments
        in_place = {
            "use_vllm": True,
            "vllm_mode": "colocate",
        }  # which the kit asks for on a GPU alone
        prepare.passed_arguments = lambda *args, **named: stock(*args, **named) | in_place
    task = gn.load_task("arithmetic", settings, train_size=20, holdout=4, tokenizer=tokenizer)
    dry = gn.dry_run(model, tokenizer, task, [brevity], settings)
    before = trained_tensors(model)
    run = gn.train(model, tokenizer, task, [brevity], settings, name="written")
    learnt = trained_tensors(model)
    table = run.completions(1)
    if not use_vllm:
        cases = first_losses.FEW if "TORCH_COMPILE_DISABLE" in os.environ else first_losses.CASES
        seen["cases"] = {case: _case(case, model, tokenizer, place) for case in cases}
    return seen | {
        "dry": sum(len(group.table) for group in dry.groups),
        "rows": [dict(row) for row in run.rows],
        "moved": sum(not torch.equal(before[name], learnt[name]) for name in before),
        "rewards": list(table["brevity"]),
        "again": brevity([[{"content": text}] for text in table["completion"]]),
        "advantages": list(table["advantage"]),
    }


def _case(case: str, model: Any, tokenizer: Any, place: Path) -> dict[str, Any]:
    """Return a case's first updates with the kit's arguments for a T4, and a run's record."""
    from trl import GRPOConfig

    from grpo_nb.config.effective_table import compare_configurations, passed_arguments
    from tests.support.gpus import GPUS

    settings = first_losses.asked(case, place / "model")
    handed = passed_arguments(settings, gpu=GPUS["t4"], dtype="float32", can_use_vllm=False)
    stock = [kind for kind in GRPOConfig.__mro__ if kind.__name__ == "GRPOConfig"][-1]
    built, alone = (kind(**handed, output_dir=str(place / "told")) for kind in (GRPOConfig, stock))
    return {
        "found": first_losses.updates(model, tokenizer, handed, place / "updates"),
        "told": dataclasses.asdict(compare_configurations(settings, handed, built, alone)),
    }


def _with_engine(model: Any, seen: dict[str, Any]) -> None:
    """A real engine, which notes each call and what it did to the tensors that are trained."""
    import torch

    from tests.support.real_vllm import start_engine, trained_tensors

    engine = start_engine(model)
    engine.shared_weights = True  # as Unsloth marks its own
    stock = engine.generate

    def generate(*args: Any, **named: Any) -> Any:
        before = trained_tensors(model)
        answers = stock(*args, **named)
        seen["calls"] += 1
        after = trained_tensors(model)
        seen["changed"] += [name for name in before if not torch.equal(before[name], after[name])]
        return answers

    engine.generate = generate  # which the trainer calls
    model.fast_generate = model.model.fast_generate = generate  # which all else calls


if __name__ == "__main__":
    place, words, *more = sys.argv[1:]
    seen = main(Path(place), Path(words), use_vllm="--vllm" in more, held_out="--held-out" in more)
    print("RESULT", json.dumps(seen))
