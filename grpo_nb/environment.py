"""Where am I, what is installed, what fits. Reads package metadata and the driver; imports neither torch nor unsloth."""

from __future__ import annotations

import html
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Packages that unsloth patches while they load, so that it must come before them.
_PATCHED_BY_UNSLOTH = ("trl", "transformers", "peft")
_NEEDED = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "unsloth", "unsloth_zoo")
# torchvision minor release that was built for a torch minor release: 0.(n + 15) for 2.n (pytorch/vision README).
_TORCHVISION_OFFSET = 15


class EnvironmentProblem(RuntimeError):
    """This machine or its installation is in the way: what, why, and what to type next."""


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as the driver reports it."""

    name: str
    memory_gib: float
    compute_capability: tuple[int, int]


def find_gpu() -> Gpu | None:
    """Return the first NVIDIA GPU that the driver reports, or None. Loads no CUDA library."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        name, memory, capability = (part.strip() for part in answer.strip().splitlines()[0].split(","))
        major, minor = capability.split(".")
        return Gpu(name, float(memory) / 1024, (int(major), int(minor)))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        # A driver that does not answer is no GPU for us; check_environment has the row that says so.
        return None


@dataclass(frozen=True)
class Check:
    """One row of the preflight table."""

    what: str
    status: str
    """`ok`, `warning` or `problem`."""
    found: str
    fix: str = ""


class EnvironmentReport:
    """The preflight table. Shows itself in a notebook; `raise_problems` turns problems into an error."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self.checks = tuple(checks)

    @property
    def is_ready(self) -> bool:
        """Whether no check found a problem."""
        return not any(check.status == "problem" for check in self.checks)

    def raise_problems(self) -> None:
        """Raise `EnvironmentProblem` naming each problem and its fix, if there is any."""
        problems = [check for check in self.checks if check.status == "problem"]
        if problems:
            raise EnvironmentProblem("\n".join(f"{c.what}: {c.found}. {c.fix}" for c in problems))

    def __repr__(self) -> str:
        rows = [f"{c.status:<8} {c.what:<13} {c.found}" + (f"  ->  {c.fix}" if c.fix else "") for c in self.checks]
        return "\n".join([*rows, "Ready." if self.is_ready else "Not ready: see the problems above."])

    def _repr_html_(self) -> str:
        marks = {"ok": "&#10003; ok", "warning": "! warning", "problem": "&#10007; problem"}
        rows = "".join(
            f"<tr><td>{marks[c.status]}</td><td>{html.escape(c.what)}</td><td style='text-align:left'>"
            f"{html.escape(c.found)}</td><td style='text-align:left'>{html.escape(c.fix)}</td></tr>"
            for c in self.checks
        )
        verdict = "Ready." if self.is_ready else "<b>Not ready:</b> mend the problems first."
        return (
            f"<table><thead><tr><th></th><th>what</th><th>found</th><th>what to do</th></tr></thead>{rows}</table>"
            f"<p>{verdict}</p>"
        )


def check_environment(run_root: str | Path = ".") -> EnvironmentReport:
    """Check Python, packages, GPU, import order and disk in under a second, and say what to do about each finding.

    Args:
        run_root: Where runs will be written; its disk is checked.
    """
    gpu = find_gpu()
    return EnvironmentReport(
        [
            _check_python(),
            _check_packages(),
            check_torchvision(),
            _check_import_order(),
            _check_device(gpu),
            _check_vllm(gpu),
            _check_disk(Path(run_root)),
        ]
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def package_versions() -> dict[str, str]:
    """The installed versions of the packages a run depends on; a run records them."""
    return {name: version for name in (*_NEEDED, "vllm") if (version := _version(name)) is not None}


def _check_python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 11):  # noqa: UP036, a kernel may be older than what pyproject.toml asks for
        return Check("Python", "problem", found, "Use Python 3.11 or newer.")
    return Check("Python", "ok", found)


def _check_packages() -> Check:
    missing = [name for name in _NEEDED if _version(name) is None]
    if missing:
        fix = (
            "pip install -r requirements.txt && pip install --no-deps -r requirements-no-deps.txt, "
            "then restart the kernel."
        )
        return Check("packages", "problem", f"missing: {', '.join(missing)}", fix)
    versions = package_versions()
    return Check("packages", "ok", ", ".join(f"{n} {versions[n]}" for n in ("unsloth", "trl", "transformers", "torch")))


def check_torchvision() -> Check:
    """The row about torchvision, which must be absent or built for the torch beside it."""
    torch, vision = _version("torch"), _version("torchvision")
    if vision is None or torch is None:
        return Check("torchvision", "ok", "not installed, and not needed")
    torch_minor, vision_minor = (int(v.split(".")[1]) for v in (torch, vision))
    builds = {v.partition("+")[2] or "default" for v in (torch, vision)}
    if vision_minor == torch_minor + _TORCHVISION_OFFSET and len(builds) == 1:
        return Check("torchvision", "ok", f"{vision} fits torch {torch}")
    return Check(
        "torchvision",
        "problem",
        f"{vision} was not built for torch {torch}, and transformers fails on it (operator torchvision::nms)",
        "pip uninstall -y torchvision, then restart the kernel.",
    )


def import_order_problem(loaded: Sequence[str] | None = None) -> str | None:
    """Say which packages were imported before unsloth, or None if the order is right."""
    loaded = list(sys.modules) if loaded is None else loaded
    early = [name for name in _PATCHED_BY_UNSLOTH if name in loaded]
    if "unsloth" in loaded or not early:
        return None
    return f"{' and '.join(early)} {'was' if len(early) == 1 else 'were'} imported before unsloth"


def _check_import_order() -> Check:
    problem = import_order_problem()
    if problem:
        return Check("import order", "problem", problem, "Restart the kernel and import grpo_nb first.")
    return Check("import order", "ok", "unsloth comes first")


def _check_device(gpu: Gpu | None) -> Check:
    if gpu is not None:
        precision = "bf16" if gpu.compute_capability >= (8, 0) else "fp16 (no bf16 before compute capability 8.0)"
        return Check("device", "ok", f"{gpu.name}, {gpu.memory_gib:.0f} GiB, {precision}")
    if shutil.which("nvidia-smi"):
        return Check("device", "warning", "nvidia-smi finds no GPU", "Check the driver; until then the CPU is used.")
    return Check("device", "ok", f"CPU, {os.cpu_count()} cores, {total_memory_gib():.0f} GiB memory")


def _check_vllm(gpu: Gpu | None) -> Check:
    version = _version("vllm")
    if gpu is None:
        return Check("vLLM", "ok", "needs a GPU; the kit's own CPU rollout is used")
    if version is None:
        fix = "pip install -r requirements-gpu.txt for faster generation; Unsloth's own is used until then."
        return Check("vLLM", "warning", "not installed", fix)
    return Check("vLLM", "ok", version)


def total_memory_gib() -> float:
    """Memory of this machine in GiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def free_disk_bytes(path: Path) -> int:
    """Free bytes on the disk that holds `path` or, if it does not exist yet, its nearest existing parent."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def require_disk(path: Path, needed: int, purpose: str) -> None:
    """Raise `EnvironmentProblem` if the disk that will hold `path` has less than `needed` bytes free."""
    free = free_disk_bytes(path)
    if free < needed:
        raise EnvironmentProblem(
            f"{purpose} needs {needed / 1e9:.2f} GB on the disk of {path}, but {free / 1e9:.2f} GB are free. "
            "Free some space or choose a folder on another disk."
        )


def _check_disk(run_root: Path) -> Check:
    free = free_disk_bytes(run_root) / 1e9
    if free < 2:
        return Check("disk", "problem", f"{free:.1f} GB free", "Free at least 2 GB: model, run and export need it.")
    return Check("disk", "ok", f"{free:.0f} GB free")
