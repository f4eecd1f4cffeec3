"""Rewards for form and length: no pay for what only looks the part, and where they looked."""

import itertools

import pytest

from grpo_nb.rewards import correctness, incremental_format, length, xml_format, xml_tags
from grpo_nb.scoring.marks import spans
from grpo_nb.tasks import formats
from tests.rewards.cases import CASES, KINDS

GOOD = "<reasoning>r</reasoning><answer>7</answer>"


def test_incremental_format_cannot_be_gamed() -> None:
    def paid(*texts: str) -> list[float]:
        return incremental_format()(completions=texts)

    # Stopping always pays better than leaving the last tag out, however much follows.
    for trailing in (0, 10, 100, 1000, 100_000):
        ended, left_out = paid(
            GOOD + "x" * trailing, GOOD.removesuffix("</answer>") + "x" * trailing
        )
        assert ended > left_out
    assert paid(GOOD + "x" * 50) == [pytest.approx(0.95)]
    orders = [*itertools.permutations(formats.xml().tags)]
    full = [
        order
        for order, score in zip(orders, paid(*map("".join, orders)), strict=True)
        if score == 1.0
    ]
    assert full == [formats.xml().tags], "any other order earns less"


def test_lengths() -> None:
    def one(reward: length, text: str, count: int) -> float:
        return reward(completions=[text], completion_ids=[[1] * count])[0]

    paid = [one(length(10, 20), "", count) for count in range(45)]
    assert (
        paid[10:21] == [1.0] * 11
        and paid[:11] == sorted(paid[:11])
        and paid[20:] == sorted(paid[20:], reverse=True)
    )
    assert paid[0] == 0.0 == paid[40] and paid[5] == 0.5 == paid[30]
    assert one(length(10), "", 999) == 1.0 and one(length(10, 20), "one two", 5) == 0.5
    assert length(10, 20)(completions=["one two"]) == [0.2]  # no ids: words
    assert (
        one(length(10, unit="characters"), "12345", 9)
        == one(length(10, unit="words"), "a b c d e", 9)
        == 0.5
    )


BOTH = "<reasoning>a</reasoning><answer> 7 </answer>"


@pytest.mark.parametrize(
    ("reward", "text", "expected"),
    [
        (correctness(), BOTH, ["7"]),
        (correctness(), BOTH + " no, 8", []),
        (correctness(format=formats.boxed()), r"so $\boxed{\frac{1}{2}}$.", [r"\frac{1}{2}"]),
        (correctness(format=formats.hashes()), "7 or 8\n#### 8\n", ["8"]),
        (xml_tags(), BOTH, ["<reasoning>", "</reasoning>", "<answer>", "</answer>"]),
        (xml_tags(), "<answer><answer>7</answer>", ["</answer>"]),
        (xml_format(), "7", []),
        (incremental_format(), "</answer>7<answer>", ["</answer>", "<answer>"]),
        (length(3), "so it is", ["so it is"]),
        (len, "anything", ["anything"]),
    ],
)  # fmt: skip
def test_spans(reward, text: str, expected: list[str]) -> None:
    assert [text[span.start : span.end] for span in spans(reward, text)] == expected


@pytest.mark.parametrize(("low", "high"), [(1, 0), (5, 4), (0, None), (0, 0), (-1, 3), (1, -1)])
def test_length_bounds_that_no_text_can_meet_are_refused(low: int, high: int | None) -> None:
    with pytest.raises(ValueError, match=r"low must be at least 1, and at most high"):
        length(low, high)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_score_text_gives_the_score_of_a_batch_of_one(name: str) -> None:
    (case, *_) = (case for case in CASES if type(case.reward).__name__ == name)
    assert case.reward.score_text(case.completions[0], case.columns) == case.paid()[0]
