"""Preflight finds what breaks an installation, and says what to do about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine import checks, gpu, host, packages
from grpo_nb.machine.gpu import Gpu, GpuState, NoGpu
from grpo_nb.machine.packages import TorchBuild

L4 = GpuState(Gpu("NVIDIA L4", 22.0, (8, 9)), 21.5, "580.95.05", (13, 0))
T4 = GpuState(Gpu("Tesla T4", 15.0, (7, 5)), 14.7, "580.82.07", (13, 0))
P100 = GpuState(Gpu("Tesla P100-PCIE-16GB", 16.0, (6, 0)), 15.9, "570.1", (12, 8))
CUDA13, CUDA12, CPU = (TorchBuild(version=f"2.13.0+{build}", cuda=cuda)
                       for build, cuda in (("cu130", (13, 0)), ("cu128", (12, 8)), ("cpu", None)))  # fmt: skip


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch):
    """Puts a GPU, a torch and a vLLM that loads into this machine, and returns a row of its table."""

    def row(what: str, state: GpuState = L4, build: TorchBuild = CUDA13, **versions: str | None) -> checks.Check:
        real, changed = packages.installed_version, {"vllm": "0.31.0", **versions}
        monkeypatch.setattr(packages, "installed_version", lambda name: changed.get(name, real(name)))
        monkeypatch.setattr(packages, "read_torch_build", lambda: build)
        monkeypatch.setattr(packages, "vllm_problem", lambda: None)
        monkeypatch.setattr(checks, "read_gpu", lambda: state)
        return check(what)

    return row


def check(name: str) -> checks.Check:
    return next(c for c in checks.check_environment().checks if c.what == name)


def test_this_machine_is_ready_and_nothing_heavy_is_imported() -> None:
    report = checks.check_environment()
    assert report.is_ready and "Ready" in repr(report) and "<table>" in report._repr_html_()
    code = (
        "import sys, grpo_nb as gn; gn.check_environment()\n"
        "print(sorted({'torch', 'numpy', 'trl', 'transformers', 'unsloth', 'vllm', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_the_table_escapes_and_says_what_is_wrong() -> None:
    checked = [checks.Check("a", "problem", "<script>", "do & so"), checks.Check("b", "warning", "x", "y")]
    report = checks.EnvironmentReport(checked)
    page = report._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page and "do &amp; so" in page
    assert report.verdict.startswith("Not ready") and not report.is_ready
    assert checks.EnvironmentReport(checked[1:]).verdict.startswith("Ready, with")


@pytest.mark.parametrize(
    ("state", "build", "status", "found", "fix"),
    [
        (L4, CUDA13, "ok", "NVIDIA L4 (8.9, bf16), 22 GiB, driver 580.95.05 for CUDA 13.0; torch 2.13.0+cu130", ""),
        (T4, CUDA12, "ok", "Tesla T4 (7.5, fp16)", ""),
        (L4, CPU, "problem", "torch 2.13.0+cpu is for the CPU", "pip uninstall -y torch"),
        (P100, CUDA12, "problem", "need 7.0", "T4 x2 and not P100"),
        (GpuState(L4.gpu, 21.5, "570.1", (12, 8)), CUDA13, "problem", "needs CUDA 13", "580 or newer"),
    ],
)
def test_the_gpu_and_whether_this_torch_starts_on_it(with_gpu, state, build, status, found, fix) -> None:
    row = with_gpu("device", state, build)
    assert row.status == status and found in row.found and fix in row.fix, row


def test_memory_that_others_hold_is_told(with_gpu) -> None:
    assert with_gpu("GPU memory").status == "ok"
    row = with_gpu("GPU memory", GpuState(L4.gpu, 3.0, L4.driver, L4.cuda))
    assert row.status == "warning" and row.found.startswith("3.0 of 22.0 GiB free") and "nvidia-smi" in row.fix


def test_without_a_gpu_the_row_says_why_and_how_one_is_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def says(reason: str) -> checks.Check:
        def read() -> GpuState:
            raise NoGpu(reason)

        monkeypatch.setattr(checks, "read_gpu", read)
        return check("device")

    monkeypatch.setattr(checks, "usable_cores", lambda: 3)
    assert says("").found == "CPU, 3 cores" and says("").status == "ok"
    assert (row := says("the NVIDIA driver says: GPU is lost")).status == "warning" and "GPU is lost" in row.found
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    assert "T4 GPU" in says("").fix
    assert not {"GPU memory", "vLLM"} & {row.what for row in checks.check_environment().checks}


@pytest.mark.parametrize(
    ("installed", "status", "found"),
    [
        ({}, "ok", "unsloth 2026"),
        ({"trl": None}, "problem", "missing: trl"),
        ({"trl": "1.14.0"}, "warning", "trl 1.14.0 instead of 1.15.0"),
        ({"torchao": "0.10.0"}, "problem", "torchao 0.10.0, and peft refuses"),
    ],
)
def test_packages_that_are_missing_other_than_tried_or_in_the_way(
    with_gpu, installed, status, found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "find_host", lambda: "script")
    row = with_gpu("packages", **installed)
    assert row.status == status and found in row.found and (status == "ok" or "pip " in row.fix), row


@pytest.mark.parametrize(
    ("torch", "vision", "is_problem"),
    [
        ("2.13.0+cpu", None, False),
        ("2.13.0+cu130", "0.28.0+cu130", False),
        ("2.13.0", "0.28.0", False),
        ("2.13.0", "0.28.0+cu130", False),  # the registry's torch is built for CUDA 13, and does not say so
        ("2.13.0a0+e6bf23d", "0.28.0a0+1f4c9d2", False),  # as in NVIDIA's containers
        ("2.13.0", "0.25.0", True),
    ],
)
def test_a_wrong_torchvision_is_a_problem(torch, vision, is_problem, with_gpu) -> None:
    row = with_gpu("packages", torch=torch, torchvision=vision, torchao=None)
    assert (row.status == "problem") is is_problem is ("torchvision" in packages.misfits()), row
    assert ("pip uninstall -y torchvision" in row.fix) is is_problem


def test_import_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.sys, "modules", {"os": os, "trl": os, "transformers": os})
    said = packages.import_order_problem()
    assert said == "trl and transformers was imported before unsloth"
    monkeypatch.setattr(packages.sys, "modules", {"unsloth": os, "trl": os})
    assert packages.import_order_problem() is None
    monkeypatch.undo()
    monkeypatch.setattr(packages, "import_order_problem", lambda: said)
    assert (row := check("this kernel")).status == "problem" and "Import grpo_nb first" in row.fix


def test_what_is_loaded_must_be_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = ModuleType("pandas")
    stale.__version__ = "0.1.0"
    monkeypatch.setitem(sys.modules, "pandas", stale)
    assert packages.stale_versions()["pandas"] == ("0.1.0", packages.installed_version("pandas"))
    row = check("this kernel")
    assert row.status == "problem" and "pandas 0.1.0 is loaded" in row.found and "estart" in row.fix


def test_the_build_of_torch_is_read_without_importing_it() -> None:
    import torch

    build = packages.read_torch_build()
    assert build.version == torch.__version__
    assert build.cuda == (tuple(map(int, torch.version.cuda.split("."))) if torch.version.cuda else None)


def fake_vllm(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed vLLM 9.9.9 in a folder on the path."""
    package, record = folder / "vllm", folder / "vllm-9.9.9.dist-info"
    package.mkdir(parents=True)
    record.mkdir()
    (package / "__init__.py").write_text(f"class LLM: ...\nclass SamplingParams: ...\n{body}")
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.9\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    packages.vllm_problem.cache_clear()


# As in vllm/platforms/cuda.py, import_kernels: a failure of the compiled part becomes a line of a log.
LOGGED = "print('WARNING [cuda.py:243] Failed to import from vllm._C_stable_libtorch: ImportError(no library)')"


@pytest.mark.parametrize(
    ("body", "status", "found"),
    [
        ("", "ok", "9.9.9 loads"),
        ("raise ImportError('libcudart.so.13: cannot open')", "warning", "libcudart.so.13: cannot open"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "warning", "ended with -11"),
        ("import time; time.sleep(60)", "warning", "took longer than 3 s"),
        (LOGGED, "warning", "_C_stable_libtorch"),
        (LOGGED.replace("no library", "does not define module export function"), "ok", "loads"),
    ],
)
def test_vllm_is_tried_in_another_process(body, status, found, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_VLLM_SECONDS", 3)
    fake_vllm(tmp_path, body, monkeypatch)
    monkeypatch.setattr(checks, "read_gpu", lambda: L4)
    row = check("vLLM")
    assert row.status == status and found in row.found, row
    assert "vllm" not in sys.modules and (status == "ok" or "pip uninstall -y vllm" in row.fix)


def test_too_little_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "free_disk_bytes", lambda path: 3 * 10**9)
    assert [checks.disk_row(tmp_path, needed=needed)[0] for needed in (2, 5)] == ["ok", "problem"]
    monkeypatch.setattr(host, "free_disk_bytes", lambda path: 10**9)
    with pytest.raises(EnvironmentProblem, match=r"needs 5\.00 GB .* but 1\.00 GB are free"):
        host.require_disk(tmp_path / "new" / "folder", 5 * 10**9, "The merged model")


def test_colabs_disk_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be mended there: the notebooks ask before the cell with DRIVE."""
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    assert check("disk").status == "ok"


@pytest.mark.parametrize(("token", "status"), [("hf_" + "a" * 34 + "\n", "ok"), ("my secret", "warning"), ("", None)])
def test_a_token_is_never_shown_and_colabs_secrets_are_not_opened(token, status, monkeypatch) -> None:
    """Colab asks the user before it gives one; who needs it is asked when it is needed."""
    asked: list[str] = []
    colab = ModuleType("google.colab")
    colab.userdata = SimpleNamespace(get=asked.append)
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    monkeypatch.setattr("huggingface_hub.utils._auth.is_google_colab", lambda: True)
    monkeypatch.setenv("HF_TOKEN", token)
    report = checks.check_environment()
    assert [row.status for row in report.checks if row.what == "Hub token"] == ([status] if status else [])
    assert asked == [] and (not token or token.strip() not in repr(report) + report._repr_html_())


def test_a_containers_cores_are_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    limit = tmp_path / "cpu.max"
    monkeypatch.setattr(host, "Path", lambda path: limit)
    for text, count in (("200000 100000\n", 2), ("50000 100000\n", 1), ("max 100000\n", 64)):
        limit.write_text(text)
        assert host.usable_cores() == count


# The GPU itself.


class Driver:
    """As much of pynvml as is asked, on a machine with two cards; the real module's errors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import pynvml

        self.fails: type[Exception] | None = None
        self.names = {0: "Tesla T4", "GPU-b": "NVIDIA L4"}
        for name in ("Init", "DeviceGetHandleByIndex", "DeviceGetHandleByUUID", "DeviceGetMemoryInfo", "DeviceGetName"):
            monkeypatch.setattr(pynvml, f"nvml{name}", getattr(self, name))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCudaComputeCapability", lambda card: (7, 5))
        monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion_v2", lambda: 12080)
        monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "570.1")
        monkeypatch.setattr(gpu, "read_torch_build", lambda: CUDA12)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.pynvml = pynvml

    def Init(self) -> None:
        if self.fails is not None:
            raise self.fails

    def DeviceGetHandleByIndex(self, index: int) -> object:
        if index not in self.names:
            raise self.pynvml.NVMLError(self.pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index

    def DeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def DeviceGetMemoryInfo(self, card: object, version: object) -> SimpleNamespace:
        assert version == self.pynvml.nvmlMemory_v2, "the older one hides what the driver keeps"
        return SimpleNamespace(total=16 * 2**30, reserved=2**30, free=3 * 2**29)

    def DeviceGetName(self, card: object) -> str:
        return self.names[card]


def test_the_gpu_is_read_from_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    assert gpu.read_gpu() == GpuState(Gpu("Tesla T4", 15.0, (7, 5)), 1.5, "570.1", (12, 8))
    assert gpu.find_gpu() == Gpu("Tesla T4", 15.0, (7, 5))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert gpu.find_gpu().name == "NVIDIA L4"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert gpu.find_gpu() is None
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        with pytest.raises(NoGpu, match="hides the GPU"):
            gpu.read_gpu()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(gpu, "read_torch_build", lambda: CPU)
    assert gpu.find_gpu() is None, "torch for a CPU uses none, and neither does Unsloth with it"
    assert driver.fails is None


def test_a_driver_that_failed_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    driver.fails = driver.pynvml.NVMLError(driver.pynvml.NVML_ERROR_GPU_IS_LOST)
    assert gpu.find_gpu() is None and "GPU is lost" in check("device").found
    driver.fails = driver.pynvml.NVMLError(driver.pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert gpu.find_gpu() is None and check("device").status == "ok", "no driver is no fault"
    driver.fails = None
    assert gpu.find_gpu().name == "Tesla T4"


@pytest.mark.parametrize(
    ("script", "cuda"),
    [
        ("echo '| NVIDIA-SMI 580.82.07   Driver Version: 580.82.07   CUDA Version: 13.0 |'", (13, 0)),
        ("echo '| NVIDIA-SMI 595.1  KMD Version: 595.1  CUDA UMD Version: 13.3 |'", (13, 3)),
        ("echo 'No devices were found'", None),
        ("echo 'NVIDIA-SMI has failed'; exit 9", None),
    ],
)
def test_the_installer_reads_the_header_of_nvidia_smi(script, cuda, tmp_path: Path, monkeypatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gpu.driver_cuda() == cuda
