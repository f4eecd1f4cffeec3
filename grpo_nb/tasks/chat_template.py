"""Check that a tokenizer can render prompts, and count their tokens as a training sees them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def require_tokenizer(
    tokenizer: Any, chat_template_kwargs: Mapping[str, Any] | None = None
) -> None:
    """Refuse a tokenizer that cannot put a question to its model.

    Raises:
        ValueError: It has no chat template, or one that does not read these arguments: it would pass them over in silence.
    """
    if getattr(tokenizer, "chat_template", "") is None:
        raise ValueError(
            "the tokenizer has no chat template, so nothing says how questions are put to this model: take its instruct "
            "version, or set tokenizer.chat_template to the template of a model of its family."
        )
    for name in chat_template_kwargs or ():
        if name != "tools" and not re.search(
            rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)
        ):
            raise ValueError(
                f"chat_template_kwargs has {name!r}, which the tokenizer's chat template does not read: leave it out, "
                "chat_template_kwargs={}."
            )


def prompt_lengths(
    prompts: Iterable[Sequence[Mapping[str, str]]],
    tokenizer: Any,
    chat_template_kwargs: Mapping | None = None,
) -> list[int]:
    """Return the length of each prompt in tokens, with chat template, tools and generation prompt, as training sees it."""
    from jinja2 import TemplateError

    require_tokenizer(tokenizer, chat_template_kwargs)
    try:
        ids = tokenizer.apply_chat_template(
            list(prompts), add_generation_prompt=True, tokenize=True, return_dict=True, **(chat_template_kwargs or {}),
            tokenizer_kwargs={"verbose": False},  # no warning of a prompt that is too long: that is what is counted here
        )  # fmt: skip
    except TemplateError as error:
        raise ValueError(
            f"the model's chat template refuses these messages ({error}). If it has no system role, make the task with "
            "gn.load_task(..., tokenizer=tokenizer), which puts the system prompt into the first user message."
        ) from error
    return [len(row) for row in ids["input_ids"]]
