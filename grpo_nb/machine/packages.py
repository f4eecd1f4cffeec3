"""Read the versions of installed packages, and find packages that do not fit together.

No package is imported. The versions come from metadata, from files and from the modules that this
kernel has already loaded. The other files here read installed versions through this module too.
"""

import re
import runpy
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from grpo_nb.upstream.symbols import installed_version

# Commands that messages show to users. The first two run in a terminal in the folder of the
# repository: they install all that the kit needs, and torch with vLLM.
INSTALL_COMMAND = (
    "pip install -r requirements.txt && pip install --no-deps -r requirements-no-deps.txt"
)
VLLM_INSTALL_COMMAND = "pip install -r requirements.txt -r requirements-gpu.txt"
# This command replaces the installed torch with a build of the pinned version for CUDA 12. Without
# `+cu126`, pip would keep an installed build of the same version. CUDA 12.6 is the last CUDA 12 for
# which torch is built (pytorch/pytorch#178665), and its builds also run on a V100 (#172352).
CUDA_12_TORCH_COMMAND = (
    "pip install torch==2.13.0+cu126 --index-url https://download.pytorch.org/whl/cu126"
)
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
# nvidia-ml-py is never reported, because its module has another name. The kernel does not need it
# in the installed version.
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
    """Return the names of packages whose loaded version differs from the installed version.

    They include packages that were loaded and have since been uninstalled.
    """
    stale = []
    for name in _WATCHED_PACKAGES:
        module = sys.modules.get(name)
        # The entry is None if somebody blocked the import.
        if module is None:
            continue
        # transformers and trl are lazy modules, with their version in `_objects`. `getattr` could
        # make a lazy module import half of its package, and `vars` cannot.
        values = vars(module)
        loaded_version = values.get("__version__") or values.get("_objects", {}).get("__version__")
        # `is_same_release` ignores the part after `+`, because `torch.__version__` can be
        # 2.13.0+cpu while the metadata has 2.13.0.
        installed = installed_version(name) or ""
        if loaded_version is not None and not is_same_release(loaded_version, installed):
            stale.append(name)
    return stale


@dataclass(frozen=True)
class TorchBuild:
    """Version of torch, and the CUDA version for which it was built."""

    version: str
    cuda: tuple[int, int] | None
    """CUDA version of the build; None for a build that only uses the CPU."""


def read_torch_build() -> TorchBuild | None:
    """Return the build of the installed torch, without importing torch.

    The result is None if torch is not installed.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).with_name("version.py")
    # torch/version.py only assigns values, such as __version__ = "2.13.0+cu130" and cuda = "13.0".
    # In a build for the CPU, `cuda` is None.
    values = runpy.run_path(str(file))
    cuda = values.get("cuda")
    return TorchBuild(version=values["__version__"], cuda=major_minor(cuda) if cuda else None)


def is_same_release(version: str, other: str) -> bool:
    """Return True for versions that differ only in the build: `2.11.0` and `2.11.0+cu128`."""
    return version.partition("+")[0] == other.partition("+")[0]


def major_minor(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version, major and minor.

    >>> major_minor("2.13.0+cu130"), major_minor("0.16rc1")
    ((2, 13), (0, 16))
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    return int(match[1]), int(match[2])


def dotted(version: tuple[int, int]) -> str:
    """Return a version or a compute capability as text.

    >>> dotted((13, 0))
    '13.0'
    """
    return ".".join(map(str, version))


def incompatible_packages() -> list[str]:
    """Return those of torchvision and torchao whose version would break transformers or peft.

    The kit needs neither of the two, so they can be uninstalled.
    """
    torch = installed_version("torch")
    torchvision = installed_version("torchvision")
    torchao = installed_version("torchao")
    names = []
    # torchvision 0.28 belongs to torch 2.13, 0.29 to 2.14 and so on (table in the README of
    # pytorch/vision). With any other, transformers fails (operator torchvision::nms).
    if torch and torchvision and major_minor(torchvision)[1] != major_minor(torch)[1] + 15:
        names.append("torchvision")
    # With a torchao before 0.16, peft 0.21 raises ImportError when it adds a LoRA. Colab has 0.10.
    if torchao and major_minor(torchao) < (0, 16):
        names.append("torchao")
    return names
