"""Episodes outside of a training, through TRL's own loop: held-out questions and a baseline are played as training plays.

Two methods of TRL's trainer (1.15) are called on an object that has nothing but what they read: which tokens follow a tool's
result, what is dropped at the length limit and how calls are read is theirs. Sampling is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from grpo_nb.generation.samples import Completion
from grpo_nb.models.import_unsloth import import_unsloth
from grpo_nb.tasks.tools import Play, refusing


def tool_template(tokenizer: Any) -> str | None:
    """Set how calls are read, as TRL does, and return the template that TRL would train with; None where the own one serves.

    Raises:
        ValueError: The template has no place for tools, nobody knows how its calls are read, or padding ends turns.
    """
    import_unsloth()
    from trl import chat_template_utils as trl

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
        return (
            None
            if trl.is_chat_template_prefix_preserving(tokenizer)
            else trl.get_training_chat_template(tokenizer)
        )
    except ValueError as error:
        raise ValueError(
            f"the chat template of this model cannot be trained with tools ({error}). Those of Qwen 2.5 and 3, Llama 3.1 and "
            "3.2, Gemma 4, gpt-oss, GLM-4, LFM 2.5 and Nemotron 3 can; to a ChatML model, such as the embedded one, "
            "gn.models.give_tool_template(tokenizer) gives one."
        ) from error


def playing_trainer(
    model: Any, tokenizer: Any, play: Play, limit: int, chat_template_kwargs: Mapping[str, Any]
) -> Any:
    """Return TRL's trainer with what its loop reads, and nothing else.

    Args:
        model: For the longest sequence that its configuration allows.
        tokenizer: With a template for tools.
        play: The tools.
        limit: Tokens of a whole episode, what tools say included.
        chat_template_kwargs: What the template is given beside the messages.
    """
    template = tool_template(tokenizer)
    from trl import GRPOTrainer

    trainer = object.__new__(GRPOTrainer)
    vars(trainer).update(
        processing_class=tokenizer, _tokenizer=tokenizer, chat_template=template, _is_vlm=False, tools=play.schemas,
        chat_template_kwargs=dict(chat_template_kwargs), max_tool_calling_iterations=play.rounds, use_vllm=False,
        vllm_mode=None, max_completion_length=limit, model=SimpleNamespace(config=model.config), play=play,
    )  # fmt: skip
    return trainer


def play_on(
    trainer: Any,
    prompts: Sequence[Sequence[Mapping[str, Any]]],
    prompt_ids: Sequence[Sequence[int]],
    columns: Sequence[Mapping[str, Any]],
    write: Callable[[Sequence[Sequence[int]]], list[list[int]]],
    end_tokens: set[int],
) -> list[Completion]:
    """Play episodes that have begun.

    Args:
        trainer: From `playing_trainer`.
        prompts: As messages.
        prompt_ids: As tokens.
        columns: Of each its environment, as `Play.begin` gives it.
        write: Lists of token ids to those of one completion each.
        end_tokens: Which of them end a turn.
    """
    from trl.chat_template_utils import parse_response

    tools = [trainer.play.of(held.get("environments")) for held in columns]
    trainer._sync_tool_dicts = [{tool.__name__: tool for tool in each} for each in tools]
    trainer._async_tool_dicts = [{}] * len(tools)
    trainer._generate_single_turn = lambda ids, *_, **__: (write(ids), None)
    said, asked = write(prompt_ids), list(map(list, prompt_ids))
    turns = [
        [parse_response(trainer._tokenizer, one, prefix=ids)]
        for one, ids in zip(said, asked, strict=True)
    ]
    with refusing():
        masks, turns, said, *_ = trainer._tool_call_loop(
            list(map(list, prompts)), asked, said, turns, None, None, {}
        )
    return [
        Completion.of_episode(own, written(ids, mask), bool(ids) and ids[-1] in end_tokens, held)
        for own, ids, mask, held in zip(turns, said, masks, columns, strict=True)
    ]


def written(ids: Sequence[int], mask: Sequence[int]) -> list[int]:
    """The tokens of an episode that the model wrote: a tool's results are not paid by their length."""
    return [token for token, is_own in zip(ids, mask, strict=True) if is_own]
