"""Execute the notebooks and keep what they show in notebooks/*.ipynb, as small and as clean as a page on the web should be.

python scripts/publish.py [notebooks/04_train.ipynb]   # without a file all, half an hour on 2 cores
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
from run_notebook import run

FOLDER = ROOT / "build" / "publish"
PICTURE = re.compile(r"(?<=data:image/png;base64,)[A-Za-z0-9+/=]+")


def packed(picture: bytes, colours: int = 128) -> bytes:
    """Return a PNG in few colours, a quarter of its size, with its transparent background."""
    image = Image.open(io.BytesIO(picture)).convert("RGBA")
    # The only method of Pillow that keeps transparency.
    few = image.quantize(colours, Image.Quantize.FASTOCTREE)
    file = io.BytesIO()
    few.save(file, "PNG", optimize=True)
    return file.getvalue()


def smaller(picture: str) -> str:
    return base64.b64encode(packed(base64.b64decode(picture))).decode()


def clean(notebook: nbformat.NotebookNode) -> None:
    """Take away what a page without a kernel cannot show, and pack the pictures."""
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        data = output.get("data", {})
        if "text/html" in data:
            data.pop(
                "application/vnd.jupyter.widget-view+json", None
            )  # the HTML is the same view, as it stood
            data["text/html"] = PICTURE.sub(lambda found: smaller(found[0]), data["text/html"])
        if "image/png" in data:
            data["image/png"] = smaller(data["image/png"])


def main() -> int:
    """Execute notebooks, put the outputs of each into its file, and return the worst exit status."""
    # The head of a3_gsm8k_gpu says that nobody has run it where it belongs.
    asked = [Path(name).absolute() for name in sys.argv[1:]]
    files = asked or [
        f for f in sorted((ROOT / "notebooks").glob("??_*.ipynb")) if f.stem != "a3_gsm8k_gpu"
    ]
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    statuses = []
    for file in files:
        statuses.append(run(file, FOLDER, []))
        if statuses[-1] == 0:
            executed = nbformat.read(FOLDER / "runs" / "notebooks" / file.name, as_version=4)
            clean(executed)
            nbformat.write(executed, file)
            file.write_text(
                generate(ROOT / f"notebooks/src/{file.stem}.py", file), encoding="utf-8"
            )
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
