"""Episodes with tools outside of a training: held-out questions and baselines.

An episode has the same tokens as in a training, because TRL's own tool loop runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from grpo_nb.generation.completions import GeneratedCompletion, Sampler
from grpo_nb.models.unsloth_import import import_unsloth
from grpo_nb.tasks.read_rows import Row
from grpo_nb.tasks.tools import Tools, final_text
from grpo_nb.upstream.trl import chat_template_module, run_tool_loop, tool_loop_trainer


def prepare_tokenizer_for_tools(tokenizer: Any) -> str | None:
    """Prepare a tokenizer for tools, and return the chat template that TRL would train with.

    As in TRL's trainer, the tokenizer gets the response template, which reads tool calls.

    Args:
        tokenizer: Tokenizer with a chat template.

    Returns:
        The training template, or None if the tokenizer's own template can be used.

    Raises:
        ValueError: The template has no place for tools, TRL cannot read the calls in its format, or
            the pad token is also the token that ends a turn.
    """
    import_unsloth()
    # TRL replaces a missing pad token by the token that ends a turn, so None is refused too.
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        raise ValueError(
            "the pad token of this tokenizer is the token that ends a turn "
            f"({tokenizer.eos_token}). On a GPU Unsloth would take the end of each turn for "
            "padding, and train on a wrong gradient. Set another token of its vocabulary, such as "
            "tokenizer.pad_token = '<|endoftext|>' for Qwen."
        )
    try:
        return _add_response_template(tokenizer)
    except ValueError as error:
        raise ValueError(
            f"the chat template of this model cannot be trained with tools ({error}). Those of "
            "Qwen 2.5 and 3, Llama 3.1 and 3.2, Gemma 4, gpt-oss, GLM-4, LFM 2.5 and Nemotron 3 "
            "can. For a ChatML model, such as the embedded one, "
            "gn.models.set_tool_template(tokenizer) sets one."
        ) from error


def _add_response_template(tokenizer: Any) -> str | None:
    """Add the response template, and return the training template or None, as TRL's trainer does.

    The order is that of TRL (trl/trainer/grpo_trainer.py, `__init__`).

    Raises:
        ValueError: The chat template has no place for tools, or TRL does not know its format.
    """
    template_module = chat_template_module()
    if not template_module.supports_tool_calling(tokenizer):
        raise ValueError("it has no place for tools")
    if getattr(tokenizer, "response_template", None) is None:
        template_module.add_response_schema(tokenizer)
    # Each turn must continue the tokens of earlier turns, which are not rendered again.
    if template_module.is_chat_template_prefix_preserving(tokenizer):
        return None
    return template_module.get_training_chat_template(tokenizer)


@dataclass(frozen=True)
class Episodes:
    """Started episodes with tools, which run in batches."""

    tools: Tools
    trainer: Any
    """Trainer from `upstream.trl.tool_loop_trainer`."""
    rows: Sequence[Row]
    """Row of each episode, from `Tools.start_episode`."""

    def run(
        self,
        indices: Sequence[int],
        prompt_ids: Sequence[Sequence[int]],
        *,
        sample: Sampler,
        end_ids: set[int],
    ) -> list[GeneratedCompletion]:
        """Run some of the episodes, and return them as completions.

        Args:
            indices: Indices of the episodes to run.
            prompt_ids: The prompts of these episodes as token ids.
            sample: Function that completes prompts.
            end_ids: Ids of the tokens that end a turn.
        """
        rows = [self.rows[index] for index in indices]
        prompts = [row["prompt"] for row in rows]
        tools = [self.tools.for_episode(row.get("environments")) for row in rows]
        result = run_tool_loop(self.trainer, prompts, prompt_ids, tools=tools, sample=sample)
        completions = []
        for turns, ids, mask, row in zip(
            result.turns, result.completion_ids, result.tool_masks, rows, strict=True
        ):
            # An episode that used up its tokens ends in the middle of a turn.
            has_ended = bool(ids) and ids[-1] in end_ids
            # An episode that used up its rounds ends with a tool result or a call that was not run.
            last = turns[-1]
            has_answer = last.get("role") != "tool" and not last.get("tool_calls")
            completion = GeneratedCompletion(
                text=final_text(turns),
                is_truncated=not (has_ended and has_answer),
                # The mask is 0 for the tokens of tool results.
                ids=tuple(compress(ids, mask)),
                turns=tuple(turns),
                row=row,
            )
            completions.append(completion)
        return completions


def start_episodes(
    tools: Tools,
    rows: Sequence[Row],
    model: Any,
    tokenizer: Any,
    *,
    max_completion_length: int,
    chat_template_kwargs: Mapping[str, Any],
) -> Episodes:
    """Start one episode per row.

    Args:
        tools: Tools of the task.
        rows: Rows with a prompt.
        model: Model that will write the episodes.
        tokenizer: Tokenizer of the model.
        max_completion_length: Tokens of a whole episode, results of tools included.
        chat_template_kwargs: Further arguments of the chat template.
    """
    training_template = prepare_tokenizer_for_tools(tokenizer)
    trainer = tool_loop_trainer(
        model.config,
        tokenizer,
        schemas=tools.schemas,
        max_rounds=tools.rounds,
        max_completion_length=max_completion_length,
        chat_template=training_template,
        chat_template_kwargs=chat_template_kwargs,
    )
    return Episodes(tools, trainer, [tools.start_episode(row) for row in rows])
