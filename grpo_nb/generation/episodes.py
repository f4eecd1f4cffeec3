"""Run episodes outside of a training, with TRL's own tool loop.

Held-out questions and a baseline are answered as in a training. Sampling is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_nb.generation.samples import Completion
from grpo_nb.models.import_unsloth import import_unsloth
from grpo_nb.tasks.tools import Tools, refusing
from grpo_nb.upstream.trl import chat_template_functions, run_tool_loop, tool_loop_trainer


def tool_template(tokenizer: Any) -> str | None:
    """Set how calls are read, as TRL does, and return the chat template that TRL would train with.

    Returns:
        None if the tokenizer's own template serves.

    Raises:
        ValueError: The template has no place for tools, its calls cannot be read, or the pad token
            ends turns.
    """
    import_unsloth()
    trl = chat_template_functions()
    if tokenizer.pad_token_id == tokenizer.eos_token_id:
        raise ValueError(
            f"the pad token of this tokenizer is the token that ends a turn ({tokenizer.eos_token}): on a GPU Unsloth would "
            "take the end of each turn for padding, and train on a wrong gradient. Give it another: "
            "tokenizer.pad_token = '<|endoftext|>'."
        )
    try:
        if not trl.supports_tool_calling(tokenizer):
            raise ValueError("it has no place for them")
        if getattr(tokenizer, "response_template", None) is None:
            trl.add_response_schema(tokenizer)
        if trl.is_chat_template_prefix_preserving(tokenizer):
            return None
        return trl.get_training_chat_template(tokenizer)
    except ValueError as error:
        raise ValueError(
            f"the chat template of this model cannot be trained with tools ({error}). Those of Qwen 2.5 and 3, Llama 3.1 and "
            "3.2, Gemma 4, gpt-oss, GLM-4, LFM 2.5 and Nemotron 3 can; to a ChatML model, such as the embedded one, "
            "gn.models.give_tool_template(tokenizer) gives one."
        ) from error


def episode_trainer(
    model: Any,
    tokenizer: Any,
    tools: Tools,
    *,
    max_completion_length: int,
    chat_template_kwargs: Mapping[str, Any],
) -> Any:
    """Return TRL's trainer with the attributes that its tool loop reads, and nothing else.

    Args:
        model: For the longest sequence that its configuration allows.
        tokenizer: With a template for tools.
        tools: The tools.
        max_completion_length: Tokens of a whole episode, results of tools included.
        chat_template_kwargs: Further arguments of the chat template.
    """
    chat_template = tool_template(tokenizer)
    return tool_loop_trainer(
        model.config,
        tokenizer,
        schemas=tools.schemas,
        rounds=tools.rounds,
        max_completion_length=max_completion_length,
        chat_template=chat_template,
        chat_template_kwargs=chat_template_kwargs,
    )


def run_episodes(
    trainer: Any,
    tools: Tools,
    prompts: Sequence[Sequence[Mapping[str, Any]]],
    prompt_ids: Sequence[Sequence[int]],
    columns: Sequence[Mapping[str, Any]],
    *,
    sample: Callable[[Sequence[Sequence[int]]], list[list[int]]],
    end_tokens: set[int],
) -> list[Completion]:
    """Run episodes that `Tools.begin` has started.

    Args:
        trainer: From `episode_trainer`.
        tools: The tools.
        prompts: Messages.
        prompt_ids: The same as token ids.
        columns: The environment of each episode, as `Tools.begin` returns it.
        sample: Return one completion for each list of token ids.
        end_tokens: Tokens that end a turn.
    """
    tools_of_each = [tools.of(column.get("environments")) for column in columns]
    with refusing():
        result = run_tool_loop(trainer, prompts, prompt_ids, tools=tools_of_each, sample=sample)
    completions = []
    for turns, ids, mask, column in zip(
        result.turns, result.completion_ids, result.tool_masks, columns, strict=True
    ):
        has_ended = bool(ids) and ids[-1] in end_tokens
        completions.append(Completion.of_episode(turns, written(ids, mask), has_ended, column))
    return completions


def written(ids: Sequence[int], mask: Sequence[int]) -> list[int]:
    """Return the tokens of an episode that the model wrote itself, without those of tools."""
    return [token for token, is_own in zip(ids, mask, strict=True) if is_own]
