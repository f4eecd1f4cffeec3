"""Write the tree of the house into docs/architecture.md: every room with its sentence, every file with its first line.

python scripts/build_architecture.py [--check]
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
START, END = "<!-- tree: written by scripts/build_architecture.py -->\n", "<!-- end of the tree -->\n"


def sentence(file: Path) -> str:
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return re.split(r"(?<=[.?])\s", " ".join(text.split("\n\n")[0].split()), maxsplit=1)[0]


def subject(file: Path) -> str:
    """What that sentence is about: up to its first colon or semicolon, unless that only repeats the file's name."""
    whole = sentence(file).rstrip(".")
    first = re.split(r"[:;] ", whole, maxsplit=1)[0]
    return first if len(first.split()) > 3 else whole


def tree() -> str:
    """The rooms in import order, each as a heading, its sentence and a list of its files."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    lines = []
    for room in reversed(contracts[0]["layers"]):
        folder = ROOT / "grpo_nb" / room
        files = sorted(p for p in folder.rglob("*.py") if p.name != "__init__.py")
        lines += [f"### {room}/", "", sentence(folder / "__init__.py"), ""]
        lines += [f"- `{file.relative_to(folder)}`: {subject(file)}" for file in files]
        kinds = sorted({f"`*{p.suffix}`" for p in folder.rglob("*") if p.suffix in (".jinja", ".css")})
        lines += [f"- {', '.join(kinds)}: templates"] * bool(kinds) + [""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    arguments = parser.parse_args()
    page = PAGE.read_text()
    head, rest = page.split(START, 1)
    wanted = head + START + tree() + END + rest.split(END, 1)[1]
    if arguments.check:
        if wanted != page:
            print(f"{PAGE.relative_to(ROOT)} is not what the files say: python scripts/build_architecture.py")
        return int(wanted != page)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
