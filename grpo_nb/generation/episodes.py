"""Episodes outside of a training: held-out questions and baselines, with TRL's own tool loop.

An episode has the same tokens as in a training, because TRL's own loop runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_nb.generation.samples import GeneratedCompletion
from grpo_nb.models.import_unsloth import import_unsloth
from grpo_nb.tasks.tools import Tools, final_text
from grpo_nb.upstream.trl import chat_template_functions, run_tool_loop


def prepare_tool_template(tokenizer: Any) -> str | None:
    """Return the chat template that TRL would train tools with.

    As in TRL's trainer, the tokenizer is also given the schema by which tool calls are read.

    Args:
        tokenizer: Tokenizer with a chat template.

    Returns:
        The template, or None if the tokenizer's own template can be used.

    Raises:
        ValueError: The template has no place for tools, TRL cannot read the calls in its format, or
            the pad token is also the token that ends a turn.
    """
    import_unsloth()
    trl = chat_template_functions()
    # TRL sets a missing pad token to the token that ends a turn.
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        raise ValueError(
            "the pad token of this tokenizer is the token that ends a turn "
            f"({tokenizer.eos_token}). On a GPU Unsloth would take the end of each turn for "
            "padding, and train on a wrong gradient. Set another token of its vocabulary, such as "
            "tokenizer.pad_token = '<|endoftext|>' for Qwen."
        )
    # In the order of TRL's trainer (trl/trainer/grpo_trainer.py, `__init__`).
    try:
        if not trl.supports_tool_calling(tokenizer):
            raise ValueError("it has no place for them")
        if getattr(tokenizer, "response_template", None) is None:
            trl.add_response_schema(tokenizer)
        # Each turn must continue the tokens of the turns before it, which are not rendered again.
        if trl.is_chat_template_prefix_preserving(tokenizer):
            return None
        return trl.get_training_chat_template(tokenizer)
    except ValueError as error:
        raise ValueError(
            f"the chat template of this model cannot be trained with tools ({error}). Those of "
            "Qwen 2.5 and 3, Llama 3.1 and 3.2, Gemma 4, gpt-oss, GLM-4, LFM 2.5 and Nemotron 3 "
            "can. For a ChatML model, such as the embedded one, "
            "gn.models.give_tool_template(tokenizer) sets one."
        ) from error


def run_episodes(
    trainer: Any,
    tools: Tools,
    prompts: Sequence[Sequence[Mapping[str, Any]]],
    prompt_ids: Sequence[Sequence[int]],
    columns: Sequence[Mapping[str, Any]],
    *,
    sample: Callable[[Sequence[Sequence[int]]], list[list[int]]],
    end_tokens: set[int],
) -> list[GeneratedCompletion]:
    """Run the episodes that `Tools.start` started, and return them as completions.

    Args:
        trainer: Trainer from `upstream.trl.tool_loop_trainer`.
        tools: Tools of the task.
        prompts: Messages of each prompt.
        prompt_ids: The same prompts as token ids.
        columns: Environment of each episode, as `Tools.start` returns it.
        sample: Takes a list of token ids for each prompt, and returns one for each completion.
        end_tokens: Tokens that end a turn.
    """
    tools_per_episode = [tools.for_episode(column.get("environments")) for column in columns]
    result = run_tool_loop(trainer, prompts, prompt_ids, tools=tools_per_episode, sample=sample)
    completions = []
    for turns, ids, mask, column in zip(
        result.turns, result.completion_ids, result.tool_masks, columns, strict=True
    ):
        # An episode that used up its tokens ends in the middle of a turn.
        has_ended = bool(ids) and ids[-1] in end_tokens
        # One that used up its rounds ends with a tool result, or with a call that nobody ran.
        last = turns[-1]
        has_answer = last.get("role") != "tool" and not last.get("tool_calls")
        completion = GeneratedCompletion(
            text=final_text(turns),
            is_truncated=not (has_ended and has_answer),
            ids=tuple(tokens_of_model(ids, mask)),
            turns=tuple(turns),
            reward_columns=column,
        )
        completions.append(completion)
    return completions


def tokens_of_model(ids: Sequence[int], mask: Sequence[int]) -> list[int]:
    """Return the tokens of an episode that the model wrote itself, without those of tools."""
    return [token for token, is_own in zip(ids, mask, strict=True) if is_own]
