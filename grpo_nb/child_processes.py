"""The kit's scripts that run as processes of their own: they know nothing of the kit, and cannot outlive it or hang it."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any


class ChildError(RuntimeError):
    """A script ended without an answer; the message has how, and its last lines."""


def run_script(
    name: str,
    request: Mapping[str, Any],
    *,
    on_line: Callable[[str], None] | None = None,
    patience: float | None = None,
) -> Any:
    """Run a script of this package on a request, and return its answer.

    The script gets the path of a JSON file, writes its answer to the file that `result` in it names, and ends when its standard
    input does, which is when this process is gone.

    Args:
        name: Its file name.
        request: Fit for JSON.
        on_line: Called with each line that it prints.
        patience: Seconds without a line after which it is ended; None waits for ever.

    Raises:
        ChildError: It failed, or said nothing for too long.
    """
    with tempfile.TemporaryDirectory(prefix="grpo_nb-") as folder:
        asked, answered, log = (Path(folder) / file for file in ("request.json", "result.json", "log.txt"))
        asked.write_text(json.dumps({**request, "result": str(answered)}))
        # -I: neither the kit's folder nor the working directory is on the path of a process that must not see the kit.
        command = [sys.executable, "-I", str(Path(__file__).with_name(name)), str(asked)]
        is_late = False
        with log.open("wb") as errors, _started(command, errors) as child:
            for line in _lines(child, patience):
                if line is None:
                    is_late = True
                    break
                if on_line is not None:
                    on_line(line)
            status = None if is_late else child.wait()
        if status == 0 and answered.is_file():
            return json.loads(answered.read_text())
        said = "\n".join(log.read_text(errors="replace").strip().splitlines()[-12:]) or "(nothing)"
        what = f"gave no sign of life for {patience:g} s and was ended" if is_late else f"ended with {status}"
        raise ChildError(f"{what}. It said last:\n{said}")


@contextlib.contextmanager
def _started(command: list[str], errors: Any) -> Iterator[subprocess.Popen[str]]:
    """A child that is ended when the block is left, also by Ctrl-C."""
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace"
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def _lines(child: subprocess.Popen[str], patience: float | None) -> Iterator[str | None]:
    """Yield the child's lines; None where none came for `patience` seconds."""
    lines: queue.Queue[str] = queue.Queue()
    output = child.stdout
    assert output is not None

    def read() -> None:
        with contextlib.suppress(ValueError):  # closed under the reader, once the child was ended
            for line in output:
                lines.put(line)
        lines.put("")

    threading.Thread(target=read, name="child", daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=patience)
        except queue.Empty:
            yield None
            return
        if not line:
            return
        yield line
