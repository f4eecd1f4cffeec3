"""Install what the kit needs into the environment of this kernel: the one line behind every notebook's install cell.

Colab, Kaggle and a Jupyter of one's own differ in what is there already. What is there stays where it can: numpy and the
kernel's own packages always, torch if it is in the table of combinations. Imports the standard library alone, so that nothing
is loaded that is about to be replaced. The repository's own environment is made by scripts/bootstrap.py; there, this finds
nothing to do.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grpo_nb.combinations import BY_NAME, Choice, Found, choose
from grpo_nb.environment_gpu import has_nvidia_smi, read_driver
from grpo_nb.environment_machine import find_host
from grpo_nb.environment_packages import installed_version, read_torch_build
from grpo_nb.environment_report import EnvironmentProblem
from grpo_nb.installing_pip import run_pip

_ROOT = Path(__file__).resolve().parent.parent
# The folder into which the install cell clones the repository.
CLONE = "grpo_nb_clone"
# Of requirements.txt, what runs and tests notebooks from outside. The kernel that runs this cell has its own.
_NOT_FOR_A_KERNEL = frozenset(
    ("ipykernel", "jupyterlab", "nbclient", "nbconvert", "hypothesis", "jupytext", "nbstripout", "pytest", "pytest-xdist",
     "ruff", "selenium", "tensorboard")
)  # fmt: skip
# Never replaced: a kernel that has one of these in memory breaks when its files change. torch and its siblings join them
# when torch stays.
_HELD = (
    "numpy", "ipython", "ipykernel", "ipywidgets", "jupyter-client", "jupyter-core", "comm", "pyzmq", "tornado", "traitlets",
)  # fmt: skip
_TORCH_FAMILY = ("torch", "torchvision", "torchaudio", "triton")
# torchvision 0.(n + 15) is built for torch 2.n; peft 0.21 refuses a torchao before 0.16, which Colab has.
_TORCHVISION_OFFSET, _OLDEST_TORCHAO = 15, (0, 16)
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_FREE_GB = {True: 15, False: 4}


@dataclass(frozen=True, kw_only=True)
class Installation:
    """How it ended. Shows itself as one line: ready, or restart needed and why."""

    is_ready: bool
    loaded: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What this kernel has in memory in another version than is installed now: name to (loaded, installed)."""
    changed: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    """What this call installed, replaced or removed: name to (before, after)."""
    combination: str = ""
    host: str = "jupyter"

    @property
    def verdict(self) -> str:
        """`Ready` or `Restart needed`, with the reason and what to click."""
        if self.is_ready:
            return f"Ready ({self.combination}). Go on with the next cell."
        names = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in sorted(self.loaded.items()))
        how = {"colab": "Runtime > Restart session", "kaggle": "Run > Restart kernel"}.get(
            self.host, "Kernel > Restart kernel"
        )
        return (
            f"Restart needed: this kernel still has the old version of {names}. {how}, then run this cell again: it ends "
            "with Ready at once."
        )

    def __repr__(self) -> str:
        return self.verdict

    def _repr_html_(self) -> str:
        import html

        return f"<p><b>{html.escape(self.verdict)}</b></p>"


def install(
    *, vllm: bool = True, report: Callable[[str], object] | None = None, root: str | Path | None = None
) -> Installation:
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
    folder = Path(root) if root is not None else _ROOT
    _check_place(folder)
    choice = choose(_look(), with_vllm=vllm)
    if choice.stop:
        raise EnvironmentProblem(f"Nothing was installed: {choice.stop}.")
    _forget_half_installed()
    before = _versions()
    wanted = requirements(folder, choice, before)
    alone = _read(folder / "requirements-no-deps.txt")
    missing = [line for line in (*wanted, *alone) if not is_met(line, before)]
    # Which module belongs to which package has to be asked while what is removed below is still there.
    owners = importlib.metadata.packages_distributions() if missing or _misfits() else {}
    if missing:
        _install(wanted, alone, choice, before, say)
    _remove_misfits(say)
    _link(folder)
    importlib.invalidate_caches()
    after = _versions()
    changed = {
        name: (before.get(name), after.get(name))
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    }
    loaded = _outdated_in_memory(before, after, owners)
    return Installation(
        is_ready=not loaded, loaded=loaded, changed=changed, combination=choice.combination, host=find_host()
    )


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
        if name in _NOT_FOR_A_KERNEL:
            continue
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
    return pin is None or version.partition("+")[0] == pin[1].partition("+")[0]


def _look() -> Found:
    build = read_torch_build()
    driver = read_driver(visible=os.environ.get("CUDA_VISIBLE_DEVICES")) if has_nvidia_smi() else None
    has_gpu = driver is not None and bool(driver.gpus)
    return Found(
        torch=build.version if build else installed_version("torch"),
        torch_cuda=build.cuda[0] if build and build.cuda else None,
        is_torch_loaded="torch" in sys.modules,
        has_gpu=has_gpu,
        driver_cuda=driver.cuda[0] if driver is not None and driver.cuda else None,
        system=sys.platform,
    )


def _check_place(folder: Path) -> None:
    if not (3, 11) <= sys.version_info[:2] < (3, 15):
        version = ".".join(map(str, sys.version_info[:3]))
        raise EnvironmentProblem(f"Python {version} is not supported: use a kernel with Python 3.11 to 3.14.")
    if not (folder / "requirements.txt").is_file():
        raise EnvironmentProblem(
            f"{folder} has no requirements.txt, so this is no clone of the repository. Run the cell as it stands in the "
            "notebook, which fetches one."
        )


def _install(
    wanted: list[str], alone: list[str], choice: Choice, before: Mapping[str, str], say: Callable[[str], object]
) -> None:
    """Run pip twice: what depends on each other in one resolve, then unsloth, which must not bring what it asks for."""
    is_own = find_host() in ("jupyter", "script") and sys.prefix == sys.base_prefix
    if is_own and (Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED").exists():
        raise EnvironmentProblem(
            "This kernel runs on the system's own Python, which must not be changed. In the repository run `make lab`, "
            "which makes an environment of its own, or start Jupyter from one of yours."
        )
    needed = _FREE_GB[choice.vllm is not None]
    free = shutil.disk_usage(sys.prefix).free / 1e9
    if free < needed:
        raise EnvironmentProblem(f"{free:.1f} GB are free where Python lies, and the packages take about {needed} GB.")
    if choice.why:
        say(choice.why)
    say(f"Installing for {choice.combination}: " + ("some minutes." if choice.vllm else "a few minutes."))
    with tempfile.TemporaryDirectory() as place:
        held = Path(place) / "held.txt"
        held.write_text("\n".join(constraints(choice, before)) + "\n", encoding="utf-8")
        run_pip(["install", "--constraint", str(held), *wanted], "torch, transformers and trl", say)
    run_pip(["install", "--no-deps", *alone], "unsloth and the small model", say)


def _misfits() -> list[str]:
    """What breaks the others though nothing here needs it: a torchvision for another torch, an old torchao."""
    torch, vision, torchao = (_numbers(installed_version(name)) for name in ("torch", "torchvision", "torchao"))
    found = []
    if torch and vision and vision[1] != torch[1] + _TORCHVISION_OFFSET:
        found.append("torchvision")
    if torchao and torchao < _OLDEST_TORCHAO:
        found.append("torchao")
    return found


def _numbers(version: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else None


def _remove_misfits(say: Callable[[str], object]) -> None:
    misfits = _misfits()
    if misfits:
        what = f"removing {' and '.join(misfits)}, which breaks transformers or peft here"
        run_pip(["uninstall", "--yes", *misfits], what, say)


def _link(folder: Path) -> None:
    """Make `import grpo_nb` work after a restart and in every process, from the clone that the install cell fetched.

    No other place is linked: bootstrap.py does it for a repository, and a kit on PYTHONPATH needs no help.
    """
    if folder.name != CLONE or folder != _ROOT:
        return
    site = Path(sysconfig.get_path("purelib"))
    file = site / "grpo_nb.pth"
    if file.exists() and file.read_text(encoding="utf-8").strip() == str(folder):
        return
    try:
        file.write_text(f"{folder}\n", encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(
            f"{site} cannot be written to ({error.strerror}). Start Jupyter from an environment of yours, or run "
            "`make lab` in the repository."
        ) from error


def _forget_half_installed() -> None:
    """Remove the records of packages whose installation was cut off; pip would call them satisfied.

    pip writes METADATA first, and INSTALLER and RECORD only after all files; Debian's packages have INSTALLER alone.
    """
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for record in Path(place).glob("*.dist-info"):
            if not (record / "INSTALLER").exists() and not (record / "RECORD").exists():
                shutil.rmtree(record)


def _versions() -> dict[str, str]:
    """Name to version of everything installed, read afresh from disk; names as the registry normalises them."""
    importlib.invalidate_caches()
    found: dict[str, str] = {}
    for record in importlib.metadata.distributions():
        name = record.metadata["Name"]
        if name:
            found.setdefault(_normal(name), record.version)
    return found


def _outdated_in_memory(
    before: Mapping[str, str], after: Mapping[str, str], owners: Mapping[str, list[str]]
) -> dict[str, tuple[str, str]]:
    """What this kernel has loaded in another version than is installed now.

    A package replaced by this call is known from `before`; one replaced earlier tells its version itself.
    """
    outdated: dict[str, tuple[str, str]] = {}
    replaced = {name for name, version in before.items() if after.get(name) != version}
    for module, names in owners.items():
        for name in map(_normal, names):
            if name in replaced and module in sys.modules:
                outdated[name] = (before[name], after.get(name, "removed"))
    for name, version in after.items():
        module = sys.modules.get(name.replace("-", "_"))
        said = vars(module).get("__version__") if module is not None else None
        if isinstance(said, str) and said.partition("+")[0] != version.partition("+")[0] and name in _TELLS_VERSION:
            outdated.setdefault(name, (said, version))
    return outdated


# Packages whose `__version__` is that of their metadata; others call themselves what they like.
_TELLS_VERSION = frozenset(
    (
        "torch",
        "numpy",
        "pandas",
        "pyarrow",
        "transformers",
        "trl",
        "peft",
        "accelerate",
        "datasets",
        "vllm",
        "torchvision",
    )
)


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
