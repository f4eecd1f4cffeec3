"""Settings that cannot work are refused at once, with what to write instead."""

import dataclasses
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import grpo_nb as gn
from grpo_nb.config import arguments
from grpo_nb.config.grpo_config_fields import GRPO_CONFIG_FIELDS
from grpo_nb.config.presets import GPUS, PRESETS
from grpo_nb.machine.gpu import Gpu
from tests.support.signatures import text_of


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_round_trip(name: str) -> None:
    settings = gn.preset(name, extra={"top_entropy_quantile": 0.2})
    assert gn.Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    assert settings.batch_size % settings.num_generations == 0
    assert settings.beta > 0, "without a KL term there is no KL curve"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "a10"}, "preset = 'a10' is not known here; did you mean 'a100'"),
        ({"learning_rate": float("nan")}, "above 0"),
        ({"num_generations": 6}, "per_device_train_batch_size=18"),
        ({"warmup_steps": 25}, "longer than the run (max_steps = 14)"),
        ({"lora_target_modules": "q_proj"}, 'lora_target_modules="all-linear"'),
        (
            {"extra": {"generation_kwargs": {"stop": object()}}},
            "Object of type object is not JSON serializable",
        ),
        ({"extra": {"bf16": True}}, "the setting is dtype"),
        ({"loss_type": "drgrpo"}, "did you mean 'dr_grpo'"),
        ({"extra": {"importance_sampling_level": "sequences"}}, "did you mean 'sequence'"),
        ({"num_iterations": 2}, "write extra={'num_iterations': 2}"),
        ({"warmup_ratio": 0.1}, "set warmup_steps"),
        ({"extra": {"epsilonn": 0.1}}, "did you mean 'epsilon'"),
        ({"extra": {"beta": 0.1}}, "write beta=0.1"),
    ],
)
def test_bad_settings_say_what_to_write(changes: dict, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        gn.preset(changes.pop("name", "cpu"), **changes)


def test_a_warm_up_that_nobody_chose_is_a_tenth_of_the_run() -> None:
    for steps in (5, 24, 25, 50, 500):
        settings = gn.preset("t4", max_steps=steps)
        assert settings.warmup == gn.preset("t4").replace(max_steps=steps).warmup == steps // 10
    assert gn.preset("t4", max_steps=50, warmup_steps=7).replace(max_steps=30).warmup == 7, (
        "what was chosen stays"
    )
    with pytest.raises(
        ValueError, match=r"longer than the run \(max_steps = 5\).*write warmup_steps=0"
    ):
        gn.preset("t4", warmup_steps=7).replace(max_steps=5)
    assert gn.preset("cpu", max_steps=2).warmup == 4, "a trial is the beginning of the run"


@pytest.mark.parametrize(
    ("name", "gpu"), [("cpu", None), *GPUS.items(), ("a100", Gpu("A100 80GB", 79.2, (8, 0)))]
)
def test_auto_takes_the_preset_of_the_gpu(
    name: str, gpu: Gpu | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_nb.config.presets.find_gpu", lambda: gpu)
    assert gn.preset("auto", max_steps=7) == gn.preset(name, max_steps=7)


def test_the_names_and_values_that_are_written_down_are_those_of_the_packages() -> None:
    from trl import GRPOConfig

    known = GRPO_CONFIG_FIELDS
    assert known == {field.name for field in dataclasses.fields(GRPOConfig)}
    assert not arguments._REPLACED.keys() & (known | vars(gn.Settings()).keys())
    assert arguments._OWNED.keys() <= known, "what is refused for a name that is not there is dead"
    publishing = {name for name in known if arguments.is_publishing(name)}
    assert publishing == {name for name in known if "hub" in name or name.startswith("trackio_")}
    trainer = text_of("trl/trainer/grpo_trainer.py")
    compared = " ".join(re.findall(r"self\.loss_type (?:==|(?:not )?in) ([^:]*)", trainer))
    assert set(re.findall(r'"(\w+)"', compared)) == set(gn.config.LOSS_TYPES)
    levels = set(re.findall(r'self\.importance_sampling_level == "(\w+)"', trainer))
    assert levels == set(gn.config.IMPORTANCE_SAMPLING_LEVELS)
    assert gn.preset("t4", extra={"unsloth_num_chunks": 4}).extra, (
        "settings for a GPU can be made anywhere"
    )


BATCHES = {
    "per_device_train_batch_size": st.integers(1, 24), "gradient_accumulation_steps": st.integers(1, 12),
    "num_generations": st.integers(2, 16),
    "extra": st.sampled_from([{}, {"steps_per_generation": 3}, {"generation_batch_size": 48}]),
}  # fmt: skip


@given(st.fixed_dictionaries(BATCHES))
@hypothesis_settings(max_examples=150, deadline=None)
def test_the_line_of_the_batch_error_works_when_pasted(written: dict) -> None:
    try:
        made = gn.preset("cpu", **written)
    except ValueError as error:
        line = str(error).rpartition("Write ")[2].removesuffix(".")
        gn.preset("cpu", **{**written, **eval(f"dict({line})")})
    else:
        assert made.generation_batch_size % made.num_generations == 0


def test_settings_go_through_a_file_unchanged(tmp_path: Path) -> None:
    values = {"generation_kwargs": {"stop": ["\u00e9\ud800", None, True, 1e-9], "": {"deep": []}}}
    changes = {
        "learning_rate": 1e-9,
        "lora_target_modules": ("", "q_proj"),
        "run_root": "a\nb",
        "max_steps": 10**9,
    }
    settings, path = gn.preset("cpu", extra=values, **changes), tmp_path / "settings.json"
    assert gn.Settings.load(settings.save(path)) == settings
    path.write_text(path.read_text().replace("max_steps", "max_step"))
    with pytest.raises(ValueError, match="did you mean 'max_steps'"):
        gn.Settings.load(path)


def test_default_loss_stays_where_a_new_one_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "LOSS_TYPES", ("arpo", *arguments.LOSS_TYPES))
    original = sys.modules[gn.Settings.__module__]
    spec = importlib.util.spec_from_file_location("settings_again", original.__file__)
    again = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "settings_again", again)
    spec.loader.exec_module(again)
    assert again.Settings().loss_type == "bnpo"
    assert again.Settings(loss_type="arpo").loss_type == "arpo"


def test_unsloth_arguments_are_in_its_class_of_every_trainer() -> None:
    template = text_of("unsloth/models/rl.py").partition("class Unsloth{RLConfig_name}")[2]
    fields = set(re.findall(r"^    (\w+) ?: Optional", template.partition("def __init__")[0], re.M))
    assert fields - {"vllm_sampling_params"} == arguments.UNSLOTH_ARGUMENTS


def test_grpo_arguments_refuses_a_field_of_another_trl(tmp_path: Path) -> None:
    from grpo_nb.training.prepare import grpo_arguments

    settings = gn.preset("cpu", extra={"epsilon": 0.1})
    object.__setattr__(settings, "extra", {"field_of_next_trl": 1})
    with pytest.raises(ValueError, match="'field_of_next_trl', and GRPOConfig has no such"):
        grpo_arguments(settings, {}, tmp_path)
