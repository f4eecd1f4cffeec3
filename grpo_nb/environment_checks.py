"""The rows of the preflight table: what a finding means, and the line that mends it. Each is a function of a `Machine`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from grpo_nb.environment_gpu import GpuProcess, GpuState
from grpo_nb.environment_machine import Machine, is_same_release
from grpo_nb.environment_packages import NEEDED
from grpo_nb.environment_report import Check

# torchvision minor release that was built for a torch minor release: 0.(n + 15) for 2.n (pytorch/vision README).
_TORCHVISION_OFFSET = 15
# peft 0.21 raises ImportError on an older one whenever it puts a LoRA on a model; Colab has 0.10.
_OLDEST_TORCHAO = (0, 16)
_RESTART = {
    "colab": "Runtime > Restart session, then run from the top.",
    "kaggle": "Run > Restart kernel, then run from the top.",
}
_DISK_GB = 2
_CPU_MEMORY_GIB = 5


def restart(machine: Machine) -> str:
    """How a fresh kernel is had on this host."""
    return _RESTART.get(machine.host, "Restart the kernel, then run from the top.")


def install_again(machine: Machine) -> str:
    """What mends an incomplete installation on this host."""
    if machine.host == "script":
        return (
            "pip install -r requirements.txt && pip install --no-deps -r requirements-no-deps.txt; a kernel has to be "
            "restarted after it."
        )
    return (
        "Run the Install cell (from grpo_nb.installing import install; install(report=print)). By hand: pip install -r "
        "requirements.txt && pip install --no-deps -r requirements-no-deps.txt, then restart the kernel."
    )


def python_row(machine: Machine) -> Check:
    """Python: 3.11 is the oldest that the kit supports, 3.15 is where unsloth 2026.10.9 stops."""
    found = ".".join(map(str, machine.python))
    if not (3, 11) <= machine.python[:2] < (3, 15):
        return Check("Python", "problem", found, "Use Python 3.11 to 3.14.")
    return Check("Python", "ok", found)


def packages_row(machine: Machine) -> Check:
    """Whether all that a training needs is installed."""
    missing = [name for name in NEEDED if name not in machine.installed]
    if missing:
        return Check("packages", "problem", f"missing: {', '.join(missing)}", install_again(machine))
    shown = ("unsloth", "trl", "transformers", "torch")
    return Check("packages", "ok", ", ".join(f"{name} {machine.installed[name]}" for name in shown))


def torchvision_row(machine: Machine) -> Check:
    """torchvision must be absent or built for the torch beside it."""
    torch, vision = machine.installed.get("torch"), machine.installed.get("torchvision")
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


def torchao_row(machine: Machine) -> Check | None:
    """torchao must be absent or recent; no row where it is absent."""
    version = machine.installed.get("torchao")
    if version is None:
        return None
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if not numbers or (int(numbers[1]), int(numbers[2])) >= _OLDEST_TORCHAO:
        return Check("torchao", "ok", version)
    # unsloth 2026.10.9 talks peft out of it on its GPU path (_gpu_init.py), and not on its CPU path.
    has_gpu = machine.driver is not None and bool(machine.driver.gpus)
    why = f"{version}, and peft refuses any before 0.16 (incompatible version of torchao)"
    fix = "pip uninstall -y torchao, then restart the kernel."
    return Check("torchao", "warning" if has_gpu else "problem", why, fix)


def import_order_row(machine: Machine) -> Check:
    """unsloth patches trl, transformers and peft while they load."""
    if machine.early:
        found = f"{' and '.join(machine.early)} {'was' if len(machine.early) == 1 else 'were'} imported before unsloth"
        return Check("import order", "problem", found, f"Import grpo_nb first. {restart(machine)}")
    return Check("import order", "ok", "nothing that unsloth patches was imported before it")


def loaded_row(machine: Machine) -> Check:
    """What is in memory must be what is on disk; after an installation it often is not."""
    changed = [
        f"{name} {version} is loaded, {machine.installed[name]} installed"
        for name, version in machine.loaded.items()
        # torch says 2.13.0+cpu of itself where its metadata says 2.13.0, and the other way round.
        if name in machine.installed and not is_same_release(version, machine.installed[name])
    ]
    if changed:
        return Check("loaded versions", "problem", "; ".join(changed), restart(machine))
    return Check("loaded versions", "ok", "what is loaded is what is installed")


def device_row(machine: Machine) -> Check:
    """The GPU that torch will use and its precision, or the CPU and its memory."""
    driver = machine.driver
    if driver is not None and driver.gpus:
        return _gpu_row(machine, driver.gpus[0])
    cpu = f"CPU, {machine.cores} cores, {machine.memory_gib:.0f} GiB memory"
    if machine.unseen:
        fix = (
            "For the CPU: HIP_VISIBLE_DEVICES=-1 before the kernel starts. AMD's cards are not supported."
            if "ROCm" in machine.unseen
            else "Put the driver's nvidia-smi on the PATH (its utilities package, or the container's), or, for the CPU, set "
            "CUDA_VISIBLE_DEVICES=-1; then restart the kernel."
        )
        return Check(
            "device", "problem", f"{cpu}; {machine.unseen}: Unsloth would take another device than the kit", fix
        )
    if driver is not None and driver.failure:
        fix = "Reboot, or reinstall the driver; in a container, start it with access to the GPU. Until then the CPU is used."
        return Check("device", "warning", f"{cpu}; nvidia-smi finds no GPU: {driver.failure}", fix)
    if driver is not None and machine.visible is not None:
        fix = "Unset CUDA_VISIBLE_DEVICES and restart the kernel, if the GPU is wanted."
        return Check("device", "warning", f"{cpu}; CUDA_VISIBLE_DEVICES={machine.visible!r} hides the GPU", fix)
    if driver is not None:
        return Check(
            "device", "warning", f"{cpu}; nvidia-smi finds no GPU", "Check the driver; until then the CPU is used."
        )
    if machine.memory_gib < _CPU_MEMORY_GIB:
        fix = "Close other programs, or take a machine with more memory: training the embedded model takes up to 5 GB."
        return Check("device", "warning", cpu, fix)
    if machine.host == "colab":
        return Check(
            "device", "ok", cpu, "For a GPU: Runtime > Change runtime type > T4 GPU, then run the Install cell."
        )
    if machine.host == "kaggle":
        return Check("device", "ok", cpu, "For a GPU: Settings > Accelerator > GPU T4 x2, then run the Install cell.")
    return Check("device", "ok", cpu)


def _gpu_row(machine: Machine, state: GpuState) -> Check:
    gpu = state.gpu
    capability = ".".join(map(str, gpu.compute_capability))
    precision = "bf16" if gpu.compute_capability >= (8, 0) else "fp16 (no bf16 before compute capability 8.0)"
    found = f"{gpu.name}, {gpu.memory_gib:.0f} GiB, compute capability {capability}, {precision}"
    cuda = machine.torch_build.cuda if machine.torch_build else None
    # CUDA 13 dropped everything before Turing; triton and bitsandbytes ask for 7.0 with any CUDA.
    least = (7, 5) if cuda is not None and cuda >= (13, 0) else (7, 0)
    if gpu.compute_capability < least:
        why = f"torch for CUDA {cuda[0]}.{cuda[1]}" if least == (7, 5) else "triton and bitsandbytes"
        fix = (
            "Choose another GPU (Kaggle: T4 x2 and not P100), or set CUDA_VISIBLE_DEVICES=-1 for the CPU, and restart."
        )
        return Check("device", "problem", f"{found}; {why} need {least[0]}.{least[1]}", fix)
    if machine.driver.is_mixed:
        found += "; the cards are of several kinds, and CUDA numbers them by its own idea of their speed"
        fix = 'os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID" in a fresh kernel, first of all: then as nvidia-smi does.'
        return Check("device", "warning", found, fix)
    if len(machine.driver.gpus) > 1:
        found += f"; {len(machine.driver.gpus)} GPUs are there, the notebooks use the first"
    return Check("device", "ok", found)


def cuda_row(machine: Machine) -> Check | None:
    """The CUDA that torch was built for against the newest that the driver runs; no row without a GPU."""
    driver, build = machine.driver, machine.torch_build
    if driver is None or not driver.gpus or build is None:
        return None
    here = f"driver {driver.version or 'unknown'}"
    if driver.cuda is not None:
        here += f" runs CUDA up to {driver.cuda[0]}.{driver.cuda[1]}"
    if build.cuda is None:
        fix = "Install a torch with CUDA: " + install_again(machine)
        return Check("CUDA", "problem", f"torch {build.version} is built for the CPU, so the GPU is not used", fix)
    needs = f"torch {build.version} is built for CUDA {build.cuda[0]}.{build.cuda[1]}"
    if driver.cuda is None:
        return Check("CUDA", "ok", f"{needs}; {here}")
    if driver.cuda[0] < build.cuda[0]:
        least = "580" if build.cuda[0] == 13 else "525"
        fix = (
            f"Update the NVIDIA driver to {least} or newer; or install a torch for CUDA {driver.cuda[0]} (the selector on "
            "PyTorch's web site), then run the Install cell."
        )
        return Check("CUDA", "problem", f"{needs}, and {here}: CUDA does not start", fix)
    if driver.cuda < build.cuda:
        # NVIDIA's "minor version compatibility": any driver of a CUDA major runs what was built for a later minor.
        return Check("CUDA", "ok", f"{needs}; {here}, which is enough within CUDA {build.cuda[0]}")
    return Check("CUDA", "ok", f"{needs}; {here}")


def memory_row(machine: Machine) -> Check | None:
    """The GPU memory that is free, and who holds the rest; no row without a GPU."""
    if machine.driver is None or not machine.driver.gpus:
        return None
    state = machine.driver.gpus[0]
    if state.free_gib is None:
        return Check("GPU memory", "ok", "the driver does not say how much is free")
    total = state.gpu.memory_gib
    found = f"{state.free_gib:.1f} of {total:.1f} GiB free"
    others = [process for process in state.processes if process.pid != os.getpid()]
    if state.free_gib >= 0.85 * total:
        return Check("GPU memory", "ok", found)
    if any(process.pid == os.getpid() for process in state.processes) and not others:
        return Check("GPU memory", "ok", f"{found}; this kernel holds the rest", f"To free it: {restart(machine)}")
    if not others:
        fix = f"Probably an earlier kernel that has not ended. {restart(machine)}"
        return Check("GPU memory", "warning", f"{found}; the driver does not say who holds the rest", fix)
    held = ", ".join(_holder(process) for process in others)
    kernels = any("ipykernel" in process.command for process in others)
    fix = "Shut that notebook's kernel down" if kernels else f"End what you do not need (kill {others[0].pid})"
    status = "problem" if state.free_gib < 0.25 * total else "warning"
    return Check("GPU memory", status, f"{found}; held by {held}", f"{fix}, then run this cell again.")


def _holder(process: GpuProcess) -> str:
    name = "another notebook's kernel" if "ipykernel" in process.command else process.name.rsplit("/", 1)[-1]
    amount = "" if process.memory_gib is None else f", {process.memory_gib:.1f} GiB"
    return f"{name} (process {process.pid}{amount})"


def vllm_row(machine: Machine) -> Check:
    """Whether generation can go through vLLM; without it training works, with slower generation."""
    if machine.driver is None or not machine.driver.gpus:
        return Check("vLLM", "ok", "needs a GPU; the kit's own CPU rollout is used")
    version, torch = machine.installed.get("vllm"), machine.installed.get("torch", "none")
    instead = "until then Unsloth's own generation is used, which is slower."
    if machine.system != "linux":
        return Check("vLLM", "ok", "has no build for this system; Unsloth's own generation is used, which is slower")
    if version is None:
        fix = f"Run the Install cell: it adds vLLM where one fits, and says why where none does; {instead}"
        return Check("vLLM", "warning", "not installed", fix)
    if machine.vllm_torch is not None and not is_same_release(machine.vllm_torch, torch):
        found = f"{version} was built for torch {machine.vllm_torch}, and {torch} is installed"
        return Check("vLLM", "warning", found, f"Run the Install cell in a fresh kernel; {instead}")
    if machine.vllm_problem is not None:
        fix = f"pip uninstall -y vllm, then run the Install cell in a fresh kernel; {instead}"
        if re.search(r"libcud\w+\.so\.\d+", machine.vllm_problem):
            fix = f"This vLLM was built for another CUDA than torch. {fix}"
        return Check("vLLM", "warning", f"{version} does not load: {machine.vllm_problem}", fix)
    return Check("vLLM", "ok", f"{version} loads")


def cache_row(machine: Machine) -> Check | None:
    """Trainers that unsloth generated for other versions; no row where there are none."""
    cache = machine.compiled_cache
    if cache is None or not cache.versions:
        return None
    made = ", ".join(f"{name} {version}" for name, version in cache.versions.items())
    fix = f"Nothing, unless unsloth fails on it: then  rm -r {cache.path}"
    if cache.is_pinned:
        fix = f"rm -r {cache.path}, or unset UNSLOTH_COMPILE_OVERWRITE; then restart the kernel."
    status = "warning" if cache.is_pinned else "ok"
    keeps = "is kept, as UNSLOTH_COMPILE_OVERWRITE=0 asks" if cache.is_pinned else "unsloth writes it anew"
    return Check("compiled cache", status, f"{cache.path} was generated for {made}; {keeps}", fix)


def disk_row(machine: Machine) -> Check:
    """Room for model, run and export, and whether it will be there tomorrow."""
    free = machine.free_disk_gb
    if free < _DISK_GB:
        return Check("disk", "problem", f"{free:.1f} GB free", "Free at least 2 GB: model, run and export need it.")
    found = f"{free:.0f} GB free"
    if machine.host == "colab" and not machine.run_root.startswith("/content/drive"):
        fix = 'For a run that must survive it: set DRIVE = "grpo_nb" in the settings: a folder on your Google Drive.'
        return Check("disk", "warning", f"{found}, but Colab empties this disk when it takes the machine back", fix)
    if machine.host == "kaggle" and not machine.run_root.startswith("/kaggle/working"):
        fix = "Work in /kaggle/working, which Save Version keeps."
        return Check("disk", "warning", f"{found}, but Kaggle keeps nothing outside /kaggle/working", fix)
    return Check("disk", "ok", found)


def token_row(machine: Machine) -> Check:
    """A Hugging Face token: needed for gated models and for pushing, for nothing else."""
    if "does not look" in machine.hub_token:
        fix = "Tokens begin with hf_ and have no spaces; make one on the Hub under Settings > Access Tokens."
        return Check("Hub token", "warning", machine.hub_token, fix)
    if machine.hub_token:
        return Check("Hub token", "ok", machine.hub_token)
    fix = {
        "colab": "If you need one: the key icon on the left, a secret HF_TOKEN with notebook access; never in a cell.",
        "kaggle": "If you need one: Add-ons > Secrets, a secret HF_TOKEN; never in a cell.",
    }.get(machine.host, "")
    return Check("Hub token", "ok", "none; only gated models and pushing need one", fix)


# In the order in which they are mended: a wrong package below a wrong Python is not worth looking at.
ROWS: tuple[Callable[[Machine], Check | None], ...] = (
    python_row, packages_row, torchvision_row, torchao_row, import_order_row, loaded_row,
    device_row, cuda_row, memory_row, vllm_row, cache_row, disk_row, token_row,
)  # fmt: skip
