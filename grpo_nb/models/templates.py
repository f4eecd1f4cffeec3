"""Chat templates: those of a run or an adapter as files, and a short one with tools.

A template that was set on the tokenizer in a notebook is on disk only in the run's folder.
"""

import json
from pathlib import Path
from typing import Any

TEMPLATE_FILE = "chat_template.jinja"
#: The template that reads tool calls.
CALLS_FILE = "response_template.json"
_END_OF_TURN = "<|im_end|>"
# Description of calls for transformers 5.13 and later: <call>name(key=value, key=value)</call>, any
# number of them in one message.
_TOOL_CALLS = {
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
_TEXT = {"close_pattern": r"<\|im_end\|>\s*", "content": "text"}


def keep_template(folder: Path, tokenizer: Any) -> None:
    """Write the chat template into a folder, and the template that reads tool calls."""
    if isinstance(tokenizer.chat_template, str):
        (folder / TEMPLATE_FILE).write_text(tokenizer.chat_template, "utf-8")
    calls = getattr(tokenizer, "response_template", None)
    if calls is not None:
        (folder / CALLS_FILE).write_text(json.dumps(calls), "utf-8")


def template_of(folder: Path) -> str | None:
    """Return the chat template that a run or an adapter was trained with; None if there is none."""
    file = folder / TEMPLATE_FILE
    return file.read_text("utf-8") if file.is_file() else None


def set_template_from(folder: Path, tokenizer: Any) -> None:
    """Set the templates of a run or an adapter on the tokenizer, if there are any."""
    tokenizer.chat_template = template_of(folder) or tokenizer.chat_template
    calls = folder / CALLS_FILE
    if calls.is_file():
        tokenizer.response_template = json.loads(calls.read_text("utf-8"))


def tokenizer_for(run_folder: Path, base: str | Path) -> Any:
    """Return the tokenizer of a run's base, with the templates of the run."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    set_template_from(run_folder, tokenizer)
    return tokenizer


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
    if tokenizer.eos_token != _END_OF_TURN:
        raise ValueError(
            f"this template is for models whose turns end with {_END_OF_TURN}, and those of this "
            f"model end with {tokenizer.eos_token!r}."
        )
    tokenizer.chat_template = (
        Path(__file__).with_name("tool_template.jinja").read_text("utf-8").rstrip("\n")
    )
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {"tool_calls": _TOOL_CALLS, "content": _TEXT},
    }
    return tokenizer
