"""Load a model with its LoRA through Unsloth, with vLLM if that is set and can run."""

import contextlib
import gc
import logging
from collections.abc import Callable
from os.path import expanduser
from pathlib import Path
from typing import Any

from grpo_nb.config.hardware import choose_dtype, has_vllm_engine, vllm_loading_obstacle
from grpo_nb.config.planning import out_of_memory_advice
from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require_types
from grpo_nb.core.problems import EnvironmentProblem, error_summary, warn_user
from grpo_nb.machine.gpu import Gpu, find_gpu
from grpo_nb.machine.gpu_errors import explanation_of, is_out_of_memory, raise_if_known
from grpo_nb.models.adapter import load_adapter, require_same_lora
from grpo_nb.models.load_record import LOAD_RECORDS, LoadRecord
from grpo_nb.models.sources import resolve_model
from grpo_nb.models.templates import load_templates
from grpo_nb.models.unsloth_import import import_unsloth
from grpo_nb.upstream.unsloth import give_vllm_lora_copies, set_cpu_dtype
from grpo_nb.upstream.vllm import hiding_stdout

_LOG = logging.getLogger(__name__)


def load_model(
    settings: Settings,
    *,
    adapter: str | Path | None = None,
    report: Callable[[str], None] = _LOG.info,
) -> tuple[Any, Any]:
    """Load a model through Unsloth, add a LoRA, and return it with its tokenizer.

    Weights that are not in 4 bit are float32 on a CPU, and bfloat16 or float16 on a GPU, unless
    `settings.dtype` or UNSLOTH_CPU_BF16 says otherwise. On a GPU with `fast_inference`, vLLM is
    loaded too and shares the weights. If vLLM cannot be used, Unsloth's own generation samples, and
    one warning gives the reason and what to do. Only one model per kernel can have vLLM at a time.

    Args:
        settings: The model and how to load it.
        adapter: Folder of a LoRA to start from, such as one of a supervised training. The settings
            must have its rank, alpha and target modules. Its `chat_template.jinja` takes
            precedence over the model's. With `beta` above 0, the KL reference on a CPU is this
            adapter, because TRL keeps a copy of it. On a GPU it is the base model, because Unsloth
            makes no copy.
        report: Called with one line per stage. By default, the lines go to the log as information.

    Returns:
        A `PeftModel` around transformers' model, and transformers' tokenizer.

    Raises:
        EnvironmentProblem: unsloth was imported too early, the model does not fit, or the GPU's
            driver and libraries do not match.
        FileNotFoundError: The folder has no model, the model cannot be downloaded, or the folder
            named by `adapter` has no adapter.
        EntryNotFoundError: The repository on the Hub has no config.json.
        GatedRepoError: The model on the Hub needs its owner's consent.
        ValueError: The adapter is not a plain LoRA, or not one of this model and these settings.

    >>> model, tokenizer = gn.load_model(settings)
    >>> sum(weight.requires_grad for weight in model.parameters()) > 0  # the LoRA
    True
    """
    require_types("gn.load_model(settings)", settings=settings)
    report(f"loading {settings.model}")
    import_unsloth()
    source = resolve_model(settings.model)
    if adapter is not None:
        # As in `resolve_model`, a `~name` that is no user of this machine is kept.
        adapter = Path(expanduser(adapter))
        require_same_lora(adapter, settings)
    model, tokenizer = _load_with_best_engine(settings, source)
    tokenizer.padding_side = "left"
    # A tokenizer with the GPT-2 clean-up would change the text that rewards see.
    tokenizer.clean_up_tokenization_spaces = False
    if adapter is not None:
        load_adapter(model, adapter)
        load_templates(adapter, tokenizer)
    if has_vllm_engine(model):
        _finish_vllm_model(model, source)
    return model, tokenizer


def _load_with_best_engine(settings: Settings, source: str) -> tuple[Any, Any]:
    """Load with vLLM if the settings ask for it. If vLLM cannot run, warn and load without it.

    A download that fails during the attempt is tried once more without vLLM.
    """
    import torch

    gpu = find_gpu()
    # Torch would train on this GPU, but the kit cannot determine its memory and dtypes.
    if gpu is None and torch.cuda.is_available():
        raise EnvironmentProblem(
            "torch reports a GPU, but no NVIDIA driver was found (AMD is not supported). To use "
            "the CPU, set CUDA_VISIBLE_DEVICES=-1 before the kernel starts."
        )
    model = None
    obstacle = vllm_loading_obstacle(settings, gpu)
    if obstacle is None:
        skip_hint = "fast_inference=False skips the attempt"
        try:
            model, tokenizer = _load(settings, source, gpu)
            # Unsloth loads some models without vLLM (unsloth/models/loader.py,
            # `_vllm_unsupported_model_types`).
            if not has_vllm_engine(model):
                obstacle = f"Unsloth does not run this model in vLLM ({skip_hint})"
        except Exception as error:
            # The failed attempt still holds its memory, so a second attempt would fail as well.
            if is_out_of_memory(error):
                raise
            explanation = explanation_of(error) or skip_hint
            obstacle = f"vLLM did not start ({error_summary(error)}; {explanation})"
    if obstacle is not None and gpu is not None and settings.fast_inference:
        warn_user(f"Completions are generated without vLLM, which is slower: {obstacle}.")
    if model is None:
        # Free the memory of an engine that did not start. In the `except` block, the traceback
        # still keeps the engine.
        gc.collect()
        torch.cuda.empty_cache()
        model, tokenizer = _load(settings.replace(fast_inference=False), source, gpu)
    LOAD_RECORDS[model] = LoadRecord(settings, obstacle)
    return model, tokenizer


def loader_arguments(settings: Settings, source: str, gpu: Gpu | None) -> dict[str, Any]:
    """Return the arguments of `FastLanguageModel.from_pretrained`.

    On a GPU, `dtype` is left out unless the settings name one. Unsloth then takes bfloat16 from
    compute capability 8.0 on. Below 8.0 it takes float16, or float32 for families that overflow in
    float16. The trainer's `bf16` and `fp16` follow the same rule.

    Args:
        settings: Settings of the run. With `fast_inference`, the model is loaded with vLLM.
        source: A folder or Hub id.
        gpu: GPU that trains, or None for a CPU.
    """
    arguments = {
        "model_name": source,
        "max_seq_length": settings.longest_sequence,
        "load_in_4bit": settings.load_in_4bit,
        # Only one precision may be set (unsloth/models/loader.py, _precision_flags_conflict).
        "load_in_16bit": not settings.load_in_4bit,
        # Gradient checkpointing saves memory, but costs time and turns off the key/value cache.
        # Only a GPU is short of memory.
        "use_gradient_checkpointing": "unsloth" if gpu else False,
    }
    if gpu is None or settings.dtype != "auto":
        import torch

        arguments["dtype"] = getattr(torch, choose_dtype(settings, gpu))
    if settings.fast_inference:
        arguments["fast_inference"] = True
        arguments["gpu_memory_utilization"] = settings.gpu_memory_utilization
        # Unsloth rounds it up to a rank that vLLM has kernels for.
        arguments["max_lora_rank"] = settings.lora_rank
    return arguments


def _load(settings: Settings, source: str, gpu: Gpu | None) -> tuple[Any, Any]:
    """Load a model with its LoRA, and its tokenizer, with vLLM if `fast_inference` is set.

    Raises:
        EnvironmentProblem: Loading failed for a known reason. The message names the fix. With
            `fast_inference`, every error except missing memory is raised unchanged, because the
            caller tries again without vLLM.
    """
    from unsloth import FastLanguageModel

    if gpu is None:
        set_cpu_dtype(use_bfloat16=choose_dtype(settings, gpu) == "bfloat16")
    try:
        with hiding_stdout():
            arguments = loader_arguments(settings, source, gpu)
            base_model, tokenizer = FastLanguageModel.from_pretrained(**arguments)
            model = FastLanguageModel.get_peft_model(
                base_model,
                r=settings.lora_rank,
                lora_alpha=settings.lora_alpha,
                lora_dropout=settings.lora_dropout,
                target_modules=list(settings.lora_target_modules),
                use_gradient_checkpointing=arguments["use_gradient_checkpointing"],
                random_state=settings.seed,
            )
            return model, tokenizer
    except Exception as error:
        advice = out_of_memory_advice(error, settings, is_loading=True)
        if advice is not None:
            raise EnvironmentProblem(f"{advice} ({type(error).__name__})") from error
        if not settings.fast_inference:
            raise_if_known(error)
        raise


def _finish_vllm_model(model: Any, source: str) -> None:
    """Give the vLLM engine copies of the LoRA, and the model all of its end tokens."""
    from transformers import GenerationConfig

    give_vllm_lora_copies()
    # Unsloth builds the model from config.json alone (unsloth_zoo/empty_model.py, copy_attributes),
    # which often names fewer end tokens than generation_config.json.
    with contextlib.suppress(OSError):  # not every model has that file
        published_config = GenerationConfig.from_pretrained(source)
        end_ids = end_token_ids(model.generation_config, published_config)
        model.generation_config.eos_token_id = sorted(end_ids)


def end_token_ids(*configs: Any) -> set[int]:
    """Return the end token ids of tokenizers and configurations, which may have one, many or none.

    >>> from types import SimpleNamespace
    >>> end_token_ids(SimpleNamespace(eos_token_id=2), SimpleNamespace(eos_token_id=[2, 7]))
    {2, 7}
    """
    end_ids = set()
    for config in configs:
        ids = config.eos_token_id
        end_ids.update(ids if isinstance(ids, list) else [ids])
    return end_ids - {None}
