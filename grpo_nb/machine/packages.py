"""Read the versions of installed packages and of the packages that this kernel has loaded.

The versions come from metadata and files, without an import.
"""

import re
import runpy
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from grpo_nb.upstream.symbols import installed_version

# Commands for users who install packages themselves: all that the kit needs, and torch with vLLM.
INSTALL_COMMAND = (
    "pip install -r requirements.txt && pip install --no-deps -r requirements-no-deps.txt"
)
VLLM_INSTALL_COMMAND = "pip install -r requirements.txt -r requirements-gpu.txt"
# Packages without which a training does not start.
NEEDED_PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "bitsandbytes",
    "unsloth",
    "unsloth_zoo",
    "psutil",
    "nvidia-ml-py",
)
# A kernel breaks if its loaded version of one of these packages is not the installed version.
_WATCHED_PACKAGES = (
    *NEEDED_PACKAGES,
    "vllm",
    "torchvision",
    "torchao",
    "numpy",
    "pandas",
    "pyarrow",
    "huggingface_hub",
    "tokenizers",
)


def package_versions() -> dict[str, str]:
    """Return the installed version of each package whose version a run records."""
    versions = {name: installed_version(name) for name in (*NEEDED_PACKAGES, "vllm")}
    return {name: version for name, version in versions.items() if version}


def stale_packages() -> list[str]:
    """Return the names of packages that this kernel loaded in another version than the installed.

    A loaded package that was uninstalled is among them.
    """
    stale = []
    for name in _WATCHED_PACKAGES:
        module = sys.modules.get(name)
        # The entry is None if somebody blocked the import.
        if module is None:
            continue
        # transformers and trl are lazy modules and keep their version in `_objects`. If it were
        # missing, `getattr` would import half of the package, and `vars` does not.
        values = vars(module)
        loaded_version = values.get("__version__") or values.get("_objects", {}).get("__version__")
        # `torch.__version__` can be 2.13.0+cpu if the metadata has 2.13.0, so the part after `+` is
        # ignored.
        installed = installed_version(name) or ""
        if loaded_version is not None and not is_same_release(loaded_version, installed):
            stale.append(name)
    return stale


@dataclass(frozen=True)
class TorchBuild:
    """Version of torch and the CUDA version that it was built for."""

    version: str
    cuda: tuple[int, int] | None
    """None for a build without CUDA."""


def read_torch_build() -> TorchBuild | None:
    """Return version and CUDA version of the installed torch; None if torch is not installed.

    Torch is not imported.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).with_name("version.py")
    if not file.is_file():
        return None
    # torch/version.py only assigns texts, such as __version__ = "2.13.0+cu130" and cuda = "13.0".
    # In a build for the CPU, `cuda` is None.
    values = runpy.run_path(str(file))
    cuda = values.get("cuda")
    return TorchBuild(version=values["__version__"], cuda=minor_release(cuda) if cuda else None)


def is_same_release(version: str, other: str) -> bool:
    """Return True for versions that differ only in the build: `2.11.0` and `2.11.0+cu128`."""
    return version.partition("+")[0] == other.partition("+")[0]


def minor_release(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version.

    >>> minor_release("2.13.0+cu130"), minor_release("0.16rc1")
    ((2, 13), (0, 16))
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    return int(match[1]), int(match[2])


def dotted(version: tuple[int, int]) -> str:
    """Return a version or compute capability as people write it.

    >>> dotted((13, 0))
    '13.0'
    """
    return ".".join(map(str, version))


def incompatible_packages() -> list[str]:
    """Return installed packages that the kit does not need and that break transformers or peft."""
    torch = installed_version("torch")
    torchvision = installed_version("torchvision")
    torchao = installed_version("torchao")
    names = []
    # torchvision 0.28 belongs to torch 2.13, and so on (table in the README of pytorch/vision).
    # With another one transformers fails (operator torchvision::nms).
    if torch and torchvision and minor_release(torchvision)[1] != minor_release(torch)[1] + 15:
        names.append("torchvision")
    # With a torchao before 0.16, peft 0.21 raises ImportError when it adds a LoRA. Colab has 0.10.
    if torchao and minor_release(torchao) < (0, 16):
        names.append("torchao")
    return names
