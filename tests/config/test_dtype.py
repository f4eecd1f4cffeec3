"""The dtype of a run is decided in one place."""

import pytest

import grpo_nb as gn
from grpo_nb.config.dtype import CPU_BF16_ENV, compute_dtype, cpu_dtype
from grpo_nb.config.presets import GPUS

DTYPE_OF_GPU = {"t4": "float16", "l4": "bfloat16", "a100": "bfloat16", "h100": "bfloat16"}


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CPU_BF16_ENV, raising=False)


def test_dtype_on_a_cpu_is_float32() -> None:
    assert compute_dtype(gn.preset("cpu"), None).name == "float32"


@pytest.mark.parametrize(("name", "dtype"), DTYPE_OF_GPU.items(), ids=DTYPE_OF_GPU)
def test_dtype_on_a_gpu_follows_its_compute_capability(name: str, dtype: str) -> None:
    assert compute_dtype(gn.preset(name), GPUS[name]).name == dtype


@pytest.mark.parametrize(
    ("value", "dtype"), [("1", "bfloat16"), ("on", "bfloat16"), ("0", "float32")]
)
def test_dtype_on_a_cpu_follows_the_variable(
    value: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CPU_BF16_ENV, value)
    assert compute_dtype(gn.preset("cpu"), None).name == dtype


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
    assert cpu_dtype(wanted).name == dtype
