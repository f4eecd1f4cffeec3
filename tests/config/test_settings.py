"""Settings that cannot work are refused at once, with what to write instead."""

import ast
import dataclasses
import json
import re

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import grpo_nb as gn
from grpo_nb.config import arguments
from grpo_nb.config.arguments import GRPO_CONFIG_ARGUMENTS
from grpo_nb.config.presets import PRESETS
from grpo_nb.machine.gpu import Gpu
from tests.support.gpus import GPUS
from tests.support.signatures import text_of


@pytest.mark.parametrize("name", PRESETS)
def test_preset_goes_through_json_unchanged(name: str) -> None:
    settings = gn.preset(name, extra={"top_entropy_quantile": 0.2})
    assert gn.Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


@pytest.mark.parametrize("name", PRESETS)
def test_preset_has_whole_groups_and_a_kl_curve(name: str) -> None:
    settings = gn.preset(name)
    assert settings.completions_per_step % settings.num_generations == 0
    assert settings.beta > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"learning_rate": float("nan")},
            "learning_rate\n  Input should be a finite number [type=finite_number, input_value=nan",
        ),
        (
            {"learning_rate": 0},
            "learning_rate\n  Input should be greater than 0 [type=greater_than, input_value=0",
        ),
        (
            {"learning_rate": "1e-5"},
            "learning_rate\n  Input should be a valid number [type=float_type, input_value='1e-5'",
        ),
        (
            {"warmup_steps": 1.5},
            "warmup_steps = 1.5: write a whole number of steps, or a share of max_steps below 1.",
        ),
        (
            {"num_train_epochs": 2},
            "max_steps=2 * len(task.train) * settings.num_generations // "
            "settings.completions_per_step (times num_iterations, if you set it)",
        ),
        (
            {"max_steps": True},
            "max_steps\n  Input should be a valid integer [type=int_type, input_value=True",
        ),
        ({"num_train_epochs": 2}, "the length of a run is set by max_steps"),
        ({"num_generations": 6}, "per_device_train_batch_size=18"),
        (
            {"lora_target_modules": "q_proj"},
            "lora_target_modules\n  Input should be a valid tuple [type=tuple_type, input_value='q_",
        ),
        ({"lora_target_modules": []}, "should have at least 1 item"),
        (
            {"extra": {"generation_kwargs": {"stop": object()}}},
            "stop\n  input was not a valid JSON value [type=invalid-json-value, input_value=<object",
        ),
        ({"extra": None}, "Input should be a valid dictionary"),
        (
            {"extra": "epsilon=0.1"},
            "extra\n  Input should be a valid dictionary [type=dict_type, input_value='epsilon=0.1'",
        ),
        ({"extra": [("beta", 0.1)]}, "Input should be a valid dictionary"),
        (
            {"extra": {"steps_per_generation": "2"}},
            "steps_per_generation = '2' must be a whole number of at least 1.",
        ),
        ({"extra": {"bf16": True}}, "the setting is dtype"),
        (
            {"loss_type": "drgrpo"},
            "loss_type\n  Input should be 'bnpo', 'cispo', 'dapo', 'dr_grpo'",
        ),
        ({"extra": {"generation_batch_size": 16}}, "the setting is extra={'steps_per_generation'"),
        ({"num_iterations": 2}, "write extra={'num_iterations': 2}"),
        ({"warmup_ratio": 0.1}, "set warmup_steps"),
        ({"extra": {"epsilonn": 0.1}}, "did you mean 'epsilon'"),
        ({"extra": {"beta": 0.1}}, "write beta=0.1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_work_say_what_to_write(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        gn.preset("cpu", **changes)


@pytest.mark.parametrize("name", ["gpu", "v100", "a10", "A100"])
def test_preset_of_unknown_name_lists_all_choices(name: str) -> None:
    message = f"preset = '{name}' is unknown. Choose from: cpu, t4, l4, a100, h100; or \"auto\", "
    with pytest.raises(ValueError, match=re.escape(message + "which chooses by the memory")):
        gn.preset(name)


def test_preset_that_is_a_list_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"preset = \['t4'\] is unknown"):
        gn.preset(["t4"])


def test_settings_dict_is_independent_of_the_settings() -> None:
    settings = gn.preset("cpu", extra={"generation_kwargs": {"stop": ["a"]}})
    settings.to_dict()["extra"]["generation_kwargs"]["stop"].append("b")
    assert settings.extra == {"generation_kwargs": {"stop": ["a"]}}


def test_changed_extra_is_checked_at_the_next_replace() -> None:
    settings = gn.preset("cpu")
    settings.extra["use_vllm"] = True
    with pytest.raises(ValueError, match="the setting is fast_inference"):
        settings.replace(shared_prompts=False)


def test_warmup_of_a_gpu_preset_is_a_tenth_of_the_run() -> None:
    assert gn.preset("t4", max_steps=500).warmup_steps == 0.1


def test_warmup_that_was_chosen_stays() -> None:
    assert gn.preset("t4", warmup_steps=7).replace(max_steps=30).warmup_steps == 7


def test_warmup_of_a_trial_equals_the_start_of_the_run() -> None:
    assert gn.preset("cpu", max_steps=2).warmup_steps == 4


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("cpu", None),
        *GPUS.items(),
        ("h100", Gpu("A100 80GB", 79.2, (8, 0))),
        ("a100", Gpu("H100 MIG 3g.40gb", 39.5, (9, 0))),
    ],
    ids=["cpu", *GPUS, "a100 of 80 GB", "part of an h100"],
)
def test_preset_auto_takes_that_of_the_gpu(
    name: str, gpu: Gpu | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_nb.config.presets.find_gpu", lambda: gpu)
    assert gn.preset("auto", max_steps=7) == gn.preset(name, max_steps=7)


BATCHES = {
    "per_device_train_batch_size": st.integers(1, 24),
    "gradient_accumulation_steps": st.integers(1, 12),
    "num_generations": st.integers(2, 16),
}


@given(st.fixed_dictionaries(BATCHES))
@hypothesis_settings(max_examples=150, deadline=None)
def test_batch_error_ends_with_a_line_that_works(written: dict) -> None:
    try:
        settings = gn.preset("cpu", **written)
    except ValueError as error:
        line = str(error).rpartition("Write ")[2].removesuffix(".")
        call = ast.parse(f"dict({line})", mode="eval").body
        suggested = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        settings = gn.preset("cpu", **{**written, **suggested})
    assert settings.generation_batch_size % settings.num_generations == 0


@pytest.fixture
def unusual() -> gn.Settings:
    values = {"generation_kwargs": {"stop": ["\u00e9\ud800", None, True, 1e-9], "": {"deep": []}}}
    return gn.preset(
        "cpu",
        learning_rate=1e-9,
        lora_target_modules=("", "q_proj"),
        run_root="a\nb",
        max_steps=10**9,
        extra=values,
    )


def test_settings_go_through_json_unchanged(unusual: gn.Settings) -> None:
    stored = json.loads(json.dumps(unusual.to_dict()))
    assert gn.Settings.from_dict(stored) == unusual


def test_stored_settings_with_a_wrong_name_are_refused(unusual: gn.Settings) -> None:
    stored = unusual.to_dict()
    stored["max_step"] = stored.pop("max_steps")
    with pytest.raises(ValueError, match="did you mean 'max_steps'"):
        gn.Settings.from_dict(stored)


def test_written_down_fields_are_those_of_grpo_config() -> None:
    from trl import GRPOConfig

    assert {field.name for field in dataclasses.fields(GRPOConfig)} == GRPO_CONFIG_ARGUMENTS


def test_publishing_arguments_are_all_that_name_the_hub() -> None:
    named = {name for name in GRPO_CONFIG_ARGUMENTS if "hub" in name or name.startswith("trackio_")}
    assert named == GRPO_CONFIG_ARGUMENTS & arguments.HUB_ARGUMENTS


def test_written_down_losses_are_those_of_trl() -> None:
    trainer = text_of("trl/trainer/grpo_trainer.py")
    compared = " ".join(re.findall(r"self\.loss_type (?:==|(?:not )?in) ([^:]*)", trainer))
    assert set(re.findall(r'"(\w+)"', compared)) == set(gn.config.LOSS_TYPES)


def test_unsloth_arguments_are_fields_of_its_class() -> None:
    template = text_of("unsloth/models/rl.py").partition("class Unsloth{RLConfig_name}")[2]
    fields = re.findall(r"^    (\w+) ?: Optional", template.partition("def __init__")[0], re.M)
    # Each is refused with a reason, not as an unknown name.
    assert len(fields) == 4
    for name in fields:
        with pytest.raises(ValueError, match=f"- '{name}': "):
            gn.preset("t4", extra={name: 4})
