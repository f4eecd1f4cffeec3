"""The combinations of torch, CUDA and vLLM that go together, and the choice among them. The one table of its kind.

vLLM's compiled part fits one torch release and one CUDA. On the registry vLLM is built for CUDA 13 since 0.20 (vllm issue
43435; the wheels of 0.21, 0.23, 0.26 and 0.31 link libcudart.so.13), and so is torch since 2.11, while Colab has torch 2.11.0
for CUDA 12.8 (its package list of August 2026): there, vLLM means another torch, and a driver of series 580 or newer.

The versions of everything else stand in requirements.txt; `scripts/check_resolution.py` proves that each row can be
installed with them, and docs/evidence/install.md shows when it last did. Imports the standard library alone: this runs before
anything is installed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grpo_nb.machine.packages import is_same_release, minor_release


@dataclass(frozen=True)
class Combination:
    """One row: a torch, the CUDA that it was built for, and the vLLM that fits both."""

    name: str
    torch: str
    cuda: int | None = None
    """CUDA's major version; None for machines without a GPU, where any build of this torch will do."""
    vllm: str | None = None
    """None: no vLLM fits, and Unsloth's own generation is used, which is slower."""
    unbounded: tuple[str, ...] = ()
    """Packages whose bounds in requirements.txt, made for the first row, do not go with this vLLM."""
    with_vllm: tuple[str, ...] = ()
    """What this vLLM needs besides for the kit's models."""


# The first row is what is trained and tested with; the others are resolved for Python 3.11 to 3.13 (docs/evidence/install.md).
COMBINATIONS = (
    # The pins of requirements.txt and requirements-gpu.txt; a test keeps the two equal.
    Combination("cpu", "2.13.0"),
    # Since 0.28 vLLM loads 4-bit weights of bitsandbytes through a plugin.
    Combination("cuda13", "2.13.0", 13, "0.31.0", with_vllm=("vllm-bnb-plugin==0.0.3",)),
    # vLLM 0.20 to 0.26 ask for torch 2.11.0 exactly, 0.27 to 0.31 for 2.13.0 (their metadata).
    # vLLM 0.26.0 comes with a nvidia-cutlass-dsl that asks for protobuf<7.
    Combination("cuda13-torch2.11", "2.11.0", 13, "0.26.0", unbounded=("protobuf",)),
    # Colab as it is handed out. On the registry there is no vLLM for CUDA 12 that takes torch 2.11.
    Combination("cuda12-torch2.11", "2.11.0", 12),
    Combination("cuda12", "2.13.0", 12),
    Combination("cpu-torch2.11", "2.11.0"),
)
BY_NAME = {row.name: row for row in COMBINATIONS}

# unsloth 2026.10.9 asks for torch>=2.4,<2.15.
_UNSLOTH_TORCH = ((2, 4), (2, 15))


@dataclass(frozen=True, kw_only=True)
class Found:
    """What decides: the torch that is there, whether this kernel has loaded it, the GPU and its driver."""

    torch: str | None = None
    """Its version, also with a build after the plus sign; None if it is not installed."""
    torch_cuda: int | None = None
    """The major version of the CUDA it was built for; None for a build without."""
    is_torch_loaded: bool = False
    has_gpu: bool = False
    driver_cuda: int | None = None
    """The newest major version of CUDA that the driver runs; None if it does not say."""
    system: str = "linux"
    """`sys.platform`; vLLM has builds for Linux alone."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What will be installed, and why; or why nothing can be."""

    torch: str | None = None
    """The torch to install; None keeps the one that is there."""
    vllm: str | None = None
    combination: str = "untried"
    """The row's name; `untried` where a torch that is in no row is kept."""
    why: str = ""
    generation: str = ""
    """With vLLM or without, why, and what it costs, in one line; empty without a GPU, where there is nothing to choose."""
    stop: str = ""
    """If not empty, nothing must be installed: the reason, and what to do first."""


def choose(found: Found, *, with_vllm: bool = True) -> Choice:
    """Choose a combination. A torch that fits stays; one that this kernel has loaded is never replaced.

    Args:
        found: The torch, GPU and driver of this machine.
        with_vllm: False keeps a fitting torch even where another one would bring vLLM.

    >>> colab = Found(torch="2.11.0+cu128", torch_cuda=12, has_gpu=True, driver_cuda=13)
    >>> choose(colab).combination, choose(colab).torch
    ('cuda13', '2.13.0')
    >>> choose(colab, with_vllm=False).combination
    'cuda12-torch2.11'
    """
    choice = _choose(found, with_vllm)
    return replace(choice, generation="" if choice.stop else _generation(found, choice.vllm, with_vllm))


def _choose(found: Found, with_vllm: bool) -> Choice:
    new = BY_NAME["cuda13" if found.has_gpu else "cpu"]
    kept = _row_of_installed(found)
    if not found.has_gpu:
        if kept is not None:
            return Choice(combination=kept.name)
        if found.is_torch_loaded:
            return _stop(found, f"the kit needs {new.torch}")
        why = f"torch {found.torch} is not in the table of combinations." if found.torch else ""
        return Choice(torch=new.torch, combination=new.name, why=why)
    wants_vllm = with_vllm and found.system == "linux"
    driver_runs_new = found.driver_cuda is None or found.driver_cuda >= 13
    if kept is not None and (kept.vllm or found.is_torch_loaded or not wants_vllm or not driver_runs_new):
        return Choice(vllm=kept.vllm if wants_vllm else None, combination=kept.name, why=f"torch {found.torch} stays.")
    if driver_runs_new and not found.is_torch_loaded:
        vllm, why = new.vllm if wants_vllm else None, ""
        if vllm is not None and found.torch:
            why = f"torch {found.torch} makes room: vLLM {vllm} is built for torch {new.torch}."
        return Choice(torch=new.torch, vllm=vllm, combination=new.name, why=why)
    if driver_runs_new:
        return _stop(found, "is not in the table of combinations")
    # A torch that is in no row, or none, under a driver that is too old for the new one.
    starts = found.torch_cuda is not None and found.torch_cuda <= (found.driver_cuda or 0)
    if starts and _UNSLOTH_TORCH[0] <= minor_release(found.torch or "") < _UNSLOTH_TORCH[1]:
        why = f"torch {found.torch} is in no combination that was tried, and stays: the driver is too old for CUDA 13."
        return Choice(why=why)
    return Choice(
        stop=f"the driver runs CUDA {found.driver_cuda} at most, and the torch of the registry is built for CUDA 13. Update "
        "the driver to 580 or newer; or install torch 2.13.0 for CUDA 12 (PyTorch's web site), and run this cell again"
    )


def _stop(found: Found, reason: str) -> Choice:
    advice = "Restart the session and run this cell before anything else."
    return Choice(stop=f"torch {found.torch} is loaded in this kernel, and {reason}. {advice}")


def _row_of_installed(found: Found) -> Combination | None:
    """The row of the torch that is there; None where CUDA does not start under this driver."""
    cuda = found.torch_cuda if found.has_gpu else None
    if found.torch is None or (found.has_gpu and cuda is None) or (cuda or 0) > (found.driver_cuda or cuda or 0):
        return None
    return next((row for row in COMBINATIONS if row.cuda == cuda and is_same_release(row.torch, found.torch)), None)


def _generation(found: Found, vllm: str | None, with_vllm: bool) -> str:
    if not found.has_gpu:
        return ""
    if vllm is not None:
        return f"With vLLM {vllm}, which generates fast; it costs some 10 GB of disk, and time at each start."
    if not with_vllm:
        why = "as vllm=False asks"
    elif found.system != "linux":
        why = "it has builds for Linux alone"
    elif (found.driver_cuda or 13) < 13:
        why = f"from 0.20 on it needs CUDA 13 (driver 580 or newer), and this driver runs CUDA {found.driver_cuda} at most"
    else:
        why = f"none fits torch {found.torch}, which is loaded in this kernel; to get one, restart and run this cell first"
    # The sum is in docs/reference/settings.md.
    cost = "a run by the T4 preset takes up to an hour (computed, not measured)"
    return f"Without vLLM: {why}. Unsloth's own generation is used, which is slower: {cost}."
