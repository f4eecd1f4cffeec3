"""The dtype of a run is decided in one place, and so is why vLLM cannot run."""

import pytest

import grpo_nb as gn
from grpo_nb.config import hardware
from grpo_nb.config.hardware import choose_dtype, vllm_loading_obstacle
from grpo_nb.upstream.unsloth import CPU_BF16_ENV
from tests.support.gpus import GPUS

DTYPE_OF_GPU = {"t4": "float16", "l4": "bfloat16", "a100": "bfloat16", "h100": "bfloat16"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine on which vLLM is installed."""
    monkeypatch.setattr(hardware, "installed_version", lambda name: "0.31.0")
    return monkeypatch


def test_vllm_without_fast_inference_is_off(installed) -> None:
    obstacle = vllm_loading_obstacle(gn.preset("t4", fast_inference=False), GPUS["t4"])
    assert obstacle.startswith("fast_inference is off (")


def test_vllm_without_a_gpu_gives_the_reason(installed) -> None:
    obstacle = vllm_loading_obstacle(gn.preset("t4"), None)
    assert obstacle == "vLLM needs a GPU (set fast_inference=False)"


def test_vllm_that_is_not_installed_gives_the_command(installed) -> None:
    installed.setattr(hardware, "installed_version", lambda name: None)
    obstacle = vllm_loading_obstacle(gn.preset("t4"), GPUS["t4"])
    assert obstacle.startswith("vLLM is not installed (pip install")


def test_vllm_that_is_installed_has_no_obstacle(installed) -> None:
    assert vllm_loading_obstacle(gn.preset("t4"), GPUS["t4"]) is None


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CPU_BF16_ENV, raising=False)


def test_dtype_on_a_cpu_is_float32() -> None:
    assert choose_dtype(gn.preset("cpu"), None) == "float32"


@pytest.mark.parametrize(("name", "dtype"), DTYPE_OF_GPU.items(), ids=DTYPE_OF_GPU)
def test_dtype_on_a_gpu_follows_its_compute_capability(name: str, dtype: str) -> None:
    assert choose_dtype(gn.preset(name), GPUS[name]) == dtype


@pytest.mark.parametrize(
    ("value", "dtype"), [("1", "bfloat16"), ("on", "bfloat16"), ("0", "float32")]
)
def test_dtype_on_a_cpu_follows_the_variable(
    value: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CPU_BF16_ENV, value)
    assert choose_dtype(gn.preset("cpu"), None) == dtype


@pytest.mark.parametrize(
    ("wanted", "dtype"),
    [
        pytest.param("float32", "float32", id="float32"),
        pytest.param("bfloat16", "bfloat16", id="bfloat16"),
        pytest.param("float16", "float32", id="float16 gradients would vanish"),
    ],
)
def test_dtype_setting_takes_precedence_over_variable(
    wanted: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CPU_BF16_ENV, "0")
    assert choose_dtype(gn.preset("cpu", dtype=wanted), None) == dtype
