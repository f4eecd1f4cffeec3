"""Make the pictures of README.md and docs/ from a finished run of the quickstart, in a headless chromium.

`make run`, then `PYTHONPATH=. .venv/bin/python scripts/pictures.py runs/<its folder>`; look at what it made before it is
committed. On Debian and Ubuntu the browser is `apt-get install chromium chromium-driver`.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing
from pathlib import Path

from publish import ROOT, packed

from grpo_nb.runs.figure import png
from grpo_nb.runs.run_folder import open_run
from tests.support.lab_page import Jupyter, LabPage, write_notebook

LAB = """
import grpo_nb as gn
task = gn.load_task("arithmetic")
lab = gn.RewardLab([gn.rewards.correctness(), gn.rewards.xml_format(weight=1.0), gn.rewards.xml_tags(weight=0.5)], task)
gold = lab.row["answer"]
more = task.format.render(f"It is {gold}, or one more.", str(int(gold) + 1))
lab.completions = [task.format.render(f"The sum is {gold}.", gold), more, f"The answer is {gold}."]
lab
"""


def main() -> None:
    """Write the three pictures into docs/."""
    folder, docs = Path(sys.argv[1]).absolute(), ROOT / "docs"
    run = open_run(folder)
    (docs / "quickstart.png").write_bytes(packed(png(run.plot(), dpi=150), 256))
    # In the middle a group has right and wrong completions.
    viewer = f"import grpo_nb as gn\nviewer = gn.RunViewer({str(folder)!r})\nviewer.step = {len(run.rows) // 2}\nviewer"
    with (
        tempfile.TemporaryDirectory() as place,
        closing(Jupyter(Path(place, "notebooks"), Path(place, "jupyter"))) as server,
        closing(LabPage(Path(place, "profile"), width=1180)) as page,
    ):
        for name, code in (("reward_lab", LAB), ("run_viewer", viewer)):
            write_notebook(server.folder / f"{name}.ipynb", code)
            page.open(server, f"{name}.ipynb")
            page.run_all()
            page.wait(lambda: page.find(".gn-lab"), name)
            (docs / f"{name}.png").write_bytes(packed(page.screenshot(), 256))


if __name__ == "__main__":
    main()
