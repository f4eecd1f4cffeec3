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


def clean(notebook: nbformat.NotebookNode) -> None:
    """Remove what needs a kernel, and pack the pictures."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/html" in data:
                # The HTML shows the same as the widget.
                data.pop(WIDGET, None)
                html = data["text/html"]
                data["text/html"] = PICTURE.sub(lambda found: packed_text(found[0]), html)
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
