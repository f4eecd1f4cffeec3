"""Fit prompts to a tokenizer's chat template, and count their tokens.

Some templates, such as Gemma 2's, have no system role. For these, the system prompt becomes the
start of the first user message.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Roles of messages that instruct the model. OpenAI's newer models call it "developer".
SYSTEM_ROLES = ("system", "developer")
NO_SYSTEM_ROLE = (
    "the model's chat template has no system role, so the system prompt stands at the start of the "
    "first user message"
)
_MARK = "system-role-check"


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
                "read: remove it from chat_template_kwargs."
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


def fit_to_template(
    prompts: Iterable[Sequence[Mapping[str, Any]]],
    tokenizer: Any,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Return prompts that the chat template can render: without a system role if it has none.

    Some templates refuse a system message, and others leave it out silently.
    """
    from jinja2 import TemplateError

    prompts = list(prompts)
    if not any(turn["role"] in SYSTEM_ROLES for prompt in prompts for turn in prompt[:1]):
        return prompts
    require_tokenizer(tokenizer, chat_template_kwargs)
    turns = [{"role": "system", "content": _MARK}, {"role": "user", "content": "?"}]
    try:
        rendered = tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, **(chat_template_kwargs or {})
        )
    except TemplateError:
        rendered = ""
    return prompts if _MARK in rendered else [merge_system_turn(prompt) for prompt in prompts]


def merge_system_turn(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return chat messages whose first user message begins with the system message.

    Gemma 3's own template joins the two with an empty line. Without a user message, the system
    message becomes one.

    >>> system = {"role": "system", "content": "Be brief."}
    >>> merge_system_turn([system, {"role": "user", "content": "Why?"}])
    [{'role': 'user', 'content': 'Be brief.\\n\\nWhy?'}]
    """
    system = [turn["content"] for turn in turns if turn["role"] in SYSTEM_ROLES]
    merged = [dict(turn) for turn in turns if turn["role"] not in SYSTEM_ROLES]
    first = next((turn for turn in merged if turn["role"] == "user"), None)
    if not system:
        return merged
    if first is None:
        return [{"role": "user", "content": "\n\n".join(system)}, *merged]
    first["content"] = "\n\n".join([*system, first["content"]])
    return merged
