"""Generate notebooks/NN_name.ipynb from notebooks/src/NN_name.py, the script that people edit.

The cells depend on the script alone. A cell that did not change keeps its outputs, which `make publish` makes.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import tomllib
from pathlib import Path

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
NOTEBOOK_METADATA = {
    "colab": {"provenance": [], "toc_visible": True},
    # Neutral names, which exist in Jupyter, Colab and Kaggle alike.
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# What a source may add in its header for itself: Colab reads here whether to offer a GPU.
HEADER_METADATA = ("accelerator", "colab")
# What jupytext notes down about the layout of the script, of no use in the notebook.
LAYOUT_METADATA = ("cell_marker", "lines_to_end_of_cell_marker", "lines_to_next_cell", "noskipline", "skipline")
# A cell that says this in a source stands for the cells of the file: one text for the same cell of every notebook.
SHARED_MARK = re.compile(r"^@CELLS (_\w+\.py)@$")


def repository_path() -> str:
    """Return `owner/name` of the repository on GitHub, as pyproject.toml has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["urls"]["Repository"].removeprefix("https://github.com/")


def follow_remote(remote: str) -> None:
    """Write the address of git's remote into pyproject.toml and README.md, if it is one on GitHub and another than there."""
    known = repository_path()
    found = re.fullmatch(r"(?:https://|(?:ssh://)?git@)github\.com[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?", remote)
    for file in (ROOT / "pyproject.toml", ROOT / "README.md") if found and found[1] != known else ():
        file.write_text(file.read_text(encoding="utf-8").replace(known, found[1]), encoding="utf-8")


def addresses() -> dict[str, str]:
    """Return what a source writes for the repository's address, and for the one under which Colab opens it."""
    path = repository_path()
    repository = f"https://github.com/{path}"
    return {"@REPOSITORY@": repository, "@COLAB@": f"https://colab.research.google.com/github/{path}/blob/main"}


def read_source(source: Path) -> nbformat.NotebookNode:
    """Return the notebook of a source, with the cells of shared files where their marks stand."""
    notebook = jupytext.read(source, fmt="py:percent")
    cells = []
    for cell in notebook.cells:
        mark = SHARED_MARK.match(cell.source.strip())
        cells += read_source(source.with_name(mark[1])).cells if mark else [cell]
    notebook.cells = cells
    return notebook


def generate(source: Path) -> nbformat.NotebookNode:
    """Return the notebook that belongs to a source, without outputs.

    Cell ids come from the content, so that inserting a cell leaves the others' ids, and the diff, as they were.
    """
    notebook, ids = read_source(source), set()
    for cell in notebook.cells:
        for mark, address in addresses().items():
            cell.source = cell.source.replace(mark, address)
        content = f"{cell.cell_type}\0{cell.source}"
        cell.id = f"cell-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
        while cell.id in ids:
            cell.id += "-again"
        ids.add(cell.id)
        for key in LAYOUT_METADATA:
            cell.metadata.pop(key, None)
    header = {key: notebook.metadata[key] for key in HEADER_METADATA if key in notebook.metadata}
    notebook.metadata = nbformat.from_dict(NOTEBOOK_METADATA | header)
    # 4.5 is the first format with cell ids.
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def text_with_outputs(source: Path, target: Path) -> str:
    """Return the file of a source's notebook, with the outputs that its cells have in the one that is there."""
    notebook = generate(source)
    there = {cell.id: cell for cell in nbformat.read(target, as_version=4).cells} if target.exists() else {}
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.id in there:
            cell.outputs, cell.execution_count = there[cell.id].outputs, there[cell.id].execution_count
    nbformat.validate(notebook)
    # nbformat sorts the keys and writes a line of source as a line of JSON, which keeps diffs readable.
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 and name the notebooks that are stale"
    )
    is_check, stale = parser.parse_args().check, 0
    if not is_check:
        asked = subprocess.run(["git", "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True)
        follow_remote(asked.stdout.strip())
    # Numbered files are notebooks; anything else in src/ may be shared by them.
    sources = {source.stem: source for source in sorted((NOTEBOOKS / "src").glob("[0-9][0-9]_*.py"))}
    for target in [NOTEBOOKS / f"{name}.ipynb" for name in sources]:
        text = text_with_outputs(sources[target.stem], target)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            stale += 1
            print(f"{'differs from its source' if is_check else 'wrote'}: notebooks/{target.name}")
            if not is_check:
                target.write_text(text, encoding="utf-8")
    for target in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")):
        if target.stem not in sources:
            stale += 1
            print(f"has no source in notebooks/src: notebooks/{target.name}")
    return int(is_check and stale > 0)


if __name__ == "__main__":
    raise SystemExit(main())
