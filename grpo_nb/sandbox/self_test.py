"""Whether a level holds on this machine: a candidate really tries what is forbidden, and nothing may come of it.

Believing a version number or a configuration file would be easier, and wrong in every container with its own rules.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine.checks import Check
from grpo_nb.sandbox.jobs import Call, Candidate, Limits, job_of, outcome_of
from grpo_nb.sandbox.pool import Pool

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
def empty(path):
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC)); return "emptied"
def empty_a_module():
    # One that is empty as it is: where the wall has a hole, nothing is lost.
    folder = os.path.dirname(os.__file__)
    paths = [os.path.join(folder, name, "__init__.py") for name in sorted(os.listdir(folder))]
    found = [path for path in paths if os.path.isfile(path) and not os.path.getsize(path)]
    if not found: return "no empty file to try it with"
    return empty(found[0])
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

_LIMITS = Limits(cpu_seconds=5.0, wall_seconds=60.0, memory_mib=384, threads=8, output_kib=64)


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
        tries = {
            "network, TCP": Call("tcp", (outside["tcp"].getsockname()[1],)),
            "network, UDP": Call("udp", (outside["udp"].getsockname()[1],)),
            "abstract socket": Call("unix_socket", (outside["name"],)),
            "reading a file outside": Call("read", (str(outside["canary"]),)),
            "reading /etc/passwd": Call("read", ("/etc/passwd",)),
            "reading a process's environment": Call("read", (f"/proc/{os.getpid()}/environ",)),
            "writing a file outside": Call("write", (str(outside["folder"] / "new"),)),
            "overwriting a file outside": Call("write", (str(outside["canary"]),)),
            "emptying a file outside": Call("empty", (str(outside["canary"]),)),
            "emptying a file of the standard library": Call("empty_a_module"),
            "writing /tmp": Call("write", ("/tmp/grpo_nb-probe",)),
            "writing shared memory": Call("write", ("/dev/shm/grpo_nb-probe",)),
            "reading the environment": Call("environment"),
            "new process": Call("fork"),
            "another program": Call("run", ("/bin/true",)),
            "signal to the kernel process": Call("signal_to", (os.getpid(),)),
            "signal to everything": Call("signal_to", (-1,)),
            "tracing another process": Call("trace", (os.getppid(),)),
            "becoming root": Call("root"),
            "open descriptors": Call("descriptors"),
        }
        asked = [
            (_probe(*tries.values()), _LIMITS),
            (_probe(Call("memory", (_LIMITS.memory_mib,))), _LIMITS),
            (_probe(Call("threads", (10 * _LIMITS.threads * pool.workers,))), _LIMITS),
            (_probe(Call("loop")), replace(_LIMITS, cpu_seconds=0.2)),
            (Candidate(code="import time\ntime.sleep(600)"), replace(_LIMITS, wall_seconds=0.3)),
            (_probe(Call("flood")), _LIMITS),
            (_probe(Call("works", (7,)), Call("imports"), Call("threads", (2,)), Call("lazy")), _LIMITS),
        ]
        finished = pool.run([job_of(*one) for one in asked])
        if finished[0].reason == "no_wall":
            raise EnvironmentProblem(finished[0].report.decode("ascii", "replace"))
        outcomes = [outcome_of(candidate, one) for (candidate, _), one in zip(asked, finished, strict=True)]
        arrived = select.select([outside[name] for name in ("tcp", "udp", "unix")], [], [], 0)[0]
        reached = [name for name in outside if outside[name] in arrived]
        is_untouched = outside["canary"].read_text() == "secret" and len(list(outside["folder"].iterdir())) == 1
    refused, memory, threads, loop, sleep, flood, honest = outcomes
    if refused.status != "ok":
        raise EnvironmentProblem(f"its self-test ended early ({refused.status}, {refused.error})")
    rows = [
        _row(what, not answer.is_value or answer.value is None, f"succeeded: {answer.value!r:.80}")
        for what, answer in zip(tries, refused.answers, strict=True)
    ]
    held, started = str(memory.answers), str(threads.answers)
    is_refused = threads.status == "threads" or "can't start new thread" in started
    *given, lazy = (answer.value for answer in honest.answers)
    works = given == [[7, (1, 2.5), {"a": {3}}], "ok", 2]
    rows += [
        _row("nothing arrived outside", not reached and is_untouched, ", ".join(reached) or "nothing did"),
        _row(f"more than {_LIMITS.memory_mib} MiB of memory", "MemoryError" in held, held),
        _row("threads without end", is_refused, started),
        _row("endless loop", loop.status == "cpu", f"ended by: {loop.status}"),
        _row("endless sleep", sleep.status == "wall", f"ended by: {sleep.status}"),
        _row("output without end", flood.status == "output", f"ended by: {flood.status}"),
        _row("honest code works", works, f"{honest.status} {honest.answers}", wanted="right answers"),
    ]
    if works and lazy != "ok":
        found = "only common modules: this user cannot enter the interpreter's folder"
        rows.append(Check("standard library", "warning", found, "Install Python where every user can read it."))
    return rows


def _probe(*calls: Call) -> Candidate:
    return Candidate(code=_PROBE, calls=calls)


def _row(what: str, is_ok: bool, found: str, wanted: str = "refused") -> Check:
    if is_ok:
        return Check(what, "ok", wanted)
    return Check(what, "problem", found, "This level does not hold here and is not used.")
