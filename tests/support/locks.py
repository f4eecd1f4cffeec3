"""Another process that holds the lock of a folder."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_PROGRAM = """
import sys
from pathlib import Path
from grpo_nb.core.locks import holding_lock
with holding_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder_of(folder: Path) -> Iterator[None]:
    """Let another process hold the lock of a folder during the block.

    The process is killed at the end.
    """
    command = [sys.executable, "-c", _PROGRAM, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "locked\n"
            yield
        finally:
            process.kill()
