"""The recipe for a GPU, executed on a CPU: every cell, on rows of GSM8K's form."""

import re
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


def test_no_cell_warns_or_shows_an_error(gsm8k: Path) -> None:
    assert_nothing_went_wrong(gsm8k)


def test_task_reads_numbers_and_keeps_solutions_apart(gsm8k: Path) -> None:
    notebook = nbformat.read(gsm8k, as_version=4)
    task = text_of(cell_with(notebook, "task = gn.load_task("))
    assert re.search(r"answers +number", task)
    assert "solution" in task
    report = text_of(cell_with(notebook, "report = gn.check_rewards("))
    assert report.startswith("Nothing found.")


def test_verdict_has_a_number_before_and_after(gsm8k: Path) -> None:
    notebook = nbformat.read(gsm8k, as_version=4)
    assert "12 questions" in text_of(cell_with(notebook, "gn.compare(run, test, limit=QUESTIONS)"))
    verdict = printed(cell_with(notebook, "run.outcome("))
    assert verdict.startswith("test.jsonl, 12 questions of the test part.\n")
    assert "Correct, which needs both: " in " ".join(verdict.split())


@only_published
def test_trained_model_is_exported(gsm8k: Path) -> None:
    notebook = nbformat.read(gsm8k, as_version=4)
    assert "every weight is base plus adapter" in text_of(cell_with(notebook, "gn.export_merged("))
