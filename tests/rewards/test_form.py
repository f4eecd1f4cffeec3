"""Rewards for form and length: no pay for what only looks the part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_nb.rewards.form import incremental_format, xml_format
from grpo_nb.rewards.length import length
from grpo_nb.tasks import formats

GOOD = "<reasoning>r</reasoning><answer>7</answer>"


def one(reward, text: str, **columns: object) -> float | None:
    return reward(completions=[text], **{key: [value] for key, value in columns.items()})[0]


def test_incremental_format_cannot_be_gamed() -> None:
    reward = incremental_format()
    assert one(reward, GOOD) == 1.0
    # Stopping always pays better than leaving the last tag out, however much follows.
    for trailing in (0, 10, 100, 1000, 100_000):
        assert one(reward, GOOD + "x" * trailing) > one(reward, GOOD.removesuffix("</answer>") + "x" * trailing)
    assert one(reward, GOOD + "x" * 50) == pytest.approx(0.95)
    assert one(reward, GOOD * 2) == 0.0
    assert one(reward, GOOD + "<answer>") < 1.0
    # Any order but the right one earns less than the right one.
    import itertools

    tags = formats.xml().tags
    best = [order for order in itertools.permutations(tags) if one(reward, "".join(order)) == 1.0]
    assert best == [tags]
    with pytest.raises(ValueError, match="penalty"):
        incremental_format(penalty=-1)


@pytest.mark.parametrize(
    "format", [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes()], ids=lambda f: f.name
)
def test_any_format(format: formats.AnswerFormat) -> None:
    text = format.render("many\nlines", r"\frac{1}{2}")
    for reward in (xml_format(format=format), incremental_format(format=format)):
        assert one(reward, text) == 1.0, reward
        has_no_end = reward.__name__ == "incremental_format" and not format.answer_close
        assert has_no_end or one(reward, text + "\nand more") < 1.0
        assert one(reward, "7") == 0.0


@pytest.mark.parametrize("text", [r"\boxed{7} is wrong }", "\\boxed{7}\n", r"\boxed{\{1,2\}}", "\\boxed{\n7\n}"])
def test_boxed_is_read_to_its_own_brace(text: str) -> None:
    assert one(xml_format(format=formats.boxed()), text) == float("wrong" not in text)


def test_units_of_length() -> None:
    reward = length(10)
    assert one(reward, "one two", completion_ids=[1] * 5) == 0.5
    assert one(reward, "one two") == 0.2  # no ids: words
    assert one(length(10, unit="characters"), "12345", completion_ids=[1] * 9) == 0.5
    assert one(length(10, unit="words"), "a b c d e", completion_ids=[1] * 9) == 0.5
    with pytest.raises(ValueError, match="unit"):
        length(10, unit="lines")


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 300))
def test_a_length_is_best_inside_and_falls_outside(low: int, more: int, count: int) -> None:
    reward = length(low, low + more)
    at = lambda n: one(reward, "", completion_ids=[1] * n)  # noqa: E731
    assert (at(count) == 1.0) == (low <= count <= low + more)
    if count < low:
        assert at(count) < at(count + 1)
    if count >= low + more:
        assert at(count) >= at(count + 1)


def test_lengths_that_cannot_be_are_refused() -> None:
    for low, high in ((5, 4), (0, None)):
        with pytest.raises(ValueError, match="at least 1, and low at most high"):
            length(low, high)
