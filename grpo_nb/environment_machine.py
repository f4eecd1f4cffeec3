"""One picture of the machine, taken at once; the preflight's rows are functions of it and of nothing else."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grpo_nb.environment_gpu import Driver, has_nvidia_smi, read_driver
from grpo_nb.environment_packages import (
    CompiledCache,
    TorchBuild,
    early_imports,
    installed_versions,
    loaded_versions,
    read_compiled_cache,
    read_torch_build,
)
from grpo_nb.environment_vllm import vllm_problem


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the preflight looks at. A test describes one in data, `read_machine` takes the picture of this one."""

    python: tuple[int, int, int]
    system: str = "linux"
    """`sys.platform`."""
    host: str = "jupyter"
    """`colab`, `kaggle`, `jupyter` or `script`."""
    installed: Mapping[str, str] = field(default_factory=dict)
    loaded: Mapping[str, str] = field(default_factory=dict)
    early: tuple[str, ...] = ()
    torch_build: TorchBuild | None = None
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
    compiled_cache: CompiledCache | None = None
    cores: int = 1
    memory_gib: float = 0.0
    run_root: str = "."
    free_disk_gb: float = 0.0
    hub_token: str = ""
    """Where a Hugging Face token was found (never the token), with a remark if it cannot be one; empty if none."""


def read_machine(run_root: Path) -> Machine:
    """Take the picture of this machine. vLLM is tried only where there is a GPU, and only once."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    driver = read_driver(visible=visible) if has_nvidia_smi() else None
    installed = installed_versions()
    wanted = _torch_for_vllm() if "vllm" in installed else None
    fits = wanted is None or is_same_release(wanted, installed.get("torch", ""))
    tried = driver is not None and driver.gpus and "vllm" in installed and fits
    build = read_torch_build()
    return Machine(
        python=sys.version_info[:3],
        system=sys.platform,
        host=find_host(),
        installed=installed,
        loaded=loaded_versions(),
        early=early_imports(),
        torch_build=build,
        driver=driver,
        unseen=_unseen_gpu(build) if driver is None and visible not in ("", "-1") else "",
        visible=visible,
        vllm_torch=wanted,
        vllm_problem=vllm_problem() if tried else None,
        compiled_cache=read_compiled_cache(installed),
        cores=os.cpu_count() or 1,
        memory_gib=total_memory_gib(),
        run_root=str(run_root.absolute()),
        free_disk_gb=free_disk_bytes(run_root) / 1e9,
        hub_token=_find_hub_token(),
    )


def find_host() -> str:
    """Where this code runs: `colab`, `kaggle`, `jupyter` (any other kernel) or `script`."""
    if "COLAB_RELEASE_TAG" in os.environ or "google.colab" in sys.modules:
        return "colab"
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
        return "kaggle"
    return "jupyter" if "ipykernel" in sys.modules else "script"


def is_same_release(wanted: str, version: str) -> bool:
    """Whether two versions are the same but for the build after the plus sign: `2.11.0` and `2.11.0+cu128` are."""
    return wanted.partition("+")[0] == version.partition("+")[0]


def total_memory_gib() -> float:
    """Memory of this machine in GiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def free_disk_bytes(path: Path) -> int:
    """Free bytes on the disk that holds `path` or, if it does not exist yet, its nearest existing parent."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _unseen_gpu(build: TorchBuild | None) -> str:
    """Say what torch would find without `nvidia-smi`. The files are there only where a container was given the GPU."""
    if build is not None and build.is_rocm and Path("/dev/kfd").exists():
        return "a torch built for ROCm (AMD)"
    if build is not None and build.cuda is not None and Path("/dev/nvidiactl").exists():
        return "an NVIDIA driver without nvidia-smi"
    return ""


def _torch_for_vllm() -> str | None:
    for line in importlib.metadata.requires("vllm") or ():
        found = re.match(r"torch\s*==\s*([\w.]+)", line)
        if found:
            return found[1]
    return None


def _find_hub_token() -> str:
    name = next((n for n in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(n, "").strip()), None)
    if name is not None:
        token, place = os.environ[name], f"in {name}"
    else:
        home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
        file = Path(os.environ.get("HF_TOKEN_PATH") or home / "token")
        try:
            token, place = file.read_text(encoding="utf-8"), "saved by a login"
        except (OSError, UnicodeDecodeError):
            return ""
    return place if re.fullmatch(r"hf_\w{20,}", token.strip()) else f"{place}, but it does not look like a token"
