"""Execute notebooks in a kernel with Colab's IPython (7.34) and ipywidgets (7.7.1).

    python -m tests.support.old_jupyter 00 02   # two, whole: some minutes each; without names all

The kernel is that of this environment, with the old packages, in an environment of their own, put
before its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat

from scripts.run_notebook import Client

ROOT = Path(__file__).resolve().parents[2]
# Colab's published package list of August 2026; its Python is 3.13, which IPython 7.34 runs on as
# well as on 3.11.
WANTED = {"IPython": "7.34.0", "ipywidgets": "7.7.1"}
# For ipywidgets 7.7.1; jinja2, lazy_loader, numpy, pandas and pydantic for the kit; setuptools for
# IPython 7, which asks pkg_resources for its version; pytest for the lab's tests. ipywidgets comes
# alone: the classic notebook, which it asks for, would be most of it.
NEEDED = (
    "ipython==7.34.0",
    "ipykernel>=6,<8",
    "ipython_genutils",
    "jinja2>=3.1,<4",
    "lazy_loader>=0.4,<1",
    "numpy",
    "pandas",
    "pydantic>=2.9,<3",
    "setuptools",
    "pytest>=9.2,<10",
)


def old_python() -> Path:
    """Return the Python of an environment with the old packages and without torch.

    The first call makes the environment.
    """
    is_own = os.access(sys.prefix, os.W_OK) and sys.prefix != sys.base_prefix
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo_nb"
    folder = (Path(sys.prefix) if is_own else cache) / "old_widgets"
    python = folder / "bin" / "python"
    stamp = folder / "complete"
    wanted = " ".join((*NEEDED, *WANTED.values(), sys.version))
    if not stamp.is_file() or stamp.read_text() != wanted:
        subprocess.run(
            [sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True
        )
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--quiet",
            "--python",
            python,
            "install",
        ]
        # PIP_USER, which some hosted machines set, would send packages out of the environment.
        environment = os.environ | {"PIP_USER": "0"}
        subprocess.run([*pip, *NEEDED], check=True, env=environment)
        subprocess.run(
            [*pip, "--no-deps", f"ipywidgets=={WANTED['ipywidgets']}"], check=True, env=environment
        )
        stamp.write_text(wanted)
    return python


def execute(file: Path, folder: Path, *, head: bool = False) -> nbformat.NotebookNode:
    """Execute a notebook in `folder`; with `head` only up to its settings, which needs no model.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed, or the kernel has other packages than
        `WANTED`.
    """
    notebook = nbformat.read(file, as_version=4)
    if head:
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        last = next(
            i for i, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", [])
        )
        notebook.cells = cells[: last + 1]
    ask = (
        "import IPython, ipywidgets\n"
        "versions = {m.__name__: m.__version__ for m in (IPython, ipywidgets)}\n"
        f"assert versions == {WANTED}"
    )
    notebook.cells.insert(0, nbformat.v4.new_code_cell(ask))
    site = next((old_python().parent.parent / "lib").glob("python3*")) / "site-packages"
    client = Client(notebook, folder)
    client.execute(env=os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"})
    del notebook.cells[0]
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "notebooks",
        nargs="*",
        default=[""],
        help="starts of their names, for example 00; by default all",
    )
    arguments = parser.parse_args()
    for file in sorted((ROOT / "notebooks").glob("??_*.ipynb")):
        if file.name.startswith(tuple(arguments.notebooks)):
            with tempfile.TemporaryDirectory() as folder:
                execute(file, Path(folder))


if __name__ == "__main__":
    main()
