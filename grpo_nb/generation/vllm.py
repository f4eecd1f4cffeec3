"""Sampling through the vLLM engine that shares a model's weights, with the LoRA as it is now.

Arguments and result are those of `CpuEngine.sample`. Prompts are passed as token ids: vLLM would
tokenize a text again, and add a second beginning-of-text token to the one of the template.
The calls are checked against the signatures in vLLM's and Unsloth's source
(tests/data/vllm_facts.json), by `make test-vllm` with a real engine on a CPU, and by `make
gpu-check` on a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from grpo_nb.config.hardware import has_vllm_engine
from grpo_nb.upstream.unsloth import give_vllm_lora_copies
from grpo_nb.upstream.vllm import drop_requests, is_sleeping, put_to_sleep, sequence_limit_of

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

# Sampling parameters with one name in transformers and vLLM, and vLLM's values for "no effect".
_NEUTRAL_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


def vllm_engine_obstacle(model: PreTrainedModel, longest_sequence: int | None = None) -> str | None:
    """Return why the vLLM engine cannot sample from the model as it is, or None if it can.

    The engine holds the base weights, and gets the adapter called `default` with each call. If
    another adapter is active, or an adapter is merged, it would sample from another model.

    Args:
        model: Model with a vLLM engine.
        longest_sequence: Number of tokens of the longest prompt plus its completion, if known.
    """
    # vLLM would end a longer completion early, as if it had reached its limit of tokens.
    if longest_sequence is not None and longest_sequence > sequence_limit_of(model.vllm_engine):
        return (
            f"the longest prompt and a completion have {longest_sequence} tokens together, and "
            f"vLLM was started for {sequence_limit_of(model.vllm_engine)}. Load the model with "
            f"max_prompt_length + max_completion_length of at least {longest_sequence}"
        )
    # A user may pass the transformers model from inside PEFT's wrapper. There `active_adapters` is
    # a method, which never equals this list, so such a model is refused too.
    if is_adapter_on(model) and model.active_adapters != ["default"]:
        return (
            "vLLM samples with the adapter 'default' of the model that gn.load_model returned; "
            "either this is not that model, or another adapter is active"
        )
    if any(getattr(module, "merged", False) for module in model.modules()):
        return "its adapter is merged into the weights"
    return None


def is_adapter_on(model: Any) -> bool:
    """Return True if the LoRA is active; within PEFT's `disable_adapter()` it is not."""
    layers = [module for module in model.modules() if hasattr(module, "lora_A")]
    return any(not layer.disable_adapters for layer in layers)


def vllm_sampling_arguments(config: GenerationConfig) -> dict[str, Any]:
    """Return the arguments of vLLM's `SamplingParams` that sample as transformers does.

    Args:
        config: Config for `model.generate`, with a list of end tokens. The temperature and the
            parameters of `Settings.sampling_besides_temperature` are passed on; others are ignored.
    """
    arguments = {
        "n": 1,
        "max_tokens": config.max_new_tokens,
        # Exactly these end tokens, as on a CPU: by default vLLM also stops at those of the model.
        "ignore_eos": True,
        "stop_token_ids": list(config.eos_token_id),
        "detokenize": False,  # the kit decodes, as on a CPU
        # 0 in transformers and -1 in vLLM mean "no limit".
        "top_k": config.top_k or -1,
    }
    for name, neutral in _NEUTRAL_SAMPLING.items():
        value = getattr(config, name)
        arguments[name] = neutral if value is None else value
    if not config.do_sample:
        # vLLM decodes greedily at this temperature, and then ignores top_p, top_k and min_p.
        arguments["temperature"] = 0.0
    return arguments


def sample_with_vllm(
    model: PreTrainedModel, prompt_ids: Sequence[Sequence[int]], config: GenerationConfig
) -> list[list[int]]:
    """Sample one completion for each prompt, as `CpuEngine.sample` does on a CPU.

    Seeds are drawn from torch's random state, so `torch.manual_seed` makes sampling repeatable. The
    tokens are not those of a CPU, and on a GPU the order of a batch can change them.

    Args:
        model: Model with a vLLM engine, for which `vllm_engine_obstacle` returns None.
        prompt_ids: B lists of token ids.
        config: Length, end tokens and sampling parameters.

    Returns:
        B completions as token ids, up to and with the end token.
    """
    import torch
    from vllm import SamplingParams

    arguments = vllm_sampling_arguments(config)
    seeds = [None] * len(prompt_ids)
    if config.do_sample:
        # One seed per request: with a common seed, all completions of a prompt would be the same.
        seeds = torch.randint(0, 2**31 - 1, (len(prompt_ids),)).tolist()
    # vLLM would scale the trained LoRA tensors in place, so it gets copies. `load_model` did this
    # already, but the model may come from elsewhere.
    give_vllm_lora_copies()
    drop_leftover_requests(model)
    lora_request = None
    if is_adapter_on(model):
        # The adapter as it is at this moment. With `load_tensors=True`, as in Unsloth's trainer,
        # vLLM gets the tensors in memory; only the adapter's configuration is written to disk.
        lora_request = model.load_lora(_adapter_folder().name, load_tensors=True)
    outputs = model.fast_generate(
        [{"prompt_token_ids": list(ids)} for ids in prompt_ids],
        sampling_params=[SamplingParams(**arguments, seed=seed) for seed in seeds],
        use_tqdm=False,
        lora_request=lora_request,
    )
    # vLLM answers in the order of the prompts (vllm/entrypoints/llm.py sorts by request).
    return [list(output.outputs[0].token_ids) for output in outputs]


@functools.cache
def _adapter_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="grpo_nb-adapter-", ignore_cleanup_errors=True)


def drop_leftover_requests(model: Any) -> None:
    """Remove the requests that an interrupted sampling left in the vLLM engine, if there is one."""
    if has_vllm_engine(model):
        drop_requests(model.vllm_engine)


@contextlib.contextmanager
def restoring_engine_sleep(model: Any) -> Iterator[None]:
    """Put a vLLM engine back to sleep after the block if it slept before.

    In standby Unsloth wakes the engine at each call of `generate` (unsloth_zoo/vllm_utils.py,
    `patch_vllm_enable_sleep_mode`). The cache of an awake engine holds memory that gradients need.
    """
    was_sleeping = has_vllm_engine(model) and is_sleeping(model.vllm_engine)
    try:
        yield
    finally:
        if was_sleeping:
            put_to_sleep(model.vllm_engine)
