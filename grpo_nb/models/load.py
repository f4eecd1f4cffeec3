"""Loading a model with its LoRA through Unsloth, from a folder, the Hub or the embedded one, and what then generates for it."""

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_nb.config.dtype import compute_dtype
from grpo_nb.config.memory import is_standby
from grpo_nb.config.planning import memory_advice
from grpo_nb.config.settings import ALL_LINEAR, EMBEDDED_MODEL, Settings, refuse_keywords
from grpo_nb.config.vllm_obstacle import VllmObstacle, vllm_obstacle
from grpo_nb.core.argument_types import require
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine.faults import find_fix, gpu_problem, is_out_of_memory, summary
from grpo_nb.machine.gpu import Gpu, find_gpu
from grpo_nb.models.embedded import embedded_model_folder
from grpo_nb.models.identity import (
    CALLS_FILE,
    TEMPLATE_FILE,
    require_trained_on,
    weights_here,
    with_template_of,
)
from grpo_nb.models.import_unsloth import (
    import_unsloth,
    said_last,
    silently,
    tell_unsloth,
    without_loading_bars,
)
from grpo_nb.models.match import SHAPE, LoadRecord, keep_record
from grpo_nb.upstream.peft import save_without_model_card
from grpo_nb.upstream.unsloth import hand_copies_to_vllm
from grpo_nb.upstream.vllm import is_sleeping, put_to_sleep

_SKIP_VLLM = "fast_inference=False skips the attempt"
_TENSORS = "adapter_model.safetensors"
_OF_AN_ADAPTER = ["*_config.json", "verification.json", _TENSORS, TEMPLATE_FILE, CALLS_FILE]
# What Unsloth's loader is given by the kit, and the setting to change instead.
_OWNED = {
    "model_name": "model", "max_seq_length": "max_completion_length", "random_state": "seed", "max_lora_rank": "lora_rank",
    "load_in_16bit": "load_in_4bit", "quantization_config": "load_in_4bit",
    **{name: name for name in ("load_in_4bit", "dtype", "fast_inference", "gpu_memory_utilization")},
}  # fmt: skip


def has_engine(model: Any) -> bool:
    """Whether a vLLM engine shares the model's weights: then it samples, for the trainer and for everything else."""
    return getattr(model, "vllm_engine", None) is not None


def rest_engine(model: Any) -> None:
    """Put a model's engine to sleep before gradients are computed, if it gives its memory back then (standby).

    TRL's GRPO trainer does so by itself; its next sampling wakes it (unsloth_zoo/vllm_utils.py, patch_vllm_enable_sleep_mode).
    """
    if has_engine(model) and is_standby() and not is_sleeping(model.vllm_engine):
        put_to_sleep(model.vllm_engine)


def resolve_model(name: str, report: Callable[[str], None] | None = None) -> str:
    """Return what `from_pretrained` takes for a model name: the embedded model's folder, a local folder or a Hub id.

    Raises:
        FileNotFoundError: A folder that is not there or holds no model, or a name that the Hub does not have or cannot be
            asked for.
        EntryNotFoundError, GatedRepoError, ...: The Hub's own words for an id that is no model, or needs a permission.
    """
    from huggingface_hub import hf_hub_download

    if name == EMBEDDED_MODEL:
        return str(embedded_model_folder(report))
    path = Path(name).expanduser()
    if not path.exists():
        with _in_one_line(name, "model"):
            hf_hub_download(name, "config.json")
        return name
    if not (path / "config.json").is_file():
        raise FileNotFoundError(
            f"{name!r} is no model folder: it has no config.json. Where it is a LoRA, name its base model in the settings, and "
            f"model, tokenizer = gn.load_model(settings, adapter={name!r})."
        )
    return str(path)


@contextlib.contextmanager
def _in_one_line(name: str, what: str) -> Iterator[None]:
    """Say in one line that a name is no path here and nothing that the Hub has or can be asked for.

    Raises:
        FileNotFoundError: With the first line of what huggingface_hub says, which is a page of requests otherwise.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        yield
    except GatedRepoError:
        raise
    except (HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError) as error:
        here = f"{name!r} is no folder here (looked in {Path.cwd()})"
        if isinstance(error, HFValidationError):
            there = "and cannot be a name on the Hub, which has the form user/name"
        else:
            there = f"and no {what} that the Hub gives: {summary(error)}"
        raise FileNotFoundError(
            f"{here} {there}. Correct the path; gn.runs.list() shows the runs here."
        ) from None


def load_model(
    settings: Settings,
    *,
    adapter: str | Path | None = None,
    loader: Mapping[str, Any] | None = None,
    report: Callable[[str], None] | None = None,
    **unknown: Any,
) -> tuple[Any, Any]:
    """Load the model in 4 or 16 bit through `FastLanguageModel`, put a LoRA on it, and return it with its tokenizer.

    What is not in 4 bit computes in float32 on a CPU, and in bfloat16 or float16 on a GPU, unless the settings or the
    environment say otherwise. On a GPU with `fast_inference`, vLLM is loaded with it and shares its weights. Where vLLM
    cannot be used, Unsloth's own generation takes over and a warning says so once, with the reason and what to do. That
    is so for a second model in the same kernel, too, as long as the first one is there.

    Args:
        settings: What to load and how.
        adapter: Folder or Hub id of a LoRA to go on from, such as one of a supervised training. Its rank, alpha and layers
            count, and not the settings'; its chat template, if it has one, too. `report` is told of it, else a warning.
        loader: What Unsloth's loader is given besides, under its own names: `text_only`, `load_in_fp8`, `offload_embedding`.
            What the settings decide is refused. On a CPU models are text alone, with or without `text_only`. A run whose model
            is loaded again loads it with these three again; give others yourself.
        report: Called with one line per stage, for those who want to show progress.

    Returns:
        A `PeftModel` around transformers' model, and transformers' tokenizer.

    Raises:
        EnvironmentProblem: unsloth came too late, the model is not to be had, it does not fit, or the GPU's driver and
            libraries do not go together.
        ValueError: The adapter is no plain LoRA, or none of this model.

    >>> model, tokenizer = gn.load_model(settings)
    >>> sum(weight.requires_grad for weight in model.parameters()) > 0  # the LoRA
    True
    """
    refuse_keywords(load_model, unknown)
    require("gn.load_model(settings)", optional=("adapter",), settings=settings, adapter=adapter)
    loader = dict(loader or {})
    for name in _OWNED.keys() & loader.keys():
        raise ValueError(
            f"loader has {name!r}, which the kit sets: settings = settings.replace({_OWNED[name]}=...)."
        )
    say, report = report or warnings.warn, report or (lambda line: None)
    import_unsloth()
    import torch

    source, gpu = resolve_model(settings.model, report), find_gpu()
    if gpu is None and torch.cuda.is_available():  # half of the settings would be a CPU's
        raise EnvironmentProblem(
            "torch sees a GPU of which no NVIDIA driver tells. Before the kernel starts: HIP_ or CUDA_VISIBLE_DEVICES=-1."
        )
    if adapter is not None:
        settings, folder, base = with_adapter(settings, adapter)
        require_trained_on(folder, settings.model, weights_here(source))
        shape = ", ".join(f"{name}={getattr(settings, name)}" for name in SHAPE)
        say(
            f"going on from the LoRA {str(adapter)!r}, trained on {base!r}: {shape} count. With beta above 0 the KL is "
            'measured to this adapter as it is now; on a GPU, or by gn.train(..., kl_reference="base"), to the base model.'
        )
    obstacle, loaded = vllm_obstacle(settings, gpu), None
    if obstacle is None:
        report(f"loading {settings.model} with vLLM")
        try:
            loaded = _load(settings, source, gpu, loader, use_vllm=True)
        except Exception as error:
            if is_out_of_memory(error):  # a second try would meet the memory that this one holds
                raise
            said = f"vLLM did not start ({summary(error)})"
            obstacle = VllmObstacle(said, find_fix(error) or _SKIP_VLLM, said_last())
        else:
            if not has_engine(loaded[0]):  # Unsloth printed its reason, and went on without
                obstacle = VllmObstacle(
                    "Unsloth does not run this model in vLLM", _SKIP_VLLM, said_last()
                )
    if obstacle is not None and gpu is not None and settings.fast_inference:
        _say_once(obstacle)
    if loaded is None:
        gc.collect()  # after the except block: the error's frames hold the engine that failed
        torch.cuda.empty_cache()
        report(f"loading {settings.model}")
        loaded = _load(settings, source, gpu, loader, use_vllm=False)
    model, tokenizer = loaded
    tokenizer.padding_side = "left"
    # A tokenizer with the GPT-2 clean-up would change the text that rewards see.
    tokenizer.clean_up_tokenization_spaces = False
    if adapter is not None:
        load_adapter(model, folder)
        with_template_of(folder, tokenizer)
    why_not_vllm = ""
    if has_engine(model):
        _take_over(model, source)
    elif settings.fast_inference:
        why_not_vllm = str(obstacle)
    record = LoadRecord(
        settings=settings,
        loader=loader,
        is_shaped_by_adapter=adapter is not None,
        why_not_vllm=why_not_vllm,
    )
    keep_record(model, record)
    return model, tokenizer


def _no_adapter(folder: Path) -> str:
    """Say what a folder is that holds no LoRA, and what to write instead."""
    of_run = folder / "adapter"
    if (of_run / "adapter_config.json").is_file():
        return f"adapter = {str(folder)!r} is the folder of a run, whose LoRA is in adapter/: adapter={str(of_run)!r}."
    if (folder / "run.json").is_file():
        return f"adapter = {str(folder)!r} is a run that has left no LoRA yet: train it to its end, resume={folder.name!r}."
    if (folder / "config.json").is_file():
        line = f"settings = settings.replace(model={str(folder)!r})"
        return f"adapter = {str(folder)!r} is a whole model and no LoRA, for it has no adapter_config.json: {line}."
    return f"adapter = {str(folder)!r} is no LoRA: it has no adapter_config.json. Name the folder that PEFT wrote."


def with_adapter(settings: Settings, adapter: str | Path) -> tuple[Settings, Path, str]:
    """Return the settings with an adapter's rank, alpha and layers; its folder, and the model that it was trained on.

    Refused is what `load_adapter` would not see by the names and shapes of the tensors: another scaling, another base.

    Args:
        settings: What else counts.
        adapter: A folder, or an id on the Hub.

    Raises:
        ValueError: It is no plain LoRA, or no adapter.
    """
    from huggingface_hub import snapshot_download
    from peft import PeftConfig
    from safetensors import safe_open

    folder = Path(adapter).expanduser()
    if not folder.exists():
        with _in_one_line(str(adapter), "LoRA"):
            folder = Path(snapshot_download(str(adapter), allow_patterns=_OF_AN_ADAPTER))
    if not (folder / "adapter_config.json").is_file():
        raise ValueError(_no_adapter(folder))
    config = PeftConfig.from_pretrained(str(folder))
    # True: another kind of adapter knows no such word.
    unlike = [
        one
        for one in ("use_rslora", "use_dora", "alpha_pattern", "rank_pattern")
        if getattr(config, one, True)
    ]
    if unlike or config.init_lora_weights not in (
        None,
        True,
        False,
        "gaussian",
    ):  # other words mean a changed base
        raise ValueError(
            f"the adapter in {str(folder)!r} is no plain LoRA ({', '.join(unlike) or 'init_lora_weights'}): merge it into its "
            "base model (PEFT's merge_and_unload), save that, and name its folder as the model of the settings."
        )
    with safe_open(folder / _TENSORS, "pt") as file:
        layers = {
            name.partition(".lora_A")[0].rpartition(".")[2]
            for name in file.keys()
            if ".lora_A" in name
        }
    shape = {
        "lora_rank": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_target_modules": tuple(sorted(layers)),
    }
    return settings.replace(**shape), folder, config.base_model_name_or_path


def loader_arguments(
    settings: Settings, source: str, gpu: Gpu | None, *, use_vllm: bool, **loader: Any
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
    arguments: dict[str, Any] = {
        "model_name": source,
        "max_seq_length": settings.max_prompt_length + settings.max_completion_length,
        "load_in_4bit": settings.load_in_4bit,
        # One of them at a time (unsloth/models/loader.py, _precision_flags_conflict).
        "load_in_16bit": not (
            settings.load_in_4bit or loader.get("load_in_fp8") or loader.get("load_in_8bit")
        ),
        # It trades time for memory: worth it on a GPU; on a CPU memory is not short, and it drops the key/value cache.
        "use_gradient_checkpointing": "unsloth" if gpu else False,
    }
    if gpu is None or settings.dtype != "auto":
        import torch

        arguments["dtype"] = getattr(torch, compute_dtype(settings, gpu).name)
    if use_vllm:  # Unsloth rounds the rank up to one that vLLM has kernels for
        arguments |= {"fast_inference": True, "max_lora_rank": settings.lora_rank}
        arguments["gpu_memory_utilization"] = settings.gpu_memory_utilization
    return arguments | {name: value for name, value in loader.items() if gpu or name != "text_only"}


def lora_arguments(settings: Settings, gpu: Gpu | None) -> dict[str, Any]:
    """The arguments of `FastLanguageModel.get_peft_model`, but for the model."""
    targets = settings.lora_target_modules
    return {
        "r": settings.lora_rank,
        "lora_alpha": settings.lora_alpha,
        "lora_dropout": settings.lora_dropout,
        "target_modules": ALL_LINEAR[0] if targets == ALL_LINEAR else list(targets),
        "use_gradient_checkpointing": "unsloth" if gpu else False,
        "random_state": settings.seed,
    }


def _load(
    settings: Settings, source: str, gpu: Gpu | None, loader: dict[str, Any], *, use_vllm: bool
) -> list[Any]:
    """Load model and LoRA through Unsloth.

    Raises:
        EnvironmentProblem: It failed for a reason that is known, with the setting to change. What may be vLLM's fault alone is
            raised as it is.
    """
    from unsloth import FastLanguageModel

    tell_unsloth(compute_dtype(settings, gpu).name)
    try:
        with silently(), without_loading_bars():
            arguments = loader_arguments(settings, source, gpu, use_vllm=use_vllm, **loader)
            model, tokenizer = FastLanguageModel.from_pretrained(**arguments)
            return [
                FastLanguageModel.get_peft_model(model, **lora_arguments(settings, gpu)),
                tokenizer,
            ]
    except Exception as error:
        if memory := memory_advice(error, settings, place="loading"):
            what = f"{memory.message} {memory.why} Write {memory.advice} ({type(error).__name__})"
            raise EnvironmentProblem(what) from error
        if not use_vllm and (problem := gpu_problem(error)):
            raise problem from error
        raise


def _take_over(model: Any, source: str) -> None:
    """Hand a model's engine copies of the LoRA, and have it end where the model ends."""
    from transformers import GenerationConfig

    hand_copies_to_vllm()
    # It ends at the tokens of generation_config.json, too. Unsloth builds the model from config.json alone
    # (unsloth_zoo/empty_model.py, copy_attributes), which often names fewer.
    with contextlib.suppress(OSError):  # there is none
        both = (
            model.generation_config.eos_token_id,
            GenerationConfig.from_pretrained(source).eos_token_id,
        )
        ends = {
            token for tokens in both for token in (tokens if isinstance(tokens, list) else [tokens])
        } - {None}
        model.generation_config.eos_token_id = sorted(ends)


@functools.cache
def _say_once(obstacle: VllmObstacle) -> None:
    """Warn, the first time in this process, that vLLM was asked for and is not used."""
    said = f"Completions are generated without vLLM, which is slower: {obstacle.reason}. What to do: {obstacle.fix}."
    warnings.warn(
        f"{said} What was said last:\n{obstacle.said}" if obstacle.said else said, stacklevel=3
    )


def save_adapter(model: Any, folder: str | Path) -> None:
    """Write the trained LoRA as `adapter_model.safetensors` and `adapter_config.json`."""
    save_without_model_card(model, folder)


def load_adapter(model: Any, folder: str | Path, adapter: str = "default") -> None:
    """Copy a saved LoRA into one of the model's adapters and check that every tensor arrived.

    transformers' own loader restores only the adapters in subfolders when there are any, and leaves the trained one at
    its zeros without a word; so the tensors are loaded here and compared.

    Raises:
        ValueError: The folder's tensors and the model's adapter do not have the same names and shapes.
    """
    import torch
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    saved = load_file(Path(folder) / _TENSORS)
    expected = get_peft_model_state_dict(model, adapter_name=adapter)
    if {k: v.shape for k, v in saved.items()} != {k: v.shape for k, v in expected.items()}:
        raise ValueError(
            f"the adapter in {str(folder)!r} has other tensors than the model's LoRA: it belongs to another base "
            "model, rank or set of target modules. Load the model with the settings of that run."
        )
    set_peft_model_state_dict(model, saved, adapter_name=adapter)
    loaded = get_peft_model_state_dict(model, adapter_name=adapter)
    if not all(
        torch.equal(loaded[name].cpu(), tensor.to(loaded[name].dtype))
        for name, tensor in saved.items()
    ):
        raise ValueError(
            f"the adapter in {str(folder)!r} was not loaded completely; this is a fault of the kit."
        )
