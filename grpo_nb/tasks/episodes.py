"""An episode as data: the messages of a model and the results of its tools.

A message is a dict with `role` and `content`, as in transformers.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def final_text(turns: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of an episode's last message; empty if that is a tool result."""
    if not turns or turns[-1].get("role") == "tool":
        return ""
    return turns[-1].get("content") or ""


def transcript(turns: Sequence[Mapping[str, Any]]) -> str:
    """Return an episode as text: the model's texts and calls, and tool results after an arrow.

    >>> call = {"function": {"name": "read", "arguments": {"place": "mill"}}}
    >>> turns = [{"role": "assistant", "content": "", "tool_calls": [call]},
    ...          {"role": "tool", "content": "7"}]
    >>> transcript(turns)
    'read(place=mill)\\n→ 7'
    """
    lines = []
    for turn in turns:
        content = str(turn.get("content") or "")
        if turn.get("role") == "tool":
            lines.append(f"→ {content}")
        elif content:
            lines.append(content)
        for tool_call in turn.get("tool_calls") or ():
            function = tool_call["function"]
            arguments = function["arguments"]
            # A model can write arguments without names. They are no dict then, and TRL has already
            # answered the model that the call failed.
            if isinstance(arguments, Mapping):
                arguments = ", ".join(f"{name}={value}" for name, value in arguments.items())
            lines.append(f"{function['name']}({arguments})")
    return "\n".join(lines)
