"""The rooms: a room imports only from rooms above it; no circles (pyproject.toml); what they weigh when they are opened."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {
    "torch", "transformers", "trl", "unsloth", "datasets", "pandas", "matplotlib", "ipywidgets", "numpy", "scipy", "peft",
    "IPython",
}  # fmt: skip
ROOMS = {path.parent.name for path in (ROOT / "grpo_nb").glob("*/__init__.py")}


def lint(root: Path) -> tuple[int, str]:
    """Check the rooms of the repository at `root`, as `make lint` does."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()"]
    done = subprocess.run([*command, "--no-cache", "--no-logo"], capture_output=True, text=True, cwd=root)
    return done.returncode, done.stdout + done.stderr


def test_the_rooms_keep_their_order() -> None:
    status, said = lint(ROOT)
    assert status == 0, said


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        (
            "core/words.py",
            "def f():\n    from grpo_nb.machine.gpu import find_gpu\n",
            "A room imports only from rooms above it",
        ),
        ("core/words.py", "from grpo_nb.core.tables import Table\n", "No file needs another that needs it"),
        ("attic/__init__.py", "", "grpo_nb.attic"),
    ],
)
def test_what_breaks_a_rule_is_found(file: str, line: str, broken: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "grpo_nb", tmp_path / "grpo_nb", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    changed = tmp_path / "grpo_nb" / file
    changed.parent.mkdir(exist_ok=True)
    with changed.open("a") as source:
        source.write(line)
    status, said = lint(tmp_path)
    assert status == 1 and broken in said, said


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_opening_a_room_loads_nothing_heavy(room: str) -> None:
    code = f"import grpo_nb.{room}, sys; print(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and not HEAVY & set(done.stdout.split()), done.stderr or done.stdout


def test_a_room_takes_of_the_house_its_version_alone() -> None:
    for file in (ROOT / "grpo_nb").glob("*/**/*.py"):
        taken = re.findall(
            r"^\s*(?:from grpo_nb import (.*)|import (grpo_nb\b(?!\.).*))$", file.read_text(), re.MULTILINE
        )
        assert {name for found in taken for name in found if name} <= {"__version__"}, file
