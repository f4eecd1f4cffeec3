"""Whether vLLM loads, found out in a process of its own: a vLLM for another CUDA takes the kernel down with it."""

from __future__ import annotations

import functools
import subprocess
import sys

from grpo_nb.environment_packages import installed_version

# vLLM turns a failure of its compiled part into a log line and runs into it later, so these are imported by name; what they
# are called changes between releases (_C, _C_stable_libtorch), hence the look into the folder.
_TRY = """
import importlib, pathlib, vllm
from vllm import LLM, SamplingParams
for file in sorted(pathlib.Path(vllm.__file__).parent.glob("_C*.so")):
    importlib.import_module("vllm." + file.name.split(".")[0])
"""
# The import alone takes 5 to 20 seconds on a machine that has just started.
_SECONDS = 90


def vllm_problem() -> str | None:
    """Say why vLLM does not load here, or None if it does.

    It is imported once per kernel, in a separate process, which takes some seconds; the answer is kept.
    """
    version = installed_version("vllm")
    if version is None:
        return "not installed"
    return _try_import(version, installed_version("torch"))


@functools.cache
def _try_import(vllm: str, torch: str | None) -> str | None:
    """Import vLLM elsewhere; the versions are arguments so that the answer is not kept beyond them."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRY], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"its import did not end in {_SECONDS} seconds"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"its import was ended by signal {-done.returncode}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"its import ended with status {done.returncode}"
