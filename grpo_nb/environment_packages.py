"""What is installed and what this kernel has loaded, read from metadata and files; imports none of it."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Packages that unsloth patches while they load, so that it must come before them.
PATCHED_BY_UNSLOTH = ("trl", "transformers", "peft")
NEEDED = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "unsloth", "unsloth_zoo")
# Looked at besides: they break the others when they do not fit.
_WATCHED = (*NEEDED, "vllm", "torchvision", "torchaudio", "torchao", "numpy", "pandas", "pyarrow", "triton")


def installed_version(package: str) -> str | None:
    """The version in the package's metadata on disk, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_versions() -> dict[str, str]:
    """The versions on disk of the packages that the preflight looks at."""
    return {name: version for name in _WATCHED if (version := installed_version(name)) is not None}


def loaded_versions() -> dict[str, str]:
    """The versions that this kernel has in memory, which differ from those on disk after an installation."""
    found = {}
    for name in _WATCHED:
        # Read from the module's own dictionary: asking a lazy module for an attribute would import half of it.
        version = vars(sys.modules[name]).get("__version__") if name in sys.modules else None
        if version is not None:
            found[name] = str(version)
    return found


def early_imports(loaded: Sequence[str] | None = None) -> tuple[str, ...]:
    """What was imported before unsloth though unsloth patches it; nothing once unsloth is there."""
    loaded = list(sys.modules) if loaded is None else loaded
    return () if "unsloth" in loaded else tuple(name for name in PATCHED_BY_UNSLOTH if name in loaded)


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """What torch was built for, from its own `version.py`."""

    version: str
    cuda: tuple[int, int] | None
    """None for a build without CUDA."""
    is_rocm: bool = False


def read_torch_build() -> TorchBuild | None:
    """Read the version and the CUDA of the installed torch without importing it; None if there is none to read."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    file = Path(next(iter(spec.submodule_search_locations))) / "version.py"
    try:
        return parse_torch_build(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return None  # a torch cut off while it was installed; the row about packages tells it


def parse_torch_build(source: str) -> TorchBuild | None:
    """Return what the text of torch's `version.py` says.

    >>> parse_torch_build("__version__ = '2.13.0+cu130'\\ncuda: str | None = '13.0'").cuda
    (13, 0)
    """
    values: dict[str, object] = {}
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            values.update({target.id: node.value.value for target in targets if isinstance(target, ast.Name)})
    version, cuda = values.get("__version__"), values.get("cuda")
    if not isinstance(version, str):
        return None
    numbers = re.match(r"(\d+)\.(\d+)", cuda) if isinstance(cuda, str) else None
    return TorchBuild(
        version=version,
        cuda=(int(numbers[1]), int(numbers[2])) if numbers else None,
        is_rocm=isinstance(values.get("hip"), str),
    )


@dataclass(frozen=True, kw_only=True)
class CompiledCache:
    """The folder of trainers that unsloth generated, and the versions that they were generated for."""

    path: str
    versions: Mapping[str, str]
    """Of the first file that names other versions than are installed; empty if all fit."""
    is_pinned: bool = False
    """Whether `UNSLOTH_COMPILE_OVERWRITE=0` keeps unsloth from writing them anew."""


# The order of the lines that unsloth_zoo 2026.10.9 (compiler.py, create_new_function) puts on top of each file.
_CACHE_LINES = ("unsloth_zoo", "unsloth", "transformers", "trl")
_CACHE_MARK = "__UNSLOTH_VERSIONING__"


def read_compiled_cache(installed: Mapping[str, str]) -> CompiledCache | None:
    """Look into unsloth's folder of generated trainers in the working directory; None if there is none.

    It is on `sys.path` as soon as unsloth is imported, and survives every update of a package. Unsloth compares the
    versions itself and writes a file anew when they differ, unless it is told not to.
    """
    folder = Path(os.environ.get("UNSLOTH_COMPILE_LOCATION") or "unsloth_compiled_cache")
    if not folder.is_dir():
        return None
    pinned = os.environ.get("UNSLOTH_COMPILE_OVERWRITE", "1") == "0"
    for file in sorted(folder.glob("*.py")):
        with file.open(encoding="utf-8", errors="replace") as lines:
            head = [line.strip().strip('"') for _, line in zip(range(8), lines, strict=False)]
        if _CACHE_MARK not in head:
            continue
        named = [line for line in head[: head.index(_CACHE_MARK)] if line]
        versions = dict(zip(_CACHE_LINES, named, strict=False))
        if any(installed.get(name) != version for name, version in versions.items()):
            return CompiledCache(path=str(folder), versions=versions, is_pinned=pinned)
    return CompiledCache(path=str(folder), versions={}, is_pinned=pinned)
