"""Make the pictures of README.md and docs/ from a finished run of the quickstart, in a headless chromium.

`make run`, then `.venv/bin/python scripts/pictures.py runs/<its folder>`; look at what it made before it is committed.
On Debian and Ubuntu the browser is `apt-get install chromium chromium-driver`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo_nb.runs.figure import png  # noqa: E402
from grpo_nb.runs.run_folder import open_run  # noqa: E402
from tests.support.lab_page import Jupyter, LabPage, write_notebook  # noqa: E402

DOCS = ROOT / "docs"
# Of GitHub's page and of most others: larger ones are slow to come.
MOST_BYTES = 300_000
LAB = """
import grpo_nb as gn
task = gn.load_task("arithmetic")
rewards = [gn.rewards.correctness(), gn.rewards.xml_format(weight=1.0), gn.rewards.xml_tags(weight=0.5)]
lab = gn.RewardLab(rewards, task)
gold = lab.row["answer"]
lab.completions = [
    task.format.render(f"The sum is {gold}.", gold),
    task.format.render(f"It is {gold}, or one more.", str(int(gold) + 1)),
    f"The answer is {gold}.",
]
lab
"""
VIEWER = """
import grpo_nb as gn
viewer = gn.RunViewer(%r)
viewer.step = %d
viewer
"""


def make(run: Path) -> None:
    """Write the three pictures into docs/."""
    (DOCS / "quickstart.png").write_bytes(png(open_run(run).plot(), dpi=150))
    middle = len(open_run(run).rows) // 2  # where a group has right and wrong completions
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "notebooks")
        folder.mkdir()
        server = Jupyter(folder, Path(place, "jupyter"))
        page = LabPage(Path(place, "profile"), width=1180)
        try:
            for name, code in (("reward_lab", LAB), ("run_viewer", VIEWER % (str(run), middle))):
                write_notebook(folder / f"{name}.ipynb", code)
                page.open(server, f"{name}.ipynb")
                page.run_all()
                page.wait(lambda: page.find(".gn-lab"), name)
                page.screenshot(DOCS / f"{name}.png")
        finally:
            page.close()
            server.stop()
    for name in ("quickstart", "reward_lab", "run_viewer"):
        file = DOCS / f"{name}.png"
        # The palette of fewest errors: others lose the colours of thin lines, or the light greys.
        palette = {"colors": 256, "method": Image.Quantize.MAXCOVERAGE, "kmeans": 3, "dither": Image.Dither.NONE}
        Image.open(file).convert("RGB").quantize(**palette).save(file, optimize=True)
        if file.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{file} takes {file.stat().st_size:,} bytes, more than {MOST_BYTES:,}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a finished run of notebooks/00_quickstart.ipynb")
    make(parser.parse_args().run.absolute())
