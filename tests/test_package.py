"""Subpackages import only those below them, without circles, and nothing heavy at the start."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {
    "IPython",
    "datasets",
    "ipywidgets",
    "matplotlib",
    "numpy",
    "pandas",
    "peft",
    "scipy",
    "torch",
    "transformers",
    "trl",
    "unsloth",
}
SUBPACKAGES = sorted(path.parent.name for path in (ROOT / "grpo_nb").glob("*/__init__.py"))


def loaded_by(code: str) -> set[str]:
    """Return the top-level packages that a new Python process has loaded after `code`."""
    code += "\nimport sys; print('LOADED', *{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(done.stdout.partition("LOADED")[2].split())


def test_import_order_of_subpackages_is_kept() -> None:
    """Check the contracts in pyproject.toml, as `make lint` does."""
    code = "from importlinter.cli import lint_imports_command as main; main()"
    command = [sys.executable, "-c", code, "--no-cache", "--no-logo"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", SUBPACKAGES)
def test_import_of_subpackage_loads_nothing_heavy(name: str) -> None:
    assert not HEAVY & loaded_by(f"import grpo_nb.{name}")
