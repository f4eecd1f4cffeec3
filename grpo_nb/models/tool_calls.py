"""A short chat template with tools, for ChatML models that have none, such as the embedded one."""

from pathlib import Path
from typing import Any

_END = "<|im_end|>"
# Description of calls for transformers 5.13 and later: <call>name(key=value, key=value)</call>, any
# number of them in one message.
_CALLS = {
    "open_pattern": r"<call>(?P<name>\w+)\(",
    "close_pattern": r"\)</call>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {
        "tag_pattern": r"(?P<key>\w+)=(?P<value>[^,]*)",
        "value_parser": {"name": "json", "args": {"allow_non_json": True}},
    },
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
}
_SAID = {"close_pattern": r"<\|im_end\|>\s*", "content": "text"}


def give_tool_template(tokenizer: Any) -> Any:
    """Give the tokenizer of a ChatML model a chat template with tools, and return it.

    A call is `<call>name(key=value)</call>`, which the embedded model writes in 12 tokens. A value
    cannot contain a comma. Call this before the task is made, so that prompts are counted with the
    template. A run keeps it, and so do its exports.

    Raises:
        ValueError: Turns of this model end with another token.

    >>> from types import SimpleNamespace
    >>> "<call>" in give_tool_template(SimpleNamespace(eos_token="<|im_end|>")).chat_template
    True
    """
    if tokenizer.eos_token != _END:
        raise ValueError(
            f"this template is for models whose turns end with {_END}, and those of this model end "
            f"with {tokenizer.eos_token!r}."
        )
    tokenizer.chat_template = (
        Path(__file__).with_name("tool_template.jinja").read_text("utf-8").rstrip("\n")
    )
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {"tool_calls": _CALLS, "content": _SAID},
    }
    return tokenizer
