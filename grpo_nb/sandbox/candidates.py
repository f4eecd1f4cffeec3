"""Running model-written code where it can do no harm: inputs go in, values come out, expected values never enter.

Every candidate is a process of its own behind one wall (`child.py`). `docs/reference/sandbox.md` says what is promised
and what is not.
"""

from __future__ import annotations

import errno
import functools
import marshal
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import IO

from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine.host import usable_cores
from grpo_nb.sandbox.jobs import Answer, Call, Candidate, Limits, Outcome, no_outcome, outcome_of
from grpo_nb.sandbox.modules import modules_of

_CHILD = Path(__file__).with_name("child.py")
# What a candidate would try in vain, as calls of Python's own functions.
_TRIES = {
    "reading a file": Call("os.open", ("/etc/passwd", os.O_RDONLY)),
    "looking at a file": Call("os.stat", ("/",)),
    "a socket": Call("socket.socket"),
    "a signal to the notebook": Call("os.kill", (os.getpid(), 0)),
    "more memory than its limit": Call("bytearray", (8 << 30,)),
    "memory that its limit does not count": Call(
        "mmap.mmap", (-1, 4096)
    ),  # by default a shared one
    "more descriptors than its limit": Call("os.dup2", (1, 64)),
    "the environment": Call("os.environ.copy"),
    "another program": Call("os.execv", ("/no/such/program", ["program"])),
    "another process": Call("os.fork"),
}
_LEAST_SECONDS = 0.02  # of a shared time; with less, the next candidate of a group is not begun
# No limit of the kernel counts page tables, so this process looks at them. A list of 512 MB needs 1 MB of them; single pages
# that are spread over the address space need twice their own size.
_SECONDS_BETWEEN_LOOKS = 0.05
_MEMORY_PER_PAGE_TABLES = 16


def run_untrusted(
    code: str, calls: Sequence[Call] = (), *, stdin: str | None = None, limits: Limits | None = None
) -> Outcome:
    """Run model-written Python against some calls, or as a program with standard input, and return what came out.

    Never raises on any code. Files, network, environment, new processes and programs are closed to it; the standard
    library is open. Compare the answers here, in the caller, with `is_same_value`: what the code cannot see, it cannot
    copy.

    Args:
        code: Python source. Untrusted.
        calls: Functions of it to call, in one process, in order.
        stdin: Run it as a program that reads this text instead.
        limits: Time, memory, output.

    Raises:
        EnvironmentProblem: The wall does not hold on this machine.
        ValueError: An argument of a call is not plain data.

    >>> run_untrusted("def add(a, b): return a + b", [Call("add", (2, 3))]).answers[0].value
    5
    """
    ((outcome,),) = run_untrusted_batch(
        [[Candidate(code=code, calls=calls, stdin=stdin)]], limits=limits
    )
    return outcome


def run_untrusted_batch(
    groups: Sequence[Sequence[Candidate]], *, limits: Limits | None = None
) -> list[list[Outcome]]:
    """As `run_untrusted`, for many groups of candidates at once; the outcomes in the same groups and order.

    Candidates of a group, as the tests of one completion, run one after the other and share the time of one. An endless
    loop costs its own processor time, nothing else: with `n` of them the batch takes about `n * cpu_seconds / cores`, and
    the other groups still get their full time.
    """
    if found := holes():
        raise EnvironmentProblem(
            "model-written code is not run on this machine, because the wall around it does not hold here, and without it "
            f"the code could read your files and fool its reward: {'; '.join(found)}."
        )
    return _run_batch(groups, limits or Limits())


@functools.cache
def holes() -> tuple[str, ...]:
    """Try all that is forbidden, in about half a second; return what was not refused, nothing where the wall holds."""
    if not sys.platform.startswith("linux"):
        return (f"needs Linux, this is {sys.platform} (on Windows, WSL 2 is Linux)",)
    tries = Candidate(
        code="import json, mmap, os, socket", calls=[Call("json.loads", ("[7]",)), *_TRIES.values()]
    )
    (tried,), (endless,) = _run_batch(
        [[tries], [Candidate(code="while True: pass")]], Limits(cpu_seconds=0.3)
    )
    if tried.status == "lost":
        return (f"{tried.error} (for libseccomp.so.2: apt-get install -y libseccomp2)",)
    # dup2 calls a descriptor above the limit a bad one.
    refusals = ("PermissionError", "MemoryError", f"OSError: [Errno {errno.EBADF}]")
    honest, *answers = tried.answers
    pairs = zip(_TRIES, answers, strict=True)
    found = [
        what for what, a in pairs if (a.value if a.is_value else not a.error.startswith(refusals))
    ]
    found += ["a run without end"] * (endless.status != "limit")
    found += [f"honest code fails: {honest}"] * (honest != Answer([7], None))
    return tuple(found)


def _run_batch(groups: Sequence[Sequence[Candidate]], limits: Limits) -> list[list[Outcome]]:
    # Two for each core, so that a sleeper does not idle one.
    threads = ThreadPoolExecutor(min(2 * usable_cores(), 32))
    try:
        return list(threads.map(functools.partial(_run_group, limits=limits), groups))
    finally:
        # After an interruption nothing new is begun, and what runs is soon at its limits.
        threads.shutdown(wait=False, cancel_futures=True)


def _run_group(group: Sequence[Candidate], limits: Limits) -> list[Outcome]:
    """Run candidates one after the other in the time of one."""
    outcomes: list[Outcome] = []
    cpu, clock = limits.cpu_seconds, limits.wall_seconds
    for candidate in group:
        begun = time.monotonic()
        if min(cpu, clock) < _LEAST_SECONDS:
            outcome = no_outcome(candidate, "limit", "those before it have used up the time")
        else:
            left = replace(limits, cpu_seconds=cpu, wall_seconds=clock)
            outcome = _run(candidate, left)
            if (
                outcome.status == "lost"
            ):  # a machine out of memory for a moment is no verdict on the code
                outcome = _run(candidate, left)
        outcomes.append(outcome)
        cpu -= outcome.cpu_seconds
        clock -= time.monotonic() - begun
    return outcomes


def _run(candidate: Candidate, limits: Limits) -> Outcome:
    """Run one candidate in a new process, and wait for its end."""
    job = {
        "code": candidate.code,
        "calls": [(call.function, list(call.args), dict(call.kwargs)) for call in candidate.calls],
        "is_program": candidate.stdin is not None,
        "modules": modules_of(candidate.code),
        "cpu_seconds": limits.cpu_seconds,
        "memory_mib": limits.memory_mib,
        "parent": os.getpid(),
    }
    # The interpreter behind the virtual environment, without site-packages. A fixed seed makes the order of sets, and with
    # it a reward, the same each time; some interpreters do not start without LD_LIBRARY_PATH.
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    command = [interpreter, "-S", "-s", "-B", "-X", "utf8", str(_CHILD)]
    environment = {"PYTHONHASHSEED": "0", "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
    try:
        with open(os.memfd_create("job"), "wb+") as file:
            file.write(
                marshal.dumps(job) + (candidate.stdin or "").encode("utf-8", "surrogatepass")
            )
            file.seek(0)
            child = subprocess.Popen(
                command, stdin=file, stdout=PIPE, stderr=PIPE, cwd="/", env=environment
            )
    except OSError as error:
        return no_outcome(candidate, "lost", f"no process can be started: {error}")
    with child.stdout, child.stderr:
        written, limit = _read_until_end([child.stdout, child.stderr], limits, child.pid)
    os.kill(
        child.pid, signal.SIGKILL
    )  # nothing more is wanted of it; until it is waited for, the number is its own
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if not limit and child.returncode in (-signal.SIGPROF, -signal.SIGKILL):
        limit = "processor time"
    return outcome_of(candidate, *written, limit, child.returncode, usage.ru_utime + usage.ru_stime)


def _read_until_end(
    pipes: Sequence[IO[bytes]], limits: Limits, pid: int
) -> tuple[list[bytes], str]:
    """Read pipes until all are closed, or a limit is reached. Return their content and the limit, if any."""
    # One byte at a time must not cost quadratic time: a bytearray grows in place.
    written = {pipe: bytearray() for pipe in pipes}
    deadline = time.monotonic() + limits.wall_seconds
    next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS
    limit = ""
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map() and not limit:
            now = time.monotonic()
            # Looked at in each round: code that goes on writing is always ready.
            if now >= deadline:
                limit = "time on the clock"
            elif now >= next_look:
                next_look = now + _SECONDS_BETWEEN_LOOKS
                most_mib = limits.memory_mib / _MEMORY_PER_PAGE_TABLES
                if _page_tables_mib(pid) > most_mib:
                    limit = "memory, in page tables"
            for key, _ in selector.select(max(0.0, min(deadline, next_look) - now)):
                chunk = os.read(key.fd, 1 << 16)
                content = written[key.fileobj]
                content.extend(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif len(content) > limits.output_kib << 10:
                    limit = "output"
    return [bytes(content) for content in written.values()], limit


def _page_tables_mib(pid: int) -> float:
    """Return the size of a process's page tables; 0 where it has ended, or /proc does not show it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    size_in_kib = re.search(r"^VmPTE:\s*(\d+) kB", status, re.MULTILINE)
    return int(size_in_kib[1]) / 1024 if size_in_kib else 0.0
