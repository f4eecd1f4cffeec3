"""Sampling through the vLLM engine that shares a model's weights, with the LoRA as it is now.

What goes in and comes out is what `grpo_nb.generation.sampling` has on a CPU. Prompts go in as token ids: a text would
be tokenized again, and a template that writes the beginning-of-text token would then have two. Checked against the signatures
in vLLM's and Unsloth's source (tests/data/vllm_facts.json), and by `make test-vllm` with a real engine on a CPU; run on a GPU
by `make gpu-check`.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from grpo_nb.models.load import has_engine
from grpo_nb.models.samples import Samples
from grpo_nb.upstream.unsloth import hand_copies_to_vllm
from grpo_nb.upstream.vllm import (
    drop_requests,
    is_sleeping,
    longest_row,
    model_runner_class,
    put_to_sleep,
)

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

# What a configuration may ask for under the name that vLLM has for it, and what it means not to ask: nothing is changed. Other
# ways of drawing are refused: they would be ignored silently.
_SAME = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
_OF_NO_EFFECT = {
    "max_new_tokens", "pad_token_id", "eos_token_id", "bos_token_id", "do_sample", "disable_compile", "use_cache",
    "transformers_version", "max_length", "cache_implementation", "return_dict_in_generate",
    "output_logits", "output_scores",
}  # fmt: skip


def vllm_rollout_obstacle(model: PreTrainedModel) -> str | None:
    """Say why the model's engine cannot sample from the model as it is, or return None if it can.

    The engine holds the base weights, and is given the adapter called `default` with each call. Another active adapter, or
    one merged into the weights, is not what it would sample from.

    Args:
        model: From `load_model`.
    """
    if not has_engine(model):
        return "it was loaded without vLLM"
    active = list(getattr(model, "active_adapters", ["default"]))
    if is_adapter_on(model) and active != ["default"]:
        return (
            f"its active adapter is {', '.join(active)}, and vLLM is given the one called default"
        )
    if any(getattr(module, "merged", False) for module in model.modules()):
        return "its adapter is merged into the weights"
    return None


def longest_prompt(model: Any, max_completion_length: int) -> int:
    """Return the number of prompt tokens that fit the engine, next to completions of this length.

    The engine was started for prompts and completions of a fixed length together. It truncates
    what is longer as if the completion had reached its own limit.
    """
    return longest_row(model.vllm_engine) - max_completion_length


def model_runner_name(model: Any) -> str:
    """Return the class of the engine's model runner, and the generation that vLLM counts it to."""
    name = model_runner_class(model.vllm_engine)
    generation = "V2" if name.startswith("vllm.v1.worker.gpu.") else "V1"
    return f"{name} ({generation})"


def is_adapter_on(model: Any) -> bool:
    """Whether the LoRA takes part, so not inside PEFT's `disable_adapter()`."""
    layers = [module for module in model.modules() if hasattr(module, "lora_A")]
    return bool(layers) and not any(getattr(layer, "disable_adapters", False) for layer in layers)


def sampling_arguments(config: GenerationConfig) -> dict[str, Any]:
    """The arguments of vLLM's `SamplingParams` that draw as transformers draws with `config`.

    Raises:
        ValueError: The configuration asks for something that vLLM has not, by its name.
    """
    asked = {
        name
        for name, value in config.to_diff_dict().items()
        if value is not None and not name.startswith("_")
    }
    unknown = sorted(asked - _SAME.keys() - _OF_NO_EFFECT)
    if unknown:
        raise ValueError(
            f"vLLM does not sample with {', '.join(unknown)}: leave it out, or load the model with fast_inference=False."
        )
    ends = config.eos_token_id
    drawn = _SAME | {
        name: getattr(config, name) for name in _SAME if getattr(config, name) is not None
    }
    arguments: dict[str, Any] = {
        "n": 1,
        "max_tokens": config.max_new_tokens,
        # Those asked for and no others, as on a CPU: left to itself vLLM ends a completion at the model's own end tokens too.
        "ignore_eos": True,
        "stop_token_ids": list(ends)
        if isinstance(ends, (list, tuple))
        else []
        if ends is None
        else [ends],
        "detokenize": False,  # the kit decodes, as on a CPU
    }
    if not config.do_sample:
        return {**arguments, "temperature": 0.0, "repetition_penalty": drawn["repetition_penalty"]}
    # transformers writes 0 or None for no limit, vLLM -1 (it takes 0 as well, but not None). The log-probability of the token
    # drawn and no others: Unsloth starts the engine with `processed_logprobs`, so it is that of the distribution drawn from.
    return {**arguments, **drawn, "top_k": config.top_k or -1, "logprobs": 0}


def sample_with_vllm(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], config: GenerationConfig
) -> Samples:
    """Sample one completion for each row of `prompts`, as `grpo_nb.generation.sampling.sample` does on a CPU.

    The seeds of the rows come from torch's random state, so that `torch.manual_seed` repeats a sampling as it does on a CPU
    (the tokens are not those of a CPU, and on a GPU the order of a batch can turn a draw).

    Args:
        model: With an engine, for which `vllm_rollout_obstacle` is None.
        prompts: N lists of token ids.
        config: As for `sample`.

    Returns:
        N completions, up to and with the end token.
    """
    import torch
    from vllm import SamplingParams

    arguments = sampling_arguments(config)
    # One seed for each row: rows of one prompt with one seed would all be the same completion.
    seeds = (
        torch.randint(0, 2**31 - 1, (len(prompts),)).tolist()
        if config.do_sample
        else [None] * len(prompts)
    )
    each = [SamplingParams(**arguments, seed=seed) for seed in seeds]
    hand_copies_to_vllm()  # also where the model was not loaded by the kit
    drop_leftovers(model)
    outputs = model.fast_generate(
        [{"prompt_token_ids": list(prompt)} for prompt in prompts],
        sampling_params=each,
        use_tqdm=False,
        # As it is at this moment. `load_tensors=True` is how Unsloth's trainer samples: the tensors of the model themselves,
        # nothing goes over the disk but the adapter's configuration.
        lora_request=model.load_lora(_adapter_folder().name, load_tensors=True)
        if is_adapter_on(model)
        else None,
    )
    # vLLM answers in the order of the prompts (vllm/entrypoints/llm.py sorts by request).
    completions = [output.outputs[0] for output in outputs]
    tokens = [list(completion.token_ids) for completion in completions]
    if not config.do_sample:
        return Samples(tokens, None)
    # For each position the tokens that were looked at: with logprobs=0 the one that was drawn.
    looked_at = [zip(c.token_ids, c.logprobs, strict=True) for c in completions]
    return Samples(tokens, [[at[token].logprob for token, at in row] for row in looked_at])


@functools.cache
def _adapter_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="grpo_nb-adapter-", ignore_cleanup_errors=True)


def drop_leftovers(model: Any) -> None:
    """Remove what an interrupted sampling left in the model's engine, if it has one."""
    if has_engine(model):
        drop_requests(model.vllm_engine)


@contextlib.contextmanager
def engine_as_before(model: Any) -> Iterator[None]:
    """Put the engine back to sleep afterwards, if it slept: awake, its cache takes the memory that gradients need.

    In standby Unsloth wakes it at each call of `generate` (unsloth_zoo/vllm_utils.py, patch_vllm_enable_sleep_mode).
    """
    was_sleeping = is_sleeping(model.vllm_engine)
    try:
        yield
    finally:
        if was_sleeping:
            put_to_sleep(model.vllm_engine)
