"""`generate`: complete the prompts of rows with the fastest engine that can run the model as it is.

On a GPU that is vLLM (grpo_nb.generation.vllm) or Unsloth's `generate`, on a CPU the `CpuEngine`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_nb.models.unsloth_import import import_unsloth
from grpo_nb.tasks.read_rows import Row

# Before transformers, which Unsloth patches when it is imported.
import_unsloth()

import torch
from transformers import GenerationConfig

from grpo_nb.config.hardware import has_vllm_engine
from grpo_nb.config.settings import Settings
from grpo_nb.cpu.engine import CpuEngine
from grpo_nb.cpu.sampler import through_end
from grpo_nb.cpu.shared_prompts import left_padded
from grpo_nb.generation.choice import choose_engine
from grpo_nb.generation.completions import GeneratedCompletion, Sampler
from grpo_nb.generation.episodes import start_episodes
from grpo_nb.generation.vllm import restoring_engine_sleep, sample_with_vllm
from grpo_nb.models.load import end_token_ids
from grpo_nb.models.restoring import restoring_modes

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from grpo_nb.tasks.tools import Tools

_LOG = logging.getLogger(__name__)
# Number of prompts per call of vLLM. It sets how often progress is reported.
_PROMPTS_PER_VLLM_CALL = 256


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    *,
    max_completion_length: int,
    temperature: float = 0.0,
    sampling_parameters: Mapping[str, Any] | None = None,
    batch_size: int = 48,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    shared_prompts: bool = True,
    progress: Callable[[int], None] | None = None,
    tools: Tools | None = None,
) -> list[GeneratedCompletion]:
    """Complete the prompt of each row, and return the completions in the order of the rows.

    Args:
        model: The model. Its adapter is used if it is active.
        tokenizer: Tokenizer of the model.
        rows: Rows of a task, or other rows whose `prompt` is a list of chat messages. The chat
            template and the generation prompt are applied here.
        max_completion_length: Largest number of tokens of a completion; with tools, of all turns
            and tool results together.
        temperature: 0 for greedy decoding. Above 0, tokens are sampled from the whole vocabulary,
            unless `sampling_parameters` restricts it by `top_p`, `top_k` or `min_p`.
        sampling_parameters: More parameters of `GenerationConfig`, such as `top_p`. Ignored at
            temperature 0.
        batch_size: Number of prompts at a time; vLLM gets at least 256.
        chat_template_kwargs: Further arguments of the chat template.
        shared_prompts: False keeps the `CpuEngine` from sampling, as in the settings.
        progress: Called with the number of completed prompts after each batch.
        tools: Tools of the task. If given, each row starts an episode with its own environment.
    """
    # transformers raises for an empty list of chats.
    if not rows:
        return []

    # 1. Render the prompts of all rows as token ids.
    prompts = [row["prompt"] for row in rows]
    template_kwargs = dict(chat_template_kwargs or {})
    if tools is not None:
        episodes = start_episodes(
            tools,
            rows,
            model,
            tokenizer,
            max_completion_length=max_completion_length,
            chat_template_kwargs=template_kwargs,
        )
        prompts = [row["prompt"] for row in episodes.rows]
        template_kwargs |= {"tools": tools.schemas, "chat_template": episodes.trainer.chat_template}
    prompt_ids = tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, tokenize=True, return_dict=True, **template_kwargs
    )["input_ids"]

    # 2. Choose the engine and its parameters.
    # The token that ends a turn may differ from the token that ends a document. Both end a
    # completion.
    end_ids = end_token_ids(tokenizer, model.generation_config)
    generation_kwargs = _generation_kwargs(temperature, sampling_parameters)
    config = GenerationConfig(
        max_new_tokens=max_completion_length,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=sorted(end_ids),
        disable_compile=True,
        **generation_kwargs,
    )
    # The call as settings, so that `choose_engine` applies the same rules as to a training.
    settings = Settings(
        max_prompt_length=max(map(len, prompt_ids)),
        max_completion_length=max_completion_length,
        shared_prompts=shared_prompts,
        extra={"generation_kwargs": generation_kwargs},
    )
    sample, batch_size = _choose_sampler(model, config, settings, batch_size)

    # 3. Complete the prompts in batches.
    # Prompts of similar length share a batch, so that little is padding.
    order = sorted(range(len(prompt_ids)), key=lambda index: len(prompt_ids[index]))
    completions = {}  # by the index of the row
    with restoring_engine_sleep(model):
        for start in range(0, len(order), batch_size):
            batch_indices = order[start : start + batch_size]
            batch_prompt_ids = [prompt_ids[index] for index in batch_indices]
            if tools is None:
                sampled = sample(batch_prompt_ids)
                batch_completions = [_decode_completion(tokenizer, ids, end_ids) for ids in sampled]
            else:
                batch_completions = episodes.run(
                    batch_indices, batch_prompt_ids, sample=sample, end_ids=end_ids
                )
            completions.update(zip(batch_indices, batch_completions, strict=True))
            if progress is not None:
                progress(len(completions))
    return [completions[index] for index in sorted(completions)]


def _choose_sampler(
    model: PreTrainedModel, config: GenerationConfig, settings: Settings, batch_size: int
) -> tuple[Sampler, int]:
    """Return the fastest function that completes prompts, and the number of prompts per call.

    If the model has a vLLM engine that cannot sample, a warning gives the reason.

    Args:
        model: Model to sample from.
        config: Length, special tokens and sampling parameters.
        settings: The same parameters as settings, with `shared_prompts` and both lengths.
        batch_size: Number of prompts per call; vLLM gets at least 256.
    """
    choice = choose_engine(model, settings)
    if choice.vllm_obstacle is None:
        # vLLM makes its own batches of the prompts of a call.
        batch_size = max(batch_size, _PROMPTS_PER_VLLM_CALL)
        return partial(sample_with_vllm, model, config=config), batch_size
    if has_vllm_engine(model):
        _LOG.warning(
            "Completions are generated without vLLM, which is slower: %s.", choice.vllm_obstacle
        )
    if choice.can_use_cpu_engine:
        return partial(CpuEngine(model).sample, config=config), batch_size
    return partial(sample_with_transformers, model, config=config), batch_size


def _generation_kwargs(
    temperature: float, sampling_parameters: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return all arguments of `GenerationConfig` that decide how tokens are sampled.

    All are set explicitly, as TRL does. transformers would take each missing parameter from the
    model's own generation_config (Qwen2.5: a penalty of 1.1 on repeated tokens). vLLM would not.
    """
    if temperature <= 0:
        return {"repetition_penalty": 1.0, "do_sample": False}
    return {
        "repetition_penalty": 1.0,
        "do_sample": True,
        "temperature": temperature,
        "top_k": 0,
        "top_p": 1.0,
        **(sampling_parameters or {}),
    }


def _decode_completion(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], end_ids: set[int]
) -> GeneratedCompletion:
    """Return a completion's token ids with their text, without special tokens in the text."""
    is_truncated = not ids or ids[-1] not in end_ids
    text = tokenizer.decode(ids, skip_special_tokens=True)
    return GeneratedCompletion(text, is_truncated, ids=tuple(ids))


@torch.no_grad()
def sample_with_transformers(
    model: PreTrainedModel, prompt_ids: Sequence[Sequence[int]], config: GenerationConfig
) -> list[list[int]]:
    """Sample one completion for each prompt with `model.generate`.

    Args:
        model: Model of transformers, also one that Unsloth has patched.
        prompt_ids: B lists of token ids.
        config: Length, special tokens and sampling parameters.

    Returns:
        B completions as token ids, up to and with the end token.
    """
    # Padded on the left, so that every completion begins after the last token of its prompt.
    # The mask hides the padding, so any id will do if the tokenizer has no pad token.
    padded_ids, mask = left_padded(prompt_ids, config.pad_token_id or 0)
    with _inference_mode(model):
        sequences = model.generate(
            input_ids=padded_ids.to(model.device),
            attention_mask=mask.to(model.device),
            generation_config=config,
            use_cache=True,
        )
    completions = sequences[:, padded_ids.shape[1] :].tolist()
    # `eos_token_id` can also be one number, but every caller of this function sets a list.
    return [through_end(ids, config.eos_token_id) for ids in completions]


@contextlib.contextmanager
def _inference_mode(model: Any) -> Iterator[None]:
    """Switch a model to inference within the block, and restore the mode of each module after it.

    On a GPU Unsloth's `generate` clears gradient checkpointing on every module, and puts it back
    only if the model was in training mode when `generate` was called (unsloth/models/llama.py,
    `unsloth_fast_generate`). Therefore a model that has `for_training` is switched with Unsloth's
    `for_inference` and `for_training`. It stays in inference mode if the user had called
    `for_inference` before.
    """
    # `for_inference` and `for_training` switch every module. `restoring_modes` therefore also
    # restores modules that the user had put in evaluation mode.
    with restoring_modes(model):
        if not hasattr(model, "for_training"):
            model.eval()
            yield
            return
        # Set by `for_inference`, and removed by `for_training`.
        was_for_inference = hasattr(model, "_flag_for_generation")
        values = [getattr(module, "gradient_checkpointing", False) for module in model.modules()]
        # The value to restore is the first that is set; Unsloth also uses "unsloth" besides True.
        checkpointing = next(filter(None, values), False)
        model.for_inference()
        try:
            yield
        finally:
            if not was_for_inference:
                model.for_training(use_gradient_checkpointing=checkpointing)
