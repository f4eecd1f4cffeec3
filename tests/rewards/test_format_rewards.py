"""Rewards for the format."""

import pytest

from tests.rewards.cases import CASES, KINDS


@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"code_tests"}))
def test_score_text_gives_the_score_of_a_batch_of_one(name: str) -> None:
    (case, *_) = (case for case in CASES if type(case.reward).__name__ == name)
    assert case.reward.score_text(case.completions[0], case.columns) == case.scores_given()[0]
