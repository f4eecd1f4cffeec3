"""Torch's threads spin less, in the processes that the kit starts and in the runner's kernel."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import nbformat
import pytest

from grpo_nb.core.processes import SPIN_VARIABLES, run_command
from scripts import run_notebook

PRINT = [sys.executable, "-c", "import os; print(os.environ.get('GOMP_SPINCOUNT'))"]


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SPIN_VARIABLES:
        # Set first, so that a value that a test leaves behind is removed at its end.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_child_gets_the_spin_count() -> None:
    assert run_command(PRINT) == ["20000"]


def test_child_keeps_the_spin_count_of_the_user(monkeypatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert run_command(PRINT) == ["7"]


@pytest.mark.skipif(sys.platform != "linux", reason="torch has no libgomp on this system")
def test_torch_in_a_child_reads_the_spin_count() -> None:
    shown = run_command(
        [sys.executable, "-c", "import torch"], environment={"OMP_DISPLAY_ENV": "verbose"}
    )
    assert any("GOMP_SPINCOUNT = '20000'" in line for line in shown)


class Client:
    """Stand-in for the client of a kernel, which notes the spin count that the kernel gets."""

    counts: ClassVar[list[str | None]] = []

    def __init__(self, *_: object) -> None:
        self.title = ""

    def execute(self) -> None:
        self.counts.append(os.environ.get("GOMP_SPINCOUNT"))


@pytest.fixture
def run_empty_notebook(tmp_path: Path, monkeypatch) -> Callable[[], str | None]:
    """Return a function that runs a notebook and returns the spin count of its kernel."""
    notebook = tmp_path / "empty.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), notebook)
    monkeypatch.setattr(run_notebook, "Client", Client)

    def run() -> str | None:
        run_notebook.run(notebook, tmp_path, [])
        return Client.counts.pop()

    return run


def test_kernel_of_the_runner_gets_the_spin_count(run_empty_notebook) -> None:
    """A cell may import torch before the kit."""
    assert run_empty_notebook() == "20000"


def test_kernel_of_the_runner_keeps_the_users_count(run_empty_notebook, monkeypatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "3")
    assert run_empty_notebook() == "3"
