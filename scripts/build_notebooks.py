"""Generate notebooks/NN_name.ipynb from notebooks/src/NN_name.py, the script that people edit.

The cells depend on the script alone. A cell that did not change keeps its outputs, which
`make publish` makes.

Badges, the clone address and links that work in Colab need the public address of the repository.
It is kept in pyproject.toml, and `make publish REPOSITORY=https://github.com/<owner>/<name>` writes
it there, into README.md and into the notebooks. Without an address there is no badge, and links
are relative.
"""

from __future__ import annotations

import argparse
import hashlib
import re
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
COLAB_BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
# A cell with this text stands for the cells of the named file, which all notebooks share.
SHARED = re.compile(r"^@CELLS (_\w+\.py)@$")
# A Markdown link to a file of the project, relative to the folder notebooks/.
RELATIVE_LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)\s]+)(?=\))")
ADDRESS = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+")
ADDRESS_LINE = re.compile(r'^Repository = "(.+)"\n', re.MULTILINE)
README_PART = re.compile(r"(<!-- address: .*? -->\n).*?(<!-- end of address -->)", re.DOTALL)


def repository() -> str | None:
    """Return the public address of the repository, or None if pyproject.toml has none."""
    match = ADDRESS_LINE.search((ROOT / "pyproject.toml").read_text("utf-8"))
    return match[1] if match else None


def colab_address(address: str, notebook: str) -> str:
    """Return the address under which Colab opens a notebook of the repository."""
    path = address.removeprefix("https://github.com/")
    return f"https://colab.research.google.com/github/{path}/blob/main/notebooks/{notebook}"


def write_address(address: str) -> None:
    """Write the public address into pyproject.toml and README.md.

    Args:
        address: `https://github.com/<owner>/<name>`, or an empty string to remove the address.

    Raises:
        SystemExit: The address has another form.
    """
    if address and not ADDRESS.fullmatch(address):
        raise SystemExit(
            f"REPOSITORY={address} is no address of a repository on GitHub. Colab opens notebooks"
            " from there. Write https://github.com/<owner>/<name>."
        )
    project = ROOT / "pyproject.toml"
    text = ADDRESS_LINE.sub("", project.read_text("utf-8"))
    if address:
        text = text.replace("[project.urls]\n", f'[project.urls]\nRepository = "{address}"\n')
    project.write_text(text, "utf-8")
    lines = ""
    if address:
        colab = colab_address(address, "00_quickstart.ipynb")
        name = address.rpartition("/")[2]
        lines = (
            f"[![Open in Colab]({COLAB_BADGE})]({colab})\n\n"
            f"```bash\ngit clone {address} && cd {name}\n```\n"
        )
    readme = ROOT / "README.md"
    text = README_PART.sub(lambda match: match[1] + lines + match[2], readme.read_text("utf-8"))
    readme.write_text(text, "utf-8")


def sources() -> list[Path]:
    """Return the scripts of the notebooks in reading order: numbers first, then the appendix."""
    return sorted((ROOT / "notebooks/src").glob("??_*.py"))


def title_of(source: Path) -> str:
    """Return the first heading of a script."""
    return re.search(r"^# # (.+)$", source.read_text("utf-8"), re.MULTILINE)[1]


def cells_of(source: Path) -> list[nbformat.NotebookNode]:
    """Return the cells of a script, with the shared cells in the places of their marks."""
    cells = []
    for cell in jupytext.read(source, fmt="py:percent").cells:
        mark = SHARED.match(cell.source.strip())
        cells += cells_of(source.with_name(mark[1])) if mark else [cell]
    return cells


def clone_lines(address: str | None) -> str:
    """Return the lines of the setup cell that make `grpo_nb` importable."""
    if address is None:
        return '    sys.path.insert(0, os.path.abspath(".."))  # this notebook is in notebooks/'
    return f"""\
    if not os.path.isdir("grpo_nb_clone"):
        command = ["git", "clone", "--depth=1", "{address}", "grpo_nb_clone"]
        subprocess.run(command, check=True)
    sys.path.insert(0, os.path.abspath("grpo_nb_clone"))"""


def badge(address: str | None, notebook: str) -> str:
    """Return the Markdown of the button that opens a notebook in Colab, empty without address."""
    if address is None:
        return ""
    return f"[![Open in Colab]({COLAB_BADGE})]({colab_address(address, notebook)})"


def neighbours(source: Path) -> str:
    """Return links to the notebooks before and after this one."""
    everything = sources()
    place = everything.index(source)
    links = []
    if place > 0:
        before = everything[place - 1]
        links.append(f"← [{title_of(before)}]({before.stem}.ipynb)")
    if place + 1 < len(everything):
        after = everything[place + 1]
        links.append(f"[{title_of(after)}]({after.stem}.ipynb) →")
    return " · ".join(links)


def absolute(link: str, address: str) -> str:
    """Return the public address of a file of the project that a notebook links to."""
    if link.endswith(".ipynb") and "/" not in link:
        return colab_address(address, link)
    path = link.removeprefix("../") if link.startswith("../") else f"notebooks/{link}"
    return f"{address}/blob/main/{path}"


def finished(text: str, source: Path, address: str | None) -> str:
    """Replace the marks of a cell and, with an address, its relative links."""
    text = text.replace("    pass  # @CLONE@", clone_lines(address))
    text = text.replace("@BADGE@", badge(address, f"{source.stem}.ipynb"))
    text = text.replace("@NEIGHBOURS@", neighbours(source)).rstrip("\n")
    if address is not None:
        text = RELATIVE_LINK.sub(lambda match: absolute(match[1], address), text)
    return text


def generate(source: Path, there: Path) -> str:
    """Return the text of a notebook, with the outputs of unchanged cells in the existing one.

    Cell ids come from the content, so that inserting a cell leaves the ids of the others, and the
    diff, as they were.
    """
    old = {}
    if there.exists():
        old = {cell.id: cell for cell in nbformat.read(there, as_version=4).cells}
    address = repository()
    cells: dict[str, nbformat.NotebookNode] = {}
    for cell in cells_of(source):
        # The id does not depend on the address: a copy with another one keeps its outputs.
        content = f"{cell.cell_type}\0{cell.source}"
        if cell.cell_type == "markdown" or "@CLONE@" in cell.source:
            cell.source = finished(cell.source, source, address)
        cell.id = f"cell-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
        while cell.id in cells:
            cell.id += "-again"
        # The other metadata is jupytext's memory of the layout of the script.
        kept = ("tags", "cellView", "jupyter")
        cell.metadata = {key: value for key, value in cell.metadata.items() if key in kept}
        if cell.cell_type == "code" and cell.id in old:
            cell.outputs = old[cell.id].outputs
            cell.execution_count = old[cell.id].execution_count
        cells[cell.id] = cell
    # Colab reads in the header of a notebook whether to offer a GPU.
    metadata = dict(METADATA)
    header = jupytext.read(source).metadata
    if "accelerator" in header:
        metadata["accelerator"] = header["accelerator"]
    notebook = nbformat.v4.new_notebook(cells=list(cells.values()), metadata=metadata)
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def main() -> int:
    """Write the notebooks that differ from their scripts, or with --check only name them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit 1 and name the notebooks that differ",
    )
    parser.add_argument("--repository", help="public address to write first; empty removes it")
    arguments = parser.parse_args()
    if arguments.repository is not None:
        write_address(arguments.repository)
    differ = 0
    for source in sources():
        target = ROOT / f"notebooks/{source.stem}.ipynb"
        text = generate(source, target)
        if target.exists() and target.read_text("utf-8") == text:
            continue
        differ += 1
        state = "differs from its source" if arguments.check else "wrote"
        print(f"{state}: notebooks/{target.name}")
        if not arguments.check:
            target.write_text(text, "utf-8")
    names = {source.stem for source in sources()}
    for target in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if target.stem not in names:
            differ += 1
            print(f"has no source in notebooks/src: notebooks/{target.name}")
    return int(arguments.check and differ > 0)


if __name__ == "__main__":
    raise SystemExit(main())
