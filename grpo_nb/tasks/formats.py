"""The answer format: one object that knows the tags, writes the prompt, finds the answer and says how complete it is.

Data, rewards and evaluation share it, so that what the model is told, what it is paid for and what is measured can never
drift apart. Multi-line safe, tolerant of white space, and aware of chat templates that open the first tag themselves.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.chat import require_tokenizer

# What may follow an answer without changing it: white space, a full stop, closing Markdown and LaTeX.
_CLOSING = " \t\r\n.$*_`\\)]}"
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
    r"""Where the reasoning and the answer of a completion stand.

    Args:
        name: Shown in tables.
        reasoning_open, reasoning_close: Tags around the reasoning; both empty if it is free text before the answer.
        answer_open, answer_close: Marks around the answer. An empty close means the end of the line; without any mark the
            whole completion is the answer.
        instruction: What the system prompt says; made from the tags and the hint when empty.
        answer_hint: What the system prompt has in place of the answer: "number", "one of: yes, no". From the data when empty.
        is_opened_by_template: The chat template already wrote `reasoning_open`, so a completion must not repeat it.

    Raises:
        ValueError: A mark of white space alone, or half of a pair.

    >>> xml().extract("<reasoning>\n3 + 4 = 7\n</reasoning>\n<answer>\n7\n</answer>")
    '7'
    """

    name: str
    reasoning_open: str = ""
    reasoning_close: str = ""
    answer_open: str = ""
    answer_close: str = ""
    instruction: str = ""
    answer_hint: str = ""
    is_opened_by_template: bool = False

    def __post_init__(self) -> None:
        marks = (self.answer_open, self.answer_close, self.reasoning_open, self.reasoning_close)
        if any(marks) and not self.answer_open.strip():
            raise ValueError(
                f"answer_open = {self.answer_open!r}: without a mark before it, no answer can be found."
            )
        if bool(self.reasoning_open) != bool(self.reasoning_close):
            raise ValueError(
                "reasoning_open and reasoning_close belong together: give both, or neither."
            )

    @property
    def is_bare(self) -> bool:
        """Whether the whole completion is the answer."""
        return not self.answer_open

    @property
    def tags(self) -> tuple[str, ...]:
        """The marks a complete completion holds, in order, each once."""
        opened = "" if self.is_opened_by_template else self.reasoning_open
        return tuple(
            tag
            for tag in (opened, self.reasoning_close, self.answer_open, self.answer_close)
            if tag.strip()
        )

    def system_prompt(self) -> str:
        """Return the instruction for the model."""
        hint = self.answer_hint or "answer"
        asked = "Reply with nothing but the answer:" if self.is_bare else "Answer in this format:"
        return self.instruction or f"{asked}\n{self.render('short reasoning', hint)}"

    def render(self, reasoning: str, answer: str) -> str:
        """Return a completion in this format, as for an example turn; a bare one without the reasoning."""
        if self.is_bare:
            return answer
        if not self.reasoning_open:
            return f"{reasoning}\n{self.answer_open}{answer}{self.answer_close}"
        parts = (
            self.reasoning_open,
            reasoning,
            self.reasoning_close,
            self.answer_open,
            answer,
            self.answer_close,
        )
        return "\n".join(parts)

    def extract(self, text: str) -> str | None:
        """Return the content of the one answer slot, stripped; None if there is no complete slot or more than one."""
        parts = self._parts(text)
        return parts[1] if parts else None

    def extract_last(self, text: str) -> str | None:
        r"""Return the answer as `extract` does, but only if it is the last word: nothing follows but closing marks.

        What comes after the answer can take it back ("no, 41"), in any language; so nothing may. White space, a full
        stop and the closing marks of Markdown and LaTeX may, as in `$\boxed{7}$.`

        >>> xml().extract_last("<answer>7</answer>"), xml().extract_last("<answer>7</answer> No, 8.")
        ('7', None)
        """
        parts = self._parts(text)
        return parts[1] if parts and not parts[2].strip().strip(_CLOSING) else None

    def completeness(self, text: str) -> float:
        """Return the share of `tags` that occur exactly once, 0.0 to 1.0: partial credit for a format half learnt.

        Of a bare format, which has none, 1.0 for whatever is not empty.
        """
        spans = self.tag_spans(text)
        return (
            sum(span is not None for span in spans) / len(spans)
            if spans
            else float(bool(text.strip()))
        )

    def tag_spans(self, text: str) -> list[tuple[int, int] | None]:
        r"""Return for each of `tags` where it stands, as (start, end); None if it is missing or there more than once.

        A closing brace is the one that matches, whatever braces the answer has in it.

        >>> boxed().tag_spans(r"\boxed{\frac{1}{2}}.")
        [(0, 7), (18, 19)]
        """
        spans: list[tuple[int, int] | None] = []
        for tag in self.tags:
            start = text.find(tag) if text.count(tag) == 1 else None
            if tag == "}" == self.answer_close:
                opened = spans[-1]
                start = None if opened is None else _matching_brace(text, opened[1])
            spans.append(None if start is None else (start, start + len(tag)))
        return spans

    def reasoning(self, text: str) -> str:
        """Return the text of the reasoning: between its tags, or before the answer; all of the text if neither is there.

        >>> xml().reasoning("<reasoning> 3 + 4 = 7 </reasoning><answer>7</answer>"), bare().reasoning("7")
        ('3 + 4 = 7', '')
        """
        if self.is_bare:
            return ""
        if self.reasoning_open and not self.is_opened_by_template:
            text = text.split(self.reasoning_open, 1)[-1]
        for end in (self.reasoning_close, self.answer_open):
            if end and end in text:
                return text.split(end, 1)[0].strip()
        return text.strip()

    def is_exact(self, text: str) -> bool:
        """Say whether the text is in the format and holds nothing before, between or after it but white space."""
        parts = self._parts(text)
        if parts is None or self.completeness(text) < 1 or parts[2].strip():
            return False
        if not self.reasoning_open:
            return True
        before, is_opened = parts[0].strip(), self.reasoning_open not in text
        if not self.is_opened_by_template:
            is_opened = before.startswith(self.reasoning_open)
        return is_opened and before.endswith(self.reasoning_close)

    def _parts(self, text: str) -> tuple[str, str, str] | None:
        """What stands before the one answer slot, in it (stripped, never empty), and after it."""
        if self.is_bare:
            return ("", text.strip(), "") if text.strip() else None
        if text.count(self.answer_open) != 1:
            return None
        before, rest = text.split(self.answer_open, 1)
        if not self.answer_close:
            content, _, after = rest.strip().partition("\n")
        elif self.answer_close == "}":
            end = _matching_brace(rest, 0)
            content, after = (rest[:end], rest[end + 1 :]) if end is not None else ("", "")
        else:
            content, *others = rest.split(self.answer_close)
            content, after = (content, others[0]) if len(others) == 1 else ("", "")
        return (before, content.strip(), after) if content.strip() else None

    def for_template(
        self, tokenizer: Any, chat_template_kwargs: Mapping[str, Any] | None = None
    ) -> AnswerFormat:
        """Return this format, marked as opened by the template if this tokenizer's generation prompt ends with the tag."""
        require_tokenizer(tokenizer, chat_template_kwargs)
        asked, how = [{"role": "user", "content": "?"}], chat_template_kwargs or {}
        rendered = tokenizer.apply_chat_template(
            asked, tokenize=False, add_generation_prompt=True, **how
        )
        is_opened = bool(self.reasoning_open) and rendered.rstrip().endswith(self.reasoning_open)
        return dataclasses.replace(self, is_opened_by_template=is_opened)


def _matching_brace(text: str, start: int) -> int | None:
    """Where the brace that was open before `start` is closed. An escaped brace (a set's) is not counted."""
    depth = 1
    for found in _BRACES.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.start()
    return None


def xml() -> AnswerFormat:
    """`<reasoning>` and `<answer>`: the format of most GRPO tutorials, and easy for a small model."""
    reasoning = {"reasoning_open": "<reasoning>", "reasoning_close": "</reasoning>"}
    return AnswerFormat(name="xml", **reasoning, answer_open="<answer>", answer_close="</answer>")


def think_answer() -> AnswerFormat:
    """`<think>` and `<answer>`, as in DeepSeek-R1 (arXiv:2501.12948). Some templates open `<think>` themselves."""
    return dataclasses.replace(
        xml(), name="think", reasoning_open="<think>", reasoning_close="</think>"
    )


def boxed() -> AnswerFormat:
    r"""Free reasoning, then `\boxed{}`, as in MATH (arXiv:2103.03874)."""
    return AnswerFormat(name="boxed", answer_open="\\boxed{", answer_close="}")


def hashes() -> AnswerFormat:
    """Free reasoning, then `#### 42`, as in GSM8K (arXiv:2110.14168)."""
    return AnswerFormat(name="hashes", answer_open="#### ")


def bare() -> AnswerFormat:
    """The whole completion is the answer, without reasoning or tags."""
    return AnswerFormat(name="bare")
