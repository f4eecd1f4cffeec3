"""The install cell chooses what to install, and the real pip installs it, from wheels made here."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pip
import pytest

from grpo_nb.machine import installer, packages
from grpo_nb.machine.packages import TorchBuild
from scripts import bootstrap

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Machine:
    """A machine on which the install cell is run."""

    torch: str = ""
    """Installed torch, such as `2.11.0+cu128`; empty for none."""
    cuda: int = 0
    """CUDA version of the driver; 0 for no GPU."""
    hidden: bool = False
    """True if CUDA_VISIBLE_DEVICES hides the GPU."""


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[str], str]]:
    """Return a function that chooses requirements on a made-up machine, and what it reports."""

    def choose_on(machine: Machine, *, vllm: bool = True) -> tuple[list[str], str]:
        cuda_tag = re.search(r"cu(\d\d)", machine.torch)
        build_cuda = (int(cuda_tag[1]), 0) if cuda_tag else None
        build = TorchBuild(version=machine.torch, cuda=build_cuda) if machine.torch else None
        driver = (machine.cuda, 0) if machine.cuda else None
        monkeypatch.setattr(packages, "read_torch_build", lambda: build)
        monkeypatch.setattr(installer, "read_newest_cuda", lambda: driver)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if machine.hidden:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        lines: list[str] = []
        return installer.choose_requirements(lines.append, vllm=vllm), "".join(lines)

    return choose_on


COLAB = "2.11.0+cu128"


def installs(chosen: list[str], *requirements: str) -> bool:
    lines = {line.partition(";")[0].strip() for line in chosen}
    return set(requirements) <= lines


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(Machine(cuda=13), id="no torch"),
        pytest.param(Machine(torch=COLAB, cuda=13), id="other torch"),
        pytest.param(Machine(torch="2.13.0+cu130", cuda=13), id="same torch"),
    ],
)
def test_new_driver_gets_pinned_torch_and_vllm(machine: Machine, choose) -> None:
    chosen, reason = choose(machine)
    assert installs(chosen, "torch==2.13.0", "vllm==0.31.0", "vllm-bnb-plugin==0.0.3")
    assert not reason


@pytest.mark.parametrize(
    ("machine", "pins_torch"),
    [
        pytest.param(Machine(), True, id="no torch"),
        pytest.param(Machine(torch="2.11.0+cpu"), False, id="usable torch"),
        pytest.param(Machine(torch=COLAB, cuda=13, hidden=True), False, id="hidden GPU"),
    ],
)
def test_cpu_keeps_a_usable_torch_without_vllm(machine: Machine, pins_torch: bool, choose) -> None:
    chosen, reason = choose(machine)
    assert installs(chosen, "torch==2.13.0") is pins_torch
    assert not installs(chosen, "vllm==0.31.0")
    assert not reason


def test_gpu_with_an_old_driver_keeps_torch_and_says_why(choose) -> None:
    chosen, reported = choose(Machine(torch=COLAB, cuda=12))
    assert not installs(chosen, "torch==2.13.0")
    assert not installs(chosen, "vllm==0.31.0")
    sentence = "vLLM is not installed: .*580 or newer.*only supports CUDA 12.*slower"
    assert re.search(sentence, reported)


def test_gpu_without_vllm_keeps_torch(choose) -> None:
    chosen, reported = choose(Machine(torch=COLAB, cuda=13), vllm=False)
    assert not installs(chosen, "torch==2.13.0")
    assert not installs(chosen, "vllm==0.31.0")
    assert not reported


def test_gpu_without_vllm_and_torch_gets_the_pinned_torch(choose) -> None:
    chosen, _ = choose(Machine(cuda=13), vllm=False)
    assert installs(chosen, "torch==2.13.0")
    assert not installs(chosen, "vllm==0.31.0")


# The real pip, in an environment of its own, with wheels that hold one line each.

PINNED = {"torch": "2.13.0", "transformers": "5.17.0", "trl": "1.15.0"}
COLAB_WHEELS = (
    "torch 2.13.0 numpy helper>=2",
    "transformers 5.17.0",
    "transformers 5.15.0",
    "trl 1.15.0",
    # The newest tyro would bring another numpy; the one before it does not.
    "tyro 1.5",
    "tyro 1.6 numpy>=2.3",
    "numpy 2.1.3",
    "numpy 2.4.0",
    "helper 1.0",
    "helper 2.0",
    "torchao 0.10.0",
    "torchvision 0.26.0 torch==2.11.0",
    "unsloth 2026.10.9 certifi>=9999",
)
REPOSITORY_WHEELS = (
    "torch 2.13.0",
    "torchao 0.10.0",
    "trl 1.15.0 torchao",
    "unsloth 2026.10.9 certifi>=9999",
    "ipykernel 7.4",
)


def make_wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    """Write a wheel with one line of code, and what it needs."""
    info = f"{name}-{version}.dist-info"
    required = "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        # torch has this file, and the installer reads it.
        f"{name}/version.py": f"__version__ = {version!r}\ncuda = None\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    names = [*files, f"{info}/RECORD"]
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in names)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)


def make_wheels(folder: Path, wheels: Sequence[str]) -> None:
    """Write wheels, each given as name, version and what it needs."""
    folder.mkdir(exist_ok=True)
    for line in wheels:
        make_wheel(folder, *line.split())


def make_repository(folder: Path, requirements: Mapping[str, str]) -> None:
    """Make a repository with this one's kit and bootstrap, and other requirements files."""
    (folder / "scripts").mkdir(parents=True)
    (folder / "grpo_nb").symlink_to(ROOT / "grpo_nb")
    shutil.copy(ROOT / "scripts" / "bootstrap.py", folder / "scripts")
    for name, lines in requirements.items():
        (folder / name).write_text(f"# {name}\n{lines}\n")


def without_index(wheels: Path) -> dict[str, str]:
    """Return the variables of a machine on which pip knows only a folder of wheels."""
    foreign = ("PIP_", "PYTHON", "COLAB", "KAGGLE", "GRPO_NB")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
        "PATH": "/usr/bin:/bin",
    }


# The install cell in a new process, as after a restart. The clone of the test is a link, and the
# installer would see the folder behind it.
CELL = """
import transformers, numpy, importlib.util, json, sys
if importlib.util.find_spec("grpo_nb") is None:
    sys.path.insert(0, {clone!r})
import grpo_nb.machine.installer as installer
installer._ROOT = installer.Path({clone!r})
steps = []
installer.install(report=steps.append)
print(json.dumps([installer.packages.stale_packages(), steps]))
"""


class ColabSession:
    """An environment with old packages and a clone of the kit, without a network.

    Args:
        folder: Folder of the environment.
        also_installed: Requirements of packages that are installed next to the old ones.
    """

    def __init__(self, folder: Path, *also_installed: str) -> None:
        self.clone = folder / installer.CLONE_FOLDER
        self._folder = folder
        self._python = folder / "env" / "bin" / "python"
        self._variables = without_index(folder / "wheels") | {
            "CUDA_VISIBLE_DEVICES": "",
            "COLAB_RELEASE_TAG": "release",
        }
        command = [sys.executable, "-m", "venv", "--without-pip", folder / "env"]
        subprocess.run(command, check=True)
        (site,) = folder.glob("env/lib/python*/site-packages")
        # Faster than to unpack another pip.
        (site / "pip").symlink_to(Path(pip.__file__).parent)
        pins = "\n".join(f"{name}=={version}" for name, version in PINNED.items())
        requirements = {
            "requirements.txt": f"{pins}\ntyro>=1.0,<2",
            "requirements-dev.txt": "pytest>=9",
            "requirements-no-deps.txt": "unsloth==2026.10.9",
        }
        make_repository(self.clone, requirements)
        make_wheels(folder / "wheels", COLAB_WHEELS)
        old = ("numpy==2.1.3", "transformers==5.15.0", "torchao", "torchvision")
        pip_install = ("-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-deps")
        self.run(*pip_install, *old, *also_installed)

    def run(self, *arguments: str) -> str:
        """Run Python in the environment and return its output."""
        done = subprocess.run(
            [self._python, *arguments],
            capture_output=True,
            text=True,
            env=self._variables,
            cwd=self._folder,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run_install_cell(self) -> tuple[list[str], list[str]]:
        """Return the packages that need a restart, and the steps."""
        return json.loads(self.run("-c", CELL.format(clone=str(self.clone))))

    def versions(self) -> dict[str, str]:
        code = (
            "import importlib.metadata as metadata, json\n"
            "print(json.dumps({d.name: d.version for d in metadata.distributions()}))"
        )
        return json.loads(self.run("-c", code))


def test_install_cell_in_a_new_colab_session(tmp_path: Path) -> None:
    session = ColabSession(tmp_path)
    stale, steps = session.run_install_cell()
    assert stale == ["transformers"], "what was loaded and is replaced needs a restart"
    assert [step.split(",")[0] for step in steps] == [
        "Installing torch",
        "Installing unsloth and the small model",
        "Removing torchvision and torchao",
    ]
    versions = session.versions()
    assert PINNED.items() <= versions.items()
    assert versions["unsloth"] == "2026.10.9"
    assert versions["numpy"] == "2.1.3", "the kernel has it loaded"
    assert versions["tyro"] == "1.5"
    assert not {"pytest", "torchao", "torchvision"} & versions.keys()
    # After the restart there is nothing to do.
    assert session.run_install_cell() == [[], []]


def test_install_cell_keeps_torch_and_drops_another_torchs_vision(tmp_path: Path) -> None:
    session = ColabSession(tmp_path, "torch==2.13.0")
    session.run_install_cell()
    versions = session.versions()
    assert versions["torch"] == "2.13.0"
    assert versions["trl"] == "1.15.0"
    assert "torchvision" not in versions
    code = "import os; os.chdir('/'); import grpo_nb; print(grpo_nb.__file__)"
    assert session.run("-c", code).startswith(str(session.clone))


class Repository:
    """A repository whose own environment `scripts/bootstrap.py` makes, without a network."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self.environment = self.root / ".venv"
        requirements = {
            "requirements.txt": "torch==2.13.0\ntrl",
            "requirements-dev.txt": "ipykernel",
            "requirements-no-deps.txt": "unsloth",
        }
        make_repository(self.root, requirements)
        make_wheels(folder / "wheels", REPOSITORY_WHEELS)
        self._variables = without_index(folder / "wheels") | {"GRPO_NB_DEVICE": "cpu"}

    def start_bootstrap(self, **variables: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, self.root / "scripts" / "bootstrap.py"],
            env=self._variables | variables,
            cwd=self.root,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def bootstrap(self) -> tuple[int, str]:
        """Return exit status and output."""
        process = self.start_bootstrap()
        output = process.communicate(timeout=300)[0]
        return process.returncode, output

    @property
    def is_complete(self) -> bool:
        return (self.environment / "complete").exists()

    def running_commands(self) -> list[bytes]:
        """Return the command lines of all processes that use the environment."""
        lines = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline")]
        return [line for line in lines if str(self.environment).encode() in line]


def test_bootstrap_can_be_interrupted_and_run_again(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = repository.start_bootstrap(
            PIP_NO_INDEX="0",
            PIP_FIND_LINKS="",
            PIP_INDEX_URL=f"http://127.0.0.1:{silent.getsockname()[1]}/simple",
        )
        silent.settimeout(120)
        # pip asks for a package, and gets no answer.
        silent.accept()
        process.terminate()
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 130, output
    assert "Setting up .venv for CPU" in output
    assert "Interrupted. Run the same command again" in output
    assert not repository.is_complete
    assert repository.running_commands() == []

    status, output = repository.bootstrap()
    assert status == 0, output
    assert "environment is ready: .venv/bin/python" in output
    assert "Removing torchao" in output
    (site,) = repository.environment.glob("lib/python*/site-packages")
    assert (site / "grpo_nb.pth").read_text() == f"{repository.root}\n"
    installed = {path.name for path in site.iterdir()}
    assert {"torch", "trl", "ipykernel", "unsloth"} <= installed
    assert not {"vllm", "torchao"} & installed
    assert "Checking that unsloth and trl load" in output
    assert repository.bootstrap() == (0, "environment is up to date\n")

    (repository.root / "requirements-dev.txt").write_text("ipykernel\nmissing>=1\n")
    status, output = repository.bootstrap()
    assert status == 1
    assert "ERROR: No matching distribution found for missing" in output
    assert "Collecting" not in output
    assert "Settings > Internet" in output
    assert not repository.is_complete


def test_supported_pythons_are_the_same_everywhere() -> None:
    oldest = installer.OLDEST_PYTHON
    too_new = installer.TOO_NEW_PYTHON
    assert oldest == bootstrap.OLDEST_PYTHON
    assert too_new == bootstrap.TOO_NEW_PYTHON
    text = f"kernel with Python 3.{oldest[1]} to 3.{too_new[1] - 1} "
    assert text in Path(installer.__file__).read_text()
    assert f"{oldest} <= sys.version_info[:2] < {too_new}" in (ROOT / "Makefile").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={oldest[0]}.{oldest[1]}"' in project
