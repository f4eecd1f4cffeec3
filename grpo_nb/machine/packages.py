"""What is installed and what this kernel has loaded, read from metadata and files; imports none of it.

Whether vLLM loads is found out in a process of its own: a vLLM for another CUDA takes the kernel down with it.
"""

import functools
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grpo_nb.core.processes import ChildError, run_command

BY_HAND = "pip install -r requirements.txt && pip install --no-deps -r requirements-no-deps.txt"
# The oldest Python that the kit supports, and the one where unsloth 2026.10.9 stops.
PYTHONS = ((3, 11), (3, 15))
# Packages that unsloth patches while they load, so that it must come before them.
_PATCHED_BY_UNSLOTH = ("trl", "transformers", "peft")
NEEDED = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "unsloth", "unsloth_zoo",
          "psutil", "nvidia-ml-py")  # fmt: skip
# Looked at besides: a kernel that has an older one of these in memory than is installed breaks.
_WATCHED = (
    *NEEDED,
    "vllm",
    "torchvision",
    "torchao",
    "numpy",
    "pandas",
    "pyarrow",
    "huggingface_hub",
    "tokenizers",
)
# Time limit for importing vLLM in a process of its own. With files in memory it takes 11 s on two
# cores. On a fresh machine vLLM and torch read 3 GB first and compile 5,000 files to bytecode.
_VLLM_SECONDS = 300


def installed_version(package: str) -> str | None:
    """The version in the package's metadata on disk, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_python_supported() -> bool:
    """Whether the kit runs on this Python."""
    return PYTHONS[0] <= sys.version_info[:2] < PYTHONS[1]


def package_versions() -> dict[str, str]:
    """The installed versions of the packages a run depends on; a run records them."""
    return {name: version for name in (*NEEDED, "vllm") if (version := installed_version(name))}


def stale_versions() -> dict[str, tuple[str, str]]:
    """What this kernel has in memory in another version than is installed: name to (loaded, installed or `removed`)."""
    found = {}
    for name in _WATCHED:
        # Read from the module's own dictionary: asking a lazy module for an attribute would import half of it.
        loaded = vars(sys.modules[name]).get("__version__") if name in sys.modules else None
        there = installed_version(name) or "removed"
        # torch says 2.13.0+cpu of itself where its metadata says 2.13.0, and the other way round.
        if loaded is not None and not is_same_release(str(loaded), there):
            found[name] = (str(loaded), there)
    return found


def import_order_problem() -> str | None:
    """Say which packages were imported before unsloth, which patches them, and by which line; None if the order is right."""
    early = [
        name for name in _PATCHED_BY_UNSLOTH if name in sys.modules and "unsloth" not in sys.modules
    ]
    if not early:
        return None
    line = _importing_line()
    by = f" ({line})" if line else ""
    return (
        f"{' and '.join(early)} {'was' if len(early) == 1 else 'were'} imported before unsloth{by}"
    )


def _importing_line() -> str | None:
    """Return the first line of this notebook's cells, or of the script, that imports what unsloth patches."""
    importing = re.compile(rf"(?:^|;)\s*(?:from|import)\s+(?:{'|'.join(_PATCHED_BY_UNSLOTH)})\b")
    for place, text in _own_code():
        for number, line in enumerate(text.splitlines(), 1):
            if importing.search(line):
                return f"{place}, line {number}: {line.strip():.100}"
    return None


def _own_code() -> Iterator[tuple[str, str]]:
    """Yield the cells that this notebook has run, or the script of this process, each with its name."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        for number, cell in enumerate(shell.user_ns.get("In", ())):
            yield f"cell [{number}]", str(cell)
        return
    script = Path(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    if script.is_file():
        yield script.name, script.read_text("utf-8", errors="replace")


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """What torch was built for, from its own `version.py`."""

    version: str
    cuda: tuple[int, int] | None
    """None for a build without CUDA."""


def read_torch_build() -> TorchBuild | None:
    """Read the version and the CUDA of the installed torch without importing it; None if there is none to read."""
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec is not None and spec.origin else None
    if file is None or not file.is_file():
        return None
    # One assignment a line: __version__ = '2.13.0+cu130', and cuda: Optional[str] = '13.0', or None.
    source = file.read_text("utf-8", errors="replace")
    values = dict(re.findall(r"^(\w+)\b[^=\n]*= *['\"]([^'\"\n]*)['\"]", source, re.MULTILINE))
    return TorchBuild(
        version=values["__version__"],
        cuda=minor_release(values["cuda"]) if "cuda" in values else None,
    )


def is_same_release(wanted: str, version: str) -> bool:
    """Whether two versions are the same but for the build after the plus sign: `2.11.0` and `2.11.0+cu128` are."""
    return wanted.partition("+")[0] == version.partition("+")[0]


def minor_release(version: str) -> tuple[int, int]:
    """The first two numbers of a version; of one without numbers those of the newest, which nothing is held against."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (sys.maxsize, sys.maxsize)


def misfits() -> dict[str, str]:
    """What breaks the others though nothing here needs it, and why: a torchvision for another torch, an old torchao."""
    torch, vision, torchao = (
        installed_version(name) for name in ("torch", "torchvision", "torchao")
    )
    found = {}
    # 0.28 for 2.13 (pytorch/vision README).
    if torch and vision and minor_release(vision)[1] != minor_release(torch)[1] + 15:
        why = f"{vision} was not built for torch {torch}, and transformers fails on it (operator torchvision::nms)"
        found["torchvision"] = why
    # peft 0.21 raises ImportError on an older one whenever it puts a LoRA on a model; Colab has 0.10.
    if torchao and minor_release(torchao) < (0, 16):
        found["torchao"] = (
            f"{torchao}, and peft refuses any before 0.16 (incompatible version of torchao)"
        )
    return found


def pinned() -> dict[str, str]:
    """Name -> version of what the repository's requirements files pin exactly; nothing where the kit lies without them."""
    files = (
        Path(__file__).resolve().parents[2] / name
        for name in ("requirements.txt", "requirements-no-deps.txt")
    )
    text = "".join(file.read_text("utf-8") for file in files if file.is_file())
    return dict(re.findall(r"^([\w.-]+)==([\w.]+)$", text, re.MULTILINE))


@functools.cache
def vllm_problem() -> str | None:
    """Return why an installed vLLM does not load here, or None if it does.

    vLLM is imported once per kernel, in a separate process, which takes some seconds. The answer
    is kept, unless the import ran out of time: that is no answer, and the next call tries again.

    Raises:
        TimeoutError: The import was still running after five minutes.
    """
    command = [sys.executable, "-c", "from vllm import LLM, SamplingParams"]
    try:
        lines = run_command(command, seconds=_VLLM_SECONDS)
    except ChildError as error:
        if error.status is None:
            raise TimeoutError(f"its import took longer than {_VLLM_SECONDS:g} s") from None
        return f"{str(error).splitlines()[0]} {error.last(1)[:300]}"
    # A compiled part that does not load is a line of its log (vllm/platforms/cuda.py,
    # import_kernels), and vLLM fails on it later. Its older parts for a CPU are libraries that
    # lack a module's entry, and load.
    failed = (
        line
        for line in lines
        if "Failed to import from vllm._C" in line and "not define module export" not in line
    )
    return next(failed, None)
