"""The GPU is read from the driver, through pynvml and through nvidia-smi."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pynvml
import pytest

from grpo_nb.machine import gpu
from grpo_nb.machine.gpu import Gpu, GpuState, UnreadableGpuError
from grpo_nb.machine.packages import TorchBuild

CUDA12 = TorchBuild(version="2.13.0+cu128", cuda=(12, 8))
CPU = TorchBuild(version="2.13.0+cpu", cuda=None)
GIB = 2**30


@pytest.fixture
def nvml_init(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """pynvml on a machine with two cards, with the UUIDs `GPU-a1` and `GPU-b2`."""
    names = {0: "Tesla T4", 1: "NVIDIA L4"}
    uuids = {0: "GPU-a1", 1: "GPU-b2"}

    def handle_of_uuid(uuid: str) -> int:
        for card, known_uuid in uuids.items():
            if uuid == known_uuid:
                return card
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def memory(card: object, version: object) -> SimpleNamespace:
        if card not in names:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        assert version == pynvml.nvmlMemory_v2, "version 1 hides what the driver reserves"
        return SimpleNamespace(total=16 * GIB, reserved=GIB, free=1.5 * GIB)

    init = Mock()
    functions = {
        "nvmlInit": init,
        "nvmlDeviceGetHandleByIndex": int,
        "nvmlDeviceGetHandleByUUID": handle_of_uuid,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetUUID": uuids.get,
        "nvmlDeviceGetName": names.get,
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetCudaComputeCapability": lambda card: (7, 5),
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 12080,
    }
    for name, function in functions.items():
        monkeypatch.setattr(pynvml, name, function)
    monkeypatch.setattr(gpu, "read_torch_build", lambda: CUDA12)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return init


def test_read_gpu_state_returns_card_and_driver(nvml_init: Mock) -> None:
    assert gpu.read_gpu_state() == GpuState(
        gpu=Gpu(name="Tesla T4", memory_gib=15.0, compute_capability=(7, 5)),
        free_gib=1.5,
        newest_cuda=(12, 8),
    )


@pytest.mark.parametrize(
    ("visible", "name"),
    [
        pytest.param("0", "Tesla T4", id="number"),
        pytest.param("GPU-b2", "NVIDIA L4", id="UUID"),
        pytest.param("GPU-b", "NVIDIA L4", id="first characters of a UUID"),
        pytest.param("GPU-b2,0", "NVIDIA L4", id="two entries"),
    ],
)
def test_find_gpu_takes_the_first_visible(visible, name, nvml_init, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu.find_gpu().name == name


@pytest.mark.parametrize("visible", ["7", "GPU-c", "", "-1"])
def test_find_gpu_that_is_hidden_is_none(visible, nvml_init, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu.find_gpu() is None


def test_find_gpu_with_torch_for_cpu_is_none(nvml_init, monkeypatch) -> None:
    monkeypatch.setattr(gpu, "read_torch_build", lambda: CPU)
    assert gpu.find_gpu() is None


def test_read_gpu_state_after_failure_gives_the_reason(nvml_init: Mock) -> None:
    nvml_init.side_effect = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(UnreadableGpuError, match="GPU is lost"):
        gpu.read_gpu_state()


def test_read_gpu_state_without_a_driver_is_none(nvml_init: Mock) -> None:
    nvml_init.side_effect = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert gpu.read_gpu_state() is None


def test_find_gpu_after_failure_asks_again(nvml_init: Mock) -> None:
    nvml_init.side_effect = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    assert gpu.find_gpu() is None
    nvml_init.side_effect = None
    assert gpu.find_gpu() is not None


HEADER_580 = "| NVIDIA-SMI 580.82.07   Driver Version: 580.82.07   CUDA Version: 13.0 |"
HEADER_595 = "| NVIDIA-SMI 595.1  KMD Version: 595.1  CUDA UMD Version: 13.3 |"


@pytest.mark.parametrize(
    ("script", "cuda"),
    [
        pytest.param(f"echo '{HEADER_580}'", (13, 0), id="driver 580"),
        pytest.param(f"echo '{HEADER_595}'", (13, 3), id="driver 595"),
        pytest.param("echo 'NVIDIA-SMI has failed'; exit 9", None, id="no working GPU"),
    ],
)
def test_newest_cuda_is_read_from_nvidia_smi(script, cuda, tmp_path: Path, monkeypatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gpu.read_newest_cuda() == cuda


@pytest.mark.parametrize(
    ("visible", "is_hidden"),
    [("", True), ("-1", True), ("-1,0", True), ("0", False), ("0,-1", False)],
)
def test_gpu_is_hidden_by_its_first_entry(visible: str, is_hidden: bool, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu.is_gpu_hidden() is is_hidden
