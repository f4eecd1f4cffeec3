"""Execute notebooks and keep their outputs, packed for the web, in notebooks/*.ipynb.

    python scripts/publish.py [notebooks/04_train.ipynb]

Without a file it executes all of them, which takes half an hour on two cores.
"""

import base64
import io
import re
import shutil
import sys
from pathlib import Path

import nbformat
from build_notebooks import ROOT, generate
from PIL import Image
from run_notebook import WIDGET, run

FOLDER = ROOT / "build" / "publish"
PICTURE = re.compile(r"(?<=data:image/png;base64,)[A-Za-z0-9+/=]+")
PANDAS_TABLE = re.compile(r'<table (?:border="1" class="dataframe"|id="T_).*?</table>', re.DOTALL)
ROW = re.compile(r"<tr\b.*?</tr>", re.DOTALL)
CELL = re.compile(r"(<t[dh]\b[^>]*>)(.*?)(</t[dh]>)", re.DOTALL)


def packed(picture: bytes, colours: int = 128) -> bytes:
    """Return a PNG in few colours, a quarter of its size, with its transparent background."""
    image = Image.open(io.BytesIO(picture)).convert("RGBA")
    lowest_opacity, _ = image.getchannel("A").getextrema()
    if lowest_opacity == 255:
        few = image.convert("RGB").quantize(colours, Image.Quantize.MEDIANCUT)
    else:
        # The only method of Pillow that keeps transparency. It changes white and pale grey.
        few = image.quantize(colours, Image.Quantize.FASTOCTREE)
    file = io.BytesIO()
    few.save(file, "PNG", optimize=True)
    return file.getvalue()


def packed_text(picture: str) -> str:
    """Pack a PNG that is written in base64."""
    return base64.b64encode(packed(base64.b64decode(picture))).decode()


def with_texts_at_left(table: str) -> str:
    """Return a table of pandas whose texts stay at the left where a page removes styles.

    Columns are counted from the right, because a cell of the index can span several rows.
    """
    text_columns = set()
    for row in ROW.findall(table):
        if "<td" in row:
            contents = [content for _, content, _ in CELL.findall(row)]
            for column, content in enumerate(contents, -len(contents)):
                if not is_number(content):
                    text_columns.add(column)

    def align(row: re.Match[str]) -> str:
        # A head that spans several columns belongs to none of them.
        if "colspan" in row[0]:
            return row[0]
        columns = iter(range(-len(CELL.findall(row[0])), 0))

        def align_cell(cell: re.Match[str]) -> str:
            opening, content, closing = cell.groups()
            is_blank = content.strip() in ("", "&nbsp;")
            if next(columns) in text_columns and not is_blank:
                content = f'<div align="left">{content}</div>'
            return f"{opening}{content}{closing}"

        return CELL.sub(align_cell, row[0])

    return ROW.sub(align, table)


def is_number(content: str) -> bool:
    """Return whether a cell is empty or has a number, possibly in percent."""
    text = re.sub(r"<[^>]*>", "", content).strip().rstrip(" %")
    return (
        re.fullmatch(r"[-+\N{MINUS SIGN}]?[\d.,]*(e[-+]?\d+)?|nan", text, re.IGNORECASE) is not None
    )


def clean(notebook: nbformat.NotebookNode) -> None:
    """Remove what needs a kernel, pack the pictures, and align the texts of tables."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/html" in data:
                # The HTML shows the same as the widget.
                data.pop(WIDGET, None)
                html = data["text/html"]
                html = PICTURE.sub(lambda found: packed_text(found[0]), html)
                html = PANDAS_TABLE.sub(lambda found: with_texts_at_left(found[0]), html)
                data["text/html"] = html
            if "image/png" in data:
                data["image/png"] = packed_text(data["image/png"])


def notebooks_to_execute() -> list[Path]:
    """Return the notebooks of the command line, or all but the one that needs a GPU."""
    named = [Path(name).absolute() for name in sys.argv[1:]]
    everything = sorted((ROOT / "notebooks").glob("??_*.ipynb"))
    return named or [file for file in everything if file.stem != "a3_gsm8k_gpu"]


def main() -> int:
    """Execute notebooks, write their outputs into their files, return the worst exit status."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    statuses = []
    for file in notebooks_to_execute():
        statuses.append(run(file, FOLDER, []))
        if statuses[-1] == 0:
            executed = nbformat.read(FOLDER / "runs" / "notebooks" / file.name, as_version=4)
            clean(executed)
            nbformat.write(executed, file)
            source = ROOT / "notebooks" / "src" / f"{file.stem}.py"
            file.write_text(generate(source, file), encoding="utf-8")
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
