"""Check if this machine can train, and report what to do first if it cannot.

The checks read package metadata and ask the NVIDIA driver. They import neither torch nor unsloth.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from grpo_nb.core.tables import Part, ReprMixin, RichText, Table, bold
from grpo_nb.machine import packages
from grpo_nb.machine.gpu import GpuState, UnreadableGpuError, read_gpu_state
from grpo_nb.machine.host import is_colab, usable_cores
from grpo_nb.upstream.symbols import PINNED_VERSIONS

_MARKS = {"ok": "\u2713 ok", "warning": bold("! warning"), "problem": bold("\u2717 problem")}
_INSTALL_FIX = (
    "Restart the kernel and run the Setup cell of a notebook. Or open a terminal in the folder of "
    f"the repository, activate this environment, run `{packages.INSTALL_COMMAND}`, and restart the "
    "kernel."
)


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    name: str
    status: Literal["ok", "warning", "problem"]
    """`problem` if training cannot start; `warning` if it works, but not as well as it could."""
    finding: str
    """Facts that the check found."""
    fix: str = ""
    """Advice to the user; empty if there is nothing to do."""


@dataclass(frozen=True, repr=False)
class EnvironmentReport(ReprMixin):
    """State of this machine: the device, whether it is ready, and the next step.

    In a notebook, a click opens the table of all checks. In a script, `print(report.table.text())`
    shows the table.
    """

    summary: str
    """Sentence about the device that trains, or about missing packages, which come first."""
    checks: Sequence[Check]
    """All results, in the order in which problems should be fixed."""

    @property
    def is_ready(self) -> bool:
        """True if no check found a problem. Warnings do not count."""
        return all(check.status != "problem" for check in self.checks)

    @property
    def next_step(self) -> str:
        """First problem with its fix; else the first warning; else other advice; else empty."""
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
        # Long lists of versions wrap at the end of the page. The first two columns never wrap.
        return Table(rows, head=("", "check", "finding", "what to do"), narrow=(0, 1), wide=(2, 3))

    def _shown_parts(self) -> Iterator[Part]:
        yield self.summary
        yield bold("Ready." if self.is_ready else "Not ready.")
        yield self.next_step
        yield RichText("", f"<details><summary>All checks</summary>{self.table.html()}</details>")


def check_environment() -> EnvironmentReport:
    """Check machine, packages and this kernel, and report what to do about each problem.

    A call takes well under a second and imports no large package. This function only checks that
    vLLM is installed. `gn.load_model` starts vLLM, and reports if it does not start.

    >>> gn.check_environment().is_ready
    True
    """
    packages_check = _check_packages()
    checks = [packages_check, _check_kernel()]
    state = None
    driver_error = ""
    try:
        state = read_gpu_state()
    except UnreadableGpuError as error:
        driver_error = str(error)
    if packages_check.status == "problem":
        # One of the packages, nvidia-ml-py, finds the GPU.
        summary = "Some packages are missing. The device is checked after they are installed."
    elif state is None:
        checks.append(_check_cpu(driver_error))
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
    """Check that all packages of a training are installed.

    `_check_gpu` checks that torch was built for the GPU.
    """
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
    fix = ""
    if unmet_pins:
        # Other versions can work, so the check is still ok.
        fix = (
            f"grpo_nb was written for {', '.join(unmet_pins)}. "
            "If something fails, run the Setup cell."
        )
    return Check("packages", "ok", ", ".join(main_versions), fix)


def _check_kernel() -> Check:
    """Check that this kernel has loaded the installed versions of its packages."""
    stale = packages.stale_packages()
    if stale:
        return Check(
            "this kernel",
            "problem",
            f"still has the old version of {', '.join(stale)}",
            "Restart the kernel (Colab: Runtime > Restart session), then run from the top.",
        )
    return Check("this kernel", "ok", "the loaded packages are the installed ones")


def _check_cpu(driver_error: str) -> Check:
    """Report the CPU, and warn if the driver of a GPU failed.

    Args:
        driver_error: Reason why the driver reports no GPU; empty if no driver failed.
    """
    finding = f"CPU, {usable_cores()} cores"
    if driver_error:
        fix = (
            "Run `!nvidia-smi` in a cell. If it lists a GPU, remove the variable "
            "CUDA_VISIBLE_DEVICES where it is set, and restart the kernel. If it shows an error, "
            "restart the machine."
        )
        return Check("device", "warning", f"{finding}; no GPU, because {driver_error}", fix)
    fix = ""
    if is_colab():
        fix = "For a GPU: Runtime > Change runtime type > T4 GPU, then run the Setup cell."
    return Check("device", "ok", finding, fix)


def _check_gpu(state: GpuState) -> Check:
    """Check that the installed torch can compute on this GPU with this driver."""
    gpu = state.gpu
    finding = (
        f"{gpu.name} (compute capability {packages.dotted(gpu.compute_capability)}), "
        f"{gpu.memory_gib:.0f} GiB, driver for CUDA {packages.dotted(state.newest_cuda)}"
    )
    torch_build = packages.read_torch_build()
    torch_label = f"torch {torch_build.version}"
    # CUDA 13 dropped all GPUs before Turing (7.5). triton and bitsandbytes need 7.0 with any CUDA.
    oldest_capability = (7, 5) if torch_build.cuda and torch_build.cuda >= (13, 0) else (7, 0)
    if torch_build.cuda is None:
        problem = f"{torch_label} is for the CPU and cannot use the GPU"
        fix = f"Run `pip uninstall -y torch` in a cell. {_INSTALL_FIX}"
    elif gpu.compute_capability < oldest_capability:
        problem = (
            f"{torch_label} needs a GPU of compute capability "
            f"{packages.dotted(oldest_capability)} or higher"
        )
        fix = (
            "Choose a newer GPU (Kaggle: T4 x2 instead of P100). To train on the CPU, restart the "
            "kernel and run this line before all others: "
            '`import os; os.environ["CUDA_VISIBLE_DEVICES"] = "-1"`. A V100 works with a torch for '
            f"CUDA 12: run `{packages.CUDA_12_TORCH_COMMAND}` in a cell, write "
            "`install(report=print, vllm=False)` in the Setup cell, and restart the kernel."
        )
    elif state.newest_cuda[0] < torch_build.cuda[0]:
        # A driver runs builds for all minor versions of its CUDA (NVIDIA, "minor version
        # compatibility").
        problem = f"{torch_label} needs a driver for CUDA {torch_build.cuda[0]}"
        fix = (
            "Update the NVIDIA driver (CUDA 13 needs version 580 or newer). If you cannot, and the "
            f"driver is for CUDA 12, run `{packages.CUDA_12_TORCH_COMMAND}` in a cell, and restart "
            "the kernel."
        )
    else:
        return Check("device", "ok", f"{finding}; {torch_label}")
    return Check("device", "problem", f"{finding}; {problem}", fix)


def _check_vllm() -> Check:
    """Check that vLLM is installed. Training also works without vLLM, but samples more slowly."""
    version = packages.installed_version("vllm")
    if version is None:
        return Check(
            "vLLM",
            "warning",
            "not installed",
            "Run the Setup cell: it installs vLLM, or shows why this machine cannot use vLLM. "
            "Until then, Unsloth's own generation is used, which is slower.",
        )
    return Check("vLLM", "ok", version)
