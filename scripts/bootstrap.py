"""Make .venv, beside the README, with all that this repository needs, or say in a moment that it is up to date.

Can be interrupted and run again. Environment variables:
  GRPO_NB_VENV         another place for the environment
  GRPO_NB_DEVICE       cpu or gpu; by default gpu where `nvidia-smi` names a CUDA
  PIP_EXTRA_INDEX_URL  one more index. On Linux, torch's standard build brings several GB of CUDA libraries even to a
                       machine without a GPU; PyTorch's own index of CPU builds avoids that. Its address is what the
                       installation selector on PyTorch's web site shows for "CPU".
pip's other variables and its configuration files (index, proxy, certificates, cache) are honoured as well.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# What the environment takes.
COSTS = {
    "cpu": "a few minutes and 4 GB of disk, more with CUDA",
    "gpu": "some minutes and 10 GB of disk or more",
}
# As in grpo_nb.machine.packages, which an older Python could not read. 3.15 is where unsloth 2026.10.9 stops.
OLDEST_PYTHON, TOO_NEW_PYTHON = (3, 11), (3, 15)


def wanted_for(place: Path, device: str) -> str:
    """A hash of what the finished environment is made from: the requirements, its Python, the device, and where we are."""
    parts = [
        file.read_bytes()
        for file in (*sorted(ROOT.glob("requirements*.txt")), place / "pyvenv.cfg")
    ]
    return hashlib.sha256(b"\0".join([*parts, device.encode(), str(ROOT).encode()])).hexdigest()


def fill(place: Path, device: str) -> None:
    """Install everything as it is pinned. Runs in the new environment.

    The order of the steps is the point. unsloth asks for versions that cannot be had together, so it goes in last and
    without its dependencies; requirements-no-deps.txt tells the story.
    """
    from grpo_nb.machine import installer

    # One resolve for all of them: vllm on its own would move torch, torch on its own would break vllm.
    kinds = ("", "-dev", "-gpu") if device == "gpu" else ("", "-dev")
    wanted = [f"-r{ROOT}/requirements{kind}.txt" for kind in kinds]
    with (place / "install.log").open("w", encoding="utf-8") as log:
        note = functools.partial(print, file=log, flush=True)
        step = "Installing torch, transformers, trl and jupyter"
        installer.run_step([*installer.PIP, "install", *wanted], step, print, note)
        installer.install_without_dependencies(ROOT, print, note)
        installer.remove_misfits(print, note)
        installer.link(ROOT)
        # In the environment's folder, because unsloth leaves a cache in the working directory.
        load = f"import os; os.chdir({sys.prefix!r}); import unsloth, trl"
        installer.run_step(
            [sys.executable, "-c", load], "Checking that unsloth and trl load", print, note
        )
    (place / "complete").write_text(wanted_for(place, device))


def main() -> None:
    if not OLDEST_PYTHON <= sys.version_info[:2] < TOO_NEW_PYTHON:
        named = f"Python {platform.python_version()} ({sys.executable})"
        raise SystemExit(
            f"{named} is not supported; 3.11 to 3.14 are: make PYTHON=python3.12, for example."
        )
    from grpo_nb.core.words import EnvironmentProblem
    from grpo_nb.machine.gpu import driver_cuda

    place = Path(os.environ.get("GRPO_NB_VENV") or ROOT / ".venv").expanduser().absolute()
    # Asks the driver's own tool and not torch, which is not installed yet.
    device = os.environ.get("GRPO_NB_DEVICE", "").strip().lower() or (
        "gpu" if driver_cuda() else "cpu"
    )
    if device not in COSTS:
        raise SystemExit(
            f"GRPO_NB_DEVICE is {device!r}; it can be cpu or gpu. Unset it to let the machine decide."
        )
    python, complete = place / "bin" / "python", place / "complete"
    # `exists` follows the link: an environment whose Python was uninstalled is not complete.
    if python.exists() and complete.exists() and complete.read_text() == wanted_for(place, device):
        print("environment is up to date")
        return
    if Path(sys.prefix) != place:
        print(
            f"Setting up {os.path.relpath(place)} for {device.upper()} (once; {COSTS[device]}).",
            flush=True,
        )
        complete.unlink(missing_ok=True)
        # What an interruption left is gone over again; one whose Python was uninstalled is made from scratch.
        clear = ["--clear"] if (place / "pyvenv.cfg").exists() and not python.exists() else []
        subprocess.run([sys.executable, "-m", "venv", *clear, place], check=True)
        # Takes this process's place, so that a signal reaches it.
        os.execve(python, [str(python), "-u", __file__], os.environ | {"GRPO_NB_DEVICE": device})
    # A closed terminal or a stopped CI job ends pip as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        fill(place, device)
    except EnvironmentProblem as problem:
        raise SystemExit(
            f"\n{problem}\nThe whole log: {os.path.relpath(place / 'install.log')}"
        ) from None
    except KeyboardInterrupt:
        print("interrupted; run the same command again, it goes on from what is already installed")
        raise SystemExit(130) from None
    print(f"environment is ready: {os.path.relpath(sys.executable)}")


if __name__ == "__main__":
    main()
