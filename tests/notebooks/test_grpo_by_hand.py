"""The notebook that computes GRPO by hand, executed with the real model."""

import re
from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import assert_nothing_went_wrong, cell_with, printed

pytestmark = pytest.mark.begins(30)


def test_no_cell_warns_or_shows_an_error(grpo_by_hand: Path) -> None:
    assert_nothing_went_wrong(grpo_by_hand)


def test_hand_written_gradients_agree_with_those_of_trl(grpo_by_hand: Path) -> None:
    """The second loss has ratio, clipping and KL; before the first step nothing has moved."""
    notebook = nbformat.read(grpo_by_hand, as_version=4)
    lines = printed(cell_with(notebook, "differences = []")).splitlines()
    pattern = r"loss: ours (\S+), TRL (\S+); gradients differ by (\S+)"
    found = [re.fullmatch(pattern, line) for line in lines if line.startswith("loss: ours")]
    assert len(found) == 2
    for match in found:
        assert float(match[1]) == pytest.approx(float(match[2]), abs=1e-5)
        assert float(match[3]) < 1e-4
    assert abs(float(found[1][1])) > 1e-3, "nothing moved between the two steps"


def test_verdict_names_both_measurements(grpo_by_hand: Path) -> None:
    notebook = nbformat.read(grpo_by_hand, as_version=4)
    verdict = printed(cell_with(notebook, "It worked."))
    assert "Gradients agree with TRL's: yes." in verdict
    assert "Mean reward:" in verdict
