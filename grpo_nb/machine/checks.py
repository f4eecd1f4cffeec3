"""The preflight: one picture of the machine, what each finding in it means, and the line that mends it.

Reads package metadata and the driver; imports neither torch nor unsloth. Each row of the table is a function of a `Machine`,
which `read_machine` takes of this one and a test describes in data.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpo_nb.core.arguments import require_path
from grpo_nb.core.errors import EnvironmentProblem
from grpo_nb.core.tables import Cell, Shown, Table, bold, escaped
from grpo_nb.machine import packages
from grpo_nb.machine.cores import usable_cores
from grpo_nb.machine.gpu import Driver, GpuProcess, GpuState, nvidia_smi, read_driver
from grpo_nb.machine.host import find_host, find_hub_token, free_disk_bytes, how_to_restart, usable_memory_gib

_DISK_GB = 2
_CPU_MEMORY_GIB = 5
# Status, what was found, and what to do about it.
Finding = tuple[str, str] | tuple[str, str, str]
_MARKS = {"ok": "\u2713 ok", "warning": bold("! warning"), "problem": bold("\u2717 problem")}


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
    """The preflight table. Shows itself in a notebook; `raise_problems` turns problems into an error."""

    checks: Sequence[Check]

    @property
    def is_ready(self) -> bool:
        """Whether no check found a problem."""
        return not any(check.status == "problem" for check in self.checks)

    @property
    def verdict(self) -> str:
        """The table in one sentence: `Ready.`, also with warnings, or what has to be mended."""
        counts = {status: sum(check.status == status for check in self.checks) for status in ("problem", "warning")}
        said = [f"{n} {status}{'s' if n > 1 else ''}" for status, n in counts.items() if n]
        if not self.is_ready:
            return f"Not ready: {' and '.join(said)}. Mend the problems first."
        return f"Ready, with {said[0]} to read." if said else "Ready."

    def raise_problems(self) -> None:
        """Raise `EnvironmentProblem` naming each problem and its fix, if there is any."""
        problems = [check for check in self.checks if check.status == "problem"]
        if problems:
            raise EnvironmentProblem("\n".join(f"{c.what}: {c.found}. {c.fix}" for c in problems))

    def _parts(self) -> Iterator[Table | Cell]:
        fixes = [Cell(f"->  {c.fix}", escaped(c.fix)) if c.fix else "" for c in self.checks]
        rows = [(_MARKS[c.status], c.what, c.found, fix) for c, fix in zip(self.checks, fixes, strict=True)]
        # Long lists of versions break where the page ends, and the first two columns never do.
        yield Table(rows, head=("", "what", "found", "what to do"), narrow=(0, 1), wide=(2, 3))
        yield bold(self.verdict)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the preflight looks at. A test describes one in data, `read_machine` takes the picture of this one."""

    python: tuple[int, int, int] = sys.version_info[:3]
    system: str = "linux"
    """`sys.platform`."""
    host: str = "jupyter"
    """`colab`, `kaggle`, `jupyter` or `script`."""
    installed: Mapping[str, str] = field(default_factory=dict)
    loaded: Mapping[str, str] = field(default_factory=dict)
    pins: Mapping[str, str] = field(default_factory=dict)
    """What the kit was made and tested with; empty where nobody knows."""
    modules: tuple[str, ...] = ()
    torch_build: packages.TorchBuild | None = None
    driver: Driver | None = None
    """None where there is no `nvidia-smi`."""
    unseen: str = ""
    """What makes torch use a GPU that `nvidia-smi` does not tell of; empty where nothing does."""
    visible: str | None = None
    """`CUDA_VISIBLE_DEVICES`."""
    vllm_torch: str | None = None
    """The torch that the installed vLLM asks for."""
    vllm_problem: str | None = None
    """Why vLLM does not load; None if it does, or was not tried."""
    compiled_cache: packages.CompiledCache | None = None
    cores: int = 1
    memory_gib: float = 0.0
    """That may be used: of a container with a limit, the limit."""
    run_root: str = "."
    free_disk_gb: float = 0.0
    hub_token: str = ""
    """Where a Hugging Face token was found (never the token), with a remark if it cannot be one; empty if none."""

    @property
    def gpus(self) -> tuple[GpuState, ...]:
        """Those that torch would see; none without a driver that answers."""
        return self.driver.gpus if self.driver is not None else ()


def read_machine(run_root: Path) -> Machine:
    """Take the picture of this machine. vLLM is tried only where there is a GPU, and only once."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    driver = read_driver(visible=visible) if nvidia_smi() else None
    installed = packages.installed_versions()
    wanted = packages.torch_for_vllm()
    fits = wanted is None or packages.is_same_release(wanted, installed.get("torch", ""))
    build = packages.read_torch_build()
    return Machine(
        system=sys.platform,
        host=find_host(),
        installed=installed,
        loaded=packages.loaded_versions(),
        pins=packages.pinned(),
        modules=tuple(sys.modules),
        torch_build=build,
        driver=driver,
        unseen=_unseen_gpu(build) if driver is None and visible not in ("", "-1") else "",
        visible=visible,
        vllm_torch=wanted,
        vllm_problem=packages.vllm_problem() if driver and driver.gpus and "vllm" in installed and fits else None,
        compiled_cache=packages.read_compiled_cache(installed),
        cores=usable_cores(),
        memory_gib=usable_memory_gib(),
        run_root=str(run_root.absolute()),
        free_disk_gb=free_disk_bytes(run_root) / 1e9,
        hub_token=find_hub_token(),
    )


def _unseen_gpu(build: packages.TorchBuild | None) -> str:
    """Say what torch would find without `nvidia-smi`. The files are there only where a container was given the GPU."""
    if build is not None and build.is_rocm and Path("/dev/kfd").exists():
        return "a torch built for ROCm (AMD)"
    if build is not None and build.cuda is not None and Path("/dev/nvidiactl").exists():
        return "an NVIDIA driver without nvidia-smi"
    return ""


def restart(machine: Machine) -> str:
    """How a fresh kernel is had on this host."""
    return f"{how_to_restart(machine.host)}, then run from the top."


def install_again(machine: Machine) -> str:
    """What mends an incomplete installation on this host."""
    if machine.host == "script":
        return f"{packages.BY_HAND}; a kernel has to be restarted after it."
    cell = "Run the Install cell (from grpo_nb.machine import install; install(report=print))."
    return f"{cell} By hand: {packages.BY_HAND}, then restart the kernel."


def python_row(machine: Machine) -> Finding:
    """Python: whether the kit supports it."""
    found = ".".join(map(str, machine.python))
    if not packages.PYTHONS[0] <= machine.python[:2] < packages.PYTHONS[1]:
        return "problem", found, "Use Python 3.11 to 3.14."
    return "ok", found


def packages_row(machine: Machine) -> Finding:
    """Whether all that a training needs is installed, in the versions that the kit was made for.

    Unsloth rewrites the source of the others while it is imported, so that these versions are one unit. torch has a table of
    its own, and its rows below.
    """
    missing = [name for name in packages.NEEDED if name not in machine.installed]
    if missing:
        return "problem", f"missing: {', '.join(missing)}", install_again(machine)
    both = {name: (machine.installed[name], machine.pins.get(name)) for name in packages.NEEDED if name != "torch"}
    others = {name: two for name, two in both.items() if two[1] and not packages.is_same_release(*two)}
    if others:
        found = ", ".join(f"{name} {there} instead of {pin}" for name, (there, pin) in others.items())
        is_older = any(packages.release(there) < packages.release(pin) for there, pin in others.values())
        status = "problem" if is_older else "warning"
        return status, f"{found}, not tried with the kit", install_again(machine)
    shown = ("unsloth", "trl", "transformers", "torch")
    return "ok", ", ".join(f"{name} {machine.installed[name]}" for name in shown)


def torchvision_row(machine: Machine) -> Finding:
    """torchvision must be absent or built for the torch beside it."""
    torch, vision = machine.installed.get("torch"), machine.installed.get("torchvision")
    if vision is None or torch is None:
        return "ok", "not installed, and not needed"
    if packages.is_torchvision_for(torch, vision):
        return "ok", f"{vision} fits torch {torch}"
    found = f"{vision} was not built for torch {torch}, and transformers fails on it (operator torchvision::nms)"
    return "problem", found, "pip uninstall -y torchvision, then restart the kernel."


def torchao_row(machine: Machine) -> Finding | None:
    """torchao must be absent or recent; no row where it is absent."""
    version = machine.installed.get("torchao")
    if version is None:
        return None
    if packages.is_torchao_recent(version):
        return "ok", version
    # unsloth 2026.10.9 talks peft out of it on its GPU path (_gpu_init.py), and not on its CPU path.
    why = f"{version}, and peft refuses any before 0.16 (incompatible version of torchao)"
    fix = "pip uninstall -y torchao, then restart the kernel."
    return "warning" if machine.gpus else "problem", why, fix


def import_order_row(machine: Machine) -> Finding:
    """unsloth patches trl, transformers and peft while they load."""
    problem = packages.import_order_problem(machine.modules)
    if problem is not None:
        return "problem", problem, f"Import grpo_nb first. {restart(machine)}"
    return "ok", "nothing that unsloth patches was imported before it"


def loaded_row(machine: Machine) -> Finding:
    """What is in memory must be what is on disk; after an installation it often is not."""
    changed = [
        f"{name} {version} is loaded, {machine.installed[name]} installed"
        for name, version in machine.loaded.items()
        # torch says 2.13.0+cpu of itself where its metadata says 2.13.0, and the other way round.
        if name in machine.installed and not packages.is_same_release(version, machine.installed[name])
    ]
    if changed:
        return "problem", "; ".join(changed), restart(machine)
    return "ok", "what is loaded is what is installed"


def device_row(machine: Machine) -> Finding:
    """The GPU that torch will use and its precision, or the CPU and its memory."""
    driver = machine.driver
    if machine.gpus:
        return _gpu_row(machine, machine.gpus[0])
    cpu = f"CPU, {machine.cores} cores, {machine.memory_gib:.0f} GiB memory"
    if machine.unseen:
        fix = (
            "For the CPU: HIP_VISIBLE_DEVICES=-1 before the kernel starts. AMD's cards are not supported."
            if "ROCm" in machine.unseen
            else "Put the driver's nvidia-smi on the PATH (its utilities package, or the container's), or, for the CPU, set "
            "CUDA_VISIBLE_DEVICES=-1; then restart the kernel."
        )
        return "problem", f"{cpu}; {machine.unseen}: Unsloth would take another device than the kit", fix
    if driver is not None and driver.failure:
        fix = "Reboot, or reinstall the driver; in a container, start it with access to the GPU. Until then the CPU is used."
        return "warning", f"{cpu}; nvidia-smi finds no GPU: {driver.failure}", fix
    if driver is not None and machine.visible is not None:
        fix = "Unset CUDA_VISIBLE_DEVICES and restart the kernel, if the GPU is wanted."
        return "warning", f"{cpu}; CUDA_VISIBLE_DEVICES={machine.visible!r} hides the GPU", fix
    if driver is not None:
        return "warning", f"{cpu}; nvidia-smi finds no GPU", "Check the driver; until then the CPU is used."
    if machine.memory_gib < _CPU_MEMORY_GIB:
        fix = "Close other programs, or take a machine with more memory: training the embedded model takes up to 5 GB."
        return "warning", cpu, fix
    fix = {
        "colab": "For a GPU: Runtime > Change runtime type > T4 GPU, then run the Install cell.",
        "kaggle": "For a GPU: Settings > Accelerator > GPU T4 x2, then run the Install cell.",
    }.get(machine.host, "")
    return "ok", cpu, fix


def _gpu_row(machine: Machine, state: GpuState) -> Finding:
    gpu = state.gpu
    capability = ".".join(map(str, gpu.compute_capability))
    precision = "bf16" if gpu.compute_capability >= (8, 0) else "fp16 (no bf16 before compute capability 8.0)"
    found = f"{gpu.name}, {gpu.memory_gib:.0f} GiB, compute capability {capability}, {precision}"
    cuda = machine.torch_build.cuda if machine.torch_build else None
    # CUDA 13 dropped everything before Turing; triton and bitsandbytes ask for 7.0 with any CUDA.
    least = (7, 5) if cuda is not None and cuda >= (13, 0) else (7, 0)
    if gpu.compute_capability < least:
        why = f"torch for CUDA {cuda[0]}.{cuda[1]}" if least == (7, 5) else "triton and bitsandbytes"
        fix = "Choose another GPU (Kaggle: T4 x2 and not P100), or CUDA_VISIBLE_DEVICES=-1 for the CPU, and restart."
        return "problem", f"{found}; {why} need {least[0]}.{least[1]}", fix
    if machine.driver.is_mixed:
        found += "; the cards are of several kinds, and CUDA numbers them by its own idea of their speed"
        fix = 'os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID" in a fresh kernel, first of all: then as nvidia-smi does.'
        return "warning", found, fix
    if len(machine.gpus) > 1:
        found += f"; {len(machine.gpus)} GPUs are there, the notebooks use the first"
    return "ok", found


def cuda_row(machine: Machine) -> Finding | None:
    """The CUDA that torch was built for against the newest that the driver runs; no row without a GPU."""
    driver, build = machine.driver, machine.torch_build
    if not machine.gpus or build is None:
        return None
    here = f"driver {driver.version or 'unknown'}"
    if driver.cuda is not None:
        here += f" runs CUDA up to {driver.cuda[0]}.{driver.cuda[1]}"
    if build.cuda is None:
        fix = "Install a torch with CUDA: " + install_again(machine)
        return "problem", f"torch {build.version} is built for the CPU, so the GPU is not used", fix
    needs = f"torch {build.version} is built for CUDA {build.cuda[0]}.{build.cuda[1]}"
    if driver.cuda is not None and driver.cuda[0] < build.cuda[0]:
        least = "580" if build.cuda[0] == 13 else "525"
        fix = (
            f"Update the NVIDIA driver to {least} or newer; or install a torch for CUDA {driver.cuda[0]} (the selector on "
            "PyTorch's web site), then run the Install cell."
        )
        return "problem", f"{needs}, and {here}: CUDA does not start", fix
    # NVIDIA's "minor version compatibility": any driver of a CUDA major runs what was built for a later minor.
    is_older = driver.cuda is not None and driver.cuda < build.cuda
    return "ok", f"{needs}; {here}" + (f", which is enough within CUDA {build.cuda[0]}" if is_older else "")


def memory_row(machine: Machine) -> Finding | None:
    """The GPU memory that is free, and who holds the rest; no row without a GPU."""
    if not machine.gpus:
        return None
    state = machine.gpus[0]
    if state.free_gib is None:
        return "ok", "the driver does not say how much is free"
    total = state.gpu.memory_gib
    found = f"{state.free_gib:.1f} of {total:.1f} GiB free"
    others = [process for process in state.processes if process.pid != os.getpid()]
    if state.free_gib >= 0.85 * total:
        return "ok", found
    if state.processes and not others:
        return "ok", f"{found}; this kernel holds the rest", f"To free it: {restart(machine)}"
    if not others:
        fix = f"Probably an earlier kernel that has not ended. {restart(machine)}"
        return "warning", f"{found}; the driver does not say who holds the rest", fix
    held = ", ".join(_holder(process) for process in others)
    kernels = any("ipykernel" in process.command for process in others)
    fix = "Shut that notebook's kernel down" if kernels else f"End what you do not need (kill {others[0].pid})"
    status = "problem" if state.free_gib < 0.25 * total else "warning"
    return status, f"{found}; held by {held}", f"{fix}, then run this cell again."


def _holder(process: GpuProcess) -> str:
    name = "another notebook's kernel" if "ipykernel" in process.command else process.name.rsplit("/", 1)[-1]
    amount = "" if process.memory_gib is None else f", {process.memory_gib:.1f} GiB"
    return f"{name} (process {process.pid}{amount})"


def vllm_row(machine: Machine) -> Finding:
    """Whether generation can go through vLLM; without it training works, with slower generation."""
    if not machine.gpus:
        return "ok", "needs a GPU; the kit's own CPU rollout is used"
    version, torch = machine.installed.get("vllm"), machine.installed.get("torch", "none")
    instead = "until then Unsloth's own generation is used, which is slower."
    if machine.system != "linux":
        return "ok", "has no build for this system; Unsloth's own generation is used, which is slower"
    if version is None:
        fix = f"Run the Install cell: it adds vLLM where one fits, and says why where none does; {instead}"
        return "warning", "not installed", fix
    if machine.vllm_torch is not None and not packages.is_same_release(machine.vllm_torch, torch):
        found = f"{version} was built for torch {machine.vllm_torch}, and {torch} is installed"
        return "warning", found, f"Run the Install cell in a fresh kernel; {instead}"
    if machine.vllm_problem is not None:
        fix = f"pip uninstall -y vllm, then run the Install cell in a fresh kernel; {instead}"
        if re.search(r"libcud\w+\.so\.\d+", machine.vllm_problem):
            fix = f"This vLLM was built for another CUDA than torch. {fix}"
        return "warning", f"{version} does not load: {machine.vllm_problem}", fix
    return "ok", f"{version} loads"


def cache_row(machine: Machine) -> Finding | None:
    """Trainers that unsloth generated for other versions; no row where there are none."""
    cache = machine.compiled_cache
    if cache is None:
        return None
    made = ", ".join(f"{name} {version}" for name, version in cache.versions.items())
    found = f"{cache.path} was generated for {made}; "
    if cache.is_pinned:
        fix = f"rm -r {cache.path}, or unset UNSLOTH_COMPILE_OVERWRITE; then restart the kernel."
        return "warning", f"{found}is kept, as UNSLOTH_COMPILE_OVERWRITE=0 asks", fix
    return "ok", f"{found}unsloth writes it anew", f"Nothing, unless unsloth fails on it: then  rm -r {cache.path}"


def disk_row(machine: Machine) -> Finding:
    """Room for model, run and export, and whether it will be there tomorrow."""
    free = machine.free_disk_gb
    if free < _DISK_GB:
        return "problem", f"{free:.1f} GB free", "Free at least 2 GB: model, run and export need it."
    found = f"{free:.0f} GB free"
    if machine.host == "colab" and not machine.run_root.startswith("/content/drive"):
        # No warning: the notebooks ask here, before the cell with DRIVE, and a short run needs no Drive.
        fix = "For a run that must survive it: DRIVE in the settings, a folder on your Google Drive."
        return "ok", f"{found}; Colab empties this disk when it takes the machine back", fix
    if machine.host == "kaggle" and not machine.run_root.startswith("/kaggle/working"):
        fix = "Work in /kaggle/working, which Save Version keeps."
        return "warning", f"{found}, but Kaggle keeps nothing outside /kaggle/working", fix
    return "ok", found


def token_row(machine: Machine) -> Finding | None:
    """A Hugging Face token, which gated models and pushing need, and nothing else; no row where none is set."""
    if "does not look" in machine.hub_token:
        fix = "Tokens begin with hf_ and have no spaces; make one on the Hub under Settings > Access Tokens."
        return "warning", machine.hub_token, fix
    return ("ok", machine.hub_token) if machine.hub_token else None


# In the order in which they are mended: a wrong package below a wrong Python is not worth looking at.
ROWS: Mapping[str, Callable[[Machine], Finding | None]] = {
    "Python": python_row,
    "packages": packages_row,
    "torchvision": torchvision_row,
    "torchao": torchao_row,
    "import order": import_order_row,
    "loaded versions": loaded_row,
    "device": device_row,
    "CUDA": cuda_row,
    "GPU memory": memory_row,
    "vLLM": vllm_row,
    "compiled cache": cache_row,
    "disk": disk_row,
    "Hub token": token_row,
}


def check_environment(run_root: str | Path = ".") -> EnvironmentReport:
    """Check machine, packages and this kernel, and say what to do about each finding.

    Takes well under a second; on a GPU with vLLM the first call takes some seconds more, because vLLM is imported in a process
    of its own. Nothing heavy is imported into the kernel.

    Args:
        run_root: Where runs will be written; its disk is checked.

    >>> gn.check_environment().is_ready
    True
    """
    return check_machine(read_machine(require_path("run_root", run_root)))


def check_machine(machine: Machine) -> EnvironmentReport:
    """Judge the picture of a machine, row by row; `check_environment` does it with the picture of this one."""
    findings = {what: row(machine) for what, row in ROWS.items()}
    return EnvironmentReport([Check(what, *finding) for what, finding in findings.items() if finding is not None])


def check_torchvision() -> Check:
    """The row about torchvision, which must be absent or built for the torch beside it."""
    return Check("torchvision", *torchvision_row(Machine(installed=packages.installed_versions())))
