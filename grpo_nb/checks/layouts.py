"""The ways in which reasoning and answer are written: those of the task's format, and those that other prompts ask for.

A reward reads one of them, and everything else about it is tried in that one.
"""

import re
from dataclasses import dataclass

from grpo_nb.tasks.formats import AnswerFormat

PLAIN = "I work through it step by step and then check what I found."
LINES = "I work through it\nstep by step and then\ncheck what I found."
SLOT_ONLY = "the slot and nothing else"
# Private letters that stand where the reasoning and the answer go; in what follows here, R and X.
_REASONING, _ANSWER = "\ue000", "\ue001"
_OTHERS = {
    "the whole completion": "X",
    "a code fence and nothing else": "```\nX\n```",
    "<think>...</think> and <answer>X</answer>": "<think>R</think>\n<answer>X</answer>",
    "<think> and <answer> with line breaks": "<think>\nR\n</think>\n<answer>\nX\n</answer>",
    "<reasoning> and <answer> with line breaks": "<reasoning>\nR\n</reasoning>\n<answer>\nX\n</answer>",
    "<think> and then \\boxed{X}": "<think>\nR\n</think>\n\\boxed{X}",
    "<answer>X</answer>": "R\n<answer>X</answer>",
    "#### X": "R\n#### X",
    "\\boxed{X}": "R\n\\boxed{X}",
    "Answer: X": "R\nAnswer: X",
    "**X**": "R\nIt is **X**",
    '{"answer": "X"}': '{"answer": "X"}',
    '{"answer": X}': '{"answer": X}',
}


@dataclass(frozen=True)
class Layout:
    """One way to write a completion."""

    name: str
    """As a finding says it."""
    template: str
    tags: tuple[str, ...] = ()
    is_own: bool = False
    """One of the task's own format."""

    def write(self, reasoning: str, answer: str) -> str:
        """Return a completion."""
        return self.template.replace(_REASONING, reasoning).replace(_ANSWER, answer)


def completion(format: AnswerFormat, reasoning: str, answer: str) -> str:
    """Return a completion in the format, without the tag that the chat template has opened already."""
    text = format.render(reasoning, answer)
    return text.removeprefix(format.reasoning_open).lstrip("\n") if format.is_opened_by_template else text


def layouts_of(format: AnswerFormat) -> list[Layout]:
    """The layouts of a format, as the prompt shows it first and those with other line breaks next, then those of others."""
    shown = completion(format, _REASONING, _ANSWER)
    slot = f"{format.answer_open}{_ANSWER}{format.answer_close}"
    own = {"as the prompt shows it": shown, "with a newline at the end": f"{shown}\n"}
    if format.reasoning_open:
        opening = "" if format.is_opened_by_template else format.reasoning_open
        reasoning = f"{opening}{_REASONING}{format.reasoning_close}"
        own |= {"each part on one line": f"{reasoning}\n{slot}", "all on one line": f"{reasoning}{slot}"}
    letters = str.maketrans({"R": _REASONING, "X": _ANSWER})
    others = {name: template.translate(letters) for name, template in _OTHERS.items()} | {SLOT_ONLY: slot}
    layouts = [Layout(name, template, format.tags, is_own=True) for name, template in own.items()]
    for name, template in others.items():
        if template not in own.values():
            marks = re.findall(r"</?\w+>|\\boxed{|####|Answer:|\*\*|\"answer\"", template)
            layouts.append(Layout(name, template, tuple(dict.fromkeys(marks))))
    return layouts
