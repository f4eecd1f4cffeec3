"""Make the environment that everything else in this repository runs in, or say in a moment that it is up to date.

`make` calls this before every target, so it uses the standard library only, costs nothing when there is nothing to do,
and can be interrupted at any point and run again. It never touches another environment than its own: pip runs inside
the new one, with the user's own pip configuration.

The order of the steps is the point. unsloth asks for versions that cannot be had together, so it goes in last and
without its dependencies; requirements-no-deps.txt tells the story.
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
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_PLACE = ROOT / ".venv"
REQUIREMENTS = ROOT / "requirements.txt"
REQUIREMENTS_GPU = ROOT / "requirements-gpu.txt"
REQUIREMENTS_NO_DEPS = ROOT / "requirements-no-deps.txt"

# 3.15 is where unsloth 2026.10.9 stops.
OLDEST_PYTHON, TOO_NEW_PYTHON = (3, 11), (3, 15)
STEPS = 5

USAGE = """\
Makes .venv beside the repository's README and installs what the kit needs. Safe to run again and to interrupt.

environment variables:
  GRPO_NB_VENV         another place for the environment (default: .venv in the repository)
  GRPO_NB_DEVICE       cpu or gpu; by default gpu when `nvidia-smi -L` lists a GPU
  GRPO_NB_TORCH_INDEX  one more index for torch. On Linux, the standard build of torch brings several GB of CUDA
                       libraries even to a machine without a GPU; PyTorch's own index of CPU builds avoids that. Its
                       address is what the installation selector on PyTorch's web site shows for "CPU".

pip's own variables and configuration files (index, proxy, certificates, cache) are honoured.
"""

MEMORY_ADVICE = "The machine ran out of memory. Close other programs and run the same command again."

# What pip says when it fails, and what that means to the person who reads it. The first match counts: without a
# network pip also reports "no matching distribution".
ADVICE = (
    (r"No space left on device|Errno 28|Disk quota exceeded", "The disk is full. {space}"),
    (
        r"Temporary failure in name resolution|Name or service not known|NewConnectionError|Failed to establish"
        r"|Max retries exceeded|Network is unreachable|ReadTimeoutError|ConnectTimeout|ProxyError|Connection reset",
        "The package index could not be reached. Check the network (and `pip config list` for a proxy or mirror), "
        "then run the same command again: what is already installed is kept.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        "The connection's certificate was not accepted. Behind a company proxy, give pip its certificate: "
        "`pip config set global.cert /path/to/certificate.pem`.",
    ),
    (
        r"ResolutionImpossible|conflicting dependencies",
        "pip found no versions that fit together. If requirements.txt was edited, undo that; a constraint in "
        "`pip config list` or PIP_CONSTRAINT has the same effect.",
    ),
    (
        r"No matching distribution found|Could not find a version",
        "pip found no file of this package that it could use. Either the package index cannot be reached (network, "
        "proxy, mirror: see `pip config list`), or it has none for this system with Python {python}.",
    ),
    (r"Permission denied|Errno 13", "pip may not write there. Choose another place with GRPO_NB_VENV=/some/folder."),
    (r"MemoryError", MEMORY_ADVICE),
)


def say(text: str = "") -> None:
    print(text, flush=True)


def stop(text: str) -> NoReturn:
    say(text)
    raise SystemExit(1)


def find_device() -> str:
    """Return "gpu" or "cpu", which decides whether requirements-gpu.txt takes part.

    Asks the driver's own tool and not torch, which is not installed yet.
    """
    chosen = os.environ.get("GRPO_NB_DEVICE", "").strip().lower()
    if chosen:
        if chosen not in ("cpu", "gpu"):
            stop(f"GRPO_NB_DEVICE is {chosen!r}; it can be cpu or gpu. Unset it to let the machine decide.")
        return chosen
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        # A driver that hangs or cannot start is no GPU that one could train on.
        return "cpu"
    return "gpu" if listing.returncode == 0 and listing.stdout.startswith("GPU ") else "cpu"


class Environment:
    """The virtual environment: where its parts are, and whether it is complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        windows = os.name == "nt"
        self.python = path / ("Scripts/python.exe" if windows else "bin/python")
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
        for file in (REQUIREMENTS, REQUIREMENTS_GPU, REQUIREMENTS_NO_DEPS):
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

    def site_packages(self) -> Path:
        if os.name == "nt":
            return self.path / "Lib" / "site-packages"
        return self.path / "lib" / f"python{self.python_version()}" / "site-packages"

    def has(self, distribution: str) -> bool:
        return any(self.site_packages().glob(f"{distribution}-*.dist-info"))


class Step:
    """One line on the screen: what is being done, for how long already, and at the end how long it took.

    On a terminal the line is rewritten every half second and shows what pip is at; in a log, where that would be
    noise, a line follows every 20 seconds.
    """

    def __init__(self, number: int, title: str, environment: Environment) -> None:
        self.label = f"[{number}/{STEPS}] {title} ..."
        self.environment = environment
        self.started = time.monotonic()
        self.is_terminal = sys.stdout.isatty()
        self.next_line = self.started + 20

    def __enter__(self) -> Step:
        print(self.label, end="" if self.is_terminal else "\n", flush=True)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._write(f"{self.label} {time.monotonic() - self.started:.0f} s", last=True)
        elif self.is_terminal and kind is KeyboardInterrupt:
            say()

    def _write(self, text: str, last: bool = False) -> None:
        if self.is_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{text[:width]}", end="\n" if last else "", flush=True)
        else:
            say(text)

    def beat(self) -> None:
        now = time.monotonic()
        if self.is_terminal or now >= self.next_line:
            self.next_line = now + 20
            doing = self._what_pip_does()
            self._write(f"{self.label} {now - self.started:.0f} s" + (f"  ({doing})" if doing else ""))

    def _what_pip_does(self) -> str:
        """Return the last package that the log names, in pip's words but short."""
        with self.environment.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 20_000))
            lines = log.read().decode(errors="replace").splitlines()
        for line in reversed(lines):
            if line.startswith("$ "):
                return ""
            if line.startswith("Installing collected packages"):
                return "writing files"
            found = re.match(
                r"\s*(Collecting|Downloading|Processing|Using cached) (\S+)(?: \(([\d.]+ [kMG]B)\))?", line
            )
            if found:
                verb, name, size = found.groups()
                # Without folder, index, and the tags of a wheel's name.
                name = re.sub(r"(-\d[^-]*)-.*|\.metadata$|\.tar\.gz$", r"\1", name.rsplit("/", 1)[-1])
                return f"{verb.lower()} {name}" + (f", {size}" if size else "")
        return ""

    def run(self, command: Iterable[str | Path], cwd: Path = ROOT) -> int:
        """Run a command with its output in the log, showing that time passes; return its exit status."""
        words = [str(word) for word in command]
        with self.environment.log.open("a") as log:
            log.write(f"\n$ {' '.join(words)}\n")
            log.flush()
            # PIP_USER, which some hosted machines set, would send packages out of the environment.
            process = subprocess.Popen(
                words,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PIP_USER": "0", "PYTHONUNBUFFERED": "1"},
            )
            try:
                while True:
                    try:
                        return process.wait(timeout=0.5)
                    except subprocess.TimeoutExpired:
                        self.beat()
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()

    def require(self, command: Iterable[str | Path], cwd: Path = ROOT, advice: str = "") -> None:
        """Run a command, or end with the last lines of the log and advice when it fails."""
        before = self.environment.log.stat().st_size if self.environment.log.exists() else 0
        status = self.run(command, cwd)
        if status == 0:
            return
        with self.environment.log.open("rb") as log:
            log.seek(before)
            output = log.read().decode(errors="replace")
        if self.is_terminal:
            say()
        # pip lists everything it installs in one line; its start is enough.
        say("\n".join(f"    {line[:200]}" for line in output.rstrip().splitlines()[-20:]))
        what = f"{self.label[: -len(' ...')]} failed."
        why = self._explain(output) or advice or "The lines above say why."
        if status == -9:
            # Killed outright, without a word in the log, which is what the kernel does when memory runs out.
            why = MEMORY_ADVICE
        stop(f"\n{what} {why}\nThe whole log: {shown(self.environment.log)}")

    def _explain(self, output: str) -> str:
        for pattern, meaning in ADVICE:
            if re.search(pattern, output):
                free = shutil.disk_usage(self.environment.path).free / 1e9
                space = (
                    f"{free:.1f} GB are free; the environment takes 3.5 GB without a GPU and 10 GB or more with one."
                )
                return meaning.format(space=space, python=self.environment.python_version())
        return ""


def shown(path: Path) -> str:
    """Return a path as the reader would type it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def check_python() -> None:
    if not OLDEST_PYTHON <= sys.version_info[:2] < TOO_NEW_PYTHON:
        stop(
            f"Python {platform.python_version()} ({sys.executable}) is not supported; 3.11 to 3.14 are.\n"
            "Run it with one of them, for example: make PYTHON=python3.12"
        )
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


def forget_half_installed(environment: Environment) -> None:
    """Remove the records of packages whose installation was cut off, so that pip installs them again.

    pip counts a package as installed once its METADATA is there, but writes INSTALLER only after all files. Without
    this, an interruption at the wrong moment would leave half a torch that pip calls satisfied.
    """
    for record in environment.site_packages().glob("*.dist-info"):
        if not (record / "INSTALLER").exists():
            shutil.rmtree(record)


def link_package(environment: Environment) -> None:
    """Make `import grpo_nb` work from anywhere, and edits count at once.

    A path file does what `pip install --editable` does, without a build backend, which a fresh environment lacks from
    Python 3.12 on.
    """
    (environment.site_packages() / "grpo_nb.pth").write_text(f"{ROOT}\n", encoding="utf-8")


def remove_wrong_torchvision(step: Step, environment: Environment) -> bool:
    """Uninstall a torchvision that cannot be loaded beside this torch; return whether there was one.

    transformers imports torchvision whenever it is installed, so one for another torch breaks every import after it.
    """
    if not environment.has("torchvision"):
        return False
    if step.run([environment.python, "-c", "import torch, torchvision"], cwd=environment.path) == 0:
        return False
    step.require([environment.python, "-m", "pip", "uninstall", "--yes", "torchvision"])
    return True


def install(environment: Environment, device: str) -> None:
    """Run all the steps; the stamp is written by the caller, and only after the last one."""
    pip = [environment.python, "-m", "pip", "--disable-pip-version-check"]
    environment.path.mkdir(parents=True, exist_ok=True)

    # The environment's log cannot exist before the environment does, so this step has no log.
    with Step(1, f"making the environment {shown(environment.path)}", environment):
        try:
            make_environment(environment)
        except (OSError, subprocess.CalledProcessError) as error:
            free = shutil.disk_usage(environment.path).free / 1e9
            stop(f"\nThe environment could not be made: {error}\n{free:.1f} GB are free on that disk.")
        environment.log.write_text("")
        forget_half_installed(environment)

    wanted: list[str | Path] = ["-r", REQUIREMENTS]
    title = "installing torch, transformers, trl, jupyter"
    if device == "gpu":
        # One resolve for both files: vllm on its own would move torch, torch on its own would break vllm.
        wanted += ["-r", REQUIREMENTS_GPU]
        title = "installing torch, vllm, transformers, trl, jupyter"
    index = os.environ.get("GRPO_NB_TORCH_INDEX", "").strip()
    if index:
        wanted += ["--extra-index-url", index]
    with Step(2, title, environment) as step:
        step.require([*pip, "install", *wanted])

    with Step(3, "installing unsloth and the small model", environment) as step:
        step.require([*pip, "install", "--no-deps", "-r", REQUIREMENTS_NO_DEPS])

    with Step(4, "adding the package and its Jupyter kernel", environment) as step:
        link_package(environment)
        kernel = ["--prefix", environment.path, "--name", "grpo_nb", "--display-name", "GRPO notebooks"]
        step.require([environment.python, "-m", "ipykernel", "install", *kernel])

    torchvision_removed = False
    with Step(5, "checking that unsloth and trl load", environment) as step:
        if device == "cpu":
            torchvision_removed = remove_wrong_torchvision(step, environment)
        # In the environment's folder, because unsloth leaves a cache in the working directory.
        step.require(
            [environment.python, "-c", "import unsloth, trl"],
            cwd=environment.path,
            advice=f"The packages are installed but do not load together. Remove {shown(environment.path)} and run the "
            "same command again; if that does not help, report the lines above.",
        )
    if torchvision_removed:
        say("      removed a torchvision built for another torch: it breaks transformers, and nothing here needs it")


def announce(environment: Environment, device: str) -> None:
    amount = "some minutes and 10 GB of disk or more" if device == "gpu" else "a few minutes and 3.5 GB of disk"
    say(f"Setting up {shown(environment.path)} for {device.upper()} (once; {amount}).")
    if (
        device == "cpu"
        and sys.platform == "linux"
        and not os.environ.get("GRPO_NB_TORCH_INDEX")
        and not environment.has("torch")
    ):
        say(
            "Note: on Linux the standard build of torch brings several GB of CUDA libraries, also without a GPU.\n"
            "      GRPO_NB_TORCH_INDEX can point to PyTorch's index of CPU builds (python scripts/bootstrap.py --help)."
        )


def main() -> int:
    argparse.ArgumentParser(
        prog="bootstrap.py", description=USAGE, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    environment = Environment(Path(os.environ.get("GRPO_NB_VENV") or DEFAULT_PLACE).expanduser().absolute())
    device = find_device()
    if environment.is_complete(device):
        say("environment is up to date")
        return 0

    check_python()
    check_place(environment)
    announce(environment, device)
    # From here until the end there is no stamp, so whatever cuts this off leaves an environment that counts as
    # unfinished.
    environment.stamp.unlink(missing_ok=True)
    # A closed terminal or a stopped CI job ends pip as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        install(environment, device)
    except KeyboardInterrupt:
        say("interrupted; run the same command again, it goes on from what is already installed")
        return 130
    unfinished = environment.stamp.with_suffix(".part")
    unfinished.write_text(environment.fingerprint(device) + "\n")
    unfinished.replace(environment.stamp)
    say(f"environment is ready: {shown(environment.python)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
