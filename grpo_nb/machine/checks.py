"""Check if this machine can train, and report what to do first if it cannot.

The checks read package metadata and ask the driver. They import neither torch nor unsloth.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from grpo_nb.core.tables import Part, ReprMixin, RichText, Table, bold
from grpo_nb.machine import packages
from grpo_nb.machine.gpu import GpuState, UnreadableGpuError, read_gpu
from grpo_nb.machine.host import is_colab, usable_cores
from grpo_nb.upstream.symbols import PINNED_VERSIONS

_MARKS = {"ok": "\u2713 ok", "warning": bold("! warning"), "problem": bold("\u2717 problem")}
_INSTALL_FIX = (
    f"Run the Setup cell in a fresh kernel; or run `{packages.INSTALL_COMMAND}` and restart the "
    "kernel."
)


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    name: str
    status: Literal["ok", "warning", "problem"]
    finding: str
    fix: str = ""
    """Advice to the user; empty if there is nothing to do."""


@dataclass(frozen=True, repr=False)
class EnvironmentReport(ReprMixin):
    """State of this machine: the device, whether it is ready, and the next step.

    In a notebook, a click opens the table of all checks. In a script, `print(report.table.text())`
    shows the table.
    """

    summary: str
    """Device that this machine trains on."""
    checks: Sequence[Check]
    """All checks, in the order in which problems should be fixed."""

    @property
    def is_ready(self) -> bool:
        """True if no check found a problem; warnings do not count."""
        return all(check.status != "problem" for check in self.checks)

    @property
    def next_step(self) -> str:
        """First problem with its fix, else the first warning, else the first hint, else empty."""
        for status in ("problem", "warning", "ok"):
            for check in self.checks:
                if check.status == status and check.fix:
                    return f"{check.name}: {check.finding}. {check.fix}"
        return ""

    @property
    def table(self) -> Table:
        """All checks as a table."""
        rows = [
            (_MARKS[check.status], check.name, check.finding, check.fix) for check in self.checks
        ]
        # Long lists of versions wrap at the end of the page, and the first two columns never do.
        return Table(rows, head=("", "check", "finding", "what to do"), narrow=(0, 1), wide=(2, 3))

    def _shown_parts(self) -> Iterator[Part]:
        yield self.summary
        yield bold("Ready." if self.is_ready else "Not ready.")
        yield self.next_step
        yield RichText("", f"<details><summary>All checks</summary>{self.table.html()}</details>")


def check_environment() -> EnvironmentReport:
    """Check machine, packages and this kernel, and report what to do about each problem.

    A call takes well under a second and imports no large package. `gn.load_model` finds out if vLLM
    starts.

    >>> gn.check_environment().is_ready
    True
    """
    packages_check = _check_packages()
    checks = [packages_check, _check_kernel()]
    state = None
    obstacle = ""
    try:
        state = read_gpu()
    except UnreadableGpuError as error:
        obstacle = str(error)
    if packages_check.status == "problem":
        # One of the packages asks the driver for the GPU.
        summary = "The packages come first. The device is checked once they are installed."
    elif state is None:
        checks.append(_check_cpu(obstacle))
        summary = f"Training runs on the CPU ({usable_cores()} cores), which is for small models."
    else:
        gpu_check = _check_gpu(state)
        vllm_check = _check_vllm()
        checks += [gpu_check, vllm_check]
        gpu = f"{state.gpu.name} ({state.gpu.memory_gib:.0f} GiB)"
        sampler = "vLLM" if vllm_check.status == "ok" else "Unsloth's own generation"
        summary = f"Training runs on the GPU, {gpu}, and samples with {sampler}."
        if gpu_check.status == "problem":
            summary = f"Training cannot use the GPU yet: {gpu}."
    return EnvironmentReport(summary, checks)


def _check_packages() -> Check:
    """Check that the packages of a training are installed; `_check_gpu` checks the torch build."""
    versions = packages.package_versions()
    missing = [name for name in packages.NEEDED_PACKAGES if name not in versions]
    if missing:
        return Check("packages", "problem", f"missing: {', '.join(missing)}", _INSTALL_FIX)
    main_versions = [
        f"{name} {versions[name]}" for name in ("unsloth", "trl", "transformers", "torch")
    ]
    unmet_pins = [
        f"{name} {pin}"
        for name, pin in PINNED_VERSIONS.items()
        if not packages.is_same_release(pin, versions.get(name, pin))
    ]
    note = ""
    if unmet_pins:
        # Other versions can work, so the check is still ok.
        note = (
            f"grpo_nb was written for {', '.join(unmet_pins)}. "
            "If something fails, run the Setup cell."
        )
    return Check("packages", "ok", ", ".join(main_versions), note)


def _check_kernel() -> Check:
    """Check that the loaded packages are the installed ones."""
    stale = packages.stale_packages()
    if stale:
        fix = "Restart the kernel (Colab: Runtime > Restart session), then run from the top."
        return Check(
            "this kernel", "problem", f"still has the old version of {', '.join(stale)}", fix
        )
    return Check("this kernel", "ok", "the loaded packages are the installed ones")


def _check_cpu(obstacle: str) -> Check:
    """Report the CPU, and the reason why the GPU of this machine cannot be used, if any."""
    finding = f"CPU, {usable_cores()} cores"
    if obstacle:
        fix = "Unset CUDA_VISIBLE_DEVICES or look at the output of nvidia-smi; restart the kernel."
        return Check("device", "warning", f"{finding}; no GPU, because {obstacle}", fix)
    fix = ""
    if is_colab():
        fix = "For a GPU: Runtime > Change runtime type > T4 GPU, then run the Setup cell."
    return Check("device", "ok", finding, fix)


def _check_gpu(state: GpuState) -> Check:
    """Check that the installed torch can start on the GPU."""
    gpu = state.gpu
    finding = (
        f"{gpu.name} ({packages.dotted(gpu.compute_capability)}), {gpu.memory_gib:.0f} GiB, "
        f"driver for CUDA {packages.dotted(state.newest_cuda)}"
    )
    torch_build = packages.read_torch_build()
    if torch_build is None:  # torch without its version file
        return Check("device", "ok", finding)
    torch_label = f"torch {torch_build.version}"
    # CUDA 13 dropped all GPUs before Turing; triton and bitsandbytes need 7.0 with any CUDA.
    oldest_capability = (7, 5) if torch_build.cuda and torch_build.cuda >= (13, 0) else (7, 0)
    if torch_build.cuda is None:
        problem = f"{torch_label} is for the CPU: the GPU is not used"
        fix = f"Run `pip uninstall -y torch`. {_INSTALL_FIX}"
    elif gpu.compute_capability < oldest_capability:
        oldest = packages.dotted(oldest_capability)
        problem = f"{torch_label}, whose kernels need compute capability {oldest}"
        fix = (
            "Choose another GPU (Kaggle: T4 x2 and not P100), or set CUDA_VISIBLE_DEVICES=-1 to "
            "use the CPU, and restart the kernel. A V100 can stay: install a torch for CUDA 12 "
            "(PyTorch's web site), write install(vllm=False) in the Setup cell, and restart."
        )
    elif state.newest_cuda[0] < torch_build.cuda[0]:
        # A driver runs builds for all minor versions of its CUDA (NVIDIA, "minor version
        # compatibility").
        problem = f"{torch_label} needs CUDA {torch_build.cuda[0]}"
        fix = (
            "Update the driver (CUDA 13: 580 or newer), or install a torch for "
            f"CUDA {state.newest_cuda[0]} (PyTorch's web site)."
        )
    else:
        return Check("device", "ok", f"{finding}; {torch_label}")
    return Check("device", "problem", f"{finding}; {problem}", fix)


def _check_vllm() -> Check:
    """Check that vLLM is installed, which samples faster; training also works without vLLM."""
    version = packages.installed_version("vllm")
    if version is None:
        fix = (
            "Run the Setup cell: it adds vLLM, or says why vLLM cannot be used. Until then "
            "Unsloth's own generation is used, which is slower."
        )
        return Check("vLLM", "warning", "not installed", fix)
    return Check("vLLM", "ok", version)
