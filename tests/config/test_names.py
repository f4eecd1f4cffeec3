"""Configurations as people paste them: one list says what to write, and that works."""

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import grpo_nb as gn
from grpo_nb.config.arguments import GRPO_CONFIG_ARGUMENTS, HUB_ARGUMENTS
from tests.support.run_folders import info_of

# unslothai/notebooks, `Qwen3_(4B)-GRPO` and others of 2025 and 2026; the sampling parameters are an
# object of vLLM.
SAMPLING = SimpleNamespace(
    min_p=0.1, top_p=1.0, top_k=-1, temperature=1.0, repetition_penalty=1.0, stop=["</s>"]
)
UNSLOTH = {
    "vllm_sampling_params": SAMPLING,
    "temperature": 1.0,
    "learning_rate": 5e-6,
    "weight_decay": 0.001,
    "warmup_ratio": 0.1,
    "lr_scheduler_type": "linear",
    "optim": "adamw_8bit",
    "logging_steps": 1,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "num_generations": 4,
    "max_prompt_length": 300,
    "max_completion_length": 200,
    "max_steps": 100,
    "save_steps": 100,
    "report_to": "none",
    "output_dir": "outputs",
}
# The same of early 2025, `Llama3.1_(8B)-GRPO`.
OLDER_UNSLOTH = {
    "use_vllm": True,
    "learning_rate": 5e-6,
    "adam_beta1": 0.9,
    "adam_beta2": 0.99,
    "weight_decay": 0.1,
    "warmup_ratio": 0.1,
    "lr_scheduler_type": "cosine",
    "optim": "paged_adamw_8bit",
    "logging_steps": 1,
    "bf16": True,
    "fp16": False,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 8,
    "max_prompt_length": 256,
    "max_completion_length": 200,
    "num_train_epochs": 1,
    "max_steps": -1,
    "save_steps": 250,
    "max_grad_norm": 0.1,
    "report_to": "none",
    "output_dir": "outputs",
    "run_name": "first",
}
# TRL's documentation of GRPOTrainer.
TRL = {
    "output_dir": "Qwen2-0.5B-GRPO",
    "logging_steps": 10,
    "gradient_checkpointing": True,
    "num_train_epochs": 2,
    "beta": 0.04,
    "epsilon": 0.2,
    "num_iterations": 1,
    "scale_rewards": "none",
    "loss_type": "dr_grpo",
    "mask_truncated_completions": True,
    "log_completions": True,
    "eval_strategy": "steps",
    "eval_steps": 50,
    "per_device_eval_batch_size": 8,
    "seed": 42,
    "remove_unused_columns": False,
}
PASTED = {"Unsloth": UNSLOTH, "older Unsloth": OLDER_UNSLOTH, "TRL": TRL}
NAMES = {*gn.Settings().to_dict()}


def suggested_extra(error: ValueError) -> dict[str, Any]:
    """Return the value of `extra` that an error says to write."""
    (line,) = (line for line in str(error).splitlines() if "write extra=" in line)
    return ast.literal_eval(line.partition("write extra=")[2])


@pytest.mark.parametrize("name", PASTED)
def test_pasted_settings_are_reported_at_once(name: str) -> None:
    pasted = {key: value for key, value in PASTED[name].items() if key != "max_steps"}
    with pytest.raises(ValueError, match="Some settings cannot be set as written") as error:
        gn.preset("t4", **pasted)
    reported = str(error.value)
    assert [key for key in pasted.keys() - NAMES if repr(key) not in reported] == []
    kept = {key: value for key, value in pasted.items() if key in NAMES}
    settings = gn.preset("t4", **kept, extra=suggested_extra(error.value))
    assert settings.extra["logging_steps"] == pasted["logging_steps"]


@pytest.mark.parametrize("name", PASTED)
def test_pasted_extra_is_reported_at_once(name: str) -> None:
    pasted = PASTED[name]
    with pytest.raises(ValueError, match="Some settings cannot be set as written") as error:
        gn.preset("t4", extra=pasted)
    reported = str(error.value)
    assert [key for key in pasted if key in NAMES and f"write {key}=" not in reported] == []


def test_sampling_params_of_vllm_name_the_settings() -> None:
    with pytest.raises(ValueError, match=r"'vllm_sampling_params'.*temperature, top_p, top_k"):
        gn.preset("t4", vllm_sampling_params=SAMPLING)


@pytest.mark.parametrize("place", ["settings", "extra"])
def test_best_model_argument_names_an_observer(place: str) -> None:
    written = {"load_best_model_at_end": True}
    settings = {"extra": written} if place == "extra" else written
    with pytest.raises(ValueError, match=r"an observer saves the best adapter.*holdout_every=5"):
        gn.preset("cpu", **settings)


@pytest.mark.parametrize("name", sorted(GRPO_CONFIG_ARGUMENTS))
def test_each_trl_argument_works_or_says_what_to_write(name: str) -> None:
    """No hint leads in a circle: what a name is refused with is accepted, or is no setting."""
    if name in NAMES:
        return
    try:
        gn.preset("cpu", extra={name: None})
    except ValueError as error:
        message = str(error)
        assert f"extra={{{name!r}" not in message
        assert repr(name) in message


@pytest.mark.parametrize(
    "written", [{"bf16": True}, {"output_dir": "outputs"}, {"use_vllm": False}, {"epochs": 1}]
)
def test_hint_for_a_name_is_the_same_in_extra(written: dict[str, Any]) -> None:
    messages = []
    for settings in (written, {"extra": written}):
        with pytest.raises(ValueError) as error:
            gn.preset("cpu", **settings)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_hint_for_an_argument_of_trl_keeps_those_in_extra() -> None:
    settings = gn.preset("cpu", extra={"epsilon": 0.1})
    with pytest.raises(ValueError) as error:
        settings.replace(num_iterations=2)
    assert suggested_extra(error.value) == {"epsilon": 0.1, "num_iterations": 2}


def test_hint_for_an_argument_of_trl_leaves_out_refused_names() -> None:
    extra = {"beta": 0.1, "output_dir": "outputs", "epsilonn": 0.1, "num_iterations": 2}
    with pytest.raises(ValueError) as error:
        gn.preset("cpu", epsilon=0.1, extra=extra)
    assert suggested_extra(error.value) == {"epsilon": 0.1, "num_iterations": 2}


def test_unknown_names_are_reported_together() -> None:
    with pytest.raises(ValueError, match="cannot be set as written") as error:
        gn.preset("cpu", learning_rat=1e-5, extra={"epsilonn": 0.1})
    assert "did you mean 'learning_rate'" in str(error.value)
    assert "did you mean 'epsilon'" in str(error.value)


@pytest.mark.parametrize("name", sorted(HUB_ARGUMENTS))
@pytest.mark.parametrize("value", [True, "me/model"])
def test_publishing_argument_is_refused_with_push_line(name: str, value: object) -> None:
    line = r"gn\.export\.push_to_hub\(gn\.export_merged\(run, \"exports/name\"\), \"user/name\"\)"
    with pytest.raises(ValueError, match=line):
        gn.preset("cpu", extra={name: value})
    with pytest.raises(ValueError, match=line):
        gn.preset("cpu").replace(**{name: value})
    with pytest.raises(ValueError, match=line):
        gn.Settings.from_dict({**gn.preset("cpu").to_dict(), "extra": {name: value}})


def test_push_line_names_what_is_there() -> None:
    assert callable(gn.export.push_to_hub)


def test_push_to_hub_in_a_stored_run_is_refused(tmp_path: Path) -> None:
    values = {**gn.preset("cpu").to_dict(), "extra": {"push_to_hub": True}}
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "run.json").write_text(json.dumps(info_of({}) | {"settings": values}))
    with pytest.raises(ValueError, match="Push a verified export"):
        _ = gn.open_run(tmp_path / "sent").settings
