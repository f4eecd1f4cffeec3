"""Generate notebooks/NN_name.ipynb from notebooks/src/NN_name.py, the script that people edit.

The cells depend on the script alone. A cell that did not change keeps its outputs, which `make publish` makes.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
from pathlib import Path

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parent.parent
METADATA = {
    "colab": {"provenance": [], "toc_visible": True},
    # Neutral names, which exist in Jupyter, Colab and Kaggle alike.
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# A cell that says this in a source stands for the cells of the file: one text for the same cell of every notebook.
SHARED = re.compile(r"^@CELLS (_\w+\.py)@$")


def repository() -> str:
    """The address of the repository on GitHub, as pyproject.toml has it."""
    return re.search(
        r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE
    )[1]


def follow_remote(remote: str) -> None:
    """Write the address of git's remote into pyproject.toml and README.md, if it is one on GitHub."""
    # Behind Colab's badge a slash follows `github`.
    link = (
        re.escape(repository()).replace("https://github\\.com/", r"(?<=/)(github(?:\.com)?)/")
        + r"\b"
    )
    if found := re.fullmatch(
        r"(?:https://|(?:ssh://)?git@)github\.com[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?", remote
    ):
        for file in (ROOT / "pyproject.toml", ROOT / "README.md"):
            file.write_text(re.sub(link, rf"\1/{found[1]}", file.read_text("utf-8")), "utf-8")


def cells_of(source: Path) -> list[nbformat.NotebookNode]:
    """The cells of a source, with those of shared files where their marks stand."""
    cells = []
    for cell in jupytext.read(source, fmt="py:percent").cells:
        mark = SHARED.match(cell.source.strip())
        cells += cells_of(source.with_name(mark[1])) if mark else [cell]
    return cells


def generate(source: Path, there: Path) -> str:
    """The file of a source's notebook, with the outputs that its cells have in the one that is there.

    Cell ids come from the content, so that inserting a cell leaves the others' ids, and the diff, as they were.
    """
    old = (
        {cell.id: cell for cell in nbformat.read(there, as_version=4).cells}
        if there.exists()
        else {}
    )
    # What a source writes for the repository's address, and for the one under which Colab opens it.
    address = repository()
    colab = (
        address.replace("https://github.com/", "https://colab.research.google.com/github/")
        + "/blob/main"
    )
    cells = {}
    for cell in cells_of(source):
        # Before the address: a copy with another one keeps ids and outputs.
        content = f"{cell.cell_type}\0{cell.source}"
        cell.source = cell.source.replace("@REPOSITORY@", address).replace("@COLAB@", colab)
        cell.id = f"cell-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
        while cell.id in cells:
            cell.id += "-again"
        # The rest is what jupytext notes down about the layout of the script.
        cell.metadata = {key: value for key, value in cell.metadata.items() if key == "tags"}
        if cell.cell_type == "code" and cell.id in old:
            cell.outputs, cell.execution_count = old[cell.id].outputs, old[cell.id].execution_count
        cells[cell.id] = cell
    # Colab reads in a source's header whether to offer a GPU.
    header = {
        key: value for key, value in jupytext.read(source).metadata.items() if key == "accelerator"
    }
    # In format 4.5, the first with cell ids.
    notebook = nbformat.v4.new_notebook(cells=list(cells.values()), metadata=METADATA | header)
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit 1 and name the notebooks that differ",
    )
    is_check, differ = parser.parse_args().check, 0
    if not is_check:
        asked = subprocess.run(
            ["git", "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True
        )
        follow_remote(asked.stdout.strip())
    # Numbered files are notebooks; anything else in src/ may be shared by them.
    targets = {
        source: ROOT / f"notebooks/{source.stem}.ipynb"
        for source in (ROOT / "notebooks/src").glob("[0-9]*.py")
    }
    for source, target in sorted(targets.items()):
        text = generate(source, target)
        if not target.exists() or target.read_text("utf-8") != text:
            differ += 1
            print(f"{'differs from its source' if is_check else 'wrote'}: notebooks/{target.name}")
            if not is_check:
                target.write_text(text, "utf-8")
    for target in {*(ROOT / "notebooks").glob("[0-9]*.ipynb")} - {*targets.values()}:
        differ += 1
        print(f"has no source in notebooks/src: notebooks/{target.name}")
    return int(is_check and differ > 0)


if __name__ == "__main__":
    raise SystemExit(main())
