"""The pages of docs/ and the README: links lead somewhere, and names of the kit exist."""

import functools
import re
from pathlib import Path

import pytest

import grpo_nb as gn
from tests.conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.M)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_names_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text.replace("\n", " ")):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
    # The page of changes names what is no longer there.
    names = [] if page.name == "changes.md" else re.findall(r"\bgn\.(\w[\w.]*\w)", text)
    for name in names:
        functools.reduce(getattr, name.split("."), gn)
    for file in re.findall(r"`((?:grpo_nb|tests|studies|benchmarks|scripts)/[\w/.]+\.\w+)", text):
        assert (ROOT / file).exists(), file
