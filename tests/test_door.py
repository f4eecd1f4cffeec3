"""The door of the house: few names, from one list, each documented; and light, so that a look costs nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_nb as gn
from tests.conftest import ROOT
from tests.test_house import HEAVY

NAMES = [name for name in dir(gn) if not name.startswith("_")]
# A process that is started is one that a notebook's first cell would wait for.
WATCHED = (
    "import sys, subprocess, os\n"
    "def refuse(*a, **k): raise SystemExit('a process was started')\n"
    "subprocess.Popen.__init__ = os.system = os.fork = refuse\n"
)


def modules_after(code: str) -> set[str]:
    said = f"{code}\nimport sys; print('LOADED', *{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(done.stdout.split("LOADED")[1].split())


def test_at_most_thirty_names_all_of_the_stub_all_there_and_documented() -> None:
    stub = ast.parse((ROOT / "grpo_nb/__init__.pyi").read_text())
    listed = [
        alias.asname
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(listed) == NAMES == sorted(gn.__all__) and len(NAMES) <= 30
    assert all(getattr(gn, name).__doc__ for name in NAMES)


@pytest.mark.parametrize(
    "code",
    [
        f"{WATCHED}import grpo_nb as gn; gn.preset; gn.check_rewards; gn.load_task; gn.open_run",
        f"{WATCHED}import grpo_nb as gn; gn.preset('cpu')",
        "import grpo_nb as gn; repr(gn.check_environment())",
    ],
)
def test_names_settings_and_the_preflight_load_nothing_heavy(code: str) -> None:
    assert not HEAVY & modules_after(code)


def test_looking_at_a_run_loads_no_model_stack(tiny_run: gn.runs.Run) -> None:
    look = f"import grpo_nb as gn; run = gn.open_run({str(tiny_run.path)!r}); run.plot(); repr(run)"
    assert not {"torch", "transformers", "trl", "unsloth", "peft"} & modules_after(look)


def test_unsloth_comes_before_what_it_patches() -> None:
    watched = (
        "import sys\n"
        "seen = []\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('unsloth', 'trl', 'transformers'): seen.append(name)\n"
        "sys.meta_path.insert(0, Watch())\n"
        "import grpo_nb; grpo_nb.train; print('ORDER', *seen)"
    )
    done = subprocess.run(
        [sys.executable, "-c", watched], capture_output=True, text=True, check=True
    )
    order = done.stdout.split("ORDER")[1].split()
    assert order[0] == "unsloth" and {"trl", "transformers"} <= set(order)


def test_what_is_no_name_is_an_attribute_error_and_loads_nothing() -> None:
    assert not hasattr(gn, "_repr_html_") and not hasattr(gn, "__wrapped__")
    with pytest.raises(AttributeError, match="trian"):
        gn.trian  # noqa: B018


def test_the_installer_needs_nothing_installed(tmp_path: Path) -> None:
    """The Install cell and bootstrap.py begin with it, in a Python that has nothing but itself."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from grpo_nb.machine import check_environment, install"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
