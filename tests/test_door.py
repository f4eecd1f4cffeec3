"""The door of the house: few names, from one list, light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import grpo_nb as gn
from tests.conftest import ROOT
from tests.test_house import HEAVY

NAMES = [name for name in dir(gn) if not name.startswith("_")]


def test_at_most_thirty_names_all_of_the_stub_and_all_there() -> None:
    stub = ast.parse((ROOT / "grpo_nb/__init__.pyi").read_text())
    listed = [alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(listed) == NAMES == sorted(gn.__all__) and len(NAMES) <= 30
    assert all(getattr(gn, name) is not None for name in NAMES)


def test_importing_loads_nothing_heavy_and_starts_no_process(tmp_path: Path) -> None:
    code = (
        "import sys, subprocess, os\n"
        "def refuse(*a, **k): raise SystemExit('a process was started')\n"
        "subprocess.Popen.__init__ = os.system = os.fork = refuse\n"
        "import grpo_nb as gn; gn.preset; gn.check_rewards; gn.load_task; gn.open_run\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_asking_for_what_python_asks_everybody_loads_nothing() -> None:
    assert not hasattr(gn, "_repr_html_") and not hasattr(gn, "__wrapped__")


def test_the_installer_needs_nothing_installed(tmp_path: Path) -> None:
    """The Install cell and bootstrap.py begin with it, in a Python that has nothing but itself."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from grpo_nb.machine import check_environment, install"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
