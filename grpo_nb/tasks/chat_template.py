"""Check that a tokenizer can render prompts, and count their tokens as a training sees them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


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
