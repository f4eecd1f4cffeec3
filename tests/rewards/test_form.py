"""Rewards for form and length: no pay for what only looks the part."""

import itertools

import pytest

from grpo_nb.rewards import incremental_format, length, xml_format
from grpo_nb.rewards.marks import spans
from grpo_nb.tasks import formats

GOOD = "<reasoning>r</reasoning><answer>7</answer>"


def one(reward, text: str, **columns: object) -> float | None:
    return reward(completions=[text], **{key: [value] for key, value in columns.items()})[0]


def test_incremental_format_cannot_be_gamed() -> None:
    reward = incremental_format()
    # Stopping always pays better than leaving the last tag out, however much follows.
    for trailing in (0, 10, 100, 1000, 100_000):
        assert one(reward, GOOD + "x" * trailing) > one(reward, GOOD.removesuffix("</answer>") + "x" * trailing)
    assert one(reward, GOOD + "x" * 50) == pytest.approx(0.95)
    best = [order for order in itertools.permutations(formats.xml().tags) if one(reward, "".join(order)) == 1.0]
    assert best == [formats.xml().tags], "any other order earns less"


@pytest.mark.parametrize(
    "format", [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes()], ids=lambda f: f.name
)
def test_any_format(format: formats.AnswerFormat) -> None:
    text = format.render("many\nlines", r"\frac{1}{2}")
    for reward in (xml_format(format=format), incremental_format(format=format)):
        assert one(reward, text) == 1.0 and one(reward, "7") == 0.0
        has_no_end = reward.__name__ == "incremental_format" and not format.answer_close
        assert has_no_end or one(reward, text + "\nand more") < 1.0


@pytest.mark.parametrize("text", [r"\boxed{7} is wrong }", "\\boxed{7}\n", r"\boxed{\{1,2\}}", "\\boxed{\n7\n}"])
def test_boxed_is_read_to_its_own_brace(text: str) -> None:
    assert one(xml_format(format=formats.boxed()), text) == float("wrong" not in text)


def test_lengths() -> None:
    reward = length(10, 20)
    paid = [one(reward, "", completion_ids=[1] * n) for n in range(45)]
    assert paid[10:21] == [1.0] * 11 and paid[:11] == sorted(paid[:11]) and paid[20:] == sorted(paid[20:], reverse=True)
    assert paid[0] == 0.0 == paid[40] and one(length(10), "", completion_ids=[1] * 999) == 1.0
    assert one(reward, "one two", completion_ids=[1] * 5) == 0.5
    assert one(reward, "one two") == 0.2  # no ids: words
    assert one(length(10, unit="characters"), "12345", completion_ids=[1] * 9) == 0.5
    assert one(length(10, unit="words"), "a b c d e", completion_ids=[1] * 9) == 0.5
    for low, high, unit in ((5, 4, "words"), (0, None, "words"), (10, None, "lines")):
        with pytest.raises(ValueError, match=r"low = |unit = 'lines'"):
            length(low, high, unit=unit)


def test_where_a_function_with_a_format_looked() -> None:
    def mine(completions, **columns):
        return [0.0 for _ in completions]

    assert [span.what for span in spans(mine, GOOD)] == ["whole text"]
    mine.format = formats.xml()
    assert [GOOD[span.start : span.end] for span in spans(mine, GOOD)] == [
        "<reasoning>", "</reasoning>", "<answer>", "7", "</answer>",
    ]  # fmt: skip
    assert [span.what for span in spans(xml_format(), "<answer>7")] == ["tag"]
