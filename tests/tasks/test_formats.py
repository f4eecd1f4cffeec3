"""Answer formats: what is extracted, what counts as complete, and what does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_nb.tasks import formats

GOOD = "<reasoning>\n3 + 4 = 7\n</reasoning>\n<answer>\n7\n</answer>"
ALL = [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes(), formats.bare()]


@pytest.mark.parametrize("format", ALL, ids=lambda f: f.name)
def test_what_is_rendered_is_exact_and_extracted(format: formats.AnswerFormat) -> None:
    text = format.render("because\nof this", "7")
    assert format.extract(text) == "7" == format.extract_last(text)
    assert format.is_exact(text) and format.completeness(text) == 1
    assert format.is_bare or format.tags[-1] in format.system_prompt()


@pytest.mark.parametrize(
    ("text", "answer", "complete", "exact"),
    [
        (GOOD, "7", 1.0, True),
        ("  \n" + GOOD + "\n  ", "7", 1.0, True),
        ("<reasoning>r</reasoning><answer>7</answer>", "7", 1.0, True),
        ("<reasoning>many\n\nlines</reasoning>\n\n<answer>7</answer>", "7", 1.0, True),
        (GOOD + " trailing", "7", 1.0, False),
        ("Sure! " + GOOD, "7", 1.0, False),
        ("<answer>7</answer>", "7", 0.5, False),
        (GOOD.removesuffix("</answer>"), None, 0.75, False),
        (GOOD + GOOD, None, 0.0, False),
        ("<answer>7</answer><answer>8</answer>", None, 0.0, False),
        ("<reasoning>r</reasoning><answer></answer>", None, 1.0, False),
        ("I would use <answer> and </answer> tags", "and", 0.5, False),
        ("</answer>7<answer>", None, 0.5, False),
        *((text, None, 0.0, False) for text in ("", "\x00\ud800 \u202e7", "<answer>" * 50_000)),
    ],
)
def test_xml(text: str, answer: str | None, complete: float, exact: bool) -> None:
    format = formats.xml()
    assert (format.extract(text), format.completeness(text), format.is_exact(text)) == (answer, complete, exact)


@pytest.mark.parametrize(
    ("format", "text", "extracted", "last"),
    [
        # Nothing may take an answer back.
        (formats.xml(), GOOD + ".\n", "7", "7"), (formats.xml(), GOOD + " No, 8.", "7", None),
        (formats.xml(), GOOD + "\nwait", "7", None), (formats.hashes(), "#### 7\nNo, 8", "7", None),
        (formats.boxed(), r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}", r"\frac{1}{2}"),
        (formats.boxed(), r"\boxed{1} or \boxed{2}", None, None), (formats.boxed(), r"\boxed{1", None, None),
        (formats.bare(), " 7\n", "7", "7"), (formats.bare(), "\n", None, None),
    ],
)  # fmt: skip
def test_the_answer_and_the_last_word(format: formats.AnswerFormat, text: str, extracted: str, last: str) -> None:
    assert (format.extract(text), format.extract_last(text)) == (extracted, last)


def test_a_template_that_opens_the_tag() -> None:
    class Opens:
        def apply_chat_template(self, *args: object, **kwargs: object) -> str:
            return "<|im_start|>assistant\n<think>\n"

    opened = formats.think_answer().for_template(Opens())
    rest = "short</think><answer>7</answer>"
    assert opened.is_exact(rest) and opened.completeness(rest) == 1
    assert not formats.think_answer().is_exact(rest)
    assert not formats.xml().for_template(Opens()).is_opened_by_template


def test_a_bare_completion_is_its_answer() -> None:
    bare = formats.bare()
    assert bare.render("3 + 4 = 7", "7") == "7" and not bare.is_exact(" ") and bare.completeness("") == 0
    assert (bare.tags, bare.tag_spans("7"), bare.reasoning("7")) == ((), [], "")


@pytest.mark.parametrize(
    ("marks", "told"),
    [
        ({"answer_open": "\n"}, "answer_open"),  # of a mark of white space, every completion was an error
        ({"answer_close": "</answer>"}, "answer_open"),
        ({"reasoning_open": "<r>", "reasoning_close": "</r>"}, "answer_open"),
        ({"answer_open": "#", "reasoning_open": "<r>"}, "belong together"),
    ],
)
def test_marks_that_cannot_be(marks: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        formats.AnswerFormat(name="none", **marks)


PIECES = st.sampled_from([*"<>/a7 \n{}\\", "<answer>", "</answer>", "<reasoning>", "</reasoning>", "#### ", "\\boxed{"])


@given(st.lists(PIECES, max_size=12).map("".join))
def test_never_raises_and_exact_implies_the_rest(text: str) -> None:
    for format in ALL:
        assert 0 <= format.completeness(text) <= 1
        if format.is_exact(text):
            assert format.completeness(text) == 1 and format.extract(text)
