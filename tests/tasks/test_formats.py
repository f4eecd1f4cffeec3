"""Answer formats: what is extracted, what counts as complete, and what does not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_nb.tasks import formats
from tests.tasks.test_answers import WRITTEN

ALL = [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes(), formats.bare()]


@pytest.mark.parametrize("format", ALL, ids=lambda f: f.name)
def test_render_gives_exact_text_that_is_extracted(format: formats.AnswerFormat) -> None:
    text = format.render("because\nof this", "7")
    assert format.extract(text) == "7"
    assert format.extract_final(text) == "7"
    assert format.is_exact(text)
    assert format.completeness(text) == 1
    assert format.is_bare or format.tags[-1] in format.system_prompt()


ENDLESS = ["<answer>" * 50_000, None, 0.0, False]
CASES = [*WRITTEN["xml: text, answer, completeness, exact"], ENDLESS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case[0][:50]))
def test_xml(case: list) -> None:
    text, *expected = case
    format = formats.xml()
    assert [format.extract(text), format.completeness(text), format.is_exact(text)] == expected


@pytest.mark.parametrize(
    ("name", "text", "answer", "last"), WRITTEN["last word: format, text, answer, last word"]
)
def test_nothing_may_take_an_answer_back(
    name: str, text: str, answer: str | None, last: str | None
) -> None:
    format = getattr(formats, name)()
    assert (format.extract(text), format.extract_final(text)) == (answer, last)


def test_format_of_template_that_opens_the_tag() -> None:
    class Opens:
        def apply_chat_template(self, *args: object, **kwargs: object) -> str:
            return "<|im_start|>assistant\n<think>\n"

    opened = formats.think_answer().for_template(Opens(), {})
    rest = "short</think><answer>7</answer>"
    assert opened.is_exact(rest)
    assert opened.completeness(rest) == 1
    assert not formats.think_answer().is_exact(rest)
    assert not formats.xml().for_template(Opens(), {}).is_opened_by_template
    with_line_break = formats.AnswerFormat(
        name="own", reasoning_open="<think>\n", reasoning_close="</think>", answer_open="Answer:"
    )
    assert with_line_break.for_template(Opens(), {}).is_opened_by_template


PIECES = st.sampled_from(
    [*"<>/a7 \n{}\\", "<answer>", "</answer>", "<reasoning>", "</reasoning>", "#### ", "\\boxed{"]
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_never_raises_and_exact_implies_the_rest(text: str) -> None:
    for format in ALL:
        assert 0 <= format.completeness(text) <= 1
        if format.is_exact(text):
            assert format.completeness(text) == 1
            assert format.extract(text)


@pytest.mark.parametrize(("answer_open", "answer_close"), [("$", "$"), ("ans", "/ans")])
def test_opening_mark_inside_another_is_refused(answer_open: str, answer_close: str) -> None:
    with pytest.raises(ValueError, match="because a complete completion has each tag exactly once"):
        formats.AnswerFormat(name="d", answer_open=answer_open, answer_close=answer_close)


@pytest.mark.parametrize(
    "marks",
    [
        {"answer_open": "**Answer: ", "answer_close": "**"},
        {
            "reasoning_open": r"\begin{think}",
            "reasoning_close": r"\end{think}",
            "answer_open": r"\boxed{",
            "answer_close": "}",
        },
    ],
)
def test_other_mark_inside_another_is_read(marks: dict[str, str]) -> None:
    format = formats.AnswerFormat(name="own", **marks)
    completion = format.render_completion("3 + 4", "7")
    assert format.extract_final(completion) == "7"
    assert format.completeness(completion) == 1
    assert format.is_exact(completion)
    assert format.completeness(completion + completion) == 0


def test_equal_tags_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tag '---' must .* equal another tag .* exactly once"):
        formats.AnswerFormat(
            name="lines", reasoning_open="---", reasoning_close="---", answer_open="Answer: "
        )


@pytest.mark.parametrize(
    "tags", [{"answer_close": "\n"}, {"reasoning_open": "Think:", "reasoning_close": "\n"}]
)
def test_tag_of_white_space_is_refused(tags: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"the tag '\\n' must not be white space"):
        formats.AnswerFormat(name="lines", answer_open="Answer:", **tags)


@pytest.mark.parametrize(
    "option", [{"reasoning_close": "</think>"}, {"is_opened_by_template": True}]
)
def test_option_of_reasoning_without_its_tag_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="need a reasoning_open"):
        formats.AnswerFormat(name="think", answer_open="####", **option)
