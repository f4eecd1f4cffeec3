"""`make run`: its progress lines, and everything is kept where a cell fails or is stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import nbformat

from tests.conftest import ROOT

PARAMETERS = nbformat.v4.new_code_cell(
    "WORD = 'a'  # @param\nNUMBER = 1", metadata={"tags": ["parameters"]}
)


def start(
    folder: Path, *cells: nbformat.NotebookNode | str, values: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    made = [nbformat.v4.new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# One `two`"), *made])
    nbformat.write(notebook, folder / "asked.ipynb")
    command = [
        sys.executable,
        ROOT / "scripts/run_notebook.py",
        folder / "asked.ipynb",
        "--cwd",
        folder,
    ]
    command += ["--set", *values] if values else []
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )


def executed(folder: Path) -> nbformat.NotebookNode:
    return nbformat.read(folder / "runs/notebooks/asked.ipynb", as_version=4)


def test_failing_cell_is_shown_and_executed_cells_are_kept(tmp_path: Path) -> None:
    running = start(tmp_path, "'trained'", "assert 1 > 2, 'it did not rise'")
    said = running.communicate()[0]
    assert running.returncode == 1
    assert "step 2/2  One two" in said
    assert "    'trained'" in said, said
    assert "Stopped during “One two”: AssertionError: it did not rise" in said, said
    assert executed(tmp_path).cells[1].outputs[0].data["text/plain"] == "'trained'"
    assert executed(tmp_path).cells[2].outputs[0].output_type == "error"


def test_output_keeps_the_order_of_prints_and_displays(tmp_path: Path) -> None:
    cell = "print('before')\nprint('also')\ndisplay('table')\nprint('after')"
    assert start(tmp_path, cell).wait(120) == 0
    outputs = executed(tmp_path).cells[1].outputs
    shown = [output.get("text") or output.data["text/plain"] for output in outputs]
    assert shown == ["before\nalso\n", "'table'", "after\n"]


def test_values_for_settings_are_set_and_others_refused(tmp_path: Path) -> None:
    running = start(tmp_path, PARAMETERS, "print(WORD, NUMBER)", values=(r"WORD=r'\d'", "NUMBER=2"))
    assert r"    \d 2" in running.communicate()[0].splitlines()
    assert running.returncode == 0
    assert (
        nbformat.read(tmp_path / "asked.ipynb", as_version=4).cells[1].source == PARAMETERS.source
    ), "stays as it is"
    running = start(tmp_path, PARAMETERS, values=("OTHER=2",))
    assert "no line OTHER = ... in the settings cell" in running.communicate()[0]
    assert running.returncode


def test_training_steps_bars_and_an_interrupt_are_told(tmp_path: Path) -> None:
    trains = (
        "import json, pathlib, time\n"
        "pathlib.Path('runs/new').mkdir(parents=True, exist_ok=True)\n"
        "with open('runs/new/metrics.jsonl', 'a') as file:\n"
        "    row = {'step': STEP, 'max_steps': 20, 'reward': 0.5, 'kl': None, 'step_time': 2.0}\n"
        "    print(json.dumps(row), file=file)\n"
        "for i in range(3):\n"
        "    print(f'\\rbar {i} of 2', end='')\n"
        "    time.sleep(60 if STEP == 4 else 0.7)\n"
    )
    running = start(tmp_path, "STEP = 3", trains, f"STEP = 4\n{trains}")
    lines = []
    for line in running.stdout:
        lines.append(line.rstrip())
        if "step 4/20" in line:
            running.send_signal(signal.SIGINT)
    assert running.wait(30) == 130
    assert lines.index("  step 3/20  reward 0.50  KL not measured  seconds 2.0") < lines.index(
        "    bar 2 of 2"
    )
    assert not [line for line in lines if "bar 1" in line], lines
    assert "Stopped during “One two”" in lines
    assert executed(tmp_path).cells[2].outputs[0].text == "bar 2 of 2"
