"""Public names come from one list, are documented, and are imported only when they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_nb as gn
from tests.conftest import ROOT
from tests.test_package import HEAVY, loaded_by

NAMES = [name for name in dir(gn) if not name.startswith("_")]
# The first cell of a notebook would wait for a process that the import starts.
WITHOUT_PROCESSES = (
    "import sys, subprocess, os\n"
    "def refuse(*a, **k): raise SystemExit('a process was started')\n"
    "subprocess.Popen.__init__ = os.system = os.fork = refuse\n"
)


def names_in_stub() -> list[str]:
    stub = ast.parse((ROOT / "grpo_nb/__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return sorted(alias.asname for node in imports for alias in node.names)


def test_public_names_are_those_of_the_stub() -> None:
    assert names_in_stub() == NAMES
    assert sorted(gn.__all__) == NAMES


def test_public_names_are_at_most_thirty() -> None:
    assert len(NAMES) <= 30


@pytest.mark.parametrize("name", NAMES)
def test_public_name_is_documented(name: str) -> None:
    assert getattr(gn, name).__doc__


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("gn.preset; gn.check_rewards; gn.load_task; gn.open_run", id="names"),
        pytest.param("gn.preset('cpu')", id="settings"),
    ],
)
def test_first_steps_load_nothing_heavy_and_start_nothing(code: str) -> None:
    assert not HEAVY & loaded_by(f"{WITHOUT_PROCESSES}import grpo_nb as gn; {code}")


def test_check_environment_loads_nothing_heavy() -> None:
    assert not HEAVY & loaded_by("import grpo_nb as gn; repr(gn.check_environment())")


def test_look_at_a_run_loads_no_model_libraries(tiny_run: gn.runs.Run) -> None:
    code = f"import grpo_nb as gn; run = gn.open_run({str(tiny_run.path)!r}); run.plot(); repr(run)"
    assert not {"torch", "transformers", "trl", "unsloth", "peft"} & loaded_by(code)


@pytest.fixture(scope="module")
def first_import() -> list[str]:
    """Import unsloth through the kit in a new process.

    Return the spin count, then the names of unsloth, trl and transformers as they were looked for.
    """
    code = (
        "import os, sys\n"
        "os.environ.pop('GOMP_SPINCOUNT', None)\n"
        "seen = []\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('unsloth', 'trl', 'transformers'): seen.append(name)\n"
        "sys.meta_path.insert(0, Watch())\n"
        "import grpo_nb; grpo_nb.train\n"
        "print('SEEN', os.environ['GOMP_SPINCOUNT'], *seen)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split("SEEN")[1].split()


def test_unsloth_is_imported_before_trl_and_transformers(first_import: list[str]) -> None:
    _, *order = first_import
    assert order[0] == "unsloth"
    assert {"trl", "transformers"} <= set(order)


def test_import_of_unsloth_sets_the_spin_count(first_import: list[str]) -> None:
    assert first_import[0] == "20000"


@pytest.mark.parametrize("name", ["_repr_html_", "__wrapped__"])
def test_protocol_name_is_not_an_attribute(name: str) -> None:
    assert not hasattr(gn, name)


def test_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="trian"):
        gn.trian  # noqa: B018


def test_installer_needs_nothing_installed(tmp_path: Path) -> None:
    """The Setup cell and bootstrap.py import it with only the standard library."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from grpo_nb.machine import check_environment, install"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
