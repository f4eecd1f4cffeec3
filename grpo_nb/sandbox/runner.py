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
    make_outcome,
    parse_report,
)

_CHILD = Path(__file__).with_name("child.py")
# Attacks that `isolation_failures` tries: the forbidden action, and a call that attempts it.
_ATTACKS = {
    "reading a file": Call("os.open", ("/etc/passwd", os.O_RDONLY)),
    "looking at a file": Call("os.stat", ("/",)),
    "a socket": Call("socket.socket"),
    "a signal to the notebook": Call("os.kill", (os.getpid(), 0)),
    "more memory than its limit": Call("bytearray", (8 << 30,)),
    # Shared memory stays occupied after most of it is unmapped, and RLIMIT_AS does not count that.
    "memory that its limit does not count": Call("mmap.mmap", (-1, 4096)),
    "more descriptors than its limit": Call("os.dup2", (1, 64)),
    # Fails with KeyError if the environment is empty.
    "the environment": Call("os.environ.popitem"),
    "another program": Call("os.execv", ("/no/such/program", ["program"])),
    "another process": Call("os.fork"),
}
# The kernel closes the pipe of a process a moment before the process counts as ended.
_MAX_EXIT_CHECKS = 100
_EXIT_CHECK_SECONDS = 0.001
# Page tables may take 1/16 of the limit of memory.
_PAGE_TABLES_KIB_PER_MIB = 1024 // 16
_PAGE_TABLES_CHECK_SECONDS = 0.05


def run_untrusted(
    code: str, calls: Sequence[Call] = (), *, limits: Limits | None = None
) -> Outcome:
    """Run generated Python code and return the outcome.

    The code can import the standard library, but reaches no files, network or environment
    variables, and starts no process. An error of the code is in the outcome, and is not raised.
    Compare the results in the caller: the code cannot copy an expected value that it never sees.
    What the code prints is lost.

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
    """Return the forbidden actions that are possible here, or why this machine isolates no code.

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
        return (attack_outcome.reason,)
    # dup2 fails with error 9 (EBADF) for a descriptor above the limit.
    refusals = ("PermissionError", "MemoryError", "KeyError", "OSError: [Errno 9]")
    honest_result, *results = attack_outcome.results
    failures = [
        f"{action} is possible"
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
        with open(os.memfd_create("job"), "wb+") as job_file:
            # Version 2 keeps no identity: two calls with the same list get a list each.
            job_file.write(marshal.dumps(job, 2))
            job_file.seek(0)
            child = subprocess.Popen(
                command, stdin=job_file, stdout=DEVNULL, stderr=PIPE, cwd="/", env=environment
            )
    except OSError as error:
        return make_outcome(candidate, "lost", f"no process can be started: {error}")
    with child.stderr:
        report, reached_limit = _read_until_end(child.stderr, limits, child.pid)
    # Wait before the SIGKILL below, so that it is not mistaken for a SIGKILL of the kernel.
    has_ended_before_kill = not reached_limit and _wait_for_exit(child.pid)
    # The id is safe to kill: it stays reserved until `wait4`.
    os.kill(child.pid, signal.SIGKILL)
    _, wait_status, usage = os.wait4(child.pid, 0)
    exit_code = child.returncode = os.waitstatus_to_exitcode(wait_status)
    if exit_code == -signal.SIGPROF:
        reached_limit = "processor time"
    elif exit_code == -signal.SIGKILL and has_ended_before_kill:
        # The code cannot send signals, so the kernel did: because of RLIMIT_CPU, which ends code
        # that ignores SIGPROF, or because the machine is out of memory.
        if usage.ru_utime + usage.ru_stime < limits.cpu_seconds:
            return make_outcome(candidate, "lost", "the system killed it: it may be out of memory")
        reached_limit = "processor time"
    return parse_report(candidate, bytes(report), reached_limit, exit_code)


def _wait_for_exit(pid: int) -> bool:
    """Wait a moment for the end of a process that has closed its pipe; return True if it ended.

    A process can also close its pipe and run on.
    """
    for _ in range(_MAX_EXIT_CHECKS):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return True
        time.sleep(_EXIT_CHECK_SECONDS)
    return False


def _read_until_end(pipe: IO[bytes], limits: Limits, pid: int) -> tuple[bytearray, str]:
    """Read a pipe until it is closed or a limit is reached; return its content and the limit."""
    # A bytearray grows in place, so that many short pieces of output do not take quadratic time.
    content = bytearray()
    wall_seconds = limits.wall_seconds or 5.0 + 5.0 * limits.cpu_seconds
    deadline = time.monotonic() + wall_seconds
    next_check = time.monotonic() + _PAGE_TABLES_CHECK_SECONDS
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    while True:
        # Read the clock in each round: `poll` never times out if the pipe always has data.
        now = time.monotonic()
        if now >= deadline:
            return content, "time on the clock"
        if now >= next_check:
            next_check = now + _PAGE_TABLES_CHECK_SECONDS
            if _page_tables_kib(pid) > limits.memory_mib * _PAGE_TABLES_KIB_PER_MIB:
                return content, "memory, in page tables"
        milliseconds = 1000 * (min(deadline, next_check) - now)
        if poller.poll(milliseconds):
            chunk = os.read(pipe.fileno(), 1 << 16)
            content.extend(chunk)
            if not chunk:
                return content, ""
            if len(content) > limits.output_kib << 10:
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
