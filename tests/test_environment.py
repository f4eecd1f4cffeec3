"""Preflight finds what breaks an installation, on machines described here."""

from pathlib import Path

import pytest

from grpo_nb import environment
from grpo_nb.environment import EnvironmentProblem, check_environment, import_order_problem


def check(name: str):
    return next(c for c in check_environment().checks if c.what == name)


def test_this_machine_is_ready() -> None:
    report = check_environment()
    assert report.is_ready, repr(report)
    report.raise_problems()
    assert "Ready." in repr(report) and "<table>" in report._repr_html_()


@pytest.mark.parametrize(
    ("torch", "vision", "status"),
    [
        ("2.13.0+cpu", None, "ok"),
        ("2.13.0+cu130", "0.28.0+cu130", "ok"),
        ("2.13.0", "0.28.0", "ok"),
        ("2.13.0+cpu", "0.28.0+cu130", "problem"),
        ("2.13.0", "0.25.0", "problem"),
    ],
)
def test_a_wrong_torchvision_is_a_problem(torch: str, vision: str | None, status: str, monkeypatch) -> None:
    real = environment._version
    fake = {"torch": torch, "torchvision": vision}
    monkeypatch.setattr(environment, "_version", lambda name: fake[name] if name in fake else real(name))
    assert check("torchvision").status == status
    if status == "problem":
        with pytest.raises(EnvironmentProblem, match="pip uninstall -y torchvision"):
            check_environment().raise_problems()


def test_missing_packages_name_the_two_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    real = environment._version
    monkeypatch.setattr(environment, "_version", lambda name: None if name == "unsloth" else real(name))
    assert "missing: unsloth" in check("packages").found and "--no-deps" in check("packages").fix


def test_import_order() -> None:
    assert import_order_problem(["os", "trl", "transformers"]) == "trl and transformers were imported before unsloth"
    assert import_order_problem(["peft"]) == "peft was imported before unsloth"
    assert import_order_problem(["unsloth", "trl"]) is None
    assert import_order_problem(["os"]) is None


def test_too_little_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "free_disk_bytes", lambda path: 10**9)
    assert check("disk").status == "problem"
    with pytest.raises(EnvironmentProblem, match=r"needs 5\.00 GB .* but 1\.00 GB are free"):
        environment.require_disk(tmp_path / "new" / "folder", 5 * 10**9, "The merged model")


def fake_nvidia_smi(folder: Path, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{answer}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_the_gpu_is_read_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, "echo 'Tesla T4, 15360, 7.5'", monkeypatch)
    gpu = environment.find_gpu()
    assert (gpu.name, gpu.memory_gib, gpu.compute_capability) == ("Tesla T4", 15.0, (7, 5))
    assert "fp16 (no bf16" in check("device").found
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert environment.find_gpu() is None


def test_a_dead_driver_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, "echo 'NVIDIA-SMI has failed'; exit 9", monkeypatch)
    assert environment.find_gpu() is None
    assert check("device").status == "warning"
