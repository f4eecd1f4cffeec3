"""The notebook about code, executed: hidden tests in the sandbox as the reward."""

from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import (
    assert_nothing_went_wrong,
    cell_with,
    only_published,
    printed,
    text_of,
)

pytestmark = pytest.mark.begins(40)


@pytest.fixture
def notebook(code: Path) -> nbformat.NotebookNode:
    return nbformat.read(code, as_version=4)


def test_no_cell_warns_or_shows_an_error(code: Path) -> None:
    assert_nothing_went_wrong(code)


def test_prompt_shows_no_test(notebook: nbformat.NotebookNode) -> None:
    assert "assert f(" not in text_of(cell_with(notebook, "task = gn.load_task("))


def test_code_for_special_cases_fails_hidden_tests(notebook: nbformat.NotebookNode) -> None:
    lines = printed(cell_with(notebook, "special_cases = ")).splitlines()
    assert lines == ["with the tests that it knows: [1.0]", "with hidden tests: [0.0]"]


def test_verdict_covers_greedy_and_sampled_answers(notebook: nbformat.NotebookNode) -> None:
    verdict = printed(cell_with(notebook, "run.outcome(comparison)"))
    assert verdict.startswith("GREEDY ANSWERS\n")
    assert "\nSAMPLED ANSWERS\n" in verdict


@only_published
def test_sampled_functions_get_better(notebook: nbformat.NotebookNode) -> None:
    verdict = printed(cell_with(notebook, "run.outcome(comparison)"))
    assert "SAMPLED ANSWERS\nIt worked." in verdict
