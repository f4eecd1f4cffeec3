"""The export panel in JupyterLab, in a real browser: runs picked, formats ticked, a real export made and read off the page.

Pictures are kept in pytest's temporary folder, or where GRPO_NB_SCREENSHOTS says.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import grpo_nb as gn
from tests.support.lab_page import Jupyter, LabPage, needs_browser, write_notebook
from tests.support.written_run import compare_by_hand

pytestmark = needs_browser
EVIL = "<img src=x onerror=\"window.taken='img'\">"


@pytest.fixture
def folder(tiny_run: gn.runs.Run, tmp_path: Path) -> Path:
    """Where the notebook is opened: a run with a comparison that somebody wrote into, and a broken one."""
    folder = tmp_path / "notebooks"
    run = Path(shutil.copytree(tiny_run.path, folder / "runs" / "tiny"))
    (run / "exports.json").unlink(missing_ok=True)
    compare_by_hand(gn.runs.Run(run), sentence=f"better: {EVIL} on 10 questions.")
    (folder / "runs" / "broken").mkdir()
    (folder / "runs" / "broken" / "run.json").write_text('{"status": ')
    os.utime(folder / "runs" / "broken" / "run.json", (0, 0))
    write_notebook(
        folder / "panel.ipynb", "import grpo_nb as gn\npanel = gn.export.ExportPanel()\npanel", "print(panel.exports)"
    )
    return folder


@pytest.fixture
def page(folder: Path, tmp_path: Path) -> Iterator[LabPage]:
    server = Jupyter(folder, tmp_path / "jupyter")
    page = LabPage(tmp_path / "profile")
    try:
        page.open(server, "panel.ipynb")
        yield page
    finally:
        page.close()
        server.stop()


def tick(page: LabPage, text: str) -> None:
    """Click on the check box with this text."""
    page.act(
        lambda: next((e for e in page.find_all(".gn-lab .widget-checkbox label") if e.text.strip() == text), None),
        lambda label: label.find_element("css selector", "input").click(),
        f"the check box {text!r}",
    )


def planned(page: LabPage) -> list[list[str]]:
    read = "return [...document.querySelectorAll('.gn-plan tbody tr')].map(row => [...row.cells].map(c => c.innerText.trim()))"
    return page.driver.execute_script(read)


def test_a_run_is_picked_exported_and_read(page: LabPage, folder: Path, tmp_path: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    pictures = Path(os.environ.get("GRPO_NB_SCREENSHOTS", tmp_path))
    page.run_cell("panel = gn.export.ExportPanel()")
    page.wait(lambda: planned(page) and planned(page)[0][-1] == "ready", "the plan")
    assert f"better: {EVIL} on 10 questions." in page.text(".gn-facts"), "as text, not as an image"

    # A broken run says so in words and offers nothing.
    page.choose("Pick a run", "broken: damaged, no step yet")
    page.wait(lambda: page.find(".gn-lab .gn-errors"), "the words")
    assert not page.button("Export").is_enabled() and planned(page) == []
    page.choose("Pick a run", "tiny: finished, 14 steps")
    page.wait(lambda: planned(page), "the plan of the other run")
    assert not page.find(".gn-lab .gn-errors")

    # The adapter alone, with a double click as people do it.
    tick(page, "Merged model: transformers, vLLM")
    tick(page, "Adapter alone: peft, vLLM, another training")
    page.wait(lambda: [row[0] for row in planned(page)] == ["adapter"], "the plan of the adapter")
    assert "gn.export.export_adapter(run, 'exports/tiny/adapter')" in page.text(".gn-lab .gn-code")
    page.wait(lambda: page.button("Export").is_enabled(), "the button")
    ActionChains(page.driver).double_click(page.button("Export")).perform()
    page.wait(lambda: page.texts(".gn-lab .gn-result"), "the result")
    page.run_cell("print(panel.exports)")  # after both clicks
    (result,) = page.texts(".gn-lab .gn-result")
    assert "verified: 4 of 4 checks passed" in result and result.startswith("Adapter alone")
    assert "not exported" not in page.text(".gn-lab") and "'adapter'" in page.output("print(panel.exports)")
    assert page.texts(".gn-stages li") == ["done\nAdapter alone: starting"]
    assert planned(page)[0][-1] == "made just now, see below" and not page.button("Export").is_enabled()
    assert "Exports so far" in page.text(".gn-facts") and "exports/tiny/adapter" in page.text(".gn-facts")
    made = json.loads((folder / "exports/tiny/adapter/verification.json").read_text())
    assert made["passed"] and f"adapter of {made['tensors']} tensors" in result
    page.screenshot(pictures / "export_panel.png")

    # How it looks, in both themes, wide and narrow; and nothing that somebody wrote was run.
    for look in page.looks():
        assert page.faint_texts() == page.overflowing() == [], look
    assert not page.find_all(".gn-lab img") and page.driver.execute_script("return window.taken") is None
