"""Run pip, or uv where there is no pip, say what takes long, and turn a failure into what to do about it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from grpo_nb.environment_report import EnvironmentProblem

# What pip (or uv) says, and what that means. The first match counts: without a network pip also says "no matching".
_ADVICE = (
    (r"No space left|Errno 28", "The disk is full: free some space, or take a machine with a larger one."),
    (
        r"name resolution|NewConnectionError|Max retries exceeded|Network is unreachable|dns error|ReadTimeout|ProxyError",
        "The package index could not be reached. On Kaggle: Settings > Internet > On. Then run this cell again.",
    ),
    (
        r"ResolutionImpossible|conflicting dependencies|No solution found",
        "What this kernel came with cannot stay beside what training needs. Uninstall the package that the lines above name, "
        "restart the session, and run this cell before anything else. Without vLLM less is needed: "
        "install(report=print, vllm=False).",
    ),
    (
        r"No matching distribution|Could not find a version",
        "The index has no file of that package for this Python and system.",
    ),
    (r"Permission denied|Errno 13", "This environment may not be written to: use one of your own (`make lab`)."),
)
# A download of less is over before anyone wonders.
_WORTH_SAYING_MB = 100


def run_pip(arguments: Sequence[str], what: str, say: Callable[[str], object]) -> None:
    """Run pip in this kernel's environment.

    Args:
        arguments: What follows `pip`.
        what: What it is for, for the line that says how long it took, and for the error.
        say: Called with one line for each large download and one at the end.

    Raises:
        EnvironmentProblem: There is no pip, or it failed: its last lines, and what to do.
    """
    started = time.monotonic()
    lines: list[str] = []
    # PIP_USER, which some hosted machines set, would send packages where another Python finds them too.
    environment = os.environ | {"PIP_USER": "0", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        _command(arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", env=environment,
    )  # fmt: skip
    try:
        for line in process.stdout:
            lines.append(line.strip())
            if (told := _worth_saying(line)) is not None:
                say(f"  {told}")
        status = process.wait()
    finally:
        # An interrupted cell must not leave pip writing into the environment.
        if process.poll() is None:
            process.terminate()
            process.wait()
        process.stdout.close()
    if status != 0:
        raise EnvironmentProblem(explain(lines, what))
    say(f"  {what}: {time.monotonic() - started:.0f} s")


def _command(arguments: Sequence[str]) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    if shutil.which("uv"):
        # uv asks nothing, and knows no --yes.
        return ["uv", "pip", *(a for a in arguments if a != "--yes"), "--python", sys.executable]
    raise EnvironmentProblem(f"This Python has no pip ({sys.executable}). Run: {sys.executable} -m ensurepip")


def _worth_saying(line: str) -> str | None:
    found = re.match(r"\s*Downloading (\S+?)-\d\S*\.whl \((\d[\d.]*) (MB|GB)\)", line)
    if found and (found[3] == "GB" or float(found[2]) >= _WORTH_SAYING_MB):
        return f"downloading {found[1].rsplit('/', 1)[-1]}, {found[2]} {found[3]}"
    return "writing files" if line.startswith("Installing collected packages") else None


def explain(lines: Sequence[str], what: str) -> str:
    """Return what a failed pip said, short, and what to do about it."""
    told = [line for line in lines if line]
    # Complaints about packages that nobody here uses stand between, so errors are looked for first.
    errors = [line for line in told if re.match(r"ERROR|error", line)] or told
    output = "\n".join(told)
    advice = next((meaning for pattern, meaning in _ADVICE if re.search(pattern, output)), "The lines above say why.")
    shown = "".join(f"\n  {line[:300]}" for line in errors[-6:])
    return f"Installing {what} failed:{shown}\n{advice}"
