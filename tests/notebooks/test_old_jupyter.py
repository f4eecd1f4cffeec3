"""The start of every notebook, in a kernel with Colab's IPython 7.34 and ipywidgets 7.7.1.

Whole notebooks take minutes there as anywhere: tests/support/old_jupyter.py executes them by hand,
and docs/evidence/install.md says when it did.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.old_jupyter import ROOT, execute

FIRST, *OTHERS = sorted((ROOT / "notebooks").glob("??_*.ipynb"))


# All begin with the same cells, but for the settings (test_static.py).
@pytest.mark.parametrize(
    "path",
    [FIRST, *(pytest.param(path, marks=pytest.mark.slow) for path in OTHERS)],
    ids=lambda p: p.stem,
)
def test_up_to_the_settings(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    notebook = execute(path, tmp_path, head=True)
    setup = notebook.cells[0]
    (table,) = [o.data["text/html"] for o in setup.outputs if o.output_type == "execute_result"]
    assert "<table>" in table
    assert "Ready" in table
    assert not [o for cell in notebook.cells for o in cell.outputs if o.get("name") == "stderr"], (
        "a cell warns"
    )
