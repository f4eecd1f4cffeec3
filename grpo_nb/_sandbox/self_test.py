"""Whether a level holds on this machine: a candidate really tries what is forbidden, and nothing may come of it.

Believing a version number or a configuration file would be easier, and wrong in every container with its own rules.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from grpo_nb._sandbox import values
from grpo_nb._sandbox.pool import Finished, Pool
from grpo_nb.environment import Check, EnvironmentProblem

# Runs inside. Each function tries one thing and returns what it got; an exception is what the wall should give.
_PROBE = r"""
import ctypes, os, socket, threading, time
libc = ctypes.CDLL(None, use_errno=True)

def tcp(port):
    socket.create_connection(("127.0.0.1", port), timeout=1).close(); return "connected"
def udp(port):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port)); return "sent"
def unix_socket(name):
    socket.socket(socket.AF_UNIX).connect(name); return "connected"
def read(path):
    return open(path).read()
def write(path):
    open(path, "w").write("x"); return "written"
def environment():
    names = list(os.environ)
    return names or None
def fork():
    pid = os.fork()
    if pid == 0: os._exit(0)
    return "forked"
def run(path):
    os.execv(path, [path]); return "ran"
def signal_to(pid):
    os.kill(pid, 0); return "allowed"
def trace(pid):
    if libc.ptrace(16, pid, 0, 0) != 0: raise OSError(ctypes.get_errno(), "ptrace")
    return "attached"
def memory(mib):
    held = bytearray(mib << 20); return len(held)
def threads(count):
    stop = threading.Event(); started = 0
    threading.stack_size(65536)
    try:
        for started in range(1, count + 1): threading.Thread(target=stop.wait, daemon=True).start()
        time.sleep(0.3)
    finally: stop.set()
    return started
def root():
    os.setuid(0); return "root"
def descriptors():
    found = []
    for number in range(4, 256):
        try: os.fstat(number); found.append(number)
        except OSError: pass
    return found or None
def imports():
    import json, fractions, heapq, typing; return "ok"
def lazy():
    import wave; return "ok"
def works(x): return [x, (1, 2.5), {"a": {3}}]
def loop():
    while True: pass
def flood(): os.write(1, b"x" * 100); exec("import sys\nwhile True: os.write(3, b'x' * 65536)")
"""

_MEMORY_MIB, _THREADS = 384, 8


def make_job(
    code: str, calls: list[list[Any]], *, cpu_seconds: float = 5.0, wall_seconds: float = 60.0, **more: Any
) -> dict[str, Any]:
    """Return a job for `Pool.run` with the limits of the self-test."""
    return {
        "code": code, "calls": calls, "cpu_seconds": cpu_seconds, "wall_seconds": wall_seconds,
        "memory_mib": _MEMORY_MIB, "threads": _THREADS, "output_kib": 64, **more,
    }  # fmt: skip


@contextmanager
def _targets() -> Iterator[dict[str, Any]]:
    """Things outside that a candidate could reach if the wall had a hole: sockets that listen, a file with a secret."""
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        name = "\0grpo_nb-" + secrets.token_hex(8)
        unix.bind(name)
        unix.listen()
        for listener in (tcp, udp, unix):
            listener.setblocking(False)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grpo_nb-canary-")))
        folder.chmod(0o777)  # only the wall is to keep the candidate out, not the file's permissions
        canary = folder / "canary"
        canary.write_text("secret")
        canary.chmod(0o666)
        yield {"tcp": tcp, "udp": udp, "unix": unix, "name": name, "folder": folder, "canary": canary}


def run_self_test(pool: Pool) -> list[Check]:
    """Try everything that is forbidden in `pool`; return one row for each try, of status `ok` or `problem`.

    Raises:
        EnvironmentProblem: The wall cannot be raised at all.
    """
    with _targets() as outside:
        tries = [
            ("network, TCP", "tcp", outside["tcp"].getsockname()[1]),
            ("network, UDP", "udp", outside["udp"].getsockname()[1]),
            ("abstract socket", "unix_socket", outside["name"]),
            ("reading a file outside", "read", str(outside["canary"])),
            ("reading /etc/passwd", "read", "/etc/passwd"),
            ("reading a process's environment", "read", f"/proc/{os.getpid()}/environ"),
            ("writing a file outside", "write", str(outside["folder"] / "new")),
            ("overwriting a file outside", "write", str(outside["canary"])),
            ("writing /tmp", "write", "/tmp/grpo_nb-probe"),
            ("writing shared memory", "write", "/dev/shm/grpo_nb-probe"),
            ("reading the environment", "environment", None),
            ("new process", "fork", None),
            ("another program", "run", "/bin/true"),
            ("signal to the kernel process", "signal_to", os.getpid()),
            ("signal to everything", "signal_to", -1),
            ("tracing another process", "trace", os.getppid()),
            ("becoming root", "root", None),
            ("open descriptors", "descriptors", None),
        ]
        calls = [[name, [] if argument is None else [argument], {}] for _, name, argument in tries]
        jobs = [
            make_job(_PROBE, calls),
            make_job(_PROBE, [["memory", [_MEMORY_MIB], {}]]),
            make_job(_PROBE, [["threads", [10 * _THREADS * pool.workers], {}]]),
            make_job(_PROBE, [["loop", [], {}]], cpu_seconds=0.2),
            make_job("import time\ntime.sleep(600)", [], wall_seconds=0.3),
            make_job(_PROBE, [["flood", [], {}]]),
            make_job(_PROBE, [["works", [7], {}], ["imports", [], {}], ["threads", [2], {}], ["lazy", [], {}]]),
        ]
        refused, memory, threads, loop, sleep, flood, honest = pool.run(jobs)
        rows = _judge_refusals(tries, refused)
        reached = [name for name in ("tcp", "udp", "unix") if _was_reached(outside[name])]
        is_untouched = outside["canary"].read_text() == "secret" and len(list(outside["folder"].iterdir())) == 1
    rows.append(_row("nothing arrived outside", not reached and is_untouched, ", ".join(reached) or "nothing did"))
    answer = _answers(memory)
    rows.append(_row(f"more than {_MEMORY_MIB} MiB of memory", "MemoryError" in str(answer), str(answer)))
    answer = _answers(threads)
    is_refused = threads.reason == "threads" or "can't start new thread" in str(answer)
    rows.append(_row("threads without end", is_refused, str(answer)))
    rows.append(_row("endless loop", loop.reason == "cpu", f"ended by: {loop.reason}"))
    rows.append(_row("endless sleep", sleep.reason == "wall", f"ended by: {sleep.reason}"))
    rows.append(_row("output without end", flood.reason == "output", f"ended by: {flood.reason}"))
    answer = _answers(honest)
    works = answer[:3] == [("value", [7, (1, 2.5), {"a": {3}}]), ("value", "ok"), ("value", 2)]
    rows.append(_row("honest code works", works, str(answer), wanted="right answers"))
    if works and answer[3:] != [("value", "ok")]:
        found = "only common modules: this user cannot enter the interpreter's folder"
        rows.append(Check("standard library", "warning", found, "Install Python where every user can read it."))
    return rows


def _judge_refusals(tries: list[tuple[str, str, Any]], finished: Finished) -> list[Check]:
    if finished.reason == "no_wall":
        raise EnvironmentProblem(finished.report.decode("ascii", "replace"))
    answers = _answers(finished)
    if len(answers) != len(tries):
        raise EnvironmentProblem(f"its self-test ended early ({finished.reason}, exit code {finished.exit_code})")
    return [
        _row(what, kind == "error" or got is None, str(got) if kind == "error" else f"succeeded: {got!r:.80}")
        for (what, _, _), (kind, got) in zip(tries, answers, strict=True)
    ]


def _answers(finished: Finished) -> list[tuple[str, Any]]:
    """The self-test's own code wrote these lines; `sandbox.py` has the reader that trusts nothing."""
    answers = []
    for line in finished.report.splitlines():
        words = json.loads(line)
        kind = next(iter(set(words) - {"call"}))
        answers.append((kind, values.decode(words[kind])))
    return answers


def _was_reached(listener: socket.socket) -> bool:
    take: Callable[[], Any] = listener.accept if listener.type == socket.SOCK_STREAM else lambda: listener.recv(1)
    try:
        take()
    except BlockingIOError:
        return False
    return True


def _row(what: str, is_ok: bool, found: str, wanted: str = "refused") -> Check:
    if is_ok:
        return Check(what, "ok", wanted)
    return Check(what, "problem", found, "This level does not hold here and is not used.")
