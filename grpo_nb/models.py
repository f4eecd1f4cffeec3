"""Loading a model with its LoRA through Unsloth, from a folder, the Hub or the embedded one."""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.config import EMBEDDED_MODEL, Settings
from grpo_nb.embedded_model import embedded_model_folder as embedded_model_folder
from grpo_nb.environment import EnvironmentProblem, Gpu, find_gpu
from grpo_nb.loading import (
    Generation,
    engine_obstacle,
    has_engine,
    loader_arguments,
    loading_problem,
    lora_arguments,
    remember_engine,
    remember_generation,
    say_once,
    start_obstacle,
    warn_if_shortened,
)
from grpo_nb.unsloth_first import import_unsloth as import_unsloth
from grpo_nb.unsloth_first import is_bfloat16_supported as is_bfloat16_supported
from grpo_nb.vllm_obstacles import VllmObstacle, vllm_obstacle

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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
    a CPU and float16 on a GPU. On a GPU with `fast_inference`, vLLM is loaded with it and shares its weights. Where vLLM
    cannot be used, Unsloth's own generation takes over and a warning says so once, with the reason and what to do. That is so
    for a second model in the same kernel, too, as long as the first one's vLLM is there.

    Args:
        settings: What to load and how.
        report: Called with one line per stage, for those who want to show progress.

    Raises:
        EnvironmentProblem: unsloth came too late, the model is not to be had, it does not fit, or the GPU's driver and
            libraries do not go together.
    """
    report = report or (lambda line: None)
    import_unsloth()
    source = resolve_model(settings.model, report)
    gpu = find_gpu()
    if gpu is None:
        _refuse_unseen_gpu()
    obstacle = vllm_obstacle(settings, gpu, source) or engine_obstacle()
    if obstacle is None:
        report(f"loading {settings.model} in {4 if settings.load_in_4bit else 16} bit, with vLLM")
        try:
            return _load(settings, source, gpu, use_vllm=True)
        except Exception as error:
            problem = loading_problem(error, settings, with_vllm=True)
            if problem is not None:
                raise problem from error
            obstacle = start_obstacle(error)
        _free_gpu_memory()  # after the except block: the error's frames hold the engine that failed
    if gpu is not None and settings.fast_inference:
        say_once(obstacle)
    report(f"loading {settings.model} in {4 if settings.load_in_4bit else 16} bit")
    try:
        return _load(settings, source, gpu, use_vllm=False, obstacle=obstacle)
    except Exception as error:
        problem = loading_problem(error, settings)
        if problem is not None:
            raise problem from error
        raise


def _load(
    settings: Settings, source: str, gpu: Gpu | None, *, use_vllm: bool, obstacle: VllmObstacle | None = None
) -> tuple[Any, Any]:
    from unsloth import FastLanguageModel

    with contextlib.redirect_stdout(io.StringIO()):
        model, tokenizer = FastLanguageModel.from_pretrained(
            **loader_arguments(settings, source, gpu, use_vllm=use_vllm)
        )
        model = FastLanguageModel.get_peft_model(model, **lora_arguments(settings, gpu))
    tokenizer.padding_side = "left"
    # A tokenizer with the GPT-2 clean-up would change the text that rewards see.
    tokenizer.clean_up_tokenization_spaces = False
    if has_engine(model):
        generation = Generation("vllm", version=importlib.metadata.version("vllm"))
        remember_engine(model.vllm_engine)
        warn_if_shortened(model.vllm_engine, settings)
    else:
        if use_vllm:  # Unsloth printed its reason, which nobody saw, and went on without
            obstacle = VllmObstacle("Unsloth does not run this model in vLLM", "fast_inference=False skips the attempt")
            say_once(obstacle)
        reason = str(obstacle) if settings.fast_inference and obstacle is not None else ""
        generation = Generation("unsloth" if gpu is not None else "kit", reason)
    remember_generation(model, generation)
    return model, tokenizer


def _refuse_unseen_gpu() -> None:
    """Raise where Unsloth has taken an accelerator that the kit does not see: half of the settings would be a CPU's.

    Raises:
        EnvironmentProblem: It has.
    """
    import torch

    if torch.cuda.is_available():
        raise EnvironmentProblem(
            f"torch computes on {torch.cuda.get_device_name(0)}, of which nvidia-smi does not tell, so the kit would treat it "
            "as a CPU. gn.check_environment() says what is missing. For the CPU, before the kernel starts: "
            "CUDA_VISIBLE_DEVICES=-1 (AMD: HIP_VISIBLE_DEVICES=-1)."
        )


def _free_gpu_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


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
