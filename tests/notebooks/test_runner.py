"""`make run` on a notebook whose last cell fails: everything is kept, and it says in words what it means."""

import signal
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
    assert done.returncode and "no line OTHER = ... in the settings cell" in done.stderr


def test_training_steps_bars_and_an_interrupt_are_told(tmp_path: Path) -> None:
    told = nbformat.v4.new_code_cell(
        "import json, pathlib, sys, time\n"
        "pathlib.Path('runs/new').mkdir(parents=True)\n"
        "with open('runs/new/metrics.jsonl', 'w') as file:\n"
        "    print(json.dumps({'step': 3, 'max_steps': 20, 'reward': 0.5, 'kl': None, 'step_time': 2.0}), file=file)\n"
        "for i in range(3):\n"
        "    print(f'\\rbar {i} of 2', end='')\n"
        "print()\n"
    )
    sleeps = nbformat.v4.new_code_cell("print('asleep')\nimport time; time.sleep(60)")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# One `two`"), told, sleeps])
    file = tmp_path / "told.ipynb"
    nbformat.write(notebook, file)
    command = [sys.executable, str(ROOT / "scripts/run_notebook.py"), str(file), "--cwd", str(tmp_path)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    lines = []
    for line in running.stdout:
        lines.append(line.rstrip())
        if "asleep" in line:
            running.send_signal(signal.SIGINT)
    assert running.wait(30) == 130
    assert "step 1/2  One two" in lines and "    bar 2 of 2" in lines
    assert "  step 3/20  reward 0.50  KL not measured  2.0 s/step  34 s left" in lines
    assert not [line for line in lines if "bar 1" in line or "Traceback" in line], lines
    assert any(line.startswith("Stopped during “One two”") for line in lines)
