"""An episode as data: the messages of a model and of its tools."""

from collections.abc import Mapping, Sequence
from typing import Any


def last_word(turns: Sequence[Mapping[str, Any]]) -> str:
    """Return the last message of an episode, or an empty text if a tool wrote it: its result is no answer."""
    last = turns[-1] if turns else {}
    return ("" if last.get("role") == "tool" else last.get("content")) or ""


def transcript(turns: Sequence[Mapping[str, Any]]) -> str:
    """Return an episode as text: what the model said, its calls, and behind an arrow what came back.

    >>> called = {"function": {"name": "read", "arguments": {"place": "mill"}}}
    >>> transcript([{"role": "assistant", "content": "", "tool_calls": [called]}, {"role": "tool", "content": "7"}])
    'read(place=mill)\\n→ 7'
    """
    lines = []
    for turn in turns:
        said = str(turn.get("content") or "")
        lines += [f"→ {said}"] if turn.get("role") == "tool" else [said] * bool(said)
        for call in (one["function"] for one in turn.get("tool_calls") or ()):
            given = call["arguments"]
            if isinstance(given, Mapping):  # else the model wrote no names, and TRL has told it so
                given = ", ".join(f"{name}={value}" for name, value in given.items())
            lines.append(f"{call['name']}({given})")
    return "\n".join(lines)
