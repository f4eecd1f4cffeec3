"""The combinations of torch, CUDA and vLLM that go together, and the choice among them. The one table of its kind.

vLLM's compiled part fits one torch release and one CUDA. On the registry vLLM is built for CUDA 13 since 0.21 (vllm issue
43435), and so is torch since 2.11, while Colab has torch 2.11.0 for CUDA 12.8 (its package list of August 2026): there, vLLM
means another torch.

The versions of everything else stand in requirements.txt; `scripts/check_resolution.py` proves that each row can be
installed with them, and docs/install.md shows when it last did. Imports the standard library alone: this runs before
anything is installed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Combination:
    """One row: a torch, the CUDA that it was built for, and the vLLM that fits both."""

    name: str
    torch: str
    cuda: int | None
    """CUDA's major version; None for machines without a GPU, where any build of this torch will do."""
    vllm: str | None
    """None: no vLLM fits, and Unsloth's own generation is used, which is slower."""
    evidence: str
    """What is known about it, and how."""
    unbounded: tuple[str, ...] = ()
    """Packages whose bounds in requirements.txt, made for the first row, do not go with this vLLM."""
    with_vllm: tuple[str, ...] = ()
    """What this vLLM needs besides for the kit's models."""


_RESOLVED = "resolved for Python 3.11 to 3.13; not yet run on a GPU"
COMBINATIONS = (
    # The pins of requirements.txt and requirements-gpu.txt; a test keeps the two equal.
    Combination(name="cpu", torch="2.13.0", cuda=None, vllm=None, evidence="trained and tested here, November 2026"),
    # Since 0.28 vLLM loads 4-bit weights of bitsandbytes through a plugin.
    Combination(
        name="cuda13",
        torch="2.13.0",
        cuda=13,
        vllm="0.31.0",
        evidence=_RESOLVED,
        with_vllm=("vllm-bnb-plugin==0.0.3",),
    ),
    # vLLM 0.20 to 0.26 ask for torch 2.11.0 exactly, 0.27 to 0.31 for 2.13.0 (their metadata).
    # vLLM 0.26.0 comes with a nvidia-cutlass-dsl that asks for protobuf<7.
    Combination(
        name="cuda13-torch2.11", torch="2.11.0", cuda=13, vllm="0.26.0", evidence=_RESOLVED, unbounded=("protobuf",)
    ),
    # Colab as it is handed out. On the registry there is no vLLM for CUDA 12 that takes torch 2.11.
    Combination(name="cuda12-torch2.11", torch="2.11.0", cuda=12, vllm=None, evidence=_RESOLVED),
    Combination(name="cuda12", torch="2.13.0", cuda=12, vllm=None, evidence=_RESOLVED),
    Combination(
        name="cpu-torch2.11", torch="2.11.0", cuda=None, vllm=None, evidence="resolved for Python 3.11 to 3.13; not run"
    ),
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

    torch: str | None
    """The torch to install; None keeps the one that is there."""
    vllm: str | None
    combination: str
    """The row's name; `untried` where a torch that is in no row is kept."""
    why: str
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
    if not found.has_gpu:
        return _choose_for_cpu(found)
    kept = _row_of_installed(found)
    vllm_possible = with_vllm and found.system == "linux"
    new = BY_NAME["cuda13"]
    driver_runs_new = found.driver_cuda is None or found.driver_cuda >= 13
    if kept is not None and (kept.vllm or not vllm_possible or not driver_runs_new):
        vllm = kept.vllm if vllm_possible else None
        return Choice(torch=None, vllm=vllm, combination=kept.name, why=_why_kept(found, vllm_possible, kept))
    if kept is not None and found.is_torch_loaded:
        why = (
            f"torch {found.torch} is loaded in this kernel and stays. No vLLM fits it: for one, restart the session and "
            "run this cell before anything else."
        )
        return Choice(torch=None, vllm=None, combination=kept.name, why=why)
    if kept is not None or (driver_runs_new and not found.is_torch_loaded):
        why = f"torch {found.torch} makes room: vLLM {new.vllm} is built for torch {new.torch}." if found.torch else ""
        if not vllm_possible:
            return Choice(torch=new.torch, vllm=None, combination=new.name, why="")
        return Choice(torch=new.torch, vllm=new.vllm, combination=new.name, why=why)
    return _choose_for_stranger(found)


def _choose_for_cpu(found: Found) -> Choice:
    rows = [row for row in COMBINATIONS if row.cuda is None]
    for row in rows:
        if found.torch is not None and _is_release(row.torch, found.torch):
            return Choice(torch=None, vllm=None, combination=row.name, why="")
    if found.is_torch_loaded:
        return _stop(found, f"torch {found.torch} is loaded in this kernel, and the kit needs {rows[0].torch}")
    why = f"torch {found.torch} is not in the table of combinations." if found.torch else ""
    return Choice(torch=rows[0].torch, vllm=None, combination=rows[0].name, why=why)


def _choose_for_stranger(found: Found) -> Choice:
    """A GPU, and a torch that is in no row or none: kept if there is no way to a better one."""
    if found.is_torch_loaded and (found.driver_cuda is None or found.driver_cuda >= 13):
        return _stop(found, f"torch {found.torch} is loaded in this kernel, and is not in the table of combinations")
    if found.torch is not None and found.torch_cuda is not None and found.torch_cuda <= (found.driver_cuda or 0):
        numbers = re.match(r"(\d+)\.(\d+)", found.torch)
        if numbers and _UNSLOTH_TORCH[0] <= (int(numbers[1]), int(numbers[2])) < _UNSLOTH_TORCH[1]:
            why = f"torch {found.torch} is in no combination that was tried, and stays: the driver is too old for CUDA 13."
            return Choice(torch=None, vllm=None, combination="untried", why=why)
    reason = (
        f"the driver runs CUDA {found.driver_cuda} at most, and the torch of the registry is built for CUDA 13. Update the "
        "driver to 580 or newer; or install torch 2.13.0 for CUDA 12 with the selector on PyTorch's web site, and run "
        "this cell again"
    )
    return Choice(torch=None, vllm=None, combination="untried", why="", stop=reason)


def _stop(found: Found, reason: str) -> Choice:
    advice = "Restart the session and run this cell before anything else."
    return Choice(torch=None, vllm=None, combination="untried", why="", stop=f"{reason}. {advice}")


def _row_of_installed(found: Found) -> Combination | None:
    if found.torch is None or found.torch_cuda is None:
        return None
    if found.driver_cuda is not None and found.driver_cuda < found.torch_cuda:
        return None  # CUDA does not start under this driver
    rows = [row for row in COMBINATIONS if row.cuda == found.torch_cuda and _is_release(row.torch, found.torch)]
    return rows[0] if rows else None


def _why_kept(found: Found, vllm_possible: bool, kept: Combination) -> str:
    if kept.vllm and vllm_possible:
        return f"torch {found.torch} stays, and vLLM {kept.vllm} is built for it."
    if not vllm_possible:
        return f"torch {found.torch} stays. Without vLLM, Unsloth's own generation is used, which is slower."
    return (
        f"torch {found.torch} stays: the driver is too old for CUDA 13, and the registry has no vLLM for CUDA 12. "
        "Unsloth's own generation is used, which is slower."
    )


def _is_release(release: str, version: str) -> bool:
    return version.partition("+")[0] == release
