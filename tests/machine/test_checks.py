"""Preflight finds what breaks an installation, and says what to do about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest

import grpo_nb as gn
from grpo_nb.config import vllm_obstacle
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine import checks, host, packages
from grpo_nb.machine.gpu import Gpu, GpuState, NoGpu
from grpo_nb.machine.packages import TorchBuild

L4 = GpuState(Gpu("NVIDIA L4", 22.0, (8, 9)), 21.5, "580.95.05", (13, 0))
T4 = GpuState(Gpu("Tesla T4", 15.0, (7, 5)), 14.7, "580.82.07", (13, 0))
P100 = GpuState(Gpu("Tesla P100-PCIE-16GB", 16.0, (6, 0)), 15.9, "570.1", (12, 8))
CUDA13, CUDA12, CPU = (TorchBuild(version=f"2.13.0+{build}", cuda=cuda)
                       for build, cuda in (("cu130", (13, 0)), ("cu128", (12, 8)), ("cpu", None)))  # fmt: skip


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch):
    """Returns a row of the table of this machine with a GPU, a torch, and these versions of packages."""

    def found(
        what: str, state: GpuState | NoGpu = L4, build: TorchBuild = CUDA13, **versions: str | None
    ) -> checks.Check:
        real = packages.installed_version
        with monkeypatch.context() as patch:
            patch.setattr(
                packages, "installed_version", lambda name: versions.get(name, real(name))
            )
            patch.setattr(packages, "read_torch_build", lambda: build)
            patch.setattr(checks, "read_gpu", Mock(side_effect=[state]))
            if "vllm" not in versions:
                patch.setattr(checks, "vllm_row", lambda: ("ok", "loads"))
            return next(check for check in checks.check_environment().checks if check.what == what)

    return found


def test_this_machine_is_ready_and_nothing_heavy_is_imported() -> None:
    report = checks.check_environment()
    assert report.is_ready and "Ready" in repr(report) and "<table>" in report._repr_html_()
    code = (
        "import sys, grpo_nb as gn; gn.check_environment()\n"
        "print(sorted({'torch', 'numpy', 'trl', 'transformers', 'unsloth', 'vllm', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_problem_is_not_ready_and_a_warning_is() -> None:
    for status, verdict in (("problem", "Not ready"), ("warning", "Ready, with")):
        report = checks.EnvironmentReport([checks.Check("a", status, "<script>", "do so")])
        assert report.verdict.startswith(verdict) and report.is_ready is (status == "warning")
        assert "<script>" not in report._repr_html_() and "do so" in report._repr_html_()


@pytest.mark.parametrize(
    ("state", "build", "status", "found", "fix"),
    [
        (
            L4,
            CUDA13,
            "ok",
            "NVIDIA L4 (8.9, bf16), 22 GiB, driver 580.95.05 for CUDA 13.0; torch 2.13.0+cu130",
            "",
        ),
        (T4, CUDA12, "ok", "Tesla T4 (7.5, fp16)", ""),
        (L4, CPU, "problem", "torch 2.13.0+cpu is for the CPU", "pip uninstall -y torch"),
        (P100, CUDA12, "problem", "need 7.0", "T4 x2 and not P100"),
        (
            GpuState(L4.gpu, 21.5, "570.1", (12, 8)),
            CUDA13,
            "problem",
            "needs CUDA 13",
            "580 or newer",
        ),
        (NoGpu(""), CPU, "ok", "CPU, ", ""),
        (NoGpu("GPU is lost"), CPU, "warning", "GPU is lost", "nvidia-smi"),
    ],
)
def test_the_gpu_and_whether_this_torch_starts_on_it(row, state, build, status, found, fix) -> None:
    device = row("device", state, build)
    assert device.status == status and found in device.found and fix in device.fix, device


def test_memory_that_others_hold_is_told_and_how_a_gpu_is_had(
    row, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert row("GPU memory").status == "ok"
    memory = row("GPU memory", GpuState(L4.gpu, 3.0, L4.driver, L4.cuda))
    assert (
        memory.status == "warning"
        and memory.found.startswith("3.0 of 22.0 GiB free")
        and "nvidia-smi" in memory.fix
    )
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    assert "T4 GPU" in row("device", NoGpu("")).fix


@pytest.mark.parametrize(
    ("installed", "status", "found"),
    [
        ({}, "ok", "unsloth 2026"),
        ({"trl": None}, "problem", "missing: trl"),
        ({"trl": "1.14.0"}, "warning", "trl 1.14.0 instead of 1.15.0"),
        ({"torchao": "0.10.0"}, "problem", "torchao 0.10.0, and peft refuses"),
        (
            {"torch": "2.13.0", "torchvision": "0.25.0"},
            "problem",
            "torchvision 0.25.0 was not built for torch 2.13.0",
        ),
        (
            {"torch": "2.13.0", "torchvision": "0.28.0+cu130"},
            "ok",
            "unsloth",
        ),  # the registry's does not say that it is
        (
            {"torch": "2.13.0a0+e6bf23d", "torchvision": "0.28.0a0+1f4c9d2"},
            "ok",
            "",
        ),  # as in NVIDIA's containers
    ],
)
def test_packages_that_are_missing_other_than_tried_or_in_the_way(
    row, installed, status, found
) -> None:
    packed = row("packages", **installed)
    assert (
        packed.status == status
        and found in packed.found
        and (status == "ok" or "pip " in packed.fix)
    ), packed


def test_unsloth_comes_first_and_what_is_loaded_must_be_what_is_installed(row, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(packages.sys, "modules", {"os": os, "trl": os, "transformers": os})
        said = packages.import_order_problem()
    assert said == "trl and transformers were imported before unsloth"
    stale = ModuleType("pandas")
    stale.__version__ = "0.1.0"
    monkeypatch.setitem(sys.modules, "pandas", stale)
    kernel = row("this kernel")
    assert (
        kernel.status == "problem"
        and "pandas 0.1.0 is loaded" in kernel.found
        and "estart" in kernel.fix
    )


# As in vllm/platforms/cuda.py, import_kernels: a failure of the compiled part becomes a line of a log.
LOGGED = "print('WARNING [cuda.py:243] Failed to import from vllm._C_stable_libtorch: ImportError(no library)')"


@pytest.mark.parametrize(
    ("body", "seconds", "status", "found"),
    [
        ("", 60, "ok", "9.9.9 loads"),
        (
            "raise ImportError('libcudart.so.13: cannot open')",
            60,
            "warning",
            "libcudart.so.13: cannot open",
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            60,
            "warning",
            "ended with -11",
        ),
        (LOGGED, 60, "warning", "_C_stable_libtorch"),
        (LOGGED.replace("no library", "does not define module export function"), 60, "ok", "loads"),
    ],
)
def test_vllm_is_tried_in_another_process(
    body, seconds, status, found, row, tmp_path, monkeypatch
) -> None:
    (tmp_path / "vllm.py").write_text(f"class LLM: ...\nclass SamplingParams: ...\n{body}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(packages, "_VLLM_SECONDS", seconds)
    packages.vllm_problem.cache_clear()
    tried = row("vLLM", vllm="9.9.9")
    assert tried.status == status and found in tried.found, tried
    assert "vllm" not in sys.modules and (status == "ok" or "pip uninstall -y vllm" in tried.fix)


SLOW_ONCE = """
import pathlib, time
started = pathlib.Path(__file__).with_name("started")
if not started.exists():
    started.touch()
    time.sleep(60)
"""


@pytest.fixture
def slow_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM whose first import takes longer than the limit."""
    (tmp_path / "vllm.py").write_text(f"class LLM: ...\nclass SamplingParams: ...\n{SLOW_ONCE}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(packages, "_VLLM_SECONDS", 4)
    packages.vllm_problem.cache_clear()


def test_vllm_that_was_slow_once_is_tried_again(row, slow_vllm) -> None:
    first, second = (row("vLLM", vllm="9.9.9") for _ in range(2))
    assert first.status == "warning"
    assert "its import took longer than 4 s" in first.found
    assert "again" in first.fix and "uninstall" not in first.fix
    assert second.status == "ok"


def test_slow_vllm_is_not_reported_as_one_that_does_not_load(slow_vllm, monkeypatch) -> None:
    monkeypatch.setattr(vllm_obstacle, "installed_version", lambda name: "9.9.9")
    settings = gn.preset("t4")
    slow = vllm_obstacle.vllm_obstacle(settings, T4.gpu)
    assert "does not load" not in slow.reason
    assert "pip install" not in slow.fix
    assert vllm_obstacle.vllm_obstacle(settings, T4.gpu) is None


def test_vllm_gets_five_minutes_for_its_import() -> None:
    """Cold, it reads 3 GB and compiles 5,000 files."""
    assert packages._VLLM_SECONDS == 300


def test_too_little_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert checks.disk_row(tmp_path, needed=10**9)[0] == "problem"
    monkeypatch.setattr(host, "free_disk_bytes", lambda path: 10**9)
    with pytest.raises(EnvironmentProblem, match=r"needs 5\.00 GB .* but 1\.00 GB are free"):
        host.require_disk(tmp_path / "new" / "folder", 5 * 10**9, "The merged model")


@pytest.mark.parametrize(
    ("token", "status"), [("hf_" + "a" * 34 + "\n", "ok"), ("my secret", "warning"), ("", None)]
)
def test_a_token_is_never_shown_and_colabs_secrets_are_not_opened(
    token, status, monkeypatch
) -> None:
    """Colab asks the user before it gives one; who needs it is asked when it is needed."""
    asked: list[str] = []
    colab = ModuleType("google.colab")
    colab.userdata = SimpleNamespace(get=asked.append)
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    monkeypatch.setattr("huggingface_hub.utils._auth.is_google_colab", lambda: True)
    monkeypatch.setenv("HF_TOKEN", token)
    report = checks.check_environment()
    assert [row.status for row in report.checks if row.what == "Hub token"] == (
        [status] if status else []
    )
    assert asked == [] and (not token or token.strip() not in repr(report) + report._repr_html_())
