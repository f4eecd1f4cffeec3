"""Answer formats: what is extracted, what counts as complete, and what does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_nb.tasks import formats

XML = formats.xml()
GOOD = "<reasoning>\n3 + 4 = 7\n</reasoning>\n<answer>\n7\n</answer>"
ALL = [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes(), formats.bare()]


@pytest.mark.parametrize("format", ALL, ids=lambda f: f.name)
def test_what_is_rendered_is_exact_and_extracted(format: formats.AnswerFormat) -> None:
    text = format.render("because\nof this", "7")
    assert format.extract(text) == "7"
    assert format.is_exact(text)
    assert format.completeness(text) == 1
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
        ("", None, 0.0, False),
        ("I would use <answer> and </answer> tags", "and", 0.5, False),
        ("</answer>7<answer>", None, 0.5, False),
        ("\x00\ud800 \u202e7", None, 0.0, False),
        ("<answer>" * 50_000, None, 0.0, False),
    ],
)
def test_xml(text: str, answer: str | None, complete: float, exact: bool) -> None:
    assert XML.extract(text) == answer
    assert XML.completeness(text) == complete
    assert XML.is_exact(text) is exact


@pytest.mark.parametrize(
    ("text", "answer"),
    [(GOOD + ".\n", "7"), (GOOD + " No, 8.", None), (GOOD + "\nwait", None), ("#### 7\nNo, 8", None)],
)
def test_nothing_may_take_an_answer_back(text: str, answer: str | None) -> None:
    format = formats.hashes() if text.startswith("#") else XML
    assert format.extract(text) == "7" and format.extract_last(text) == answer


def test_boxed_takes_nested_braces() -> None:
    assert formats.boxed().extract(r"so \boxed{\frac{1}{2}}.") == r"\frac{1}{2}"
    assert formats.boxed().extract(r"\boxed{1} or \boxed{2}") is None
    assert formats.boxed().extract(r"\boxed{1") is None


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
    assert bare.render("3 + 4 = 7", "7") == "7" == bare.extract(" 7\n") == bare.extract_last("7")
    assert bare.extract("\n") is None and not bare.is_exact(" ") and bare.completeness("") == 0
    assert (bare.tags, bare.tag_spans("7"), bare.reasoning("7")) == ((), [], "")


@pytest.mark.parametrize(
    "marks",
    [{"answer_open": "\n"}, {"answer_close": "</answer>"}, {"reasoning_open": "<r>", "reasoning_close": "</r>"}],
)
def test_an_answer_needs_a_mark_that_can_be_seen(marks: dict[str, str]) -> None:
    """Of a mark of white space, every completion was an error."""
    with pytest.raises(ValueError, match="answer_open"):
        formats.AnswerFormat(name="none", **marks)
    with pytest.raises(ValueError, match="belong together"):
        formats.AnswerFormat(name="half", answer_open="#", reasoning_open="<r>")


PIECES = st.sampled_from([*"<>/a7 \n{}\\", "<answer>", "</answer>", "<reasoning>", "</reasoning>", "#### ", "\\boxed{"])


@given(st.lists(PIECES, max_size=12).map("".join))
def test_never_raises_and_exact_implies_the_rest(text: str) -> None:
    for format in ALL:
        assert 0 <= format.completeness(text) <= 1
        if format.is_exact(text):
            assert format.completeness(text) == 1 and format.extract(text)
