"""Execute the notebooks and keep what they show in notebooks/*.ipynb, as small and as clean as a page on the web should be.

python scripts/publish.py [notebooks/03_train.ipynb]   # without a file all, half an hour on 2 cores
"""

from __future__ import annotations

import argparse
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
# Its head says that nobody has run it where it belongs.
NOT_RUN_HERE = {"10_gsm8k"}
WIDGET = "application/vnd.jupyter.widget-view+json"


def smaller(picture: str) -> str:
    """Pack a base64 PNG of lines and text into 64 colours, a quarter of its size."""
    image = Image.open(io.BytesIO(base64.b64decode(picture)))
    flat = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA")).convert("RGB")
    packed = io.BytesIO()
    flat.quantize(64, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()


def clean(notebook: nbformat.NotebookNode) -> None:
    """Take away what a page without a kernel cannot show, and pack the pictures."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/html" in data:
                data.pop(WIDGET, None)  # the HTML beside it is the same view, as it stood
                pictures = r"(?<=data:image/png;base64,)[A-Za-z0-9+/=]+"
                data["text/html"] = re.sub(pictures, lambda found: smaller(found[0]), data["text/html"])
            if "image/png" in data:
                data["image/png"] = smaller(data["image/png"])


def publish(file: Path) -> int:
    """Execute a notebook, and put its outputs into the file; return the exit status."""
    status = run(file, FOLDER, [])
    if status == 0:
        executed = nbformat.read(FOLDER / "runs" / "notebooks" / file.name, as_version=4)
        clean(executed)
        nbformat.write(executed, file)
        file.write_text(generate(ROOT / f"notebooks/src/{file.stem}.py", file), encoding="utf-8")
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", type=Path, nargs="*", help="those to execute")
    asked = [file.absolute() for file in parser.parse_args().notebooks]
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    files = asked or [f for f in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")) if f.stem not in NOT_RUN_HERE]
    return max(publish(file) for file in files)


if __name__ == "__main__":
    sys.exit(main())
