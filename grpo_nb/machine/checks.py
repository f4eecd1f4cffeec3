"""The preflight: eight rows about this machine, what is wrong, and the line that mends it.

Reads package metadata and the driver; imports neither torch nor unsloth.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_nb.core.tables import Html, Shown, Table, bold
from grpo_nb.machine import packages
from grpo_nb.machine.gpu import GpuState, NoGpu, find_gpu, read_gpu
from grpo_nb.machine.host import find_host, free_disk_bytes, how_to_restart, usable_cores

# Status, what was found, and what to do about it.
Finding = tuple[str, str] | tuple[str, str, str]
_MARKS = {"ok": "\u2713 ok", "warning": bold("! warning"), "problem": bold("\u2717 problem")}
_INSTALL = f"Run the Install cell in a fresh kernel; or {packages.BY_HAND}, and restart the kernel."
_SLOWER = "until then Unsloth's own generation is used, which is slower."


@dataclass(frozen=True)
class Check:
    """One row of the preflight table."""

    what: str
    status: str
    """`ok`, `warning` or `problem`."""
    found: str
    fix: str = ""


@dataclass(frozen=True, repr=False)
class EnvironmentReport(Shown):
    """The preflight table. Shows itself in a notebook."""

    checks: Sequence[Check]

    @property
    def is_ready(self) -> bool:
        """Whether no check found a problem."""
        return not any(check.status == "problem" for check in self.checks)

    @property
    def verdict(self) -> str:
        """The table in one sentence: `Ready.`, also with warnings, or what has to be mended."""
        problems, warnings = (
            sum(check.status == status for check in self.checks)
            for status in ("problem", "warning")
        )
        warned = f"Ready, with {warnings} to read." if warnings else "Ready."
        return f"Not ready, {problems} to mend first." if problems else warned

    def _parts(self) -> Iterator[Table | Html]:
        rows = [(_MARKS[c.status], c.what, c.found, c.fix) for c in self.checks]
        # Long lists of versions break where the page ends, and the first two columns never do.
        yield Table(rows, head=("", "what", "found", "what to do"), narrow=(0, 1), wide=(2, 3))
        yield bold(self.verdict)


def check_environment(run_root: str | Path = ".") -> EnvironmentReport:
    """Check machine, packages and this kernel, and say what to do about each finding.

    Takes well under a second; on a GPU with vLLM the first call takes some seconds more, because vLLM is imported in a process
    of its own. Nothing heavy is imported into the kernel.

    Args:
        run_root: Where runs will be written; its disk is checked.

    >>> gn.check_environment().is_ready
    True
    """
    try:
        state, reason = read_gpu(), ""
    except NoGpu as error:
        state, reason = None, str(error)
    # In the order in which they are mended: a wrong package below a wrong Python is not worth looking at.
    rows = {"Python": python_row(), "packages": packages_row(), "this kernel": kernel_row()}
    rows |= {"device": cpu_row(reason)} if state is None else gpu_rows(state)
    # Model, run and export of the smallest preset: on a CPU, and on a GPU (docs/evidence/install.md).
    rows["disk"] = disk_row(
        Path(run_root).expanduser().absolute(), needed=2 if state is None else 5
    )
    if token := os.environ.get("HF_TOKEN", "").strip():
        rows["Hub token"] = token_row(token)
    return EnvironmentReport([Check(what, *finding) for what, finding in rows.items()])


def python_row() -> Finding:
    """Whether the kit supports this Python."""
    found = ".".join(map(str, sys.version_info[:3]))
    return (
        ("ok", found)
        if packages.is_python_supported()
        else ("problem", found, "Use Python 3.11 to 3.14.")
    )


def packages_row() -> Finding:
    """Whether all that a training needs is installed, in the versions that the kit was made for, and nothing that breaks it.

    Unsloth rewrites the source of the others while it is imported, so that these versions are one unit. torch is looked at with
    the device.
    """
    versions = packages.package_versions()
    if missing := [name for name in packages.NEEDED if name not in versions]:
        return "problem", f"missing: {', '.join(missing)}", _INSTALL
    if misfits := packages.misfits():
        found = "; ".join(f"{name} {why}" for name, why in misfits.items())
        return "problem", found, f"pip uninstall -y {' '.join(misfits)}, then restart the kernel."
    pins = {
        name: pin for name, pin in packages.pinned().items() if name in versions and name != "torch"
    }
    others = [
        name for name, pin in pins.items() if not packages.is_same_release(pin, versions[name])
    ]
    if others:
        found = ", ".join(f"{name} {versions[name]} instead of {pins[name]}" for name in others)
        return "warning", f"{found}, not tried with the kit", _INSTALL
    return "ok", ", ".join(
        f"{name} {versions[name]}" for name in ("unsloth", "trl", "transformers", "torch")
    )


def kernel_row() -> Finding:
    """What is in memory must be what is on disk, which it often is not after an installation, and unsloth comes first."""
    restart = f"{how_to_restart()}, then run from the top."
    problem = packages.import_order_problem()
    # On a CPU the order changes nothing (grpo_nb.models.import_unsloth).
    if problem and find_gpu() is not None:
        return "problem", problem, f"Move that import below gn.load_model(settings). {restart}"
    if stale := packages.stale_versions():
        found = "; ".join(
            f"{name} {old} is loaded, {new} installed" for name, (old, new) in stale.items()
        )
        return "problem", found, restart
    order = f"{problem}, which matters only on a GPU" if problem else "nothing came before unsloth"
    return "ok", f"what is loaded is what is installed, and {order}"


def cpu_row(reason: str) -> Finding:
    """The CPU, and why no GPU is used where a driver is there."""
    found = f"CPU, {usable_cores()} cores"
    if reason:
        fix = "Unset CUDA_VISIBLE_DEVICES, or see what `nvidia-smi` says, and restart the kernel; until then the CPU is used."
        return "warning", f"{found}; {reason}", fix
    choices = {
        "colab": "Runtime > Change runtime type > T4 GPU",
        "kaggle": "Settings > Accelerator > GPU T4 x2",
    }
    choice = choices.get(find_host())
    return "ok", found, f"For a GPU: {choice}, then run the Install cell." if choice else ""


def gpu_rows(state: GpuState) -> dict[str, Finding]:
    """The GPU, what is free of its memory, and whether vLLM loads."""
    free, memory = state.free_gib, state.gpu.memory_gib
    held = "" if free >= 0.85 * memory else "; this kernel or another program holds the rest"
    fix = f"A model loaded here: {how_to_restart()}. Else end the kernel or program that holds it (`nvidia-smi` lists them)."
    found = f"{free:.1f} of {memory:.1f} GiB free{held}"
    return {
        "device": gpu_row(state),
        "GPU memory": ("warning", found, fix) if held else ("ok", found),
        "vLLM": vllm_row(),
    }


def gpu_row(state: GpuState) -> Finding:
    """The GPU, its precision, and whether the installed torch can start on it."""
    gpu, build = state.gpu, packages.read_torch_build()
    capability, cuda = (".".join(map(str, pair)) for pair in (gpu.compute_capability, state.cuda))
    precision = "bf16" if gpu.compute_capability >= (8, 0) else "fp16"
    found = f"{gpu.name} ({capability}, {precision}), {gpu.memory_gib:.0f} GiB, driver {state.driver} for CUDA {cuda}"
    if build is None:  # told as a missing package
        return "ok", found
    found += f"; torch {build.version}"
    if build.cuda is None:
        return (
            "problem",
            f"{found} is for the CPU: no GPU is used",
            f"pip uninstall -y torch. {_INSTALL}",
        )
    # CUDA 13 dropped everything before Turing; triton and bitsandbytes ask for 7.0 with any CUDA.
    least = (7, 5) if build.cuda >= (13, 0) else (7, 0)
    if gpu.compute_capability < least:
        fix = "Choose another GPU (Kaggle: T4 x2 and not P100), or CUDA_VISIBLE_DEVICES=-1 for the CPU, and restart."
        return "problem", f"{found}, triton and bitsandbytes need {least[0]}.{least[1]}", fix
    # NVIDIA's "minor version compatibility": any driver of a CUDA major runs what was built for a later minor.
    if state.cuda[0] < build.cuda[0]:
        fix = f"Update the driver (CUDA 13: 580 or newer), or install a torch for CUDA {state.cuda[0]} (PyTorch's web site)."
        return "problem", f"{found} needs CUDA {build.cuda[0]}", fix
    return "ok", found


def vllm_row() -> Finding:
    """Whether generation can go through vLLM; without it training works, with slower generation."""
    version = packages.installed_version("vllm")
    if version is None:
        fix = f"Run the Install cell: it adds vLLM where one fits, and says why where none does; {_SLOWER}"
        return "warning", "not installed", fix
    try:
        problem = packages.vllm_problem()
    except TimeoutError as error:
        fix = f"Run this check again: it starts with vLLM's files in memory; {_SLOWER}"
        return "warning", f"{version}: {error}", fix
    if problem:
        fix = f"pip uninstall -y vllm, then run the Install cell in a fresh kernel; {_SLOWER}"
        return "warning", f"{version} does not load: {problem}", fix
    return "ok", f"{version} loads"


def disk_row(folder: Path, *, needed: int) -> Finding:
    """Room for model, run and export, in GB."""
    free = free_disk_bytes(folder) / 1e9
    if free < needed:
        return (
            "problem",
            f"{free:.1f} GB free",
            f"Free at least {needed} GB: model, run and export need it.",
        )
    return "ok", f"{free:.0f} GB free"


def token_row(token: str) -> Finding:
    """A Hugging Face token in `HF_TOKEN`, which gated models and pushing need, and nothing else.

    Colab's secrets are not asked for: Colab would ask the user.
    """
    if re.fullmatch(r"hf_\w{20,}", token):
        return "ok", "in HF_TOKEN"
    fix = "Tokens begin with hf_ and have no spaces; make one on the Hub under Settings > Access Tokens."
    return "warning", "in HF_TOKEN, but it does not look like a token", fix
