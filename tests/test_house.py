"""The rooms: a room imports only from rooms above it; no circles (pyproject.toml); what they weigh when they are opened."""

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
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as main; main()",
    ]
    done = subprocess.run(
        [*command, "--no-cache", "--no-logo"], capture_output=True, text=True, cwd=root
    )
    return done.returncode, done.stdout + done.stderr


def test_the_rooms_keep_their_order() -> None:
    status, said = lint(ROOT)
    assert status == 0, said


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_opening_a_room_loads_nothing_heavy(room: str) -> None:
    code = f"import grpo_nb.{room}, sys; print(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and not HEAVY & set(done.stdout.split()), done.stderr or done.stdout
