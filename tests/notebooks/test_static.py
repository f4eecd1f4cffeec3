"""The notebooks as files: what holds before any of them is executed."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from shutil import ignore_patterns
from types import SimpleNamespace

import jupytext
import nbformat
import pytest

import grpo_nb as gn
from grpo_nb.config.presets import PRESETS
from grpo_nb.machine.installer import CLONE_FOLDER
from scripts import build_notebooks
from tests.support.gpus import GPUS, plan_on
from tests.support.notebooks import assert_nothing_went_wrong

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("??_*.ipynb"))
ADDRESS = "https://github.com/ada/kit-2"
# What the Hub, GitHub, OpenAI, Anthropic, Weights & Biases and Google issue.
SECRETS = re.compile(
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}"
    r"|AIza[A-Za-z0-9_-]{30,}|\b[0-9a-f]{40}\b"
)
# Data of a picture, in which any short text can occur by chance.
PICTURE = re.compile(r"[A-Za-z0-9+/=]{500,}")
# The forms of Colab: https://colab.research.google.com/notebooks/forms.ipynb
FORM = re.compile(r"^\s*([A-Z_]+) = (.+?)  # @param (.+)$", re.MULTILINE)
FIELD_TYPES = {"raw": object, "string": str, "boolean": bool, "integer": int, "number": float}

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def cells_of(path: Path, kind: str = "") -> list[str]:
    return [
        cell.source for cell in nbformat.read(path, as_version=4).cells if kind in cell.cell_type
    ]


@every_notebook
def test_notebook_is_executed_by_a_test(path: Path) -> None:
    """A fixture executes it, and a file of tests uses the fixture."""
    places = [ROOT / "tests/run_fixtures.py", ROOT / "tests/notebooks/conftest.py"]
    source = "\n".join(place.read_text() for place in places)
    fixtures = re.findall(r"^def (\w+)\(((?:.|\n)*?)(?=^def |\Z)", source, re.MULTILINE)
    executing = [name for name, body in fixtures if f'"{path.stem}"' in body]
    tests = "\n".join(file.read_text() for file in (ROOT / "tests/notebooks").glob("test_*.py"))
    assert any(f"def test_no_cell_warns_or_shows_an_error({name}:" in tests for name in executing)


def test_notebooks_are_what_their_sources_give() -> None:
    build = [sys.executable, ROOT / "scripts/build_notebooks.py", "--check"]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def copy_of_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the files that carry the public address, in which the builder works."""
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=ignore_patterns("runs"))
    monkeypatch.setattr(build_notebooks, "ROOT", folder)
    monkeypatch.setattr(sys, "argv", ["build_notebooks.py"])
    return folder


def texts_of(folder: Path) -> dict[str, str]:
    """Return the README and the sources of all cells, by file name."""
    texts = {"README.md": (folder / "README.md").read_text()}
    for path in sorted((folder / "notebooks").glob("??_*.ipynb")):
        texts[path.name] = "\n".join(cells_of(path))
    return texts


def test_project_without_address_has_no_badge_and_no_placeholder() -> None:
    assert build_notebooks.repository() is None
    for name, text in texts_of(ROOT).items():
        assert "colab-badge" not in text, name
        assert "git clone" not in text, name
        assert "OWNER" not in text, name


def test_address_is_written_into_readme_and_notebooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_of_project(tmp_path, monkeypatch)
    monkeypatch.setattr(sys, "argv", ["build_notebooks.py", "--repository", ADDRESS])
    assert build_notebooks.main() == 0
    assert build_notebooks.repository() == ADDRESS
    colab = "https://colab.research.google.com/github/ada/kit-2/blob/main/notebooks"
    for name, text in texts_of(folder).items():
        page = "00_quickstart.ipynb" if name == "README.md" else name
        assert f"]({colab}/{page})" in text, name
        assert ADDRESS in text, name
        if name != "README.md":
            assert not build_notebooks.RELATIVE_LINK.search(text), name


def test_address_can_be_removed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy_of_project(tmp_path, monkeypatch)
    for address in (ADDRESS, ""):
        monkeypatch.setattr(sys, "argv", ["build_notebooks.py", "--repository", address])
        build_notebooks.main()
    assert texts_of(folder) == texts_of(ROOT)
    assert (folder / "pyproject.toml").read_text() == (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("address", ["git@github.com:ada/kit-2", "https://example.org/ada/kit"])
def test_address_elsewhere_than_github_is_refused(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_of_project(tmp_path, monkeypatch)
    with pytest.raises(SystemExit, match="no address of a repository on GitHub"):
        build_notebooks.write_address(address)
    assert texts_of(folder) == texts_of(ROOT)


def test_copy_with_another_address_keeps_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = ROOT / "notebooks/src/02_rewards.py"
    there = ROOT / "notebooks/02_rewards.ipynb"
    monkeypatch.setattr(build_notebooks, "repository", lambda: ADDRESS)
    cells = nbformat.reads(build_notebooks.generate(source, there), as_version=4).cells
    assert any("github.com/ada/kit-2" in cell.source for cell in cells)
    assert all(cell.execution_count for cell in cells if cell.cell_type == "code")


@every_notebook
def test_every_link_leads_to_a_file(path: Path) -> None:
    for link in build_notebooks.RELATIVE_LINK.findall("\n".join(cells_of(path, "markdown"))):
        assert (path.parent / link.partition("#")[0]).is_file(), link


@every_notebook
def test_notebooks_and_pages_are_named_by_links(path: Path) -> None:
    """In Colab there is no way to a notebook that the text only names."""
    text = "\n".join(cells_of(path, "markdown"))
    unlinked = re.sub(r"\[[^\]]*\]\([^)]*\)", "", text)
    for name in (*(other.stem for other in NOTEBOOKS), "docs/guide/", "docs/evidence/", "arXiv:"):
        assert name not in unlinked, f"{name} is named without a link"


@every_notebook
def test_it_is_a_clean_file(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) >= (4, 5)
    ids = [cell.id for cell in notebook.cells]
    assert len(ids) == len(set(ids))
    assert len(notebook.cells) <= (22 if path.stem == "00_quickstart" else 28)
    assert path.stat().st_size < 500_000
    assert "widgets" not in notebook.metadata, "saved widget state"
    for cell in notebook.cells:
        assert len(cell.source.splitlines()) <= (25 if cell.cell_type == "code" else 55)
        assert "attachments" not in cell
        assert not re.search(r"data:image|;base64,", cell.source)
        if cell.cell_type == "code":
            assert "if False" not in cell.source
    text = PICTURE.sub("", path.read_text())
    assert not SECRETS.search(text), "this looks like a secret"


def test_together_they_are_small() -> None:
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 2_500_000


@every_notebook
def test_what_it_shows_was_executed_and_is_clean(path: Path) -> None:
    """`make publish` makes the outputs; a notebook that was never run where it belongs has none."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if "Nobody has run this" in notebook.cells[0].source:
        assert not any(cell.outputs for cell in cells)
        return
    assert all(cell.execution_count for cell in cells), (
        f"a cell changed: make publish ARGS=notebooks/{path.name}"
    )
    assert_nothing_went_wrong(path)
    shown = json.dumps([cell.outputs for cell in cells])
    assert "text/html" in shown
    assert "widget-view" not in shown
    # Not within the letters of a picture.
    assert not re.search(
        r"(?<![\w/+.])/(?:home|root|tmp|work|Users|mnt|content)/",
        re.sub(r"[\w+/=]{200,}", "", shown),
    )


@every_notebook
def test_notebook_has_the_parts_that_readers_look_for(path: Path) -> None:
    headings = re.findall(r"^#+ (.+)$", "\n".join(cells_of(path, "markdown")), re.MULTILINE)
    assert "Setup" in headings[:3]
    for needed in ("Did it work?", "If something goes wrong", "Exercises"):
        assert needed in headings
    assert headings[-1] == "Next"


@every_notebook
def test_notebook_ends_with_links_to_its_neighbours(path: Path) -> None:
    place = NOTEBOOKS.index(path)
    last_line = cells_of(path)[-1].splitlines()[-1]
    for neighbour in NOTEBOOKS[max(place - 1, 0) : place + 2]:
        assert (f"({neighbour.name})" in last_line) is (neighbour != path)


@every_notebook
def test_setup_cell_installs_before_it_imports(path: Path) -> None:
    """One text for all notebooks: add the kit, install what is missing, check the machine."""
    first = cells_of(path, "code")[0]
    source = jupytext.read(ROOT / "notebooks/src/_setup.py", fmt="py:percent")
    (shared,) = [cell.source for cell in source.cells if cell.cell_type == "code"]
    assert first == shared.replace("    pass  # @CLONE@", build_notebooks.clone_lines(None))
    assert f'"{CLONE_FOLDER}"' in build_notebooks.clone_lines(ADDRESS), (
        "install makes this folder importable"
    )
    # Only the standard library before `install`: a loaded package cannot be replaced.
    for node in ast.walk(ast.parse(first[: first.index("install(")])):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name == "grpo_nb.machine" or name.partition(".")[0] in sys.stdlib_module_names


@every_notebook
def test_every_cell_is_python_3_11_without_magics(path: Path) -> None:
    """Cells are plain Python, for IPython 7.34 and 9, scripts and Colab."""
    for number, source in enumerate(cells_of(path, "code")):
        ast.parse(source, filename=f"{path.stem}, code cell {number}", feature_version=(3, 11))
        assert not re.search(r"^\s*[%!]", source, re.MULTILINE)
        # IPython 7.34 knows top-level await, and its autoawait differs from what a script does.
        assert not re.search(r"\bawait\b|get_ipython", source)


@every_notebook
def test_the_settings_are_a_form_and_valid_python(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    (source,) = [
        cell.source for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])
    ]
    assigned = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    fields = {name: (value, kind) for name, value, kind in FORM.findall(source)}
    assert {target.id for node in assigned for target in node.targets} == set(fields), (
        "a setting without a form field"
    )
    for name, (text, kind) in fields.items():
        value = ast.literal_eval(text)
        described = json.loads(kind)
        if isinstance(described, list):
            assert value in described, f"{name}: {value!r} is not among the choices"
        else:
            assert isinstance(value, FIELD_TYPES[described["type"]]), name
    if "PRESET" in fields:
        assert fields["PRESET"][0] == '"auto"'
        assert json.loads(fields["PRESET"][1]) == [
            "auto",
            *PRESETS,
        ]
    if "DRIVE" in fields:
        assert fields["DRIVE"][0] == '""', "the Drive is mounted only if somebody asks for it"


@every_notebook
def test_every_public_name_exists(path: Path) -> None:
    used = {
        node.attr
        for source in cells_of(path, "code")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "gn"
    }
    assert used, used - set(gn.__all__)
    assert used <= set(gn.__all__), used - set(gn.__all__)


@every_notebook
def test_first_cell_has_time_and_memory_or_says_not_run(path: Path) -> None:
    first = cells_of(path)[0]
    facts = r"^About \d+ minutes on two idle CPU cores.* GB"
    assert re.search(facts, first, re.MULTILINE) or "Nobody has run this" in first


def test_memory_of_the_gpu_notebook_is_that_of_the_plan() -> None:
    (path,) = [path for path in NOTEBOOKS if path.stem == "a3_gsm8k_gpu"]
    stated = re.search(r"([\d.]+) of\s15\.6 GB of memory", cells_of(path)[0])
    plan = plan_on(GPUS["t4"], gn.preset("t4"))
    shown = re.search(r"memory, peak\s+([\d.]+) GB", repr(plan))
    assert float(stated[1]) == pytest.approx(float(shown[1]), rel=0.05)


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the folders to mount, as Colab's Drive module."""
    from grpo_nb.machine import host

    places: list[str] = []

    for name in ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(host, "_DRIVE", tmp_path)
    for name, module in {
        "google": {},
        "google.colab": {"drive": SimpleNamespace(mount=places.append)},
    }.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**module))
    return places


@pytest.mark.parametrize(
    ("host", "drive", "folder", "said"),
    [
        ("ANY", "", "runs", ""),
        ("ANY", "grpo_nb/x", "runs", ""),
        ("KAGGLE_KERNEL_RUN_TYPE", "grpo_nb/x", "runs", ""),
        ("COLAB_RELEASE_TAG", "", "runs", ""),
        ("COLAB_RELEASE_TAG", "grpo_nb/x", "{}/MyDrive/grpo_nb/x", "on your Drive, in grpo_nb/x"),
    ],
)
def test_drive_is_mounted_only_in_colab_and_if_asked(
    host: str,
    drive: str,
    folder: str,
    said: str,
    tmp_path: Path,
    mounted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(host, "1")
    if host != "COLAB_RELEASE_TAG":
        monkeypatch.delitem(sys.modules, "google.colab")
    lines: list[str] = []
    assert gn.machine.choose_run_folder(drive, report=lines.append) == folder.format(tmp_path)
    assert said in "".join(lines)
    assert bool(lines) is bool(said)
    assert mounted == ([str(tmp_path)] if folder != "runs" else [])
