"""The cases of the reward for code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Case:
    """A completion, the tests of its row, and the score that it must get."""

    kind: str
    completion: str
    tests: Any
    score: float


_ADD = [{"call": "add", "args": [1, 2], "expected": 3}, {"call": "add", "args": [-1, 1], "expected": 0}]


CASES = (
    Case("valid", "<reasoning>r</reasoning>\n<answer>\ndef add(a, b):\n    return a + b\n</answer>", _ADD, 1.0),
    Case("valid, in a block", "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.", _ADD, 1.0),
    Case(
        "valid, a program",
        "<answer>print(sum(map(int, input().split())))</answer>",
        [{"stdin": "1 2\n", "stdout": "3\n"}],
        1.0,
    ),
    Case("invalid", "<answer>def add(a, b) return a + b</answer>", _ADD, 0.0),
    Case("wrong", "<answer>def add(a, b): return a - b</answer>", _ADD, 0.0),
    Case("mixed: half of the tests", "<answer>def add(a, b): return 3</answer>", _ADD, 0.5),
    Case(
        "mixed: right, then retracted",
        "<answer>def add(a, b): return a + b</answer> no: <answer>pass</answer>",
        _ADD,
        0.0,
    ),
    Case("empty", "", _ADD, 0.0),
    Case("empty slot", "<answer></answer>", _ADD, 0.0),
    Case("unicode", "<answer>def größe(text): return text[::-1]</answer>", ["assert größe('añ🎈') == '🎈ña'"], 1.0),
    Case("lone surrogate and NUL", "<answer>def add(a, b): return '\ud800\0'</answer>", _ADD, 0.0),
    Case("hostile: ends with code 0", "<answer>import sys; sys.exit(0)</answer>", _ADD, 0.0),
    Case(
        "hostile: equal to everything",
        "<answer>class Yes:\n    def __eq__(self, other): return True\ndef add(a, b): return Yes()</answer>",
        _ADD,
        0.0,
    ),
    Case("hostile: endless", "<answer>def add(a, b):\n    while True: pass</answer>", _ADD, 0.0),
    Case("very long", "<answer>\ndef add(a, b): return a + b\n" + "# padding\n" * 20_000 + "</answer>", _ADD, 1.0),
    Case("very long, no code", "word " * 40_000, _ADD, 0.0),
    Case("prefilled tag", "thinking</reasoning>\n<answer>\ndef add(a, b): return a + b\n</answer>", _ADD, 1.0),
    Case("unclosed block", "```python\ndef add(a, b):\n    return a + b", _ADD, 0.0),
)
"""What the reward pays for what; the tests and the notebook both show it."""
