"""Why vLLM cannot run: the settings, the GPU, the installation, and at last an import."""

import pytest

import grpo_nb as gn
from grpo_nb.config import vllm_obstacle as module
from grpo_nb.config.presets import GPUS
from grpo_nb.config.vllm_obstacle import vllm_obstacle
from grpo_nb.machine.gpu import Gpu

P100 = Gpu("Tesla P100-PCIE-16GB", 16.0, (6, 0))
BROKEN = "ImportError: vllm/_C.abi3.so: undefined symbol"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine on which vLLM is installed and loads."""
    monkeypatch.setattr(module, "installed_version", lambda name: "0.31.0")
    monkeypatch.setattr(module, "vllm_problem", lambda: None)
    return monkeypatch


def test_vllm_without_fast_inference_is_off(installed) -> None:
    obstacle = vllm_obstacle(gn.preset("t4", fast_inference=False), GPUS["t4"])
    assert obstacle.reason == "fast_inference is off"


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        pytest.param(None, "needs a GPU", id="cpu"),
        pytest.param(P100, "compute capability 7.0, and Tesla P100", id="old GPU"),
    ],
)
def test_vllm_on_a_wrong_machine_gives_the_reason(installed, gpu: Gpu | None, reason: str) -> None:
    obstacle = vllm_obstacle(gn.preset("t4"), gpu)
    assert reason in obstacle.reason
    assert obstacle.fix


def test_vllm_that_is_not_installed_gives_the_command(installed) -> None:
    installed.setattr(module, "installed_version", lambda name: None)
    obstacle = vllm_obstacle(gn.preset("t4"), GPUS["t4"])
    assert "not installed" in obstacle.reason
    assert "pip install" in obstacle.fix


def test_vllm_that_does_not_load_gives_its_error(installed) -> None:
    installed.setattr(module, "vllm_problem", lambda: BROKEN)
    assert "undefined symbol" in vllm_obstacle(gn.preset("t4"), GPUS["t4"]).reason


def test_vllm_that_loads_has_no_obstacle(installed) -> None:
    assert vllm_obstacle(gn.preset("t4"), GPUS["t4"]) is None


def test_vllm_without_import_is_not_loaded(installed) -> None:
    installed.setattr(module, "vllm_problem", lambda: BROKEN)
    assert vllm_obstacle(gn.preset("t4"), GPUS["t4"], try_import=False) is None
