"""Settings that cannot work are refused at once, with what to write instead."""

import json

import pytest

import grpo_nb as gn
from grpo_nb.config import PRESETS
from grpo_nb.environment import Gpu


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_round_trip(name: str) -> None:
    settings = gn.preset(name, extra={"top_entropy_quantile": 0.2})
    assert gn.Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    assert settings.batch_size % settings.num_generations == 0
    assert settings.beta > 0, "without a KL term there is no KL curve"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"learning_rat": 1e-5}, "did you mean 'learning_rate'"),
        ({"num_generations": 6}, "per_device_train_batch_size=18"),
        ({"num_generations": 1}, "at least 2"),
        ({"max_steps": 0}, "at least 1"),
        ({"max_steps": 2.5}, "takes int"),
        ({"max_steps": True}, "takes int"),
        ({"load_in_4bit": "yes"}, "takes bool"),
        ({"learning_rate": -1e-5}, "above 0"),
        ({"learning_rate": float("nan")}, "above 0"),
        ({"temperature": 0}, "above 0"),
        ({"top_p": 1.5}, "at most 1"),
        ({"beta": -0.1}, "at least 0"),
        ({"model": None}, "takes str"),
    ],
)
def test_bad_settings_say_what_to_write(changes: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        gn.preset("cpu", **changes)
    with pytest.raises(ValueError):
        gn.preset("cpu").replace(**changes)


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'a100'"):
        gn.preset("a10")


def test_settings_are_frozen() -> None:
    settings = gn.preset("cpu", extra={"epsilon": 0.1})
    with pytest.raises(AttributeError):
        settings.max_steps = 3
    with pytest.raises(TypeError):
        settings.extra["epsilon"] = 0.2


@pytest.mark.parametrize(
    ("gpu", "model"),
    [
        (None, gn.EMBEDDED_MODEL),
        (Gpu("Tesla T4", 15.0, (7, 5)), PRESETS["t4"]["model"]),
        (Gpu("NVIDIA L4", 22.5, (8, 9)), PRESETS["l4"]["model"]),
        (Gpu("NVIDIA A100-SXM4-40GB", 40.0, (8, 0)), PRESETS["a100"]["model"]),
        (Gpu("NVIDIA H100 80GB HBM3", 79.6, (9, 0)), PRESETS["h100"]["model"]),
    ],
)
def test_auto_takes_the_preset_of_the_gpu(gpu: Gpu | None, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_nb.environment.find_gpu", lambda: gpu)
    settings = gn.preset("auto")
    assert settings.model == model
    assert settings.fast_inference == (gpu is not None)
    assert gn.preset("auto", max_steps=7).max_steps == 7
