"""One number type for a run, decided in one place and the same for model, trainer, plan, record and evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.config.number_types import VARIABLE, cpu_number_type, number_type
from grpo_nb.config.presets import GPUS
from tests.conftest import brevity


@pytest.fixture
def nobody_chose(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv(VARIABLE, raising=False)
    return monkeypatch


def test_float32_on_a_cpu_and_what_the_card_has_on_a_gpu(nobody_chose) -> None:
    assert number_type(gn.preset("cpu"), None).name == "float32"
    expected = {"t4": "float16", "l4": "bfloat16", "a100": "bfloat16", "h100": "bfloat16"}
    assert {name: number_type(gn.preset(name), gpu).name for name, gpu in GPUS.items()} == expected


def test_the_users_variable_stands_and_a_setting_stands_above_it(nobody_chose) -> None:
    for value, name in (("1", "bfloat16"), ("on", "bfloat16"), ("0", "float32")):
        nobody_chose.setenv(VARIABLE, value)
        assert number_type(gn.preset("cpu"), None).name == name
    for asked, name in (("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float32")):
        assert cpu_number_type(asked).name == name, "the gradients of float16 would vanish on a CPU"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_model_trainer_plan_record_and_evaluation_have_the_type_of_the_settings(
    dtype, tiny_folder: Path, tmp_path: Path
) -> None:
    from grpo_nb.training.prepare import GRPOConfig, grpo_arguments

    places = {"model": str(tiny_folder), "run_root": str(tmp_path / "runs")}
    settings = gn.preset("cpu", **places, dtype=dtype, max_steps=2, max_completion_length=8)
    model, tokenizer = gn.load_model(settings)
    assert str(model.dtype) == f"torch.{dtype}"
    # Loading another model in between changes nothing for the first one.
    gn.load_model(settings.replace(dtype="float32" if dtype == "bfloat16" else "bfloat16"))
    task = gn.load_task("arithmetic", settings, train_size=8, holdout_size=4, tokenizer=tokenizer)
    arguments = GRPOConfig(**grpo_arguments(settings, {"brevity": 1.0}, tmp_path, model))
    assert arguments.bf16 is (dtype == "bfloat16") and arguments.fp16 is False
    assert gn.training.effective_settings(settings, model).arguments["bf16"] is arguments.bf16
    weights = next(
        p
        for p in gn.plan(settings, task, model=model, tokenizer=tokenizer).parts
        if p.name == "weights"
    )
    assert f"{32 if dtype == 'float32' else 16} bit" in weights.how
    run = gn.train(model, tokenizer, task, [brevity], settings, name="typed")
    assert json.loads((run.path / "run.json").read_text())["number_type"] == dtype
    assert str(next(p.dtype for p in model.parameters() if not p.requires_grad)) == f"torch.{dtype}"
    reopened = gn.open_run(run.path)
    gn.evaluate(reopened, task=task)
    assert str(reopened.model.dtype) == f"torch.{dtype}"
