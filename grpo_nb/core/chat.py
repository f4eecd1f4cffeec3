"""Chat messages: prompts as the chat template renders them, and the turns of an episode as text.

A message is a dict with `role` and `content`, as in transformers. An episode is the list of
messages that follow a prompt: those of the model, and the tool results between them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def final_text(turns: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of an episode's last message; empty if that is a tool result."""
    if not turns or turns[-1].get("role") == "tool":
        return ""
    return turns[-1].get("content") or ""


def transcript(turns: Sequence[Mapping[str, Any]]) -> str:
    """Return an episode as text: the model's texts and calls, and tool results after an arrow.

    >>> call = {"function": {"name": "read", "arguments": {"place": "mill"}}}
    >>> turns = [{"role": "assistant", "content": "", "tool_calls": [call]},
    ...          {"role": "tool", "content": "7"}]
    >>> transcript(turns)
    'read(place=mill)\\n→ 7'
    """
    lines = []
    for turn in turns:
        content = str(turn.get("content") or "")
        if turn.get("role") == "tool":
            lines.append(f"→ {content}")
        elif content:
            lines.append(content)
        for tool_call in turn.get("tool_calls") or ():
            function = tool_call["function"]
            arguments = function["arguments"]
            # A model can write arguments without names. They are no dict then, and TRL has already
            # answered the model that the call failed.
            if isinstance(arguments, Mapping):
                arguments = ", ".join(f"{name}={value}" for name, value in arguments.items())
            lines.append(f"{function['name']}({arguments})")
    return "\n".join(lines)


def require_tokenizer(
    tokenizer: Any, chat_template_kwargs: Mapping[str, Any] | None = None
) -> None:
    """Check that a tokenizer has a chat template, which reads the given arguments.

    Raises:
        ValueError: There is no chat template, or it does not read one of the arguments. The
            template would ignore such an argument without a message.
    """
    if getattr(tokenizer, "chat_template", "") is None:
        raise ValueError(
            "the tokenizer has no chat template, so nothing says how questions are put to this "
            "model: take its instruct version, or set tokenizer.chat_template to the template of "
            "a model of its family."
        )
    for name in chat_template_kwargs or ():
        # transformers passes `tools` to every template.
        if name == "tools":
            continue
        if not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
            raise ValueError(
                f"chat_template_kwargs has {name!r}, which the tokenizer's chat template does not "
                "read: leave it out, chat_template_kwargs={}."
            )


def prompt_lengths(
    prompts: Iterable[Sequence[Mapping[str, str]]],
    tokenizer: Any,
    chat_template_kwargs: Mapping | None = None,
) -> list[int]:
    """Return the length of each prompt in tokens, as it is in training.

    The chat template, the tools and the generation prompt are included.
    """
    from jinja2 import TemplateError

    require_tokenizer(tokenizer, chat_template_kwargs)
    try:
        encoded = tokenizer.apply_chat_template(
            list(prompts),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            # Lengths are measured here, so the tokenizer's warning of a long prompt is not needed.
            tokenizer_kwargs={"verbose": False},
            **(chat_template_kwargs or {}),
        )
    except TemplateError as error:
        raise ValueError(
            f"the model's chat template refuses these messages ({error}). If it has no system "
            "role, make the task with gn.load_task(..., tokenizer=tokenizer), which puts the "
            "system prompt into the first user message."
        ) from error
    return [len(token_ids) for token_ids in encoded["input_ids"]]
