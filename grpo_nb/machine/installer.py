"""Install what the kit needs into the environment of this kernel: the one line behind every notebook's install cell.

Colab, Kaggle and a Jupyter of one's own differ in what is there already, and what is there stays where it can: numpy and the
kernel's own packages always, torch if it is in the table of combinations. The repository's own environment is filled by
scripts/bootstrap.py with the parts that stand here; there, `install` finds nothing to do. Imports the standard library alone,
so that nothing is loaded that is about to be replaced.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpo_nb.core.arguments import require_path
from grpo_nb.core.errors import EnvironmentProblem
from grpo_nb.core.processes import ChildError, run_command
from grpo_nb.core.tables import Cell, Shown, bold
from grpo_nb.machine import packages
from grpo_nb.machine.combinations import BY_NAME, Choice, Found, choose
from grpo_nb.machine.gpu import read_driver
from grpo_nb.machine.host import find_host, free_disk_bytes, how_to_restart

Say = Callable[[str], object]

_ROOT = Path(__file__).resolve().parents[2]
# The folder into which the install cell clones the repository.
CLONE = "grpo_nb_clone"
# Never replaced: a kernel that has one of these in memory breaks when its files change. torch and its siblings join them
# when torch stays.
_HELD = (
    "numpy", "ipython", "ipykernel", "ipywidgets", "jupyter-client", "jupyter-core", "comm", "pyzmq", "tornado", "traitlets",
)  # fmt: skip
_TORCH_FAMILY = ("torch", "torchvision", "torchaudio", "triton")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_FREE_GB = {True: 15, False: 4}
_MEMORY = "The machine ran out of memory. Close other programs and run it again."
# What pip (or uv) says, and what that means. The first match counts: without a network pip also says "no matching".
_ADVICE = {
    r"No space left|Errno 28|Disk quota exceeded": "The disk is full: {free:.1f} GB are free where Python lies. Free some "
    "space, or take a machine or a folder with more: 3.5 GB without a GPU, 10 GB or more with one.",
    r"name resolution|Name or service not known|NewConnectionError|Failed to establish|Max retries exceeded|"
    r"Network is unreachable|dns error|ReadTimeout|ConnectTimeout|ProxyError|Connection reset": "The package index could not "
    "be reached. On Kaggle: Settings > Internet > On. Elsewhere check the network, and "
    "`pip config list` for a proxy or mirror. Then run this again: what is already installed is kept.",
    r"CERTIFICATE_VERIFY_FAILED|SSLError": "The connection's certificate was not accepted. Behind a company proxy, give pip "
    "its certificate: `pip config set global.cert /path/to/certificate.pem`.",
    r"ResolutionImpossible|conflicting dependencies|No solution found": "What this kernel came with cannot stay beside what "
    "training needs. Uninstall the package that the lines above name, restart the session, and run this cell before "
    "anything else. Without vLLM less is needed: install(report=print, vllm=False). In the repository: if requirements.txt "
    "was edited, undo that; a constraint in `pip config list` or PIP_CONSTRAINT has the same effect.",
    r"No matching distribution|Could not find a version": "The index has no file of that package for this system with "
    "Python {python}, or it is not the index it should be (proxy, mirror: see `pip config list`).",
    r"Permission denied|Errno 13": "This environment may not be written to: use one of your own (`make lab`, with "
    "GRPO_NB_VENV=/some/folder where the repository may not be written to either).",
    r"MemoryError": _MEMORY,
}
# A download of less is over before anyone wonders, and so is what is silent for less.
_WORTH_SAYING_MB, _SILENCE_SECONDS = 100, 20


@dataclass(frozen=True, kw_only=True, repr=False)
class Installation(Shown):
    """How it ended. Shows itself as one line: ready, or restart needed and why; on a GPU with one more about vLLM."""

    is_ready: bool
    loaded: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What this kernel has in memory in another version than is installed now: name to (loaded, installed)."""
    changed: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    """What this call installed, replaced or removed: name to (before, after)."""
    combination: str = ""
    generation: str = ""
    """With vLLM or without, why, and what it costs; empty without a GPU."""

    @property
    def verdict(self) -> str:
        """`Ready` or `Restart needed`, with the reason and what to click."""
        if self.is_ready:
            return f"Ready ({self.combination}). Go on with the next cell."
        names = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in sorted(self.loaded.items()))
        return (
            f"Restart needed: this kernel still has the old version of {names}. {how_to_restart(find_host())}, then run this "
            "cell again: it ends with Ready at once."
        )

    def _parts(self) -> Iterator[Cell | str]:
        yield bold(self.verdict)
        yield self.generation


def install(*, vllm: bool = True, report: Say | None = None, root: str | Path | None = None) -> Installation:
    """Install what is missing, and end with `Ready` or `Restart needed`. A second call finds nothing to do.

    Args:
        vllm: Whether to install vLLM on a Linux machine with a GPU. It makes sampling several times faster and the
            installation several GB larger; in Colab it also means another torch.
        report: Called with one line per step, for example `print`.
        root: The folder with the requirements files; by default the repository that this package lies in.

    Raises:
        EnvironmentProblem: Something has to be done first, or pip failed: what, why, and what to type.
    """
    say = report or (lambda line: None)
    folder = require_path("root", root) if root is not None else _ROOT
    _check_place(folder)
    choice = choose(_look(), with_vllm=vllm)
    if choice.stop:
        raise EnvironmentProblem(f"Nothing was installed: {choice.stop}.")
    forget_half_installed()
    before = _versions()
    wanted = requirements(folder, choice, before)
    alone = _read(folder / "requirements-no-deps.txt")
    missing = [line for line in (*wanted, *alone) if not is_met(line, before)]
    # Which module belongs to which package has to be asked while what is removed below is still there.
    owners = importlib.metadata.packages_distributions() if missing or _misfits() else {}
    names = {_normal(name) for module in owners if module in sys.modules for name in owners[module]}
    # Replaced by this call, a package is known from `before`; replaced earlier, it tells its version itself.
    told = {_normal(name): version for name, version in packages.loaded_versions().items()}
    in_memory = {name: before[name] for name in names if name in before} | told
    if missing:
        _check_room(choice)
        if choice.why:
            say(choice.why)
        say(f"Installing for {choice.combination}: " + ("some minutes." if choice.vllm else "a few minutes."))
        with tempfile.TemporaryDirectory() as place:
            held = Path(place) / "held.txt"
            held.write_text("\n".join(constraints(choice, before)) + "\n", encoding="utf-8")
            run_pip(["install", "--constraint", str(held), *wanted], "torch, transformers and trl", say)
        install_alone(folder, say)
    remove_misfits(say)
    # No other place is linked: bootstrap.py does it for a repository, and a kit on PYTHONPATH needs no help.
    if folder.name == CLONE and folder == _ROOT:
        link(folder)
    after = _versions()
    changed = {name: (before.get(name), after.get(name)) for name, _ in sorted(before.items() ^ after.items())}
    loaded = {
        name: (version, after.get(name, "removed"))
        for name, version in in_memory.items()
        if name in changed or not packages.is_same_release(version, after.get(name, version))
    }
    ended = {"loaded": loaded, "changed": changed, "combination": choice.combination, "generation": choice.generation}
    return Installation(is_ready=not loaded, **ended)


def requirements(folder: Path, choice: Choice, installed: Mapping[str, str]) -> list[str]:
    """Return what pip is asked for: the exact pins of requirements.txt, and of the rest what is missing.

    A bound such as `pillow>=13` says what the repository's own environment is made of. Where another version is there already,
    it stays, unless a pinned package asks for more.
    """
    lines = []
    row = BY_NAME.get(choice.combination)
    unbounded = row.unbounded if row is not None and choice.vllm is not None else ()
    for line in _read(folder / "requirements.txt"):
        name = _name(line)
        if name == "torch":
            if choice.torch is not None:
                lines.append(f"torch=={choice.torch}")
        elif "==" in line or (name not in installed and name not in unbounded):
            lines.append(line)
        else:
            lines.append(name)
    if choice.vllm is not None:
        lines += [f"vllm=={choice.vllm}", *(row.with_vllm if row is not None else ())]
    return lines


def constraints(choice: Choice, installed: Mapping[str, str]) -> list[str]:
    """Return the pins of what must stay as it is."""
    held = [*_HELD, *(_TORCH_FAMILY if choice.torch is None else ())]
    return [f"{name}=={installed[name]}" for name in held if name in installed]


def is_met(line: str, installed: Mapping[str, str]) -> bool:
    """Whether a requirement is there: in the exact version for a pin, in any for a bound."""
    version = installed.get(_name(line))
    if version is None:
        return False
    pin = re.search(r"==\s*([\w.!+]+)", line.partition(";")[0])
    return pin is None or packages.is_same_release(pin[1], version)


def _look() -> Found:
    build = packages.read_torch_build()
    driver = read_driver(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    return Found(
        torch=build.version if build else packages.installed_version("torch"),
        torch_cuda=build.cuda[0] if build and build.cuda else None,
        is_torch_loaded="torch" in sys.modules,
        has_gpu=bool(driver.gpus),
        driver_cuda=driver.cuda[0] if driver.cuda else None,
        system=sys.platform,
    )


def _check_place(folder: Path) -> None:
    if not packages.PYTHONS[0] <= sys.version_info[:2] < packages.PYTHONS[1]:
        version = ".".join(map(str, sys.version_info[:3]))
        raise EnvironmentProblem(f"Python {version} is not supported: use a kernel with Python 3.11 to 3.14.")
    if not (folder / "requirements.txt").is_file():
        raise EnvironmentProblem(
            f"{folder} has no requirements.txt, so this is no clone of the repository. Run the cell as it stands in the "
            "notebook, which fetches one."
        )


def _check_room(choice: Choice) -> None:
    is_own = find_host() in ("jupyter", "script") and sys.prefix == sys.base_prefix
    if is_own and (Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED").exists():
        raise EnvironmentProblem(
            "This kernel runs on the system's own Python, which must not be changed. In the repository run `make lab`, "
            "which makes an environment of its own, or start Jupyter from one of yours."
        )
    needed, free = _FREE_GB[choice.vllm is not None], free_disk_bytes(Path(sys.prefix)) / 1e9
    if free < needed:
        raise EnvironmentProblem(f"{free:.1f} GB are free where Python lies, and the packages take about {needed} GB.")


def run_pip(arguments: Sequence[str], what: str, say: Say, log: Say | None = None) -> None:
    """Run pip, or uv where there is no pip, in this kernel's environment."""
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    elif shutil.which("uv"):
        # uv asks nothing, and knows no --yes.
        command = ["uv", "pip", *(a for a in arguments if a != "--yes"), "--python", sys.executable]
    else:
        raise EnvironmentProblem(f"This Python has no pip ({sys.executable}). Run: {sys.executable} -m ensurepip")
    run_step(command, what, say, log)


def run_step(command: Sequence[str], what: str, say: Say, log: Say | None = None) -> None:
    """Run a program, and tell large downloads, that time passes, and at the end how long it took.

    Raises:
        EnvironmentProblem: It failed: its last lines, and what to do.
    """
    started, lines = time.monotonic(), ["starting"]
    done = threading.Event()

    def hear(line: str) -> None:
        lines.append(line)
        if line.startswith("Installing collected packages: "):
            with contextlib.suppress(OSError):  # where pip may not write either, and installs for the user alone
                _begun().write_text(line.partition(": ")[2], encoding="utf-8")
        if log is not None:
            log(line)
        if (told := worth_saying(line)) is not None:
            say(f"  {told}")

    def beat() -> None:
        while not done.wait(_SILENCE_SECONDS):
            say(f"  {what}: {time.monotonic() - started:.0f} s  ({lines[-1].strip()[:60]})")

    if log is not None:
        log(f"$ {' '.join(command)}")
    threading.Thread(target=beat, daemon=True).start()
    try:
        # PIP_USER, which some hosted machines set, would send packages where another Python finds them too.
        run_command(command, on_line=hear, environment={"PIP_USER": "0"})
        _begun().unlink(missing_ok=True)
    except ChildError as error:
        raise EnvironmentProblem(explain(error.lines, what, error.status)) from None
    finally:
        done.set()
    say(f"  {what}: {time.monotonic() - started:.0f} s")


def worth_saying(line: str) -> str | None:
    """Return what somebody who waits should know of a line of pip's; None for most."""
    found = re.match(r"\s*Downloading (\S+?)-\d\S*\.whl \((\d[\d.]*) (MB|GB)\)", line)
    if found and (found[3] == "GB" or float(found[2]) >= _WORTH_SAYING_MB):
        return f"downloading {found[1].rsplit('/', 1)[-1]}, {found[2]} {found[3]}"
    return "writing files" if line.startswith("Installing collected packages") else None


def explain(lines: Sequence[str], what: str, status: int | None = 1) -> str:
    """Return what a failed program said, short, and what to do about it."""
    # Complaints about packages that nobody here uses stand between, so errors are looked for first.
    errors = [line for line in lines if re.match(r"ERROR|error", line)] or lines
    output = "\n".join(lines)
    advice = next(
        (meaning for pattern, meaning in _ADVICE.items() if re.search(pattern, output)), "The lines above say why."
    )
    if status == -9:  # ended outright, without a word, which is what the kernel does when memory runs out
        advice = _MEMORY
    shown = "".join(f"\n  {line[:300]}" for line in errors[-6:])
    free, python = free_disk_bytes(Path(sys.prefix)) / 1e9, ".".join(map(str, sys.version_info[:2]))
    return f"Installing {what} failed:{shown}\n{advice.format(free=free, python=python)}"


def install_alone(folder: Path, say: Say, log: Say | None = None) -> None:
    """Install what must not bring what it asks for; always after the rest."""
    file = folder / "requirements-no-deps.txt"
    run_pip(["install", "--no-deps", "-r", str(file)], "unsloth and the small model", say, log)


def _misfits() -> list[str]:
    """What breaks the others though nothing here needs it: a torchvision for another torch, an old torchao."""
    torch, vision, torchao = (packages.installed_version(name) for name in ("torch", "torchvision", "torchao"))
    found = ["torchvision"] if torch and vision and not packages.is_torchvision_for(torch, vision) else []
    return found + (["torchao"] if torchao and not packages.is_torchao_recent(torchao) else [])


def remove_misfits(say: Say, log: Say | None = None) -> None:
    misfits = _misfits()
    if misfits:
        what = f"removing {' and '.join(misfits)}, which breaks transformers or peft here"
        run_pip(["uninstall", "--yes", *misfits], what, say, log)


def link(folder: Path) -> None:
    """Make `import grpo_nb` work after a restart, in every process and from anywhere, and edits count at once.

    A path file does what `pip install --editable` does, without a build backend, which a fresh environment lacks from Python
    3.12 on.
    """
    site = Path(sysconfig.get_path("purelib"))
    file = site / "grpo_nb.pth"
    if file.is_file() and file.read_text(encoding="utf-8").strip() == str(folder):
        return
    try:
        file.write_text(f"{folder}\n", encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(
            f"{site} cannot be written to ({error.strerror}). Start Jupyter from an environment of yours, or run "
            "`make lab` in the repository."
        ) from error


def forget_half_installed() -> None:
    """Remove the records of packages whose installation from here was cut off; pip would call them satisfied.

    pip writes METADATA first, and INSTALLER and RECORD only after all files. So does one that is at work elsewhere: only what
    was begun here, and not ended, is looked at.
    """
    if not _begun().is_file():
        return
    names = {_normal(name) for name in _begun().read_text(encoding="utf-8").split(", ")}
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for record in Path(place).glob("*.dist-info"):
            is_whole = (record / "INSTALLER").exists() or (record / "RECORD").exists()
            if _normal(record.name.partition("-")[0]) in names and not is_whole:
                shutil.rmtree(record)
    _begun().unlink()


def _begun() -> Path:
    """The names of what pip is installing from here; there until it has ended well."""
    return Path(sysconfig.get_path("purelib")) / "grpo_nb_installing.txt"


def _versions() -> dict[str, str]:
    """Name to version of everything installed, read afresh from disk; names as the registry normalises them."""
    importlib.invalidate_caches()
    # The first on the path is the one that is imported.
    records = [(record.metadata["Name"], record) for record in importlib.metadata.distributions()]
    return {_normal(name): record.version for name, record in reversed(records) if name}


def _read(file: Path) -> list[str]:
    """The requirements in a file, without comments."""
    lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def _name(line: str) -> str:
    found = _NAME.match(line)
    if found is None:
        raise ValueError(f"no requirement: {line!r}")
    return _normal(found[0])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
