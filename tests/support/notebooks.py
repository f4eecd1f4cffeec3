"""Notebooks executed as `make run` does it, and what stands in their cells."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]

# How much of a notebook is executed: small, through its settings cell, in `make test`; as it is published in `make test-all`.
PUBLISHED = pytest.param("published", marks=pytest.mark.slow)
SIZES = ("small", PUBLISHED)
only_small = pytest.mark.parametrize("size", ["small"], indirect=True)
only_published = pytest.mark.parametrize("size", [PUBLISHED], indirect=True)


def execute_notebook(name: str, folder: Path, cache: Path | None = None, **parameters: object) -> Path:
    """Execute a notebook as `make run` does it, with the real model; return the executed one. terminal.txt is beside runs/.

    Parameters replace lines of its settings cell. An empty `cache` is what a first user has: the model is converted in it.
    """
    notebook, values = ROOT / f"notebooks/{name}.ipynb", [f"{key}={value!r}" for key, value in parameters.items()]
    command = [sys.executable, str(ROOT / "scripts/run_notebook.py"), str(notebook), "--cwd", str(folder)]
    command += [part for value in values for part in ("--set", value)]
    environment = os.environ | ({"GRPO_NB_CACHE": str(cache)} if cache else {})
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    (folder / "terminal.txt").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return executed_in(folder, name)


def executed_in(folder: Path, name: str) -> Path:
    """Where `make run` leaves an executed notebook."""
    return folder / "runs" / "notebooks" / f"{name}.ipynb"


def assert_nothing_went_wrong(executed: Path) -> None:
    """No error, no warning, no red box and no bar that stays at 0 % in any cell."""
    for cell in nbformat.read(executed, as_version=4).cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"
            assert not re.search(r"Warning|deprecated|\[transformers\]", output.get("text", "")), output.text[:500]
            assert output.get("name") != "stderr", f"a red box: {output.text[:500]}"
            plain = output.get("data", {}).get("text/plain", "")
            assert not re.search(r"\b0%\s*\|", plain), f"a bar that stays at 0 %: {plain[:200]}"


def outputs(cell: nbformat.NotebookNode, kind: str) -> list[nbformat.NotebookNode]:
    return [o for o in cell.outputs if o.output_type in ("display_data", "execute_result") and kind in o.data]


def cell_with(notebook: nbformat.NotebookNode, text: str) -> nbformat.NotebookNode:
    (cell,) = [c for c in notebook.cells if c.cell_type == "code" and text in c.source]
    return cell


def text_of(cell: nbformat.NotebookNode, kind: str = "text/plain") -> str:
    """What a cell's last expression shows; progress bars come before it."""
    return outputs(cell, kind)[-1].data[kind]


def printed(cell: nbformat.NotebookNode) -> str:
    return "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")
