"""Chat templates as files, in the folder of a run or an adapter.

A template that was set on the tokenizer in a notebook is on disk only in the run's folder.
"""

import json
from pathlib import Path
from typing import Any

TEMPLATE_FILE = "chat_template.jinja"
#: The template that reads tool calls.
CALLS_FILE = "response_template.json"


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
