"""Chat templates without a system role, such as Gemma 2's: what a system message says goes into the first user message."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo_nb.core.chat import require_tokenizer

_MARK = "system-role-check"
NO_SYSTEM_ROLE = "the model's chat template has no system role, so the system prompt stands at the start of the first user message"


def is_system_role_lost(
    tokenizer: Any, chat_template_kwargs: Mapping[str, Any] | None = None
) -> bool:
    """Say whether the chat template refuses a system message, or leaves it out without a word."""
    from jinja2 import TemplateError

    require_tokenizer(tokenizer, chat_template_kwargs)
    turns = [{"role": "system", "content": _MARK}, {"role": "user", "content": "?"}]
    try:
        rendered = tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, **(chat_template_kwargs or {})
        )
    except TemplateError:
        return True
    return _MARK not in rendered


def fit_to_template(
    prompts: Iterable[Sequence[Mapping[str, Any]]],
    tokenizer: Any,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Return prompts that the chat template can render: without a system role if it has none."""
    prompts = list(prompts)
    has_system = any(
        turn["role"] in ("system", "developer") for prompt in prompts for turn in prompt[:1]
    )
    if has_system and is_system_role_lost(tokenizer, chat_template_kwargs):
        return list(map(merge_system_turn, prompts))
    return prompts


def merge_system_turn(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return chat messages in which the first user message begins with what the system message said.

    Gemma 3's own template joins the two with an empty line.

    >>> merge_system_turn([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}])
    [{'role': 'user', 'content': 'Be brief.\\n\\nWhy?'}]
    """
    system = [turn["content"] for turn in turns if turn["role"] in ("system", "developer")]
    merged = [dict(turn) for turn in turns if turn["role"] not in ("system", "developer")]
    first = next((turn for turn in merged if turn["role"] == "user"), None)
    if first is not None and system:
        first["content"] = "\n\n".join([*system, first["content"]])
    return merged
