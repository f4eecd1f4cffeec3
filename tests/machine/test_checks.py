"""The check of the environment finds what breaks an installation, and says what to do about it."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.machine import checks, host, packages
from grpo_nb.machine.checks import Check, EnvironmentReport
from grpo_nb.machine.gpu import Gpu, GpuState, UnreadableGpuError
from grpo_nb.machine.packages import TorchBuild


def gpu_state(name: str, gib: float, capability: tuple[int, int], **changes: object) -> GpuState:
    gpu = Gpu(name=name, memory_gib=gib, compute_capability=capability)
    fields = {"free_gib": gib - 0.5, "newest_cuda": (13, 0)}
    return GpuState(gpu=gpu, **(fields | changes))


L4 = gpu_state("NVIDIA L4", 22.0, (8, 9))
L4_OLD_DRIVER = gpu_state("NVIDIA L4", 22.0, (8, 9), newest_cuda=(12, 8))
T4 = gpu_state("Tesla T4", 15.0, (7, 5))
V100 = gpu_state("Tesla V100-SXM2-16GB", 16.0, (7, 0))
P100 = gpu_state("Tesla P100-PCIE-16GB", 16.0, (6, 0), newest_cuda=(12, 8))
CUDA13 = TorchBuild(version="2.13.0+cu130", cuda=(13, 0))
CUDA12 = TorchBuild(version="2.13.0+cu128", cuda=(12, 8))
CPU = TorchBuild(version="2.13.0+cpu", cuda=None)
NO_GPU = None
LOST_GPU = UnreadableGpuError("the NVIDIA driver reports: GPU is lost")


class Machine:
    """A made-up machine with a GPU, a torch and versions of packages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def report(
        self,
        gpu: GpuState | UnreadableGpuError | None = L4,
        build: TorchBuild = CUDA13,
        **versions: str | None,
    ) -> EnvironmentReport:
        """Check the environment; vLLM is installed unless it is one of the versions."""
        real_version = packages.installed_version
        with self._monkeypatch.context() as patch:
            for name in versions:
                # Other tests may have imported it, in its real version.
                patch.delitem(sys.modules, name, raising=False)
            versions.setdefault("vllm", "0.31.0")
            patch.setattr(
                packages, "installed_version", lambda name: versions.get(name, real_version(name))
            )
            patch.setattr(packages, "read_torch_build", lambda: build)
            patch.setattr(checks, "read_gpu_state", Mock(side_effect=[gpu]))
            return checks.check_environment()

    def check(self, name: str, *machine: object, **versions: str | None) -> Check:
        """Return one check of the report."""
        report = self.report(*machine, **versions)
        return next(check for check in report.checks if check.name == name)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_environment_of_this_machine_is_ready() -> None:
    assert checks.check_environment().is_ready


def test_environment_check_imports_nothing_heavy() -> None:
    code = (
        "import sys, grpo_nb as gn; gn.check_environment()\n"
        "heavy = {'torch', 'numpy', 'trl', 'transformers', 'unsloth', 'vllm', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


# What a user reads first: what the machine can do, the verdict, and what to do.


@pytest.mark.parametrize(
    ("device", "versions", "summary", "verdict", "next_step"),
    [
        pytest.param(
            (L4, CUDA13),
            {},
            "Training runs on the GPU, NVIDIA L4 (22 GiB), and samples with vLLM.",
            "Ready.",
            "",
            id="GPU with vLLM",
        ),
        pytest.param(
            (T4, CUDA13),
            {"vllm": None},
            "Training runs on the GPU, Tesla T4 (15 GiB), and samples with Unsloth's own",
            "Ready.",
            "vLLM: not installed. Run the Setup cell",
            id="GPU without vLLM",
        ),
        pytest.param(
            (T4, CUDA13),
            {"vllm": None, "trl": "1.10.0"},
            "Training runs on the GPU, Tesla T4 (15 GiB), and samples with Unsloth's own",
            "Ready.",
            "vLLM: not installed. Run the Setup cell",
            id="warning before a note",
        ),
        pytest.param(
            (L4, CPU),
            {},
            "Training cannot use the GPU yet: NVIDIA L4 (22 GiB).",
            "Not ready.",
            "device: NVIDIA L4",
            id="torch for CPU",
        ),
        pytest.param(
            (P100, CUDA12),
            {"trl": None},
            "Some packages are missing.",
            "Not ready.",
            "packages: missing: trl. Restart the kernel and run the Setup cell",
            id="GPU without a package",
        ),
        pytest.param((NO_GPU, CPU), {}, "Training runs on the CPU (", "Ready.", "", id="CPU alone"),
        pytest.param(
            (LOST_GPU, CPU),
            {},
            "Training runs on the CPU (",
            "Ready.",
            "no GPU, because the NVIDIA driver reports: GPU is lost. Run `!nvidia-smi` in a cell.",
            id="GPU that fails",
        ),
    ],
)
def test_report_shows_at_most_three_lines(
    device, versions, summary, verdict, next_step, machine: Machine
) -> None:
    report = machine.report(*device, **versions)
    lines = repr(report).splitlines()
    assert lines[0].startswith(summary)
    assert lines[1] == verdict
    assert next_step in "".join(lines[2:])
    assert len(lines) == (3 if next_step else 2)


def test_report_in_colab_without_gpu_shows_how_to_get_one(machine: Machine, monkeypatch) -> None:
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    report = machine.report(NO_GPU, CPU)
    assert report.is_ready
    assert "Runtime > Change runtime type > T4 GPU" in report.next_step


def test_report_in_notebook_has_all_checks_behind_a_click(machine: Machine) -> None:
    page = machine.report()._repr_html_()
    assert "<details><summary>All checks</summary><table>" in page


def test_report_table_has_a_row_for_each_check(machine: Machine) -> None:
    report = machine.report()
    assert len(report.table.rows) == len(report.checks)
    assert "driver for CUDA 13.0" in report.table.text()


@pytest.mark.parametrize(
    ("status", "is_ready"),
    [pytest.param("problem", False, id="problem"), pytest.param("warning", True, id="warning")],
)
def test_report_is_ready_with_warnings_only(status: str, is_ready: bool) -> None:
    report = EnvironmentReport("Training runs.", [Check("a", status, "found", "do so")])
    assert report.is_ready is is_ready


def test_report_escapes_texts() -> None:
    report = EnvironmentReport("<script>", [Check("a", "problem", "<script>", "do so")])
    assert "<script>" not in report._repr_html_()


# The checks one by one.


@pytest.mark.parametrize(
    ("gpu", "torch", "status", "found", "fix"),
    [
        pytest.param(
            L4,
            CUDA13,
            "ok",
            "NVIDIA L4 (compute capability 8.9), 22 GiB, driver for CUDA 13.0; torch 2.13.0+cu130",
            "",
            id="L4",
        ),
        pytest.param(T4, CUDA12, "ok", "Tesla T4 (compute capability 7.5)", "", id="T4"),
        pytest.param(
            L4,
            CPU,
            "problem",
            "torch 2.13.0+cpu is for the CPU",
            "pip uninstall -y torch",
            id="torch for CPU",
        ),
        pytest.param(
            P100,
            CUDA12,
            "problem",
            "needs a GPU of compute capability 7.0 or higher",
            "T4 x2 instead of P100",
            id="P100",
        ),
        pytest.param(
            P100, CUDA13, "problem", "compute capability 7.5 or", "T4 x2", id="P100 and CUDA 13"
        ),
        pytest.param(
            V100,
            CUDA13,
            "problem",
            "needs a GPU of compute capability 7.5 or higher",
            "torch for CUDA 12",
            id="V100 and CUDA 13",
        ),
        pytest.param(V100, CUDA12, "ok", "capability 7.0)", "", id="V100 and CUDA 12"),
        pytest.param(
            L4_OLD_DRIVER,
            CUDA13,
            "problem",
            "needs a driver for CUDA 13",
            "580 or newer",
            id="old driver",
        ),
        pytest.param(NO_GPU, CPU, "ok", "CPU, ", "", id="no GPU"),
        pytest.param(LOST_GPU, CPU, "warning", "GPU is lost", "nvidia-smi", id="lost GPU"),
    ],
)
def test_device_check(gpu, torch, status, found, fix, machine: Machine) -> None:
    check = machine.check("device", gpu, torch)
    assert check.status == status
    assert found in check.finding
    assert fix in check.fix


@pytest.mark.parametrize(
    ("versions", "status", "found"),
    [
        pytest.param({}, "ok", "unsloth 2026", id="installed"),
        pytest.param({"trl": None}, "problem", "missing: trl", id="missing"),
    ],
)
def test_packages_check(versions, status, found, machine: Machine) -> None:
    check = machine.check("packages", **versions)
    assert check.status == status
    assert found in check.finding


@pytest.mark.parametrize(
    ("versions", "fix"),
    [
        pytest.param({"trl": "1.10.0"}, "written for trl 1.15.0. If", id="another version"),
        pytest.param({"vllm": "0.31.0+cpu"}, "", id="another build"),
        pytest.param({"vllm": None}, "", id="without vLLM"),
    ],
)
def test_packages_check_notes_versions_that_are_not_pinned(
    versions: dict, fix: str, machine: Machine
) -> None:
    check = machine.check("packages", **versions)
    assert check.status == "ok"
    assert fix in check.fix
    assert bool(fix) == bool(check.fix)


@pytest.mark.parametrize(
    ("versions", "names"),
    [
        pytest.param({"torchao": "0.10.0"}, ["torchao"], id="old torchao of Colab"),
        pytest.param({"torchao": "0.16.0"}, [], id="new torchao"),
        pytest.param({"torchao": "0.16rc1"}, [], id="release candidate"),
        pytest.param({}, [], id="neither"),
        pytest.param(
            {"torch": "2.13.0", "torchvision": "0.25.0"},
            ["torchvision"],
            id="torchvision for another torch",
        ),
        # The index's torch does not name its CUDA, and torchvision does.
        pytest.param({"torch": "2.13.0", "torchvision": "0.28.0+cu130"}, [], id="index"),
        pytest.param(
            {"torch": "2.13.0a0+e6bf23d", "torchvision": "0.28.0a0+1f4c9d2"},
            [],
            id="container of NVIDIA",
        ),
    ],
)
def test_incompatible_packages_are_named_by_their_versions(
    versions: dict, names: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "installed_version", versions.get)
    assert packages.incompatible_packages() == names


def test_command_for_cuda_12_replaces_a_build_of_the_pinned_version() -> None:
    (requirement,) = re.findall("torch==\\S+", packages.CUDA_12_TORCH_COMMAND)
    requirements = (Path(__file__).parents[2] / "requirements.txt").read_text()
    assert f"\n{requirement.partition('+')[0]}\n" in requirements
    # The index's torch does not name its CUDA. pip keeps an installed version that is accepted.
    accepted = Requirement(requirement).specifier
    assert "2.13.0" not in accepted
    assert "2.13.0+cu130" not in accepted
    assert "2.13.0+cu126" in accepted


def test_kernel_with_a_blocked_import_is_not_stale(machine: Machine, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    assert machine.check("this kernel").status == "ok"


def test_kernel_with_an_older_lazy_module_is_stale(machine: Machine, monkeypatch) -> None:
    lazy = types.ModuleType("transformers")
    lazy._objects = {"__version__": "4.0.0"}
    monkeypatch.setitem(sys.modules, "transformers", lazy)
    check = machine.check("this kernel")
    assert check.status == "problem"
    assert "old version of transformers" in check.finding


def test_gpu_before_the_installation_is_not_taken_for_none(machine: Machine) -> None:
    report = machine.report(NO_GPU, **{"nvidia-ml-py": None})
    assert report.summary.startswith("Some packages are missing.")
    assert [check.name for check in report.checks] == ["packages", "this kernel"]
    assert "missing: nvidia-ml-py" in report.next_step


def test_kernel_with_old_package_in_memory_is_a_problem(machine: Machine, monkeypatch) -> None:
    old = ModuleType("pandas")
    old.__version__ = "0.1.0"
    monkeypatch.setitem(sys.modules, "pandas", old)
    check = machine.check("this kernel")
    assert check.status == "problem"
    assert "old version of pandas" in check.finding
    assert "estart" in check.fix


@pytest.mark.parametrize(
    ("version", "status", "found"),
    [
        pytest.param("9.9.9", "ok", "9.9.9", id="installed"),
        pytest.param(None, "warning", "not installed", id="not installed"),
    ],
)
def test_vllm_check_shows_its_version(
    version: str | None, status: str, found: str, machine: Machine
) -> None:
    check = machine.check("vLLM", vllm=version)
    assert check.status == status
    assert check.finding == found


def test_require_disk_names_need_and_free_space(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**9))
    with pytest.raises(EnvironmentProblem, match=r"needs 5\.00 GB .* but 1\.00 GB are free"):
        host.require_disk(tmp_path, 5 * 10**9, "The merged model")


def test_environment_check_never_shows_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    token = "hf_" + "a" * 34
    monkeypatch.setenv("HF_TOKEN", token)
    report = checks.check_environment()
    assert token not in repr(report) + report._repr_html_() + report.table.text()


def test_environment_check_does_not_open_secrets_of_colab(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colab asks the user before it gives a secret, so it is asked when the token is needed."""
    asked: list[str] = []
    colab = ModuleType("google.colab")
    colab.userdata = SimpleNamespace(get=asked.append)
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    monkeypatch.setattr("huggingface_hub.utils._auth.is_google_colab", lambda: True)
    repr(checks.check_environment())
    assert asked == []
