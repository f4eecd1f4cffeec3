"""Loading a model with its LoRA through Unsloth, from a folder, the Hub or the embedded one, and what then generates for it."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.metadata
import os
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine.faults import find_fix, gpu_problem, is_out_of_memory, summary
from grpo_nb.machine.gpu import Gpu, find_gpu
from grpo_nb.models.adapter import SHAPE, adapter_folder, with_adapter
from grpo_nb.models.embedded import embedded_model_folder
from grpo_nb.models.identity import require_trained_on, template_of, weights_here
from grpo_nb.models.match import note_settings
from grpo_nb.models.unsloth import import_unsloth, said_last, silently, tell_unsloth, without_loading_bars
from grpo_nb.settings.number_types import number_type
from grpo_nb.settings.out_of_memory import memory_advice
from grpo_nb.settings.settings import ALL_LINEAR, EMBEDDED_MODEL, Settings
from grpo_nb.settings.vllm import VllmObstacle, vllm_obstacle

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SKIP_VLLM = "fast_inference=False skips the attempt"
_KEPT_ON = "grpo_nb_generation"
LOADED_WITH = "grpo_nb_loader"
"""The attribute of a model that holds what `loader` was when it was loaded."""
# What Unsloth's loader is given by the kit, and the setting to change instead.
_OWNED = {
    "model_name": "model", "max_seq_length": "max_completion_length", "random_state": "seed", "max_lora_rank": "lora_rank",
    "load_in_16bit": "load_in_4bit",
    **{name: name for name in ("load_in_4bit", "dtype", "fast_inference", "gpu_memory_utilization")},
}  # fmt: skip
_engine: weakref.ref[Any] | None = None


@dataclass(frozen=True)
class Generation:
    """What generates completions for a loaded model."""

    path: str
    """`vllm`, `unsloth` or `kit`."""
    reason: str = ""
    """Why it is not vLLM, where vLLM was asked for."""
    version: str = ""
    """Of vLLM."""

    def __str__(self) -> str:
        names = {"vllm": "vLLM", "unsloth": "Unsloth's own generation", "kit": "the kit's rollout on a CPU"}
        return f"{names[self.path]} {self.version}".strip() + (f"; not vLLM: {self.reason}" if self.reason else "")


def generation_of(model: Any) -> Generation:
    """What generates for a loaded model; for one that the kit did not load, by whether it has an engine."""
    if noted := getattr(model, _KEPT_ON, None):
        return noted
    is_on_cpu = next(model.parameters()).device.type == "cpu"
    return Generation("vllm" if has_engine(model) else "kit" if is_on_cpu else "unsloth")


def hand_copies() -> None:
    """Let vLLM get copies of the LoRA, from whoever samples: the kit, or Unsloth's trainer.

    `load_lora(load_tensors=True)` hands over the trained tensors themselves, and vLLM multiplies `lora_B` by its scaling in
    place (vLLM 0.31, lora/lora_weights.py, optimize). Where engine and LoRA have one number type nothing copies them on
    the way: on a real engine in float32 each sampling doubled the trained weights. Replaced is what builds all of Unsloth's
    requests, not `load_lora` alone: where its merged rollouts fall back to a LoRA they build one themselves
    (unsloth_zoo/vllm_utils.py, _merged_rollout_lora_fallback).
    """
    from unsloth_zoo import vllm_utils

    stock = vllm_utils._build_lora_request
    if hasattr(stock, "hands_copies"):
        return

    @functools.wraps(stock)
    def build(*args: Any, **named: Any) -> Any:
        request = stock(*args, **named)
        if tensors := getattr(request, "lora_tensors", None):
            request.lora_tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        return request

    build.hands_copies = True
    vllm_utils._build_lora_request = build


def has_engine(model: Any) -> bool:
    """Whether a vLLM engine shares the model's weights: then it samples, for the trainer and for everything else."""
    return getattr(model, "vllm_engine", None) is not None


def rest_engine(model: Any) -> None:
    """Put a model's engine to sleep before gradients are computed, if it gives its memory back then (standby).

    TRL's GRPO trainer does so by itself; its next sampling wakes it (unsloth_zoo/vllm_utils.py, patch_vllm_enable_sleep_mode).
    """
    if has_engine(model) and _is_standby() and not model.vllm_engine.llm_engine.is_sleeping():
        model.vllm_engine.sleep(1)


def _is_standby() -> bool:
    return os.environ.get("UNSLOTH_VLLM_STANDBY", "0") != "0"


def longest_of(engine: Any) -> int:
    """Tokens of prompt and completion together that a vLLM engine was started for; longer ones it cuts without a word."""
    return engine.llm_engine.vllm_config.model_config.max_model_len


def resolve_model(name: str, report: Callable[[str], None] | None = None) -> str:
    """Return what `from_pretrained` takes for a model name: the embedded model's folder, a local folder or a Hub id.

    Raises:
        FileNotFoundError: A folder that holds no model.
        EntryNotFoundError, RepositoryNotFoundError, ...: The Hub's own words for an id that is no model, or cannot be had.
    """
    from huggingface_hub import hf_hub_download

    if name == EMBEDDED_MODEL:
        return str(embedded_model_folder(report))
    path = Path(name).expanduser()
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or path.exists()
    if not is_path:
        hf_hub_download(name, "config.json")
    elif not (path / "config.json").is_file():
        raise FileNotFoundError(
            f"{name!r} is no model folder: it has no config.json. Where it is a LoRA, name its base model in the settings, and "
            f"model, tokenizer = gn.load_model(settings, adapter={name!r})."
        )
    return str(path) if is_path else name


def load_model(
    settings: Settings,
    *,
    adapter: str | Path | None = None,
    loader: Mapping[str, Any] | None = None,
    report: Callable[[str], None] | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model in 4 or 16 bit through `FastLanguageModel`, put a LoRA on it, and return it with its tokenizer.

    What is not in 4 bit computes in float32 on a CPU, and in bfloat16 or float16 on a GPU, unless the settings or the
    environment say otherwise. On a GPU with `fast_inference`, vLLM is loaded with it and shares its weights. Where vLLM
    cannot be used, Unsloth's own generation takes over and a warning says so once, with the reason and what to do. That
    is so for a second model in the same kernel, too, as long as the first one's vLLM is there.

    Args:
        settings: What to load and how.
        adapter: Folder or Hub id of a LoRA to go on from, such as one of a supervised training. Its rank, alpha and layers
            count, and not the settings'; its chat template, if it has one, too. `report` is told of it, else a warning.
        loader: What Unsloth's loader is given besides, under its own names: `text_only`, `load_in_fp8`, `offload_embedding`.
            What the settings decide is refused. A run does not remember it: give it again where its model is loaded again.
        report: Called with one line per stage, for those who want to show progress.

    Raises:
        EnvironmentProblem: unsloth came too late, the model is not to be had, it does not fit, or the GPU's driver and
            libraries do not go together.
        ValueError: The adapter is no LoRA of this model.

    >>> model, tokenizer = gn.load_model(settings)
    >>> sum(weight.requires_grad for weight in model.parameters()) > 0  # the LoRA
    True
    """
    for name in _OWNED.keys() & (loader or {}).keys():
        raise ValueError(f"loader has {name!r}, which the kit sets: settings = settings.replace({_OWNED[name]}=...).")
    say, report = report or warnings.warn, report or (lambda line: None)
    import_unsloth()
    import torch

    source, gpu = resolve_model(settings.model, report), find_gpu()
    if gpu is None and torch.cuda.is_available():  # half of the settings would be a CPU's
        raise EnvironmentProblem(
            f"torch computes on {torch.cuda.get_device_name(0)}, of which no NVIDIA driver tells. For the CPU, before the "
            "kernel starts: CUDA_VISIBLE_DEVICES=-1 (AMD: HIP_VISIBLE_DEVICES=-1)."
        )
    folder = None if adapter is None else adapter_folder(adapter)
    if folder is not None:
        settings, base = with_adapter(settings, folder, source)
        require_trained_on(folder, settings.model, weights_here(source))
        shape = ", ".join(f"{name}={getattr(settings, name)}" for name in SHAPE)
        say(f"going on from the LoRA {str(adapter)!r}, trained on {base!r}: {shape} count. {_kl_to(settings, gpu)}")
    stage = f"loading {settings.model} in {'4 bit' if settings.load_in_4bit else number_type(settings, gpu).name}"
    obstacle, loaded = vllm_obstacle(settings, gpu) or engine_obstacle(), None
    if obstacle is None:
        report(f"{stage}, with vLLM")
        try:
            loaded = _load(settings, source, gpu, loader, use_vllm=True)
        except Exception as error:
            if is_out_of_memory(error):  # a second try would meet the memory that this one holds
                raise
            said = f"vLLM did not start ({summary(error)})"
            obstacle = VllmObstacle(said, find_fix(error) or _SKIP_VLLM, said_last())
        else:
            if not has_engine(loaded[0]):  # Unsloth printed its reason, and went on without
                obstacle = VllmObstacle("Unsloth does not run this model in vLLM", _SKIP_VLLM, said_last())
    if obstacle is not None and gpu is not None and settings.fast_inference:
        _say_once(obstacle)
    if loaded is None:
        gc.collect()  # after the except block: the error's frames hold the engine that failed
        torch.cuda.empty_cache()
        report(stage)
        loaded = _load(settings, source, gpu, loader, use_vllm=False)
    model, tokenizer = loaded
    tokenizer.padding_side = "left"
    # A tokenizer with the GPT-2 clean-up would change the text that rewards see.
    tokenizer.clean_up_tokenization_spaces = False
    if folder is not None:
        load_adapter(model, folder)
        tokenizer.chat_template = template_of(folder) or tokenizer.chat_template
    if has_engine(model):
        generation = Generation("vllm", version=importlib.metadata.version("vllm"))
        _take_over(model, settings, source)
    else:
        generation = Generation("unsloth" if gpu else "kit", str(obstacle) if settings.fast_inference else "")
    setattr(model, _KEPT_ON, generation)
    setattr(model, LOADED_WITH, dict(loader or {}))
    note_settings(model, settings, is_shaped_by_adapter=folder is not None)
    return model, tokenizer


def _kl_to(settings: Settings, gpu: Gpu | None) -> str:
    """What the KL of a training is measured to that goes on from an adapter (training/run_info.py, reference_of)."""
    if settings.beta == 0:
        return "With beta=0 no KL is measured."
    if gpu is not None:
        return "On a GPU the KL is measured to the base model without it."
    return 'The KL is measured to this adapter as it is now; gn.train(..., reference="base") measures it to the base model.'


def loader_arguments(
    settings: Settings, source: str, gpu: Gpu | None, *, use_vllm: bool, loader: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of `FastLanguageModel.from_pretrained`.

    On a GPU no `dtype` unless it is set: Unsloth takes bfloat16 from compute capability 8.0 on, else float16, or float32 for
    the families that overflow in float16, and the trainer's `bf16` and `fp16` come from the same rule.

    Args:
        settings: Of the run.
        source: A folder or Hub id.
        gpu: That trains, or None for a CPU.
        use_vllm: Whether vLLM generates.
        loader: What the user adds.
    """
    loader = loader or {}
    arguments: dict[str, Any] = {
        "model_name": source,
        "max_seq_length": settings.max_prompt_length + settings.max_completion_length,
        "load_in_4bit": settings.load_in_4bit,
        # One of them at a time (unsloth/models/loader.py, _precision_flags_conflict).
        "load_in_16bit": not (settings.load_in_4bit or loader.get("load_in_fp8") or loader.get("load_in_8bit")),
        "use_gradient_checkpointing": _checkpointing(gpu),
    }
    if gpu is None or settings.dtype != "auto":
        import torch

        arguments["dtype"] = getattr(torch, number_type(settings, gpu).name)
    if use_vllm:  # Unsloth rounds the rank up to one that vLLM has kernels for
        arguments |= {"fast_inference": True, "max_lora_rank": settings.lora_rank}
        arguments["gpu_memory_utilization"] = settings.gpu_memory_utilization
    return arguments | loader


def lora_arguments(settings: Settings, gpu: Gpu | None) -> dict[str, Any]:
    """The arguments of `FastLanguageModel.get_peft_model`, but for the model."""
    targets = settings.lora_target_modules
    return {
        "r": settings.lora_rank,
        "lora_alpha": settings.lora_alpha,
        "lora_dropout": settings.lora_dropout,
        "target_modules": ALL_LINEAR[0] if targets == ALL_LINEAR else list(targets),
        "use_gradient_checkpointing": _checkpointing(gpu),
        "random_state": settings.seed,
    }


def _checkpointing(gpu: Gpu | None) -> str | bool:
    # It trades time for memory: worth it on a GPU; on a CPU memory is not short, and it drops the key/value cache.
    return "unsloth" if gpu is not None else False


def _load(
    settings: Settings, source: str, gpu: Gpu | None, loader: Mapping[str, Any] | None, *, use_vllm: bool
) -> tuple[Any, Any]:
    """Load model and LoRA through Unsloth.

    Raises:
        EnvironmentProblem: It failed for a reason that is known, with the setting to change. What may be vLLM's fault alone is
            raised as it is.
    """
    from unsloth import FastLanguageModel

    tell_unsloth(number_type(settings, gpu).name)
    try:
        with silently(), without_loading_bars():
            arguments = loader_arguments(settings, source, gpu, use_vllm=use_vllm, loader=loader)
            model, tokenizer = FastLanguageModel.from_pretrained(**arguments)
            return FastLanguageModel.get_peft_model(model, **lora_arguments(settings, gpu)), tokenizer
    except Exception as error:
        if memory := memory_advice(error, settings, place="loading"):
            what = f"{memory.message} {memory.why} Write {memory.advice} ({type(error).__name__})"
            raise EnvironmentProblem(what) from error
        if not use_vllm and (problem := gpu_problem(error)):
            raise problem from error
        raise


def _take_over(model: Any, settings: Settings, source: str) -> None:
    """Note a model's engine, say where it has less room than the settings ask for, and have it end where the model ends."""
    global _engine
    from transformers import GenerationConfig

    _engine = weakref.ref(model.vllm_engine)
    hand_copies()
    # Unsloth lowers the length by itself where the memory is short, and prints a line about it, which is silenced here
    # (unsloth_zoo/vllm_utils.py, _fit_max_seq_length_to_kv_cache).
    got, asked = longest_of(model.vllm_engine), settings.max_prompt_length + settings.max_completion_length
    if got < asked:
        warnings.warn(
            f"vLLM's memory has room for sequences of {got} tokens, and prompt and completion may be {asked}: longer ones are "
            f"cut. settings = settings.replace(max_completion_length={max(got - settings.max_prompt_length, 1)}).",
            stacklevel=3,
        )
    # It ends at the tokens of generation_config.json, too. Unsloth builds the model from config.json alone
    # (unsloth_zoo/empty_model.py, copy_attributes), which often names fewer.
    with contextlib.suppress(OSError):  # there is none
        both = (model.generation_config.eos_token_id, GenerationConfig.from_pretrained(source).eos_token_id)
        ends = {token for tokens in both for token in (tokens if isinstance(tokens, list) else [tokens])} - {None}
        model.generation_config.eos_token_id = sorted(ends)


@functools.cache
def _say_once(obstacle: VllmObstacle) -> None:
    """Warn, the first time in this process, that vLLM was asked for and is not used."""
    said = f"Completions are generated without vLLM, which is slower: {obstacle.reason}. What to do: {obstacle.fix}."
    warnings.warn(f"{said} What was said last:\n{obstacle.said}" if obstacle.said else said, stacklevel=3)


def engine_obstacle() -> VllmObstacle | None:
    """Why a second engine cannot be started beside one that this kernel has; the first is put to sleep, so that there is room.

    In standby vLLM's allocator works for one engine of a process, and a second one ends in an assertion
    (vllm/v1/worker/gpu_worker.py, "CuMem allocator can only be used for one instance per process"). Without standby two may
    live side by side.
    """
    if _engine is None or not _is_standby():
        return None
    gc.collect()  # one that nobody holds any more is no obstacle
    engine = _engine()
    if engine is None:
        return None
    engine.sleep(1)  # its next sampling wakes it (unsloth_zoo/vllm_utils.py, patch_vllm_enable_sleep_mode)
    return VllmObstacle(
        "a model with vLLM is loaded in this kernel already, and in standby there is one at a time",
        "go on with that model, or restart the kernel before another one is loaded",
    )


def save_adapter(model: PreTrainedModel, folder: str | Path) -> None:
    """Write the trained LoRA into a folder as PEFT does, `adapter_model.safetensors` and `adapter_config.json`, and no card.

    PEFT's card is a page of empty headings, whose template it compiles at each saving (peft 0.21). The run has its own.
    """
    model.create_or_update_model_card = lambda folder: None
    try:
        model.save_pretrained(folder, selected_adapters=["default"])
    finally:
        del model.create_or_update_model_card


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
