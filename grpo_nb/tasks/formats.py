"""The answer format: its tags, the prompt that asks for it, and how answers are found and rated.

Data, rewards and evaluation share one object, so that the prompt, the scores and the measurements
always agree. An answer may have several lines, and white space around it. A chat template may write
the first tag itself.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.tasks.markup import BALANCED_TEXT

# Characters that may follow an answer without changing it: white space, a full stop, and closing
# marks of Markdown and LaTeX.
_MAY_FOLLOW_ANSWER = " \t\r\n.$*_`\\)]}"


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
    r"""The places of the reasoning and the answer in a completion.

    The place of the answer, between `answer_open` and `answer_close`, is called the slot. If the
    chat template writes `reasoning_open`, the tag belongs to the prompt and not to the completion.

    Args:
        name: Name of the format in tables.
        reasoning_open, reasoning_close: Tags around the reasoning; the second may be empty. Both
            are empty if the reasoning is free text before the answer.
        answer_open, answer_close: Tags around the answer. An empty close means the end of the
            line; without any tag the whole completion is the answer.
        instruction: Text of the system prompt; made from the tags and the hint if empty.
        answer_hint: Text in place of the answer in the system prompt, such as "number" or
            "one of: yes, no"; made from the data if empty.
        is_opened_by_template: True if the chat template already wrote `reasoning_open`, so that a
            completion must not repeat it.

    Raises:
        ValueError: A tag that is white space; two equal tags; an `answer_open` that is inside
            another tag, or empty next to other tags; a `reasoning_close` or `is_opened_by_template`
            without a `reasoning_open`.

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
        other_tags = (self.answer_close, self.reasoning_open, self.reasoning_close)
        tags = (self.answer_open, *other_tags)
        # Without any tag, the whole completion is the answer, as in `bare()`.
        if any(tags) and not self.answer_open.strip():
            raise ValueError(
                f"answer_open = {self.answer_open!r}: without a tag before it, no answer can be "
                "found."
            )
        if (self.reasoning_close or self.is_opened_by_template) and not self.reasoning_open:
            raise ValueError(
                "reasoning_close and is_opened_by_template need a reasoning_open. If the chat "
                "template writes that tag, name it and write is_opened_by_template=True."
            )
        for tag in filter(None, other_tags):
            if tag.isspace() or self.answer_open in tag or tags.count(tag) > 1:
                raise ValueError(
                    f"the tag {tag!r} must not be white space, equal another tag or contain "
                    f"answer_open = {self.answer_open!r}, because a complete completion has each "
                    "tag exactly once: write tags that differ, such as <answer> and </answer>."
                )

    @property
    def is_bare(self) -> bool:
        """True if the whole completion is the answer."""
        return not self.answer_open

    @property
    def _opening(self) -> str:
        """Tag that a completion begins with; empty if the chat template has written it."""
        return "" if self.is_opened_by_template else self.reasoning_open

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that a complete completion has exactly once, in their order."""
        tags = (self._opening, self.reasoning_close, self.answer_open, self.answer_close)
        return tuple(filter(None, tags))

    def system_prompt(self) -> str:
        """Return the instruction for the model."""
        if self.instruction:
            return self.instruction
        request = "Reply with nothing but the answer:" if self.is_bare else "Answer in this format:"
        layout = self.render("short reasoning", self.answer_hint or "answer")
        return f"{request}\n{layout}"

    def render(self, reasoning: str, answer: str) -> str:
        """Return reasoning and answer with all tags; a bare format leaves the reasoning out."""
        if self.is_bare:
            return answer
        if not self.reasoning_open:
            return f"{reasoning}\n{self.answer_open}{answer}{self.answer_close}"
        return (
            f"{self.reasoning_open}\n{reasoning}\n{self.reasoning_close}\n"
            f"{self.answer_open}\n{answer}\n{self.answer_close}"
        )

    def render_completion(self, reasoning: str, answer: str) -> str:
        """Return `render` without the opening tag if the chat template has written it already."""
        text = self.render(reasoning, answer)
        if self.is_opened_by_template:
            text = text.removeprefix(self.reasoning_open).lstrip("\n")
        return text

    def extract(self, text: str) -> str | None:
        """Return the stripped content of the slot; None for no slot, an empty one or several."""
        slot = self._find_slot(text)
        return slot[1].strip() if slot else None

    def extract_final(self, text: str) -> str | None:
        r"""Return the answer as `extract` does, but only if the completion ends with it.

        Text after the answer can take it back ("no, 41"), in any language. White space, a full stop
        and the closing marks of Markdown and LaTeX may follow, as in `$\boxed{7}$.`

        >>> xml().extract_final("<answer>7</answer>")
        '7'
        >>> xml().extract_final("<answer>7</answer> No, 8.") is None
        True
        """
        slot = self._find_slot(text)
        is_final = slot is not None and not text[slot.end() :].strip(_MAY_FOLLOW_ANSWER)
        return slot[1].strip() if is_final else None

    def completeness(self, text: str) -> float:
        """Return the share of `tags` that occur exactly once, 0.0 to 1.0.

        This share is partial credit for a format that is half learned. A bare format has no tags:
        any text that is not empty gets 1.0.
        """
        if not self.tags:
            return float(bool(text.strip()))
        spans = self.tag_spans(text)
        return sum(span is not None for span in spans) / len(spans)

    def tag_spans(self, text: str) -> list[tuple[int, int] | None]:
        r"""Return the (start, end) of each of `tags`; None for a tag that is missing or repeated.

        A closing tag that is a brace is the brace that matches the opening one.

        >>> boxed().tag_spans(r"\boxed{\frac{1}{2}}.")
        [(0, 7), (18, 19)]
        """
        # Longer tags come first, so that `**Answer:` is found as one tag even where `**` is a tag.
        longest_first = sorted(self.tags, key=len, reverse=True)
        matches = list(re.finditer("|".join(map(re.escape, longest_first)), text))
        span_of = {}
        for tag in self.tags:
            spans = [match.span() for match in matches if match[0] == tag]
            span_of[tag] = spans[0] if len(spans) == 1 else None
        # Braces may occur elsewhere, so the closing one is that at the end of the slot.
        if self.answer_close == "}":
            slot = self._slot_pattern.search(text) if span_of[self.answer_open] else None
            span_of["}"] = (slot.end() - 1, slot.end()) if slot else None
        return list(span_of.values())

    def extract_reasoning(self, text: str) -> str:
        """Return the text between the tags of the reasoning, or before the answer.

        Without any of these tags, all of the text is reasoning.

        >>> xml().extract_reasoning("<reasoning> 3 + 4 = 7 </reasoning><answer>7</answer>")
        '3 + 4 = 7'
        >>> bare().extract_reasoning("7")
        ''
        """
        if self.is_bare:
            return ""
        # A model may forget any of these tags, so only those in the text are used.
        if self._opening:
            text = text.split(self._opening, 1)[-1]
        for end in (self.reasoning_close, self.answer_open):
            if end and end in text:
                return text.split(end, 1)[0].strip()
        return text.strip()

    def is_exact(self, text: str) -> bool:
        """Return True if the text is in the format, with only white space around its parts."""
        slot = self._find_slot(text)
        if slot is None or self.completeness(text) < 1 or text[slot.end() :].strip():
            return False
        before = text[: slot.start()].strip()
        is_enclosed = before.startswith(self._opening) and before.endswith(self.reasoning_close)
        # A completion must not repeat the tag that the chat template has written.
        is_repeated = self.is_opened_by_template and self.reasoning_open in text
        return is_enclosed and not is_repeated

    @functools.cached_property
    def _slot_pattern(self) -> re.Pattern[str]:
        """Pattern of the slot with its tags; the answer is the group."""
        if self.is_bare:
            content = ".*"
        elif self.answer_close == "}":
            # Braces in the answer come in pairs.
            content = BALANCED_TEXT
        elif self.answer_close == "":
            # The answer ends with its line, which may begin below the tag.
            content = r"\s*[^\n]*"
        else:
            # The answer is as short as possible.
            content = ".*?"
        opening = re.escape(self.answer_open)
        closing = re.escape(self.answer_close)
        return re.compile(f"{opening}({content}){closing}", re.DOTALL)

    def _find_slot(self, text: str) -> re.Match[str] | None:
        """Return the answer slot; None if there is no slot, an empty one or several."""
        if not self.is_bare and text.count(self.answer_open) != 1:
            return None
        slot = self._slot_pattern.search(text)
        if slot is None or not slot[1].strip():
            return None
        # Text after the answer may have braces of its own, but no second closing tag.
        has_closing_tag = self.answer_close not in ("", "}")
        is_closed_again = has_closing_tag and self.answer_close in text[slot.end() :]
        return None if is_closed_again else slot

    def for_template(self, tokenizer: Any, chat_template_kwargs: Mapping[str, Any]) -> AnswerFormat:
        """Return this format with `is_opened_by_template` set for the chat template.

        It is True if the generation prompt ends with the tag that opens the reasoning.
        """
        # Any question will do, because only the end of the rendered prompt is read.
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": "?"}],
            tokenize=False,
            add_generation_prompt=True,
            **chat_template_kwargs,
        )
        tag = self.reasoning_open.rstrip()  # white space may end a tag
        is_opened = tag != "" and rendered.rstrip().endswith(tag)
        return dataclasses.replace(self, is_opened_by_template=is_opened)


def xml() -> AnswerFormat:
    """Return the format of most GRPO tutorials, `<reasoning>` and `<answer>`.

    It is easy for a small model. For a model that already reasons in `<think>`, take
    `think_answer()`, which has the same layout.
    """
    return AnswerFormat(
        name="xml",
        reasoning_open="<reasoning>",
        reasoning_close="</reasoning>",
        answer_open="<answer>",
        answer_close="</answer>",
    )


def think_answer() -> AnswerFormat:
    """Return the format `<think>` and `<answer>`, as in DeepSeek-R1 (arXiv:2501.12948).

    Some chat templates open `<think>` themselves, which `load_task` finds out with `tokenizer=`.
    """
    return AnswerFormat(
        name="think",
        reasoning_open="<think>",
        reasoning_close="</think>",
        answer_open="<answer>",
        answer_close="</answer>",
    )


def boxed() -> AnswerFormat:
    r"""Return the format of MATH (arXiv:2103.03874): free reasoning, then `\boxed{}`."""
    return AnswerFormat(name="boxed", answer_open="\\boxed{", answer_close="}")


def hashes() -> AnswerFormat:
    """Return the format of GSM8K (arXiv:2110.14168): free reasoning, then `#### 42`."""
    return AnswerFormat(name="hashes", answer_open="#### ")


def bare() -> AnswerFormat:
    """Return the format without reasoning or tags: the whole completion is the answer."""
    return AnswerFormat(name="bare")
