"""Start a process for each candidate, watch its limits and read its report.

Inputs go in and values come out. Expected values never enter. The process isolates itself before it
runs the code (`child.py`). `docs/reference/sandbox.md` lists what the sandbox promises and what it
does not.
"""

from __future__ import annotations

import functools
import marshal
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import IO

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.machine.host import usable_cores
from grpo_nb.sandbox.modules import modules_to_import
from grpo_nb.sandbox.outcomes import (
    Call,
    Candidate,
    Limits,
    Outcome,
    complete_outcome,
    outcome_of,
)

_CHILD = Path(__file__).with_name("child.py")
# Attacks that `isolation_failures` tries: the forbidden action, and a call that attempts it.
_ATTACKS = {
    "reading a file": Call("os.open", ("/etc/passwd", os.O_RDONLY)),
    "looking at a file": Call("os.stat", ("/",)),
    "a socket": Call("socket.socket"),
    "a signal to the notebook": Call("os.kill", (os.getpid(), 0)),
    "more memory than its limit": Call("bytearray", (8 << 30,)),
    # `mmap` maps shared memory, which RLIMIT_AS no longer counts after most of it is unmapped.
    "memory that its limit does not count": Call("mmap.mmap", (-1, 4096)),
    "more descriptors than its limit": Call("os.dup2", (1, 64)),
    # Fails with KeyError if the environment is empty.
    "the environment": Call("os.environ.popitem"),
    "another program": Call("os.execv", ("/no/such/program", ["program"])),
    "another process": Call("os.fork"),
}
# The kernel closes the pipe of a process a moment before the process counts as ended, so the end is
# checked every millisecond.
_MAX_EXIT_CHECKS = 100
# The size of the page tables is checked again and again. They may take 1/16 of the limit of memory.
_CHECK_SECONDS = 0.05
_PAGE_TABLES_KIB_PER_MIB = 1024 // 16


def run_untrusted(
    code: str, calls: Sequence[Call] = (), *, limits: Limits | None = None
) -> Outcome:
    """Run generated Python code and return the outcome.

    The code has no files, network, environment, new processes or other programs, and can import the
    standard library. An error of the code is in the outcome, and is not raised. Compare the results
    in the caller: the code cannot copy an expected value that it never sees. What the code prints
    is lost.

    Args:
        code: Untrusted Python source.
        calls: Functions of the code to call, in one process, in order.
        limits: Time, memory and output.

    Raises:
        EnvironmentProblem: This machine cannot isolate the code.

    >>> run_untrusted("def add(a, b): return a + b", [Call("add", (2, 3))]).results[0].value
    5
    """
    return run_untrusted_batch([Candidate(code=code, calls=calls)], limits=limits)[0]


def run_untrusted_batch(
    candidates: Sequence[Candidate], *, limits: Limits | None = None
) -> list[Outcome]:
    """Run many candidates at once; return their outcomes in the same order.

    An endless loop costs its own processor time and nothing else: `n` of them take about
    `n * cpu_seconds / cores`, and the other candidates still get their full time.

    Raises:
        EnvironmentProblem: This machine cannot isolate the code.
    """
    failures = isolation_failures()
    if failures:
        # The machine may have been out of memory for a moment, so the next call tries again.
        isolation_failures.cache_clear()
        raise EnvironmentProblem(
            "generated code is not run on this machine, because it cannot be isolated here: "
            f"{'; '.join(failures)}. It needs Linux and libseccomp (apt-get install -y "
            "libseccomp2). Code that is not isolated could read your files and choose its own "
            "reward."
        )
    return _run_batch(candidates, limits or Limits())


@functools.cache
def isolation_failures() -> tuple[str, ...]:
    """Return the forbidden actions that succeed on this machine, or why it cannot isolate code.

    The result is empty if the isolation holds. This self-test takes half a second, once in a
    session: one process tries all actions, and another runs an endless loop.
    """
    if not sys.platform.startswith("linux"):
        return (f"needs Linux, this is {sys.platform} (on Windows, WSL 2 is Linux)",)
    honest_call = Call("json.loads", ("[7]",))
    attack = Candidate(
        code="import json, mmap, os, socket", calls=[honest_call, *_ATTACKS.values()]
    )
    endless = Candidate(code="while True: pass")
    attack_outcome, endless_outcome = _run_batch([attack, endless], Limits(cpu_seconds=0.3))
    if attack_outcome.status == "lost":
        return (attack_outcome.error,)
    # dup2 fails with error 9 (EBADF) for a descriptor above the limit.
    refusals = ("PermissionError", "MemoryError", "KeyError", "OSError: [Errno 9]")
    honest_result, *results = attack_outcome.results
    failures = [
        action
        for action, result in zip(_ATTACKS, results, strict=True)
        if not str(result.error).startswith(refusals)
    ]
    if endless_outcome.status != "limit":
        failures.append(f"a run without end has the status {endless_outcome.status!r}")
    if honest_result.value != [7]:
        failures.append(f"honest code fails: {honest_result}")
    return tuple(failures)


def _run_batch(candidates: Sequence[Candidate], limits: Limits) -> list[Outcome]:
    # Two threads for each core, so that code that sleeps does not leave a core idle.
    threads = ThreadPoolExecutor(min(2 * usable_cores(), 32))
    try:
        return list(threads.map(functools.partial(_run, limits=limits), candidates))
    finally:
        # After an interrupt nothing new is started, and what runs soon reaches its limits.
        threads.shutdown(wait=False, cancel_futures=True)


def _run(candidate: Candidate, limits: Limits) -> Outcome:
    """Run one candidate in a new process and wait for its end."""
    job = {
        # marshal refuses subclasses, and writes texts and numbers of numpy as bytes.
        "code": str(candidate.code),
        "calls": [
            (str(call.function), list(call.args), dict(call.kwargs)) for call in candidate.calls
        ],
        "modules": modules_to_import(candidate.code),
        "cpu_seconds": float(limits.cpu_seconds),
        "memory_mib": int(limits.memory_mib),
        "parent": os.getpid(),
    }
    # The interpreter behind the virtual environment, without site-packages.
    interpreter = sys._base_executable or sys.executable
    command = [interpreter, "-S", "-s", "-B", "-X", "utf8", str(_CHILD)]
    environment = {
        # Makes the order of sets, and with it a reward, the same each time.
        "PYTHONHASHSEED": "0",
        # Some interpreters do not start without it.
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
    }
    try:
        with open(os.memfd_create("job"), "wb+") as file:
            # Version 2 keeps no identity: two calls with the same list get a list each.
            file.write(marshal.dumps(job, 2))
            file.seek(0)
            child = subprocess.Popen(
                command, stdin=file, stdout=DEVNULL, stderr=PIPE, cwd="/", env=environment
            )
    except OSError as error:
        return complete_outcome(candidate, "lost", f"no process can be started: {error}")
    with child.stderr:
        report, reached_limit = _read_until_end(child.stderr, limits, child.pid)
    # If a limit was reached, the SIGKILL below ends the process. Otherwise wait for its own end: a
    # SIGKILL before the one below is the kernel's.
    has_ended = not reached_limit and _wait_for_exit(child.pid)
    # The id is safe to kill: it stays reserved until `wait4`.
    os.kill(child.pid, signal.SIGKILL)
    _, wait_status, usage = os.wait4(child.pid, 0)
    exit_code = child.returncode = os.waitstatus_to_exitcode(wait_status)
    cpu_seconds = usage.ru_utime + usage.ru_stime
    is_killed_by_kernel = has_ended and exit_code == -signal.SIGKILL
    if is_killed_by_kernel and cpu_seconds < limits.cpu_seconds:
        # The code cannot send signals, so the system has ended its process.
        return complete_outcome(candidate, "lost", "the system killed it: it may be out of memory")
    # The timer ends code with SIGPROF. RLIMIT_CPU ends code that ignores SIGPROF with SIGKILL.
    if is_killed_by_kernel or exit_code == -signal.SIGPROF:
        reached_limit = "processor time"
    return outcome_of(candidate, bytes(report), reached_limit, exit_code)


def _wait_for_exit(pid: int) -> bool:
    """Wait a moment for the end of a process that has closed its pipe; return True if it ended.

    A process can also close its pipe and run on.
    """
    for _ in range(_MAX_EXIT_CHECKS):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return True
        time.sleep(0.001)
    return False


def _read_until_end(pipe: IO[bytes], limits: Limits, pid: int) -> tuple[bytearray, str]:
    """Read a pipe until it is closed or a limit is reached; return its content and the limit."""
    # A bytearray grows in place, so that many short pieces of output do not take quadratic time.
    content = bytearray()
    wall_seconds = limits.wall_seconds or 5.0 + 5.0 * limits.cpu_seconds
    # A small integer type of numpy would overflow.
    max_bytes = int(limits.output_kib) << 10
    max_page_tables_kib = int(limits.memory_mib) * _PAGE_TABLES_KIB_PER_MIB
    deadline = time.monotonic() + wall_seconds
    next_check = time.monotonic() + _CHECK_SECONDS
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    while True:
        # Read the clock in each round: `poll` never times out if the pipe always has data.
        now = time.monotonic()
        if now >= deadline:
            return content, "time on the clock"
        if now >= next_check:
            next_check = now + _CHECK_SECONDS
            if _page_tables_kib(pid) > max_page_tables_kib:
                return content, "memory, in page tables"
        milliseconds = 1000 * (min(deadline, next_check) - now)
        if poller.poll(milliseconds):
            chunk = os.read(pipe.fileno(), 1 << 16)
            content.extend(chunk)
            if not chunk:
                return content, ""
            if len(content) > max_bytes:
                return content, "output"


def _page_tables_kib(pid: int) -> int:
    """Return the size of a process's page tables; 0 if it has ended or /proc is missing.

    Attack: a page that lies far from all others needs two more pages of page tables, which no limit
    of the kernel counts. Honest code needs few: a list of 512 MB has 1 MB of page tables.
    """
    try:
        process_status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    match = re.search(r"^VmPTE:\s*(\d+) kB", process_status, re.MULTILINE)
    return int(match[1]) if match else 0
