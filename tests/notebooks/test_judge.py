"""The notebook about judges, executed: the small model is refused, plain checks pass and train."""

import re
from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import assert_nothing_went_wrong, cell_with, printed, text_of

pytestmark = pytest.mark.begins(95)


@pytest.fixture
def notebook(judge: Path) -> nbformat.NotebookNode:
    return nbformat.read(judge, as_version=4)


def test_no_cell_warns_or_shows_an_error(judge: Path) -> None:
    assert_nothing_went_wrong(judge)


def test_small_model_is_refused_as_a_judge(notebook: nbformat.NotebookNode) -> None:
    refused = text_of(cell_with(notebook, "of_small = "))
    assert refused.startswith("small_model: not fit as a reward")
    assert "on 40 answers" in refused
    assert "95 % interval" in refused


def test_plain_checks_pass_as_a_judge(notebook: nbformat.NotebookNode) -> None:
    accepted = text_of(cell_with(notebook, "of_plain = "))
    assert accepted.startswith("plain_checks: fit as a reward")


def test_reward_check_reports_the_measurements(notebook: nbformat.NotebookNode) -> None:
    report = text_of(cell_with(notebook, "report = gn.check_rewards"))
    assert "critical: small_model: " in report
    assert "warning: funny: never measured" in report
    assert ": plain_checks: never" not in report


def test_gain_is_split_into_length_and_the_rest(notebook: nbformat.NotebookNode) -> None:
    last = printed(cell_with(notebook, "by_length = "))
    assert re.search(r"held-out notes: [+-]\d\.\d\d, of which [+-]\d\.\d\d by length alone", last)
    assert last.endswith("notes are an example and not a proof: no better model is claimed.\n")
