"""Execute the notebooks in a kernel with the IPython and the ipywidgets that Colab has (7.34 and 7.7.1).

    python scripts/check_old_jupyter.py                          # every notebook, whole, as `make run` would
    python scripts/check_old_jupyter.py 00 --set max_steps=4     # one, shorter: without its last checks
    python scripts/check_old_jupyter.py --head                   # up to the settings: seconds
    python scripts/check_old_jupyter.py --head --python python3.13

The kernel is that of this environment, with the old packages put before its own. With `--python`, it is another Python, in
an environment without torch that is made for the purpose; then only what comes before the model can run, and the install cell
is left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from ipykernel.kernelspec import make_ipkernel_cmd
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.old_widgets_env import make_environment  # noqa: E402

WANTED = {"IPython": "7.34.0", "ipywidgets": "7.7.1"}
# Colab's own, and what the kit's light parts and their tests import.
COLABS = (
    "ipython==7.34.0", "ipykernel==6.17.1", "ipython_genutils", "setuptools<81", "pytest", "numpy", "pandas", "pyarrow",
    "scipy", "matplotlib", "jinja2", "jsonschema", "math-verify==0.9.0", "nbclient", "psutil", "regex",
)  # fmt: skip
# The first cell of every kernel here: it must be the environment that it is said to be.
ASK = "import sys, IPython, ipywidgets\n(sys.version_info[:2], IPython.__version__, ipywidgets.__version__)"


class Client(NotebookClient):
    """A client whose kernel is a given Python."""

    python = sys.executable

    def create_kernel_manager(self):  # type: ignore[no-untyped-def]
        manager = super().create_kernel_manager()
        manager.kernel_spec.argv = make_ipkernel_cmd(executable=self.python)
        return manager


def site_packages(python: Path) -> Path:
    return next((python.parent.parent / "lib").glob("python3*")) / "site-packages"


def head_of(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return the code cells up to the one that makes the settings: what runs without a model."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    at = next(i for i, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", []))
    return cells[: at + 1]


def shortened(notebook: nbformat.NotebookNode, changes: dict[str, object]) -> list[nbformat.NotebookNode]:
    """Return the cells with other settings, and without the checks that only a whole run passes."""
    cells = []
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            cell.source += f"\nCHANGES = {{**CHANGES, **{changes!r}}}"
        if cell.cell_type != "code" or "It worked" not in cell.source:
            cells.append(cell)
    return cells


def execute(
    file: Path,
    folder: Path,
    *,
    python: Path | None = None,
    head: bool = False,
    changes: dict[str, object] | None = None,
) -> tuple[nbformat.NotebookNode, tuple[str, ...]]:
    """Execute a notebook in an old kernel; return it executed, and (Python, IPython, ipywidgets) as the kernel tells them.

    Args:
        file: The notebook.
        folder: Where it runs.
        python: Of an environment without torch that has the old packages; by default this environment, with them in front.
        head: Only up to the settings.
        changes: Other settings.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    notebook = nbformat.read(file, as_version=4)
    if head:
        notebook.cells = head_of(notebook)
    elif changes:
        notebook.cells = shortened(notebook, changes)
    if python is not None:  # there the install cell would install torch
        notebook.cells = [cell for cell in notebook.cells if "install(report=print)" not in cell.source]
    notebook.cells.insert(0, nbformat.v4.new_code_cell(ASK))
    paths = [ROOT] if python is not None else [site_packages(old_environment()), ROOT]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    client = Client(
        notebook, timeout=None, kernel_name="python3", iopub_timeout=120, store_widget_state=False,
        resources={"metadata": {"path": str(folder)}}, extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )  # fmt: skip
    client.python = str(python or sys.executable)
    client.execute(env=environment)
    told = notebook.cells.pop(0).outputs[-1].data["text/plain"]
    return notebook, tuple(part.strip(" '()") for part in told.rsplit(",", 2))


def old_environment(python: Path | None = None) -> Path:
    """Return the Python of an environment with the old packages, kept for the next time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo_nb"
    if python is None:
        is_own = os.access(sys.prefix, os.W_OK) and sys.prefix != sys.base_prefix
        return make_environment((Path(sys.prefix) if is_own else cache) / "old_widgets")
    ask = [python, "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    version = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    return make_environment(cache / f"old_jupyter_{version}", python, COLABS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", help="starts of their names, for example 00; by default all")
    parser.add_argument("--head", action="store_true", help="only up to the settings")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, for a shorter run")
    parser.add_argument("--python", type=Path, help="another Python, without torch (needs --head)")
    arguments = parser.parse_args()
    if arguments.python and not arguments.head:
        parser.error("--python needs --head: that environment has no torch")
    changes = {name: int(value) for name, value in (pair.split("=") for pair in arguments.set)}
    python = old_environment(arguments.python) if arguments.python else None
    files = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    for file in files:
        if arguments.notebooks and not file.name.startswith(tuple(arguments.notebooks)):
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            notebook, versions = execute(file, Path(folder), python=python, head=arguments.head, changes=changes)
        cells = sum(cell.cell_type == "code" for cell in notebook.cells)
        told = f"Python {versions[0].replace(', ', '.')}, IPython {versions[1]}, ipywidgets {versions[2]}"
        print(f"{file.stem:20} {cells:2} cells in {time.monotonic() - started:4.0f} s  ({told})", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
