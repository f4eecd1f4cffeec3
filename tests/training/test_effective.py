"""Effective settings and the dtype of a run, from the configuration that was built on this machine.

The class that Unsloth writes on a GPU is tested in tests/gpu.
"""

import json
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.config.effective_table import EffectiveSettings
from tests.run_fixtures import brevity

UNLIKE_ASKED = {
    "optim": "adamw_torch_fused",
    "dtype": "float32",
    "fast_inference": False,
    "scale_rewards": "group",
    "dataloader_pin_memory": False,
    "adam_beta2": 0.99,
}


@pytest.fixture(scope="module")
def table() -> EffectiveSettings:
    settings = gn.preset(
        "cpu",
        optim="adamw_8bit",
        fast_inference=True,
        dtype="float16",
        loss_type="dapo",
        extra={"scale_rewards": True, "dataloader_pin_memory": True},
    )
    return gn.training.effective_settings(settings)


@pytest.mark.parametrize(("name", "value"), UNLIKE_ASKED.items(), ids=UNLIKE_ASKED)
def test_effective_settings_show_a_changed_value(table, name: str, value: object) -> None:
    assert table.changed[name].effective == value


def test_effective_settings_show_the_requested_values(table) -> None:
    assert table.changed["optim"].requested == "adamw_8bit"


def test_effective_settings_explain_the_optimizer_in_place_of_8_bit(table) -> None:
    assert "AdamW instead, with states in float32" in table.changed["optim"].reason


def test_effective_settings_explain_changes_of_the_kit(table) -> None:
    assert "kit's" in table.changed["adam_beta2"].reason


def test_effective_settings_name_who_changed_a_value(table) -> None:
    assert table.changed["dataloader_pin_memory"].reason == "Changed by TRL or transformers."


def test_effective_settings_leave_out_unchanged_values(table) -> None:
    assert table.arguments["seed"] == 3407
    assert "seed" not in table.changed


def test_effective_settings_show_a_row_per_change(table) -> None:
    assert "adamw_torch_fused" in repr(table)
    assert table._repr_html_().count("<tr>") == len(table.changed) + 1


def test_run_records_the_arguments_of_its_trainer(tiny_run: gn.runs.Run) -> None:
    effective = tiny_run.info["effective"]
    assert effective["arguments"]["learning_rate"] == tiny_run.settings.learning_rate
    assert effective["changed"]["adam_beta2"]["effective"] == 0.99


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtype_is_the_same_from_loading_to_evaluation(
    dtype: str, tiny_folder: Path, tmp_path: Path
) -> None:
    from grpo_nb.config.hardware import choose_dtype
    from grpo_nb.generation.choice import choose_engine
    from grpo_nb.training.prepare import (
        GRPOConfig,
        arguments_on_this_machine,
        match_unsloth_dtype,
    )

    other = "float32" if dtype == "bfloat16" else "bfloat16"
    settings = gn.preset(
        "cpu",
        model=str(tiny_folder),
        run_root=str(tmp_path / "runs"),
        dtype=dtype,
        max_steps=2,
        max_completion_length=8,
    )
    model, tokenizer = gn.load_model(settings)
    assert str(model.dtype) == f"torch.{dtype}"
    # Loading another model in between changes nothing for the first one.
    gn.load_model(settings.replace(dtype=other))
    task = gn.load_task("arithmetic", settings, train_size=8, holdout=4, tokenizer=tokenizer)

    engine_choice = choose_engine(model, settings)
    model_dtype = choose_dtype(settings, None, model)
    match_unsloth_dtype(model_dtype)
    passed = arguments_on_this_machine(settings, engine_choice, model_dtype)
    arguments = GRPOConfig(output_dir=str(tmp_path), **passed)
    assert arguments.bf16 is (dtype == "bfloat16")
    assert arguments.fp16 is False
    effective = gn.training.effective_settings(settings, model)
    assert effective.arguments["bf16"] is arguments.bf16
    plan = gn.plan(settings, task, model=model, tokenizer=tokenizer)
    assert plan.dtype == dtype

    run = gn.train(model, tokenizer, task, [brevity], settings, name="typed")
    assert json.loads((run.path / "run.json").read_text())["dtype"] == dtype
    frozen = next(p.dtype for p in model.parameters() if not p.requires_grad)
    assert str(frozen) == f"torch.{dtype}"
    reopened = gn.open_run(run.path)
    gn.evaluate(reopened, task=task)
    assert str(reopened.model.dtype) == f"torch.{dtype}"


def test_plan_counts_the_memory_that_a_model_holds(
    tiny_run: gn.runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_nb.config.planning.free_memory_bytes", lambda: 3e9)
    alone = gn.plan(tiny_run.settings).available_gb
    with_model = gn.plan(tiny_run.settings, model=tiny_run.model).available_gb
    held = sum(p.numel() * p.element_size() for p in tiny_run.model.parameters()) / 1e9
    assert with_model == pytest.approx(alone + held)
