"""The notebook of the judge, executed: a real server of the small model, refused; plain checks, which pay for a training."""

import re
from pathlib import Path

import nbformat
import pytest

from tests.support.notebooks import assert_nothing_went_wrong, cell_with, printed, text_of

pytestmark = pytest.mark.begins(95)


def test_no_cell_warns_or_shows_an_error(judge: Path) -> None:
    assert_nothing_went_wrong(judge)


def test_the_small_model_is_refused_and_plain_checks_may_pay(judge: Path) -> None:
    notebook = nbformat.read(judge, as_version=4)
    refused = text_of(cell_with(notebook, "of_small = "))
    assert (
        refused.startswith("small_model: may not pay; on 40 answers") and "95 % interval" in refused
    )
    assert text_of(cell_with(notebook, "of_plain = ")).startswith(
        "plain_checks: may pay; on 40 answers"
    )
    report = text_of(cell_with(notebook, "report = gn.check_rewards"))
    assert (
        "critical: small_model: refused by its measure" in report
        and "warning: funny: never measured" in report
    )
    assert "of it in length alone: " in printed(cell_with(notebook, "gain = "))
    last = printed(cell_with(notebook, "gained, in_length = "))
    assert re.search(
        r" after: (no gain is shown|the answers only got shorter|\+0\.\d\d is gained beyond)", last
    )
    assert last.endswith("notes are an example and not a proof: no better model is claimed.\n")
