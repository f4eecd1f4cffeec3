"""`num_train_epochs` is counted as TRL counts it, and kept with the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import grpo_nb as gn
from grpo_nb.training.prepare import build_trainer, prepare
from tests.run_fixtures import brevity
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
    # As a run of an earlier version: without the setting.
    info = json.loads((run.path / "run.json").read_text())
    del info["settings"]["num_train_epochs"]
    (run.path / "run.json").write_text(json.dumps(info))
    assert gn.open_run(run.path).settings.max_steps == 3
    longer = settings.replace(num_train_epochs=2)
    with pytest.warns(UserWarning, match="Resuming 'epochs' at step 3"):
        again = gn.train(model, tokenizer, task, [brevity], longer, name="epochs", resume="auto")
    assert len(again.rows) == again.settings.max_steps == 6
