"""Notebooks executed as `make run` does it, and what stands in their cells."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_client.provisioning import local_provisioner

from scripts import run_notebook
from tests.support.warm_kernel import launch_kernel

ROOT = Path(__file__).resolve().parents[2]

# How much of a notebook is executed: small, through its settings cell, in `make test`; as it is
# published in `make test-all`.
PUBLISHED = pytest.param("published", marks=pytest.mark.slow)
SIZES = ("small", PUBLISHED)
only_small = pytest.mark.parametrize("size", ["small"], indirect=True)
only_published = pytest.mark.parametrize("size", [PUBLISHED], indirect=True)


def execute_notebook(name: str, folder: Path, size: str, **parameters: object) -> Path:
    """Execute a notebook as `make run` does and return it; terminal.txt lies next to runs/.

    Parameters replace lines of its settings cell. As published it has a kernel as anybody's;
    small, one with all imports done.
    """
    values = [f"{key}={value!r}" for key, value in parameters.items()]
    shutil.copy(ROOT / f"notebooks/{name}.ipynb", folder)
    with pytest.MonkeyPatch.context() as patch, (folder / "terminal.txt").open("w") as told:
        if size == "small":
            patch.setattr(local_provisioner, "launch_kernel", launch_kernel)
        with contextlib.redirect_stdout(told), signals_as_before():
            status = run_notebook.run(folder / f"{name}.ipynb", folder, values)
    assert status == 0, (folder / "terminal.txt").read_text()[-5000:]
    return executed_in(folder, name)


@contextlib.contextmanager
def signals_as_before() -> Iterator[None]:
    """`make run` makes Ctrl-C the stop button, and ends with the notebook."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, handler)


def executed_in(folder: Path, name: str) -> Path:
    """Return the path where `make run` leaves an executed notebook."""
    return folder / "runs" / "notebooks" / f"{name}.ipynb"


def assert_nothing_went_wrong(executed: Path, but: str | None = None) -> None:
    """No error, no warning, no red box and no bar that stays at 0 % in any cell.

    Args:
        executed: The notebook.
        but: Text of the one output that is expected, such as a warning about the run of the test.
    """
    for cell in nbformat.read(executed, as_version=4).cells:
        for output in cell.get("outputs", []):
            if but is not None and but in output.get("text", ""):
                continue
            assert output.output_type != "error"
            assert not re.search(r"Warning|deprecated|\[transformers\]", output.get("text", "")), (
                output.text[:500]
            )
            assert output.get("name") != "stderr", f"a red box: {output.text[:500]}"
            plain = output.get("data", {}).get("text/plain", "")
            assert not re.search(r"\b0%\s*\|", plain), f"a bar that stays at 0 %: {plain[:200]}"


def outputs(cell: nbformat.NotebookNode, kind: str) -> list[nbformat.NotebookNode]:
    return [
        o
        for o in cell.outputs
        if o.output_type in ("display_data", "execute_result") and kind in o.data
    ]


def cell_with(notebook: nbformat.NotebookNode, text: str) -> nbformat.NotebookNode:
    (cell,) = [c for c in notebook.cells if c.cell_type == "code" and text in c.source]
    return cell


def text_of(cell: nbformat.NotebookNode, kind: str = "text/plain") -> str:
    """Return the output of a cell's last expression; progress bars come before it."""
    return outputs(cell, kind)[-1].data[kind]


def all_text_of(cell: nbformat.NotebookNode, kind: str = "text/plain") -> str:
    """Return all outputs of a cell that shows several things."""
    return "\n".join(output.data[kind] for output in outputs(cell, kind))


def printed(cell: nbformat.NotebookNode) -> str:
    return "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")
