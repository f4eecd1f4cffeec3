"""Generate notebooks/NN_name.ipynb from notebooks/src/NN_name.py, the script that people edit.

The result depends on the script alone: no outputs, no random ids, sorted keys. So a notebook changes in git exactly
when its source does, and `--check` can compare bytes.

A notebook that somebody edited in Jupyter is left alone, because `make` builds before it runs and would throw that
work away; `--force` writes it anyway.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import tomllib
from pathlib import Path

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
# Numbered files are notebooks; anything else in src/ may be shared by them.
NUMBERED = "[0-9][0-9]_*"

# What jupytext notes down about the layout of the script, of no use in the notebook.
LAYOUT_METADATA = ("cell_marker", "lines_to_end_of_cell_marker", "lines_to_next_cell", "noskipline", "skipline")

NOTEBOOK_METADATA = {
    "colab": {"provenance": [], "toc_visible": True},
    # Neutral names, which exist in Jupyter, Colab and Kaggle alike.
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# What a source may add in its header for itself: Colab reads here whether to offer a GPU.
HEADER_METADATA = ("accelerator", "colab")


# What a source writes for the repository's address, which stands in pyproject.toml and nowhere else.
REPOSITORY_MARK, COLAB_MARK = "@REPOSITORY@", "@COLAB@"


def addresses() -> dict[str, str]:
    """Return the repository's address, and the one under which Colab opens it, by their marks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project["urls"]["Repository"].removesuffix("/")
    path = repository.removeprefix("https://github.com/")
    return {REPOSITORY_MARK: repository, COLAB_MARK: f"https://colab.research.google.com/github/{path}/blob/main"}


# A cell that says this in a source stands for the cells of the file: one text for the same cell of every notebook.
SHARED_MARK = re.compile(r"^@CELLS (_\w+\.py)@$")


def shared_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return the notebook's cells, with those of shared files where their marks stand."""
    cells: list[nbformat.NotebookNode] = []
    for cell in notebook.cells:
        mark = SHARED_MARK.match(cell.source.strip())
        cells += jupytext.read(NOTEBOOKS / "src" / mark[1], fmt="py:percent").cells if mark else [cell]
    return cells


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def fingerprint(notebook: nbformat.NotebookNode) -> str:
    """Return a hash of what a person can edit, which leaves out outputs and counters."""
    return digest(*(f"{cell.cell_type}\n{cell.source}" for cell in notebook.cells))[:16]


def generate(source: Path) -> str:
    """Return the text of the notebook that belongs to a source.

    Cell ids come from the content, so that inserting a cell leaves the others' ids, and the diff, as they were.
    """
    notebook = jupytext.read(source, fmt="py:percent")
    notebook.cells = shared_cells(notebook)
    for cell in notebook.cells:
        for mark, address in addresses().items():
            cell.source = cell.source.replace(mark, address)
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        name = f"cell-{digest(cell.cell_type, cell.source)[:8]}"
        seen[name] = seen.get(name, 0) + 1
        cell.id = name if seen[name] == 1 else f"{name}-{seen[name]}"
        for key in LAYOUT_METADATA:
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
    header = {key: notebook.metadata[key] for key in HEADER_METADATA if key in notebook.metadata}
    notebook.metadata = nbformat.from_dict(
        NOTEBOOK_METADATA | header | {"grpo_nb": {"generated": fingerprint(notebook), "source": f"src/{source.name}"}}
    )
    # 4.5 is the first format with cell ids.
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    nbformat.validate(notebook)
    # nbformat sorts the keys and writes a line of source as a line of JSON, which keeps diffs readable.
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def was_edited(target: Path) -> bool:
    """Tell whether the cells of a notebook differ from what was once generated into it."""
    notebook = nbformat.read(target, as_version=4)
    return notebook.metadata.get("grpo_nb", {}).get("generated") != fingerprint(notebook)


def is_same_apart_from_outputs(target: Path, text: str) -> bool:
    """Tell whether writing would change no cell, so that a notebook that was run keeps its outputs."""
    return fingerprint(nbformat.read(target, as_version=4)) == fingerprint(nbformat.reads(text, as_version=4))


def build(source: Path, force: bool) -> None:
    target = NOTEBOOKS / f"{source.stem}.ipynb"
    text = generate(source)
    if target.exists():
        if target.read_text(encoding="utf-8") == text:
            return
        if not force:
            if is_same_apart_from_outputs(target, text):
                return
            if was_edited(target):
                print(f"left alone: notebooks/{target.name} was edited in Jupyter (--force overwrites it)")
                return
    target.write_text(text, encoding="utf-8")
    print(f"wrote notebooks/{target.name}")


def find_stale(sources: list[Path]) -> list[str]:
    """Return one line for each notebook that is not byte for byte what its source gives."""
    complaints = []
    for source in sources:
        target = NOTEBOOKS / f"{source.stem}.ipynb"
        if not target.exists():
            complaints.append(f"notebooks/{target.name}: missing")
        elif target.read_text(encoding="utf-8") != generate(source):
            complaints.append(f"notebooks/{target.name}: differs from notebooks/src/{source.name}")
    names = {source.stem for source in sources}
    for target in sorted(NOTEBOOKS.glob(f"{NUMBERED}.ipynb")):
        if target.stem not in names:
            complaints.append(f"notebooks/{target.name}: has no source in notebooks/src")
    return complaints


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 and name the notebooks that are stale"
    )
    parser.add_argument("--force", action="store_true", help="also write notebooks that were edited or run in Jupyter")
    arguments = parser.parse_args()
    sources = sorted((NOTEBOOKS / "src").glob(f"{NUMBERED}.py"))
    if arguments.check:
        complaints = find_stale(sources)
        if complaints:
            print("\n".join(complaints))
            print("To write them again from their sources:  python scripts/build_notebooks.py --force")
        return 1 if complaints else 0
    for source in sources:
        build(source, arguments.force)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
