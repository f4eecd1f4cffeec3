"""Complete chat prompts with the fastest engine that can run the model as it is.

On a CPU that is the kit's `CpuEngine`, on a GPU vLLM (grpo_nb.generation.vllm) or Unsloth's `generate`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_nb.models.import_unsloth import import_unsloth

import_unsloth()

import torch
from transformers import GenerationConfig

from grpo_nb.cpu.engine import CpuEngine
from grpo_nb.generation.choice import choose_engine
from grpo_nb.generation.episodes import episode_trainer, run_episodes
from grpo_nb.generation.samples import Completion
from grpo_nb.generation.vllm import engine_as_before, longest_prompt, sample_with_vllm
from grpo_nb.models.load import has_engine
from grpo_nb.models.samples import Samples
from grpo_nb.tasks.chat_template import fit_to_template

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from grpo_nb.generation.choice import EngineChoice
    from grpo_nb.tasks.tools import Tools

_LOG = logging.getLogger(__name__)


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
    """Complete chat prompts, greedily at temperature 0, in the order given.

    Args:
        model: As it is: with its adapter on or off.
        tokenizer: Its tokenizer.
        prompts: Chat messages; the chat template and the generation prompt are applied here.
        max_completion_length: Tokens; of a whole episode, what tools say included, where there are tools.
        temperature: Above 0, tokens are drawn from the whole vocabulary.
        sampling: With a temperature above 0, further parameters of `GenerationConfig`, such as `top_p`.
        batch_size: Prompts at a time.
        chat_template_kwargs: What the chat template is given beside the messages.
        progress: Called with the number of prompts done after each batch.
        tools: The tools of the task: an episode is run for each prompt.
        rows: With tools, the row of each prompt, with which its environment is reset.
    """
    how, columns, trainer = dict(chat_template_kwargs or {}), [], None
    if tools is not None:
        prompts, columns = zip(*map(tools.begin, rows), strict=True)
        trainer = episode_trainer(
            model,
            tokenizer,
            tools,
            max_completion_length=max_completion_length,
            chat_template_kwargs=how,
        )
        how |= {"tools": tools.schemas, "chat_template": trainer.chat_template}
    prompts = fit_to_template(prompts, tokenizer, chat_template_kwargs)
    encoded = tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, tokenize=True, return_dict=True, **how
    )
    ids = encoded["input_ids"]
    end_tokens = model.generation_config.eos_token_id
    end_tokens = {
        tokenizer.eos_token_id,
        *(end_tokens if isinstance(end_tokens, list) else [end_tokens]),
    } - {None}
    drawn = {
        "do_sample": True,
        "temperature": temperature,
        "top_k": 0,
        "top_p": 1.0,
        **(sampling or {}),
    }
    config = GenerationConfig(
        # Said, as a trainer says it: what is left out, transformers takes from the model's own generation_config (a penalty of
        # 1.1 on repeated tokens in Qwen2.5), while vLLM does not look there.
        max_new_tokens=max_completion_length,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=sorted(end_tokens),
        disable_compile=True,
        **{"repetition_penalty": 1.0, **(drawn if temperature > 0 else {"do_sample": False})},
    )

    def complete(rows: Sequence[int], run: Callable[..., Samples], size: int) -> None:
        """Complete these rows, `size` at a time, with one way of sampling."""

        def write(asked: Sequence[Sequence[int]]) -> list[list[int]]:
            return run(model, asked, config).tokens

        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            asked = [ids[row] for row in batch]
            if tools is None:
                made = [_completion(tokenizer, tokens, end_tokens) for tokens in write(asked)]
            else:
                made = run_episodes(
                    trainer,
                    tools,
                    [prompts[row] for row in batch],
                    asked,
                    [columns[row] for row in batch],
                    sample=write,
                    end_tokens=end_tokens,
                )
            completions.update(zip(batch, made, strict=True))
            if progress is not None:
                progress(len(completions))

    completions: dict[int, Completion] = {}
    # Prompts of similar length together, so that little is padding.
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    longest = len(ids[order[-1]]) + max_completion_length if order else 0
    choice = choose_engine(model, longest_row=longest)
    fitting = _rows_for_vllm(model, order, ids, max_completion_length, choice=choice)
    others = order[len(fitting) :]
    if fitting:
        with engine_as_before(model):
            # vLLM makes its own batches. These are only how often progress is reported.
            complete(fitting, sample_with_vllm, max(batch_size, 256))
    if others:
        run = _stock_sample
        if choice.why_not_cpu_engine is None:
            engine = CpuEngine(model)  # one for all batches, so that they use the same memory

            def run(_: Any, asked: Sequence[Sequence[int]], config: GenerationConfig) -> Samples:
                return engine.sample(asked, config)

        complete(others, run, batch_size)
    return [completions[row] for row in range(len(ids))]


def _rows_for_vllm(
    model: PreTrainedModel,
    order: Sequence[int],
    ids: Sequence[Sequence[int]],
    max_completion_length: int,
    *,
    choice: EngineChoice,
) -> Sequence[int]:
    """Return the first rows of `order` that the model's engine completes; log how many it does not.

    Args:
        model: With an engine or without; without one no row is returned and nothing is logged.
        order: Indices of all rows, shortest prompt first.
        ids: The prompt of each row, as token ids.
        max_completion_length: Tokens.
        choice: The engine of the model.
    """
    if not has_engine(model):
        return []
    if not choice.is_vllm:
        _LOG.warning(
            "All %d prompts are completed without vLLM, which is slower: %s.",
            len(order),
            choice.why_not_vllm,
        )
        return []
    room = longest_prompt(model, max_completion_length)
    fitting = [row for row in order if len(ids[row]) <= room]
    if len(fitting) < len(order):
        longest = len(ids[order[-1]])
        _LOG.warning(
            "%d of %d prompts are completed without vLLM, which is slower: they have up to %d "
            "tokens, and next to completions of %d vLLM was started for %d. To use vLLM for all, "
            "load the model with a max_prompt_length and max_completion_length of %d together.",
            len(order) - len(fitting),
            len(order),
            longest,
            max_completion_length,
            max(room, 0),
            longest + max_completion_length,
        )
    return fitting


def _completion(
    tokenizer: PreTrainedTokenizerBase, tokens: list[int], end_tokens: set[int]
) -> Completion:
    is_cut = not tokens or tokens[-1] not in end_tokens
    return Completion(
        tokenizer.decode(tokens, skip_special_tokens=True), len(tokens), is_cut, tuple(tokens)
    )


def _left_padded(
    prompts: Sequence[Sequence[int]], pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return prompts as one tensor (N, L) of token ids, and its mask."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


@torch.no_grad()
def _stock_sample(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], config: GenerationConfig
) -> Samples:
    """What `sample` does, through `model.generate`, without log-probabilities.

    Modes are put back: training, and on a GPU what Unsloth switches for generation. Unsloth's `generate` clears gradient
    checkpointing on every module and puts it back only if the model was in training mode when it was called
    (unsloth/models/llama.py, unsloth_fast_generate), so it is switched by Unsloth's own functions.
    """
    ids, mask = (part.to(model.device) for part in _left_padded(prompts, config.pad_token_id))
    training, is_unsloths = (
        model.training,
        hasattr(model, "for_training"),
    )  # as Unsloth patches models for a GPU
    values = (getattr(module, "gradient_checkpointing", False) for module in model.modules())
    checkpointing = next((value for value in values if value), False)
    model.for_inference() if is_unsloths else model.eval()
    try:
        rows = model.generate(
            input_ids=ids, attention_mask=mask, generation_config=config, use_cache=True
        )
    finally:
        if not is_unsloths:
            model.train(training)
        elif training:
            model.for_training(use_gradient_checkpointing=checkpointing)
    ends = set(config.eos_token_id)
    completions = rows[:, ids.shape[1] :].tolist()
    lengths = [
        next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
        for row in completions
    ]
    return Samples([row[:length] for row, length in zip(completions, lengths, strict=True)], None)
