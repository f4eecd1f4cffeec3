"""Kernels that start with all imports done, forked from a process that computes nothing.

Each import would take ten seconds.

For notebooks in their small form. That they begin in a clean kernel is held by those that are
published (`make publish`), by `make test-slow`, and by tests/test_public_api.py.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

_WELL = "ended well"
_nursery: socket.socket | None = None
"""To the process that forks kernels."""


def open_nursery() -> None:
    """Import what notebooks need and fork the process from which kernels are forked.

    That process ends with this one.
    """
    import ipykernel.kernelapp  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import scipy.stats  # noqa: F401
    import transformers.pipelines  # noqa: F401

    import grpo_nb.export.merged
    import grpo_nb.training.train  # noqa: F401

    global _nursery
    _nursery, there = socket.socketpair()
    if os.fork() == 0:
        try:
            _serve(there)
        finally:
            os._exit(0)
    there.close()


def launch_kernel(command: list[str], *, cwd: str, env: dict[str, str], **_: object) -> Kernel:
    """A kernel manager for forked kernels; kernel.txt in its folder has the kernel's own output."""
    _nursery.sendall(json.dumps([command, str(cwd), env]).encode() + b"\n")
    return Kernel(int(_nursery.makefile().readline()))


def run_module(name: str, *arguments: str, folder: Path) -> list[str]:
    """The lines that a module says which is run as a program; that it fails is an error here."""
    launch_kernel(["-m", name, *arguments], cwd=str(folder), env=dict(os.environ)).wait(600)
    *said, last = (folder / "kernel.txt").read_text().splitlines() or [""]
    assert last == _WELL, "\n".join([*said, last])[-4000:]
    return said


class Kernel:
    """The part of `subprocess.Popen` that jupyter_client uses."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode = None
        self._ends = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        if self.returncode is None and select.select([self._ends], [], [], timeout)[0]:
            self.returncode = 0
            os.close(self._ends)
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _serve(asked: socket.socket) -> None:
    # Of pytest and of those that hand out its tests nothing is kept: they would wait for this
    # process to close it.
    faulthandler.disable()
    os.closerange(3, asked.fileno())
    os.closerange(asked.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    _speak_to(os.devnull)
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a kernel here
    for line in asked.makefile():
        command, folder, variables = json.loads(line)
        if os.fork() == 0:
            os.setsid()  # an interrupt goes to the group of a kernel
            asked.sendall(f"{os.getpid()}\n".encode())
            asked.close()
            _become(command, folder, variables)


def _become(command: list[str], folder: str, variables: dict[str, str]) -> None:
    """Be the kernel of this command, as far as a started process can."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(folder)
    _speak_to(Path(folder, "kernel.txt"))
    os.environ.clear()
    os.environ.update(variables, JPY_PARENT_PID=str(os.getppid()))
    name, *sys.argv[1:] = command[command.index("-m") + 1 :]
    sys.path.insert(0, folder)
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        print(_WELL, file=sys.__stdout__)
    except BaseException:
        traceback.print_exc(file=sys.__stdout__)
    finally:
        sys.__stdout__.flush()
        os._exit(0)


def _speak_to(file: Any) -> None:
    """Let descriptors and Python's streams be those of a process with nobody at a keyboard."""
    for number, opened in enumerate((open(os.devnull), open(file, "a"), open(file, "a"))):
        os.dup2(opened.fileno(), number)
        opened.close()
    sys.stdin, sys.stdout, sys.stderr = (
        open(n, "w" if n else "r", 1, closefd=False) for n in range(3)
    )
    sys.__stdin__ = sys.stdin
    sys.__stdout__ = sys.stdout
    sys.__stderr__ = sys.stderr
