"""What is installed and what this kernel has loaded, read from metadata and files; imports none of it.

Whether vLLM loads is found out in a process of its own: a vLLM for another CUDA takes the kernel down with it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_nb.core.processes import ChildError, run_command

if TYPE_CHECKING:
    from packaging.requirements import Requirement

BY_HAND = "pip install -r requirements.txt && pip install --no-deps -r requirements-no-deps.txt"
# The oldest Python that the kit supports, and the one where unsloth 2026.10.9 stops.
PYTHONS = ((3, 11), (3, 15))
# Packages that unsloth patches while they load, so that it must come before them.
_PATCHED_BY_UNSLOTH = ("trl", "transformers", "peft")
NEEDED = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "unsloth", "unsloth_zoo")
# Looked at besides: they break the others when they do not fit.
_WATCHED = (*NEEDED, "vllm", "torchvision", "torchaudio", "torchao", "numpy", "pandas", "pyarrow", "triton")
# torchvision minor release that was built for a torch minor release: 0.(n + 15) for 2.n (pytorch/vision README).
_TORCHVISION_OFFSET = 15
# peft 0.21 raises ImportError on an older one whenever it puts a LoRA on a model; Colab has 0.10.
_OLDEST_TORCHAO = (0, 16)
# vLLM imports the compiled part for this machine (_C, _C_stable_libtorch, _C_AVX512), turns a failure into a log line, and runs
# into it later. So what it asked for and did not get is asked for again. Those for other machines are left alone: two in one
# process register the same operators, which ends it. vLLM's older parts for a CPU are libraries that lack a module's entry.
_TRY_VLLM = """
import importlib, sys
asked = []
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("vllm._C"):
            asked.append(name)
sys.meta_path.insert(0, Watch())
from vllm import LLM, SamplingParams
for name in dict.fromkeys(asked):
    try:
        importlib.import_module(name)
    except ImportError as error:
        if "does not define module export function" not in str(error):
            raise
"""
# The import alone takes 5 to 20 seconds on a machine that has just started.
_VLLM_SECONDS = 90


def installed_version(package: str) -> str | None:
    """The version in the package's metadata on disk, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_versions(names: Collection[str] = _WATCHED) -> dict[str, str]:
    """The versions on disk of packages, by default of those that the preflight looks at."""
    return {name: version for name in names if (version := installed_version(name)) is not None}


def loaded_versions() -> dict[str, str]:
    """The versions that this kernel has in memory, which differ from those on disk after an installation."""
    # Read from the module's own dictionary: asking a lazy module for an attribute would import half of it.
    told = ((name, vars(sys.modules[name]).get("__version__")) for name in _WATCHED if name in sys.modules)
    return {name: str(version) for name, version in told if version is not None}


def import_order_problem(loaded: Collection[str] | None = None) -> str | None:
    """Say which packages were imported before unsloth, which patches them, or None if the order is right."""
    loaded = sys.modules if loaded is None else loaded
    early = [name for name in _PATCHED_BY_UNSLOTH if name in loaded and "unsloth" not in loaded]
    return f"{' and '.join(early)} {'was' if len(early) == 1 else 'were'} imported before unsloth" if early else None


def package_versions() -> dict[str, str]:
    """The installed versions of the packages a run depends on; a run records them."""
    return installed_versions((*NEEDED, "vllm"))


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
    file = Path(spec.origin).with_name("version.py") if spec is not None and spec.origin else None
    return parse_torch_build(file.read_text("utf-8", errors="replace")) if file and file.is_file() else None


def parse_torch_build(source: str) -> TorchBuild | None:
    """Return what the text of torch's `version.py` says, one assignment a line; a torch that was cut off may say nothing.

    >>> parse_torch_build("__version__ = '2.13.0+cu130'\\ncuda: str | None = '13.0'").cuda
    (13, 0)
    """
    values = dict(re.findall(r"^(\w+)\b[^=\n]*= *['\"]([^'\"\n]*)['\"]", source, re.MULTILINE))
    if "__version__" not in values:
        return None
    numbers = re.match(r"(\d+)\.(\d+)", values.get("cuda", ""))
    cuda = (int(numbers[1]), int(numbers[2])) if numbers else None
    return TorchBuild(version=values["__version__"], cuda=cuda, is_rocm="hip" in values)


def is_same_release(wanted: str, version: str) -> bool:
    """Whether two versions are the same but for the build after the plus sign: `2.11.0` and `2.11.0+cu128` are."""
    return wanted.partition("+")[0] == version.partition("+")[0]


def is_torchvision_for(torch: str, vision: str) -> bool:
    """Whether a torchvision was built for a torch: for its release, and for the same CUDA or CPU."""
    builds = {version.partition("+")[2] for version in (torch, vision)}
    return minor_release(vision)[1] == minor_release(torch)[1] + _TORCHVISION_OFFSET and len(builds) == 1


def is_torchao_recent(version: str) -> bool:
    """Whether peft accepts it."""
    return minor_release(version) >= _OLDEST_TORCHAO


def pinned(folder: Path | None = None) -> dict[str, str]:
    """Name -> version of what the repository's requirements files pin exactly; nothing where the kit lies without them."""
    folder = folder or Path(__file__).resolve().parents[2]
    files = (folder / name for name in ("requirements.txt", "requirements-no-deps.txt"))
    text = "".join(file.read_text("utf-8") for file in files if file.is_file())
    return dict(re.findall(r"^([\w.-]+)==([\w.]+)$", text, re.MULTILINE))


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without those of its build."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))


def minor_release(version: str) -> tuple[int, int]:
    """The first two numbers of a version; of one without numbers those of the newest, which nothing is held against."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (sys.maxsize, sys.maxsize)


def asked_of(package: str, names: Sequence[str], extra: str = "") -> Iterator[Requirement]:
    """What a package asks of others, here and now, from its metadata; with an extra, only what that adds.

    Nothing where it is not installed.
    """
    from packaging.requirements import Requirement

    for text in (installed_version(package) and importlib.metadata.requires(package)) or ():
        asked = Requirement(text)
        holds = not extra if asked.marker is None else asked.marker.evaluate({"extra": extra})
        if asked.name in names and holds:
            yield asked


def torch_for_vllm() -> str | None:
    """The one torch that the installed vLLM was built for; None if it is not installed, or asks for no certain one."""
    pins = (pin for asked in asked_of("vllm", ("torch",)) for pin in asked.specifier if pin.operator == "==")
    return next((pin.version for pin in pins), None)


def vllm_problem() -> str | None:
    """Say why vLLM does not load here, or None if it does.

    It is imported once per kernel, in a separate process, which takes some seconds; the answer is kept.
    """
    version = installed_version("vllm")
    if version is None:
        return "not installed"
    return _try_vllm(version, installed_version("torch"))


@functools.cache
def _try_vllm(vllm: str, torch: str | None) -> str | None:
    """Import vLLM elsewhere; the versions are arguments so that the answer is not kept beyond them."""
    try:
        run_command([sys.executable, "-c", _TRY_VLLM], seconds=_VLLM_SECONDS)
    except ChildError as error:
        if error.status is None:
            return f"its import did not end in {_VLLM_SECONDS} seconds"
        if error.status < 0:
            return f"its import was ended by signal {-error.status}"
        return error.last(1)[:300] if error.lines else f"its import ended with status {error.status}"
    return None


@dataclass(frozen=True, kw_only=True)
class CompiledCache:
    """A folder of trainers that unsloth generated for other versions than are installed."""

    path: str
    versions: Mapping[str, str]
    """Those that the first such file names."""
    is_pinned: bool = False
    """Whether `UNSLOTH_COMPILE_OVERWRITE=0` keeps unsloth from writing them anew."""


# The lines that unsloth_zoo 2026.10.9 (compiler.py, create_new_function) puts on top of each file.
_CACHE_HEAD = re.compile(
    r'"""\n(?P<unsloth_zoo>.*)\n(?P<unsloth>.*)\n(?P<transformers>.*)\n(?P<trl>.*)\n__UNSLOTH_VERSIONING__\n'
)


def read_compiled_cache(installed: Mapping[str, str]) -> CompiledCache | None:
    """Look into unsloth's folder of generated trainers in the working directory; None if there is none, or all fit.

    It is on `sys.path` as soon as unsloth is imported, and survives every update of a package. Unsloth compares the
    versions itself and writes a file anew when they differ, unless it is told not to.
    """
    folder = Path(os.environ.get("UNSLOTH_COMPILE_LOCATION") or "unsloth_compiled_cache")
    for file in sorted(folder.glob("*.py")):
        head = _CACHE_HEAD.match(file.read_text(encoding="utf-8", errors="replace"))
        if head and any(installed.get(name) != version for name, version in head.groupdict().items()):
            is_pinned = os.environ.get("UNSLOTH_COMPILE_OVERWRITE", "1") == "0"
            return CompiledCache(path=str(folder), versions=head.groupdict(), is_pinned=is_pinned)
    return None
