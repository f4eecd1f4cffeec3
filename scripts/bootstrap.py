"""Install everything that this repository needs into .venv, unless it is up to date.

It can be interrupted and run again. Environment variables:
  GRPO_NB_VENV         another folder for the environment
  GRPO_NB_DEVICE       cpu or gpu; by default gpu if `nvidia-smi` names a CUDA version
  PIP_EXTRA_INDEX_URL  one more package index. On Linux, the standard build of torch brings several
                       GB of CUDA libraries, also to a machine without a GPU. PyTorch's index of CPU
                       builds avoids that: PyTorch's web site shows its address for "CPU".
pip's other variables and its configuration files (index, proxy, certificates, cache) work as usual.
"""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# Time and disk that an installation takes.
COSTS = {
    "cpu": "a few minutes and 4 GB of disk, more with CUDA",
    "gpu": "some minutes and 10 GB of disk or more",
}
# The same as in grpo_nb.machine.installer, which an older Python could not read. unsloth
# 2026.10.9 does not support 3.15.
OLDEST_PYTHON = (3, 11)
TOO_NEW_PYTHON = (3, 15)


def wanted_for(place: Path, device: str) -> str:
    """Return a hash of what the environment depends on: requirements, Python, device and folder."""
    files = [*sorted(ROOT.glob("requirements*.txt")), place / "pyvenv.cfg"]
    parts = [file.read_bytes() for file in files]
    parts += [device.encode(), str(ROOT).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def fill(place: Path, device: str) -> None:
    """Install the pinned packages. Runs in the new environment.

    unsloth requires versions that exclude each other, so it is installed last and without its
    dependencies (requirements-no-deps.txt explains this).
    """
    from grpo_nb.machine import installer

    # pip resolves all files at once: vllm alone would change torch, torch alone would break vllm.
    kinds = ("", "-dev", "-gpu") if device == "gpu" else ("", "-dev")
    wanted = [f"-r{ROOT}/requirements{kind}.txt" for kind in kinds]
    step = "Installing torch, transformers, trl and jupyter"
    installer.run_step([*installer.PIP, "install", *wanted], step, print)
    installer.finish_installation(ROOT, print)
    installer.make_importable(ROOT)
    # In the environment's folder, because unsloth leaves a cache in the working directory.
    load = f"import os; os.chdir({sys.prefix!r}); import unsloth, trl"
    installer.run_step([sys.executable, "-c", load], "Checking that unsloth and trl load", print)
    (place / "complete").write_text(wanted_for(place, device))


def main() -> None:
    """Make the environment, and continue in it to install the packages."""
    if not OLDEST_PYTHON <= sys.version_info[:2] < TOO_NEW_PYTHON:
        python = f"Python {platform.python_version()} ({sys.executable})"
        raise SystemExit(
            f"{python} is not supported. Use Python 3.11 to 3.14, for example "
            "make PYTHON=python3.12"
        )
    from grpo_nb.core.problems import EnvironmentProblem
    from grpo_nb.machine.gpu import read_newest_cuda

    place = Path(os.environ.get("GRPO_NB_VENV") or ROOT / ".venv").expanduser().absolute()
    device = os.environ.get("GRPO_NB_DEVICE", "").strip().lower()
    if not device:
        # read_newest_cuda asks nvidia-smi, because torch is not installed yet.
        device = "gpu" if read_newest_cuda() else "cpu"
    if device not in COSTS:
        raise SystemExit(
            f"GRPO_NB_DEVICE is {device!r}; it can be cpu or gpu. "
            "Unset it to let the machine decide."
        )
    python = place / "bin" / "python"
    complete = place / "complete"
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
        # An interrupted installation is continued. If its Python was uninstalled, it starts again.
        has_lost_its_python = (place / "pyvenv.cfg").exists() and not python.exists()
        options = ["--clear"] if has_lost_its_python else []
        subprocess.run([sys.executable, "-m", "venv", *options, place], check=True)
        # The new Python replaces this process, so that signals reach it.
        os.execve(python, [str(python), "-u", __file__], os.environ | {"GRPO_NB_DEVICE": device})
    # SIGTERM, from a closed terminal or a stopped CI job, then acts like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        fill(place, device)
    except EnvironmentProblem as problem:
        raise SystemExit(f"\n{problem}") from None
    except KeyboardInterrupt:
        print("Interrupted. Run the same command again: it continues with what is missing.")
        raise SystemExit(130) from None
    print(f"environment is ready: {os.path.relpath(sys.executable)}")


if __name__ == "__main__":
    main()
