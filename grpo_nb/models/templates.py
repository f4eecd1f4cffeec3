"""Chat templates of runs and adapters as files, and a short chat template with tools.

A template that was set on the tokenizer in a notebook is on disk only in the run's folder.
"""

import json
from pathlib import Path
from typing import Any

CHAT_TEMPLATE_FILE = "chat_template.jinja"
#: File of the response template, with which transformers 5.13 and later read tool calls.
RESPONSE_TEMPLATE_FILE = "response_template.json"
# It has the two templates of `set_tool_template`.
_TOOL_TEMPLATE_FOLDER = Path(__file__).with_name("tool_template")


def save_templates(folder: Path, tokenizer: Any) -> None:
    """Write the chat template and the response template of a tokenizer into a folder."""
    if isinstance(tokenizer.chat_template, str):
        (folder / CHAT_TEMPLATE_FILE).write_text(tokenizer.chat_template, "utf-8")
    response_template = getattr(tokenizer, "response_template", None)
    if response_template is not None:
        (folder / RESPONSE_TEMPLATE_FILE).write_text(json.dumps(response_template), "utf-8")


def saved_chat_template(folder: Path) -> str | None:
    """Return the chat template that a run or an adapter was trained with; None if there is none."""
    file = folder / CHAT_TEMPLATE_FILE
    return file.read_text("utf-8") if file.is_file() else None


def load_templates(folder: Path, tokenizer: Any) -> None:
    """Set the templates of a run or an adapter on the tokenizer, if there are any."""
    old_template = tokenizer.chat_template
    tokenizer.chat_template = saved_chat_template(folder) or old_template
    response_file = folder / RESPONSE_TEMPLATE_FILE
    if response_file.is_file():
        tokenizer.response_template = json.loads(response_file.read_text("utf-8"))
    elif tokenizer.chat_template != old_template:
        # The old response template may not fit the new chat template.
        tokenizer.response_template = None


def load_run_tokenizer(run_folder: Path, base: str | Path) -> Any:
    """Return the tokenizer of a run's base, with the templates of the run."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    load_templates(run_folder, tokenizer)
    return tokenizer


def set_tool_template(tokenizer: Any) -> Any:
    """Set a chat template with tools on the tokenizer of a ChatML model; return the tokenizer.

    A call is `<call>name(key=value, key=value)</call>`. A message can have any number of calls. A
    value ends at the first comma, even in quotes. A value that looks like JSON arrives as that
    type, so a `str` parameter can get the number 7.

    Call this before the task is made, so that prompts are counted with the template. A run and its
    exports keep the template.

    Raises:
        ValueError: The end token of the tokenizer is not <|im_end|>.

    >>> from types import SimpleNamespace
    >>> tokenizer = SimpleNamespace(eos_token="<|im_end|>", chat_template=None)
    >>> "<call>" in set_tool_template(tokenizer).chat_template
    True
    """
    if tokenizer.eos_token != "<|im_end|>":
        raise ValueError(
            "this template needs the end token <|im_end|>, but the end token of this tokenizer is "
            f"{tokenizer.eos_token!r}. Use a ChatML model, or a model whose own template supports "
            "tools."
        )
    load_templates(_TOOL_TEMPLATE_FOLDER, tokenizer)
    return tokenizer
