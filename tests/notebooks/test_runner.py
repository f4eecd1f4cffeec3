"""`make run` on a notebook whose last cell fails: everything is kept, and it says in words what it means."""

import subprocess
import sys
from pathlib import Path

import nbformat

from tests.conftest import ROOT
from tests.support.written_run import write_run


def test_a_last_cell_that_fails_leaves_the_run_and_says_what_it_means(tmp_path: Path) -> None:
    made = write_run(tmp_path / "made")
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("## Train"),
            nbformat.v4.new_code_cell(
                f"import shutil, time; shutil.copytree({str(made.path)!r}, 'runs/mine'); time.sleep(1.5); 'trained'"
            ),
            nbformat.v4.new_markdown_cell("## Did it work?"),
            nbformat.v4.new_code_cell(
                "from grpo_nb.runs.rise import reward_rise\n"
                "rise = reward_rise([{'step': i, 'reward': 1.0 - 0.1 * (i % 3)} for i in range(12)])\n"
                "assert rise.is_clear, rise.sentence"
            ),
        ]
    )
    file = tmp_path / "failing.ipynb"
    nbformat.write(notebook, file)
    command = [sys.executable, str(ROOT / "scripts/run_notebook.py"), str(file), "--cwd", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    for said in (
        "“Did it work?” failed",
        "The reward did not rise clearly",
        "The run is kept",
        "Run mine:",
        "failing.html",
    ):
        assert said in done.stdout, (said, done.stdout[-3000:], done.stderr[-1000:])
    executed = nbformat.read(tmp_path / "runs" / "notebooks" / "failing.ipynb", as_version=4)
    assert executed.cells[1].outputs[0].data["text/plain"] == "'trained'"
    assert (tmp_path / "runs" / "mine" / "run.json").is_file() and (tmp_path / "runs/notebooks/failing.html").is_file()


def test_lines_of_the_settings_cell_are_set_and_others_refused(tmp_path: Path) -> None:
    settings = nbformat.v4.new_code_cell("WORD = 'a'  # @param\nNUMBER = 1", metadata={"tags": ["parameters"]})
    notebook = nbformat.v4.new_notebook(cells=[settings, nbformat.v4.new_code_cell("print(WORD, NUMBER)")])
    file = tmp_path / "asked.ipynb"
    nbformat.write(notebook, file)
    command = [sys.executable, str(ROOT / "scripts/run_notebook.py"), str(file), "--cwd", str(tmp_path), "--set"]
    done = subprocess.run([*command, r"WORD=r'\d'"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and r"\d 1" in done.stdout, done.stdout + done.stderr
    assert nbformat.read(file, as_version=4).cells[0].source == settings.source, "the published one stays as it is"
    done = subprocess.run([*command, "OTHER=2"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and "no line OTHER = ... in the settings cell" in done.stdout
