"""`generate`: complete chat prompts with the fastest engine that can run the model as it is.

On a GPU that is vLLM (grpo_nb.generation.vllm) or Unsloth's `generate`, on a CPU the `CpuEngine`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_nb.models.import_unsloth import import_unsloth

import_unsloth()

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig

from grpo_nb.config.vllm_obstacle import has_engine
from grpo_nb.cpu.engine import CpuEngine
from grpo_nb.generation.choice import choose_engine
from grpo_nb.generation.episodes import run_episodes, tool_template
from grpo_nb.generation.samples import Completion
from grpo_nb.generation.vllm import longest_prompt, sample_with_vllm, sleeping_engine_restored
from grpo_nb.models.modes import kept_modes
from grpo_nb.tasks.chat_template import fit_to_template
from grpo_nb.upstream.trl import tool_loop_trainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from grpo_nb.generation.choice import EngineChoice
    from grpo_nb.tasks.tools import Tools

_LOG = logging.getLogger(__name__)
#: Prompts per call of vLLM, which batches them itself. It sets how often progress is reported.
PROMPTS_PER_VLLM_CALL = 256

#: Return one completion for each prompt, all as token ids.
Sample = Callable[[Sequence[Sequence[int]]], list[list[int]]]


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[dict[str, str]]],
    *,
    max_completion_length: int,
    temperature: float = 0.0,
    sampling: Mapping[str, Any] | None = None,
    batch_size: int = 48,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
    tools: Tools | None = None,
    rows: Sequence[Mapping[str, Any]] = (),
) -> list[Completion]:
    """Complete chat prompts, and return the completions in the order of the prompts.

    Args:
        model: The model. Its adapter is used if it is active.
        tokenizer: Tokenizer of the model.
        prompts: Chat messages. The chat template and the generation prompt are applied here.
            Ignored with `tools`, which build the prompts from `rows`.
        max_completion_length: Most tokens of a completion; with tools, of all turns and tool
            results together.
        temperature: 0 for greedy decoding. Above 0, tokens are sampled from the whole vocabulary,
            unless `sampling` limits it.
        sampling: With a temperature above 0, more parameters of `GenerationConfig`, such as
            `top_p`.
        batch_size: Number of prompts at a time.
        chat_template_kwargs: Further arguments of the chat template.
        progress: Called with the number of completed prompts after each batch.
        tools: Tools of the task. An episode is then run for each prompt.
        rows: With tools, the row of each prompt, from which its environment starts.
    """
    # transformers raises for an empty list of chats.
    if not (prompts if tools is None else rows):
        return []
    template_kwargs = dict(chat_template_kwargs or {})
    columns: list[dict[str, Any]] = []
    trainer = None
    if tools is not None:
        started = [tools.begin(row) for row in rows]
        prompts = [prompt for prompt, _ in started]
        columns = [column for _, column in started]
        trainer = tool_loop_trainer(
            model.config,
            tokenizer,
            schemas=tools.schemas,
            rounds=tools.rounds,
            max_completion_length=max_completion_length,
            chat_template=tool_template(tokenizer),
            chat_template_kwargs=template_kwargs,
        )
        template_kwargs |= {"tools": tools.schemas, "chat_template": trainer.chat_template}
    prompts = fit_to_template(prompts, tokenizer, chat_template_kwargs)
    prompt_ids = tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, tokenize=True, return_dict=True, **template_kwargs
    )["input_ids"]
    end_tokens = _end_tokens(model, tokenizer)
    config = GenerationConfig(
        max_new_tokens=max_completion_length,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=sorted(end_tokens),
        disable_compile=True,
        **_sampling_arguments(temperature, sampling),
    )
    completions: dict[int, Completion] = {}

    def complete(batch: Sequence[int], sample: Sample) -> list[Completion]:
        """Return the completions of the prompts with these indices."""
        batch_ids = [prompt_ids[index] for index in batch]
        if tools is None:
            return [_completion(tokenizer, tokens, end_tokens) for tokens in sample(batch_ids)]
        return run_episodes(
            trainer,
            tools,
            [prompts[index] for index in batch],
            batch_ids,
            [columns[index] for index in batch],
            sample=sample,
            end_tokens=end_tokens,
        )

    def complete_all(indices: Sequence[int], sample: Sample, size: int) -> None:
        """Complete the prompts with these indices, `size` at a time."""
        for start in range(0, len(indices), size):
            batch = indices[start : start + size]
            completions.update(zip(batch, complete(batch, sample), strict=True))
            if progress is not None:
                progress(len(completions))

    # Prompts of similar length go together, so that little is padding.
    order = sorted(range(len(prompt_ids)), key=lambda index: len(prompt_ids[index]))
    longest = len(prompt_ids[order[-1]]) + max_completion_length
    choice = choose_engine(model, longest_row=longest)
    lengths = [len(prompt_ids[index]) for index in order]
    vllm_count = _count_for_vllm(model, lengths, max_completion_length, choice)
    if vllm_count:
        with sleeping_engine_restored(model):
            sample = partial(sample_with_vllm, model, config=config)
            complete_all(order[:vllm_count], sample, max(batch_size, PROMPTS_PER_VLLM_CALL))
    sample = partial(sample_with_transformers, model, config=config)
    if choice.can_share_prompts:
        sample = partial(CpuEngine(model).sample, config=config)
    complete_all(order[vllm_count:], sample, batch_size)
    return [completions[index] for index in range(len(prompt_ids))]


def _sampling_arguments(temperature: float, sampling: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the sampling parameters of `GenerationConfig`.

    They are set explicitly, as TRL does. Otherwise transformers takes them from the model's own
    generation_config (Qwen2.5: a penalty of 1.1 on repeated tokens), and vLLM does not.
    """
    if temperature <= 0:
        return {"repetition_penalty": 1.0, "do_sample": False}
    return {
        "repetition_penalty": 1.0,
        "do_sample": True,
        "temperature": temperature,
        "top_k": 0,
        "top_p": 1.0,
        **(sampling or {}),
    }


def _end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the tokens that end a completion, of the tokenizer and of the model's own config."""
    of_model = model.generation_config.eos_token_id
    end_tokens = {tokenizer.eos_token_id}
    end_tokens.update(of_model if isinstance(of_model, list) else [of_model])
    return end_tokens - {None}


def _completion(
    tokenizer: PreTrainedTokenizerBase, tokens: list[int], end_tokens: set[int]
) -> Completion:
    is_cut = not tokens or tokens[-1] not in end_tokens
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    return Completion(text, len(tokens), is_cut, tuple(tokens))


def _count_for_vllm(
    model: PreTrainedModel,
    lengths: Sequence[int],
    max_completion_length: int,
    choice: EngineChoice,
) -> int:
    """Return how many of the prompts vLLM completes, shortest first; warn if it is not all.

    Args:
        model: Model to sample from.
        lengths: Tokens of each prompt, in ascending order.
        max_completion_length: Tokens of a completion.
        choice: The engine of the model. Without a vLLM engine return 0 and do not warn.
    """
    if not has_engine(model):
        return 0
    if not choice.is_vllm:
        _LOG.warning(
            "All %d prompts are completed without vLLM, which is slower: %s.",
            len(lengths),
            choice.why_not_vllm,
        )
        return 0
    longest_allowed = longest_prompt(model, max_completion_length)
    count = sum(length <= longest_allowed for length in lengths)
    if count < len(lengths):
        _LOG.warning(
            "%d of %d prompts are completed without vLLM, which is slower: they have up to %d "
            "tokens, and with completions of %d tokens vLLM leaves %d for a prompt. To use vLLM "
            "for all, load the model with a max_prompt_length and max_completion_length of %d "
            "together.",
            len(lengths) - count,
            len(lengths),
            lengths[-1],
            max_completion_length,
            max(longest_allowed, 0),
            lengths[-1] + max_completion_length,
        )
    return count


@torch.no_grad()
def sample_with_transformers(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], config: GenerationConfig
) -> list[list[int]]:
    """Sample one completion for each prompt with `model.generate`.

    Args:
        model: Model of transformers, or as Unsloth patches it.
        prompts: N lists of token ids.
        config: Length, special tokens and sampling parameters.

    Returns:
        N completions as token ids, up to and with the end token.
    """
    prompt_rows = [torch.tensor(prompt, device=model.device) for prompt in prompts]
    mask_rows = [torch.ones_like(row) for row in prompt_rows]
    pad = partial(pad_sequence, batch_first=True, padding_side="left")
    ids = pad(prompt_rows, padding_value=config.pad_token_id)
    with _inference_mode(model):
        rows = model.generate(
            input_ids=ids, attention_mask=pad(mask_rows), generation_config=config, use_cache=True
        )
    completions = rows[:, ids.shape[1] :].tolist()
    return [_through_end(row, config.eos_token_id) for row in completions]


@contextlib.contextmanager
def _inference_mode(model: Any) -> Iterator[None]:
    """Switch a model to inference within the block, and put its modes back afterwards.

    On a GPU Unsloth's `generate` clears gradient checkpointing on every module, and puts it back
    only if the model was in training mode when `generate` was called (unsloth/models/llama.py,
    `unsloth_fast_generate`). Therefore Unsloth's own pair of functions switches such a model.
    """
    if not hasattr(model, "for_training"):
        with kept_modes(model):
            model.eval()
            yield
        return
    was_training = model.training
    values = [getattr(module, "gradient_checkpointing", False) for module in model.modules()]
    checkpointing = next((value for value in values if value), False)
    model.for_inference()
    try:
        yield
    finally:
        if was_training:
            model.for_training(use_gradient_checkpointing=checkpointing)


def _through_end(tokens: list[int], end_tokens: Sequence[int]) -> list[int]:
    """Return the tokens up to the first end token, with it."""
    for index, token in enumerate(tokens):
        if token in end_tokens:
            return tokens[: index + 1]
    return tokens
