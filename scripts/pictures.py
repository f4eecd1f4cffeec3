"""Make the pictures of README.md and docs/ from a finished run of the quickstart.

    make run
    PYTHONPATH=. .venv/bin/python scripts/pictures.py runs/<its folder>

It needs a headless chromium; on Debian and Ubuntu: `apt-get install chromium chromium-driver`.
Look at the pictures before you commit them.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from publish import ROOT, packed

from grpo_nb.runs.figure import base64_png
from grpo_nb.runs.run_folder import open_run
from tests.support.lab_page import Jupyter, LabPage, write_notebook

LAB = """
import grpo_nb as gn
task = gn.load_task("arithmetic")
rewards = [
    gn.rewards.correctness(),
    gn.rewards.exact_format(weight=1.0),
    gn.rewards.partial_format(weight=0.5),
]
lab = gn.RewardLab(rewards, task)
gold = lab.row["answer"]
more = task.format.render(f"It is {gold}, or one more.", str(int(gold) + 1))
lab.completions = [task.format.render(f"The sum is {gold}.", gold), more, f"The answer is {gold}."]
lab
"""

VIEWER = """
import grpo_nb as gn
viewer = gn.RunViewer({folder!r})
viewer._slider.value = {step}
viewer
"""


def main() -> None:
    """Write the three pictures into docs/."""
    folder = Path(sys.argv[1]).absolute()
    docs = ROOT / "docs"
    run = open_run(folder)
    curves = base64.b64decode(base64_png(run.plot()))
    (docs / "quickstart.png").write_bytes(packed(curves, 256))
    # The first group is unfolded. In the chosen step it has better and worse completions.
    steps = [number for number in run.steps if run.step(number).groups[0].has_signal]
    middle = steps[len(steps) // 2]
    viewer = VIEWER.format(folder=str(folder), step=middle)
    with (
        tempfile.TemporaryDirectory() as place,
        closing(Jupyter(Path(place, "notebooks"), Path(place, "jupyter"))) as server,
        closing(LabPage(Path(place, "profile"), width=1180)) as page,
    ):
        for name, code in (("reward_lab", LAB), ("run_viewer", viewer)):
            write_notebook(server.folder / f"{name}.ipynb", code)
            page.open(server, f"{name}.ipynb")
            page.run_all()
            page.wait(lambda: page.find(".gn-panel"), name)
            (docs / f"{name}.png").write_bytes(packed(page.screenshot(), 256))


if __name__ == "__main__":
    main()
