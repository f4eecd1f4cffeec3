"""Start train.py in forks of a process that has imported plain TRL, which takes seconds.

Run as a program it is that process. It ends with its stdin, which the tests hold.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import runpy
import subprocess
import sys
import traceback
from pathlib import Path


def run_warm(
    folder: Path, plain_trl: Path, script: str | Path, arguments: tuple[str, ...]
) -> tuple[int, str]:
    """Run a script in a folder as `python script` would; return its exit status and output."""
    process = _forking_process(plain_trl)
    output = plain_trl.parent / f"output-{os.getpid()}.txt"
    request = [str(folder), str(output), str(script), *arguments]
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    code = int(process.stdout.readline())
    return code, output.read_text()


@functools.cache
def _forking_process(plain_trl: Path) -> subprocess.Popen:
    variables = {"PYTHONPATH": str(plain_trl), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    # -P: the folder of this file is not among those of the imports.
    return subprocess.Popen(
        [sys.executable, "-P", __file__],
        env=os.environ | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _serve() -> None:
    with contextlib.redirect_stdout(sys.stderr):
        import accelerate  # noqa: F401
        import datasets  # noqa: F401
        import peft  # noqa: F401
        import transformers  # noqa: F401
        from trl import GRPOTrainer  # noqa: F401
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = _run(*json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(folder: str, output: str, script: str, *arguments: str) -> int:
    """Be `python script` in this folder, and return the exit status."""
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(written, 1)
    os.dup2(written, 2)
    sys.path.insert(0, str(Path(script).resolve().parent))
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _serve()
