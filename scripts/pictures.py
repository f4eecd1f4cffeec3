"""Make the pictures of README.md and docs/ from a finished run of the quickstart, in a headless chromium.

`make run`, then `.venv/bin/python scripts/pictures.py runs/<its folder>`; look at what it made before it is committed.
On Debian and Ubuntu the browser is `apt-get install chromium chromium-driver`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from publish import packed

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo_nb.runs.figure import png  # noqa: E402
from grpo_nb.runs.run_folder import open_run  # noqa: E402
from tests.support.lab_page import Jupyter, LabPage, write_notebook  # noqa: E402

LAB = """
import grpo_nb as gn
task = gn.load_task("arithmetic")
lab = gn.RewardLab([gn.rewards.correctness(), gn.rewards.xml_format(weight=1.0), gn.rewards.xml_tags(weight=0.5)], task)
gold = lab.row["answer"]
more = task.format.render(f"It is {gold}, or one more.", str(int(gold) + 1))
lab.completions = [task.format.render(f"The sum is {gold}.", gold), more, f"The answer is {gold}."]
lab
"""
# In the middle a group has right and wrong completions.
VIEWER = """
import grpo_nb as gn
viewer = gn.RunViewer({!r})
viewer.step = {}
viewer
"""


def main() -> None:
    """Write the three pictures into docs/."""
    folder, docs = Path(sys.argv[1]).absolute(), ROOT / "docs"
    run = open_run(folder)
    (docs / "quickstart.png").write_bytes(png(run.plot(), dpi=150))
    with tempfile.TemporaryDirectory() as place:
        notebooks = Path(place, "notebooks")
        notebooks.mkdir()
        server, page = Jupyter(notebooks, Path(place, "jupyter")), LabPage(Path(place, "profile"), width=1180)
        try:
            for name, code in (("reward_lab", LAB), ("run_viewer", VIEWER.format(str(folder), len(run.rows) // 2))):
                write_notebook(notebooks / f"{name}.ipynb", code)
                page.open(server, f"{name}.ipynb")
                page.run_all()
                page.wait(lambda: page.find(".gn-lab"), name)
                page.screenshot(docs / f"{name}.png")
        finally:
            page.close()
            server.stop()
    for picture in (docs / f"{name}.png" for name in ("quickstart", "reward_lab", "run_viewer")):
        picture.write_bytes(packed(picture.read_bytes(), 256))


if __name__ == "__main__":
    main()
