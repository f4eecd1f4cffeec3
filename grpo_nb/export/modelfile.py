"""An Ollama Modelfile for an exported GGUF: where answers end, the task's system prompt and example turns.

There is no TEMPLATE in it: Ollama 0.30 (May 2026) and later run the chat template inside the file, or their own version of one
that is nearly the same; older ones may pass the prompt on bare.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def modelfile(
    file_name: str, tokenizer: Any, chats: Sequence[Sequence[Mapping[str, str]]], *, context: int
) -> str:
    """The Modelfile for a GGUF file that lies beside it.

    Args:
        file_name: Of the GGUF.
        tokenizer: Of the merged model.
        chats: The task's prompts: what all of them begin with becomes SYSTEM and MESSAGE.
        context: Tokens of prompt and answer together.
    """
    lines = [f"FROM ./{file_name}", *_beginning(chats)]
    if tokenizer.eos_token:
        lines += [f'PARAMETER stop "{tokenizer.eos_token}"']
    # 4096 is Ollama's own default, below which nobody wants to chat. The likeliest answer each time, as on the held-out
    # questions; before 0.32.10 Ollama made repeated words less likely.
    lines += [
        f"PARAMETER num_ctx {max(context, 4096)}",
        "PARAMETER temperature 0",
        "PARAMETER repeat_penalty 1",
    ]
    return "\n".join(lines) + "\n"


def _beginning(chats: Sequence[Sequence[Mapping[str, str]]]) -> list[str]:
    """The system prompt and the example turns that every prompt has in common; of other turns the system prompt alone."""
    shared = list(chats[0][:-1])
    if any(list(chat[:-1]) != shared for chat in chats):
        shared = [message for message in shared[:1] if message["role"] == "system"]
        if any(list(chat[:1]) != shared for chat in chats):
            return []
    if any(
        '"""' in message["content"] for message in shared
    ):  # the one thing that a Modelfile has no way to write
        return [
            '# No SYSTEM: the training\'s prompts hold """. Send what they begin with, with every question.'
        ]
    lines = []
    for message in shared:
        instruction = "SYSTEM" if message["role"] == "system" else f"MESSAGE {message['role']}"
        lines.append(f'{instruction} """{message["content"]}"""')
    return lines
