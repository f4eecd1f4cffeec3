"""An Ollama Modelfile for an exported GGUF: its template in Go's language, its stop tokens, the task's system prompt.

Without a TEMPLATE, Ollama compares the chat template inside the GGUF with some that it knows, letter by letter, and takes its
own version of one that is less than 100 edits away (`template.Named`). If none is, versions from 0.30 (May 2026) run the file's
own; older ones pass the prompt on bare, which is why a model can answer well everywhere and badly there. So the template is
written out for the families whose turns are simple (ChatML, Llama 3, Gemma), each only after it was compared with what the
tokenizer itself renders. From 0.30 on, a file's own template goes before TEMPLATE where it knows tools or thinking, which these
do not; llama.cpp runs it then, as in the verification. For other families the Modelfile says that there is none.

Read in Ollama's source at v0.33.0-rc2 (parser/parser.go, template/template.go, server/model.go, server/images.go).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError

Chat = Sequence[Mapping[str, str]]
_PROBES = 8
# Ollama's own default on a machine without a large GPU, below which nobody wants to chat.
_CONTEXT = 4096


@dataclass(frozen=True)
class Family:
    """How a family of chat templates writes a turn, in Go's template language."""

    name: str
    template: str
    """With `.System`, `.Prompt` and `.Response` of one turn; Ollama repeats it for each."""
    stops: tuple[str, ...]
    begins_with: str = ""
    """A token that the tokenizer's template writes and the program that runs the model adds by itself."""


FAMILIES = (
    Family(
        "ChatML",
        "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}{{ if .Prompt }}<|im_start|>user\n"
        "{{ .Prompt }}<|im_end|>\n{{ end }}<|im_start|>assistant\n{{ .Response }}<|im_end|>\n",
        ("<|im_start|>", "<|im_end|>"),
    ),
    Family(
        "Llama 3",
        "{{ if .System }}<|start_header_id|>system<|end_header_id|>\n\n{{ .System }}<|eot_id|>{{ end }}{{ if .Prompt }}"
        "<|start_header_id|>user<|end_header_id|>\n\n{{ .Prompt }}<|eot_id|>{{ end }}"
        "<|start_header_id|>assistant<|end_header_id|>\n\n{{ .Response }}<|eot_id|>",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|begin_of_text|>",
    ),
    Family(
        "Gemma",
        "<start_of_turn>user\n{{ if .System }}{{ .System }}\n\n{{ end }}{{ .Prompt }}<end_of_turn>\n"
        "<start_of_turn>model\n{{ .Response }}<end_of_turn>\n",
        ("<start_of_turn>", "<end_of_turn>"),
        "<bos>",
    ),
)


def family_of(
    tokenizer: Any, chats: Sequence[Chat] = (), chat_template_kwargs: Mapping[str, Any] | None = None
) -> Family | None:
    """Return the family whose template writes exactly what the tokenizer's does, or None.

    Compared are a made-up turn with a system prompt, and some of `chats`. Without a system prompt a template may put in a
    default one; then it is of a family only if all of `chats` have their own.
    """
    made_up = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]
    how = chat_template_kwargs or {}
    probes = [*chats[:_PROBES], made_up] if chats else [made_up, made_up[1:]]
    return next((family for family in FAMILIES if all(_is_same(family, tokenizer, chat, how) for chat in probes)), None)


def _is_same(family: Family, tokenizer: Any, chat: Chat, how: Mapping[str, Any]) -> bool:
    try:
        rendered = tokenizer.apply_chat_template(list(chat), add_generation_prompt=True, tokenize=False, **how)
        return rendered.removeprefix(family.begins_with) == render_chat(family.template, chat)
    except (TemplateError, ValueError):  # the tokenizer's template refuses the probe, or the chat is no series of turns
        return False


def render_chat(template: str, chat: Chat) -> str:
    """Render a chat that ends with a question, turn by turn, as Ollama does with a template of one turn.

    Raises:
        ValueError: The messages are not system, user, assistant, ..., user.
    """
    system = chat[0]["content"] if chat[0]["role"] == "system" else ""
    turns = list(chat)[1:] if system else list(chat)
    if [m["role"] for m in turns] != [("user", "assistant")[i % 2] for i in range(len(turns))] or len(turns) % 2 == 0:
        raise ValueError("the messages are not a system prompt, if any, and turns that end with the user's.")
    output = ""
    for question, answer in zip(turns[::2], [*turns[1::2], None], strict=True):
        output += render(template, {"System": system, "Prompt": question["content"]}, answer and answer["content"])
        system = ""
    return output


def render(template: str, values: Mapping[str, str], answer: str | None = None) -> str:
    """Render one turn of a Go template; without an answer only up to `.Response`, where Ollama hands over to the model.

    What these templates use of Go's language, and nothing else of it: `{{ .Name }}`, `{{ if .Name }}`, `{{ end }}`; they mean
    what `{{ Name }}`, `{% if Name %}`, `{% endif %}` mean to jinja2.

    Raises:
        TemplateError: Anything else in it.

    >>> render("{{ if .System }}[{{ .System }}]{{ end }}{{ .Prompt }}>{{ .Response }}<", {"System": "", "Prompt": "hi"})
    'hi>'
    """
    text = template if answer is not None else template.partition("{{ .Response }}")[0]
    text = re.sub(r"\{\{ if \.(\w+) \}\}", r"{% if \1 %}", text)
    text = text.replace("{{ end }}", "{% endif %}").replace("{{ .", "{{ ")
    made = Environment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(text)
    return made.render(values, Response=answer)


def modelfile(
    file_name: str,
    tokenizer: Any,
    chats: Sequence[Chat],
    *,
    context: int,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """The Modelfile for a GGUF file that lies beside it.

    Args:
        file_name: Of the GGUF.
        tokenizer: Of the merged model.
        chats: The task's prompts: where all have the same system prompt and one question, it becomes SYSTEM.
        context: Tokens of prompt and answer together.
        chat_template_kwargs: What the chat template was given beside the messages.
    """
    family = family_of(tokenizer, chats, chat_template_kwargs)
    lines = [f"FROM ./{file_name}", ""]
    if family is None:
        lines += [
            "# No TEMPLATE: this model's chat template is of no family that the kit can write in Go's language. Ollama 0.30",
            "# and later run the one inside the file, unless they take it for one they know; older ones may run none.",
        ]
        if chat_template_kwargs:
            lines += [f"# In training it was given {dict(chat_template_kwargs)}."]
        stops = [tokenizer.eos_token]
    else:
        lines += [f"# {family.name}, compared with the tokenizer's own.", f"TEMPLATE {_quoted(family.template)}"]
        stops = list(dict.fromkeys([*family.stops, tokenizer.eos_token]))
    lines += [
        *_beginning(chats),
        "",
        *(f'PARAMETER stop "{stop}"' for stop in stops),
        f"PARAMETER num_ctx {max(context, _CONTEXT)}",
        "# The likeliest answer each time, as on the held-out questions. Unless it is told not to, Ollama before 0.32.10 makes",
        "# words that were there before less likely.",
        "PARAMETER temperature 0",
        "PARAMETER repeat_penalty 1",
    ]
    return "\n".join(lines) + "\n"


def _beginning(chats: Sequence[Chat]) -> list[str]:
    """SYSTEM and MESSAGE lines: the system prompt and the example turns that every prompt has in common."""
    systems = {chat[0]["content"] if chat[0]["role"] == "system" else None for chat in chats}
    # Ollama puts MESSAGE before what comes with a question: without SYSTEM, example turns would stand before the system prompt.
    if len(systems) != 1:
        return []
    (system,) = systems
    if reason := _why_not_held(system or ""):
        return [
            "",
            f"# No SYSTEM: a Modelfile cannot hold the system prompt of the training, which has {reason}.",
            "# Send it with every question as the first message, of role system, and the example turns, if any, after it.",
        ]
    lines = []
    if system is not None:
        lines = ["", "# What the training's prompts began with.", f"SYSTEM {_quoted(system)}"]
    first, *others = ([m for m in chat if m["role"] != "system"][:-1] for chat in chats)
    if not first or any(turns != first for turns in others):
        return lines
    if reason := next(filter(None, (_why_not_held(m["content"]) for m in first)), ""):
        said = (
            f"# No MESSAGE: a Modelfile cannot hold the training's example turns, which have {reason}. Send them too."
        )
        return [*lines, "", said]
    turns = (f"MESSAGE {m['role']} {_quoted(m['content'])}" for m in first)
    return [*lines, "", "# The example turns of every prompt.", *turns]


def _why_not_held(text: str) -> str:
    """What in a text would not come back out of a Modelfile, in words; nothing if all of it would.

    Ollama drops every character that Go's `strconv.IsPrint` does not count as printable, which are those of Python's
    `isprintable`, but for line ends and tabs; and it has no way to write three double quotes inside a text.

    >>> _why_not_held("a\u00a0b")
    'U+00A0 (NO-BREAK SPACE)'
    """
    if '"""' in text:
        return 'three double quotes (""")'
    lost = next((c for c in text if not c.isprintable() and c not in "\t\n\r"), None)
    return "" if lost is None else f"U+{ord(lost):04X} ({unicodedata.name(lost, 'a control character')})"


def _quoted(text: str) -> str:
    """A Modelfile string over several lines, of a text that it can hold."""
    return f'"""{text}"""'
