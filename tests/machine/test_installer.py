"""The install cell: what it chooses, what it leaves alone, and that pip really does it, with wheels made here."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pip
import pytest

from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine import installer, packages
from grpo_nb.machine.installer import choose
from grpo_nb.machine.packages import TorchBuild
from scripts import bootstrap

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch):
    """What is chosen on a machine with a torch, as `2.11.0+cu128`, and a driver."""

    def choice(
        torch: str = "",
        cuda: int = 0,
        *,
        vllm: bool = True,
        loaded: bool = False,
        system: str = "linux",
    ):
        build = re.search(r"cu(\d\d)", torch)
        there = (
            TorchBuild(version=torch, cuda=(int(build[1]), 0) if build else None) if torch else None
        )
        monkeypatch.setattr(packages, "read_torch_build", lambda: there)
        monkeypatch.setattr(installer, "driver_cuda", lambda: (cuda, 0) if cuda else None)
        monkeypatch.setattr(sys, "platform", system)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        if loaded:
            monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
        wanted, told = choose(ROOT, vllm=vllm)
        names = {line.partition(";")[0].strip() for line in wanted}
        return "torch==2.13.0" in names, {"vllm==0.31.0", "vllm-bnb-plugin==0.0.3"} <= names, told

    return choice


COLAB = "2.11.0+cu128"


@pytest.mark.parametrize(
    ("machine", "pins_torch", "has_vllm", "told"),
    [
        ({}, True, False, ""),
        ({"torch": "2.11.0+cpu", "loaded": True}, False, False, ""),
        ({"torch": "2.3.0+cpu"}, True, False, ""),  # unsloth asks for 2.4
        ({"cuda": 13}, True, True, "With vLLM, which generates fast; it costs"),
        ({"torch": COLAB, "cuda": 13}, True, True, "With vLLM"),
        ({"torch": "2.13.0+cu130", "cuda": 13, "loaded": True}, True, True, "With vLLM"),
        ({"torch": COLAB, "cuda": 12}, False, False, "580 or newer; this one runs 12"),
        (
            {"torch": COLAB, "cuda": 13, "loaded": True},
            False,
            False,
            "here 2.11.0.cu128; .*restart",
        ),
        ({"torch": COLAB, "cuda": 13, "system": "win32"}, False, False, "needs Linux"),
        ({"cuda": 13, "vllm": False}, True, False, "Without vLLM"),
    ],
)
def test_the_choice(machine: dict, pins_torch: bool, has_vllm: bool, told: str, chosen) -> None:
    found = chosen(**machine)
    assert found[:2] == (pins_torch, has_vllm) and re.search(told, found[2]), found
    assert (found[2] == "") is ("cuda" not in machine), "without a GPU there is nothing to tell"
    if found[2] and not has_vllm:
        assert re.match("Without vLLM, .*slower: .*an hour .computed, not measured", found[2])


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (
            {"torch": "2.3.0+cpu", "loaded": True},
            "torch 2.3.0.cpu is loaded .* Restart the session",
        ),
        (
            {"torch": "2.3.0+cu121", "loaded": True, "cuda": 13},
            "torch 2.3.0.cu121 is loaded .* Restart",
        ),
        ({"cuda": 12}, "CUDA 12 at most.*580 or newer"),
        ({"torch": "2.13.0+cu130", "cuda": 12}, "CUDA 12 at most"),
    ],
)
def test_where_nothing_may_be_installed(machine: dict, reason: str, chosen) -> None:
    with pytest.raises(EnvironmentProblem, match=f"Nothing was installed: .*{reason}"):
        chosen(**machine)


# The real pip, in an environment of its own, with wheels that hold one line each.

PINNED = {"torch": "2.13.0", "transformers": "5.17.0", "trl": "1.15.0"}


def make_wheels(folder: Path, *wheels: str) -> None:
    """Each as `name version`, and what it asks for behind that."""
    folder.mkdir(exist_ok=True)
    for line in wheels:
        name, version, *needs = line.split()
        record = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", f"__version__ = {version!r}\n")
            asked = "".join(f"Requires-Dist: {need}\n" for need in needs)
            wheel.writestr(
                f"{record}/METADATA",
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{asked}",
            )
            wheel.writestr(
                f"{record}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(
                f"{record}/RECORD",
                "".join(f"{n},,\n" for n in (*wheel.namelist(), f"{record}/RECORD")),
            )


def make_repository(folder: Path, **requirements: str) -> None:
    """One with this one's kit and bootstrap, and short requirements: `dev="..."` for requirements-dev.txt."""
    (folder / "scripts").mkdir(parents=True)
    (folder / "grpo_nb").symlink_to(ROOT / "grpo_nb")
    (folder / "scripts" / "bootstrap.py").write_text(
        (ROOT / "scripts" / "bootstrap.py").read_text()
    )
    for kind, lines in requirements.items():
        (folder / f"requirements-{kind}.txt".replace("_", "-").replace("-all", "")).write_text(
            f"# {kind}\n{lines}\n"
        )


def without_index(wheels: Path) -> dict[str, str]:
    """The variables of a machine on which pip knows of nothing but a folder of wheels."""
    foreign = ("PIP_", "PYTHON", "COLAB", "KAGGLE", "GRPO_NB")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    alone = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    return kept | alone | {"PATH": "/usr/bin:/bin"}


def test_a_new_colab_session(tmp_path: Path) -> None:
    clone, wheels, python = (
        tmp_path / installer.CLONE,
        tmp_path / "wheels",
        tmp_path / "env" / "bin" / "python",
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    (site,) = tmp_path.glob("env/lib/python*/site-packages")
    (site / "pip").symlink_to(Path(pip.__file__).parent)  # in less time than to unpack another one
    pins = "\n".join(f"{name}=={version}" for name, version in PINNED.items())
    make_repository(
        clone, all=f"{pins}\ntyro>=1.0,<2", dev="pytest>=9", no_deps="unsloth==2026.10.9"
    )
    # The newest tyro would bring another numpy; the one before it does not.
    make_wheels(
        wheels, "torch 2.13.0 numpy helper>=2", "transformers 5.17.0", "transformers 5.15.0", "trl 1.15.0", "tyro 1.5",
        "tyro 1.6 numpy>=2.3", "numpy 2.1.3", "numpy 2.4.0", "helper 1.0", "helper 2.0", "torchao 0.10.0",
        "torchvision 0.26.0", "unsloth 2026.10.9 certifi>=9999",
    )  # fmt: skip
    variables = without_index(wheels) | {"CUDA_VISIBLE_DEVICES": "", "COLAB_RELEASE_TAG": "release"}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [python, *arguments], capture_output=True, text=True, env=variables, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def cell() -> tuple[bool, str, list[str], list[str]]:
        """Run the install cell in a new process, as after a restart; return what it ended with and what it said."""
        code = (
            "import transformers, numpy, importlib.util, json, sys\n"
            "if importlib.util.find_spec('grpo_nb') is None:\n"
            f"    sys.path.insert(0, {str(clone)!r})\n"
            "import grpo_nb.machine.installer as i\n"
            # The clone of this test is a link, whose target is another folder.
            f"i._ROOT, i.require_disk, said = i.Path({str(clone)!r}), lambda *_: None, []\n"
            "done = i.install(report=said.append)\n"
            "print(json.dumps([done.is_ready, done.verdict, sorted(done.loaded), said]))"
        )
        return json.loads(run("-c", code))

    there = ("numpy==2.1.3", "transformers==5.15.0", "torchao", "torchvision")
    run("-m", "pip", "-q", "--disable-pip-version-check", "install", *there)
    is_ready, verdict, loaded, said = cell()
    assert not is_ready and loaded == ["transformers"], (
        "what was loaded and is replaced needs a restart"
    )
    assert "transformers 5.15.0 -> 5.17.0" in verdict and "Runtime > Restart session" in verdict
    assert (
        len(said) == 4
        and "torch, transformers and trl" in said[1]
        and "removing torchvision and torchao" in said[3]
    )
    shown = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    versions = json.loads(run("-c", shown))
    assert PINNED.items() <= versions.items() and versions["unsloth"] == "2026.10.9"
    assert (versions["numpy"], versions["tyro"]) == ("2.1.3", "1.5"), (
        "the kernel has numpy 2.1.3 loaded"
    )
    assert not {"pytest", "torchao", "torchvision"} & versions.keys()
    is_ready, verdict, loaded, said = cell()
    assert is_ready and verdict.startswith("Ready.") and said == [], (
        "the restart has been made; there is nothing to do"
    )
    assert run(
        "-c", "import os; os.chdir('/'); import grpo_nb; print(grpo_nb.__file__)"
    ).startswith(str(clone))


def test_the_repositorys_own_environment_stopped_and_begun_again(tmp_path: Path) -> None:
    root, wheels = tmp_path / "repository", tmp_path / "wheels"
    place, command = root / ".venv", [sys.executable, root / "scripts" / "bootstrap.py"]
    make_repository(root, all="torch==2.13.0\ntrl", dev="ipykernel", no_deps="unsloth")
    make_wheels(
        wheels, "torch 2.13.0", "torchvision 0.25.0", "trl 1.15.0 torchvision", "unsloth 2026.10.9 certifi>=9999",
        "ipykernel 7.4",
    )  # fmt: skip
    variables = without_index(wheels) | {"GRPO_NB_DEVICE": "cpu"}
    pipes = {"cwd": root, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}

    def begun() -> tuple[int, str]:
        done = subprocess.run(command, env=variables, timeout=300, **pipes)
        return done.returncode, done.stdout

    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        asking = variables | {"PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "", "PIP_INDEX_URL": index}
        process = subprocess.Popen(command, env=asking, **pipes)
        silent.settimeout(120)
        silent.accept()  # pip asks, and gets no answer
        process.terminate()
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "Setting up .venv for CPU" in said, said
    assert "interrupted; run the same command again" in said and not (place / "complete").exists()
    assert not [
        file
        for file in Path("/proc").glob("[0-9]*/cmdline")
        if str(place).encode() in file.read_bytes()
    ]

    status, said = begun()
    assert (
        status == 0
        and "environment is ready: .venv/bin/python" in said
        and "removing torchvision" in said
    ), said
    (site,) = place.glob("lib/python*/site-packages")
    assert (site / "grpo_nb.pth").read_text() == f"{root}\n"
    assert {"torch", "trl", "ipykernel", "unsloth"} <= (
        there := {path.name for path in site.iterdir()}
    )
    assert "vllm" not in there and "torchvision" not in there
    assert "import unsloth, trl" in (place / "install.log").read_text()
    assert begun() == (0, "environment is up to date\n")

    (root / "requirements-dev.txt").write_text("ipykernel\nmissing>=1\n")
    status, said = begun()
    assert (
        status == 1
        and "ERROR: No matching distribution found for missing" in said
        and "Collecting" not in said
    )
    assert "Settings > Internet" in said and "The whole log: .venv/install.log" in said
    assert not (place / "complete").exists()


def test_all_name_the_same_pythons() -> None:
    (oldest, too_new) = packages.PYTHONS
    assert (oldest, too_new) == (bootstrap.OLDEST_PYTHON, bootstrap.TOO_NEW_PYTHON)
    assert f"{oldest} <= sys.version_info[:2] < {too_new}" in (ROOT / "Makefile").read_text()
    assert f'requires-python = ">={oldest[0]}.{oldest[1]}"' in (ROOT / "pyproject.toml").read_text()
