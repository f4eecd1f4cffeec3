"""`num_train_epochs` is counted as TRL counts it, and kept with the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import grpo_nb as gn
from grpo_nb.training.prepare import build_trainer, prepare
from tests.conftest import brevity
from tests.support.tiny import SMALL, load_tiny

LENGTHS = {"max_completion_length": 8}
BATCHES = {
    "one pass a step": {},
    "accumulated": {"gradient_accumulation_steps": 3},
    "a generation for two steps": {"extra": {"generation_batch_size": 16}},
    "a generation for part of a step": {
        "gradient_accumulation_steps": 4,
        "extra": {"steps_per_generation": 2},
    },
    "completions used twice": {"extra": {"num_iterations": 2}},
}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("epochs", [1, 2.5])
def test_epochs_are_the_steps_that_trl_counts(name: str, epochs: float, tiny_folder: Path) -> None:
    changes = SMALL | LENGTHS | BATCHES[name]
    model, tokenizer, task, settings = load_tiny(
        tiny_folder, 27, 2, num_train_epochs=epochs, **changes
    )
    prepared = prepare(model, tokenizer, task, [brevity], settings)
    trainer = build_trainer(prepared)
    trainer.args.max_steps = -1
    trainer.args.num_train_epochs = epochs
    *_, steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    assert prepared.settings.max_steps == steps


def test_run_of_epochs_records_steps_and_resumes(tiny_folder: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = SMALL | LENGTHS | {"run_root": str(tmp_path)}
    model, tokenizer, task, settings = load_tiny(tiny_folder, 6, 2, num_train_epochs=1, **changes)
    run = gn.train(model, tokenizer, task, [brevity], settings, name="epochs")
    assert (run.settings.max_steps, run.settings.num_train_epochs) == (3, 1)
    assert [row["max_steps"] for row in run.rows] == [3, 3, 3]
    assert run.info["effective"]["changed"]["num_train_epochs"]["runs"] == "3 steps"
    # As a run of an earlier version: without the setting.
    info = json.loads((run.path / "run.json").read_text())
    del info["settings"]["num_train_epochs"]
    (run.path / "run.json").write_text(json.dumps(info))
    assert gn.open_run(run.path).settings.max_steps == 3
    longer = settings.replace(num_train_epochs=2)
    with pytest.warns(UserWarning, match="Resuming 'epochs' at step 3"):
        again = gn.train(model, tokenizer, task, [brevity], longer, name="epochs", resume="auto")
    assert len(again.rows) == again.settings.max_steps == 6


def test_effective_settings_show_shape_of_adapter(tiny_run: gn.runs.Run) -> None:
    other = tiny_run.settings.replace(lora_rank=4, lora_alpha=8)
    with pytest.warns(UserWarning, match="Starting from the LoRA"):
        model, _ = gn.load_model(other, adapter=tiny_run.adapter_path)
    changed = gn.training.effective_settings(other, model).changed
    assert (changed["lora_rank"].asked, changed["lora_rank"].runs) == (4, 16)
    assert (changed["lora_alpha"].asked, changed["lora_alpha"].runs) == (8, 32)
    assert "adapter" in changed["lora_rank"].why


def test_effective_settings_leave_uncounted_steps_out() -> None:
    table = gn.training.effective_settings(gn.preset("cpu", num_train_epochs=2))
    assert "gn.plan(settings, task)" in table.changed["num_train_epochs"].runs
    assert "max_steps" not in table.arguments
