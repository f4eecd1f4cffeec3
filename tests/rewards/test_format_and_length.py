"""Rewards for format and length."""

import pytest

from grpo_nb.rewards import length
from tests.rewards.cases import CASES, KINDS

BOTH = "<reasoning>a</reasoning><answer> 7 </answer>"
TAGS = ["<reasoning>", "</reasoning>", "<answer>", "</answer>"]


def score_of(reward: length, text: str, token_count: int) -> float:
    return reward(completions=[text], completion_ids=[[1] * token_count])[0]


def test_length_between_the_bounds_scores_one() -> None:
    scores = [score_of(length(10, 20), "", count) for count in range(10, 21)]
    assert scores == [1.0] * 11


def test_length_below_and_above_falls_in_a_line() -> None:
    scores = [score_of(length(10, 20), "", count) for count in (0, 5, 10, 20, 30, 40, 44)]
    assert scores == [0.0, 0.5, 1.0, 1.0, 0.5, 0.0, 0.0]


def test_length_without_high_has_no_upper_bound() -> None:
    assert score_of(length(10), "", 999) == 1.0


def test_length_counts_tokens_and_not_the_text() -> None:
    assert score_of(length(10, 20), "one two", 5) == 0.5


def test_length_without_token_ids_counts_words() -> None:
    assert length(10, 20)(completions=["one two"]) == [0.2]


def test_length_in_words_ignores_the_token_ids() -> None:
    assert score_of(length(10, unit="words"), "a b c d e", 9) == 0.5


def test_length_with_unknown_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="unit = 'lines' must be 'tokens' or 'words'"):
        length(1, unit="lines")


@pytest.mark.parametrize(("low", "high"), [(1, 0), (5, 4), (0, None), (0, 0), (-1, 3), (1, -1)])
def test_length_bounds_that_no_text_can_meet_are_refused(low: int, high: int | None) -> None:
    with pytest.raises(ValueError, match="low must be at least 1, and at most high"):
        length(low, high)


@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"code_tests"}))
def test_score_text_gives_the_score_of_a_batch_of_one(name: str) -> None:
    (case, *_) = (case for case in CASES if type(case.reward).__name__ == name)
    assert case.reward.score_text(case.completions[0], case.columns) == case.scores_given()[0]


def test_words_are_separated_by_white_space() -> None:
    scores = length(2, 2, unit="words")(completions=["Yes, indeed.", "I don't."])
    assert scores == [1.0, 1.0]
