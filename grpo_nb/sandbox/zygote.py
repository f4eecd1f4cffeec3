"""The clean process that candidates are forked from, each behind the inner wall of Landlock, seccomp and limits.

Started as a script by `pool.py`, never imported.

    pool (the user's process)
     └ launcher        watches the user's process; when either ends, the other side is killed
        └ zygote       behind the outer wall; forks, and reads nothing that a candidate wrote
           └ supervisor   one for each candidate: time, and the kill
              └ candidate    behind the inner wall: model-written code

The user's process, full of threads and of a model's memory, never forks. A candidate gets three things: its job, a pipe
for its answers and one for its output; what the supervisor says goes through a pipe of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import io
import json
import math
import os
import random
import resource
import select
import signal
import socket
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import linux
import values
import walls

sys.path.pop(0)

# Loaded before the walls go up, so that they need no file and cost no candidate anything. Those with a shared library
# of their own (zlib, lzma) would not find it afterwards.
_PRELOADED = [
    "abc", "array", "ast", "asyncio", "base64", "bisect", "bz2", "calendar", "cmath", "collections.abc",
    "concurrent.futures", "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib",
    "encodings.ascii", "encodings.idna", "encodings.latin_1", "encodings.unicode_escape", "enum", "fractions",
    "functools", "graphlib", "hashlib", "heapq", "html", "inspect", "ipaddress", "itertools", "logging", "lzma",
    "numbers", "operator", "pathlib", "pprint", "queue", "re", "secrets", "statistics", "string", "struct",
    "textwrap", "threading", "timeit", "traceback", "typing", "unicodedata", "urllib.parse", "uuid", "zlib",
]  # fmt: skip

_REPORT, _READY = 3, 4  # descriptors of a candidate: its answers; the word that its wall is up
_LONGEST_ERROR = 300
_STACK_BYTES = 64 << 20
_OPEN_FILES = 64


def main() -> None:
    """Raise the outer wall, then fork a supervisor for every job. `sys.argv[1]` holds the configuration as JSON."""
    config = json.loads(sys.argv[1])
    control = socket.socket(fileno=fcntl.fcntl(config["control"], fcntl.F_DUPFD_CLOEXEC, 10))
    os.close(config["control"])
    for number in (_REPORT, _READY):
        os.dup2(0, number)  # standard input is /dev/null: these numbers are taken now, and free for candidates later
    with telling_failure(control):
        launch(control, config, os.path.dirname(os.__file__))


@contextlib.contextmanager
def telling_failure(control: socket.socket) -> Iterator[None]:
    """Within the block, what fails is told to the pool, and this process ends with it."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(OSError):
            control.send(json.dumps({"failed": describe(error)}).encode())
        os._exit(1)


def launch(control: socket.socket, config: dict[str, Any], stdlib: str) -> None:
    """Start the zygote behind the wall of the level, then wait until it or the user's process ends."""
    if not linux.is_known_machine():
        raise OSError("this processor is neither x86_64 nor aarch64, whose system calls are all that is known here")
    # By descriptor: forked workers of the user's process may hold its end of the socket open after it is gone.
    user_process = os.pidfd_open(config["parent"])
    if os.getppid() != config["parent"]:
        return
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):  # a module may be missing from a distribution's Python
            importlib.import_module(name)
    parent = os.getpid()
    if config["level"] == "namespaces":
        walls.enter_namespaces(stdlib, config["user_id"])
        parent = 0  # as seen from inside
    pid = os.fork()
    if pid == 0:
        os.close(user_process)
        try:
            with telling_failure(control):
                serve(control, config, stdlib, parent)
        finally:
            os._exit(1)
    select.select([user_process, os.pidfd_open(pid)], [], [])
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def serve(control: socket.socket, config: dict[str, Any], stdlib: str, parent: int) -> None:
    """Be the zygote: fork a supervisor for each message until the other side closes, or `parent` ends."""
    rules = -1
    if linux.landlock_version():
        # Before root is left, which may be the only one to reach the interpreter's folder.
        rules = linux.make_landlock_rules(stdlib, walls.SKIPPED)
    elif config["level"] == "landlock":
        raise OSError("the kernel has no Landlock (5.13 or newer, switched on and not blocked by the container)")
    walls.drop_user(config["user_id"])
    linux.die_with_parent(parent)  # only now: a change of user takes it back
    os.dup2(0, 1)
    os.dup2(0, 2)
    os.environ.clear()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors, and orphans where this is process 1, leave no zombie
    gc.collect()
    gc.freeze()
    zygote = os.getpid()
    control.send(b'{"ready": true}')
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 16, 4)
        if not message:
            return
        with contextlib.suppress(OSError):  # out of processes: the job's pipes close, and the pool asks again
            if os.fork() == 0:
                try:
                    control.close()
                    linux.die_with_parent(zygote)
                    supervise(descriptors, config, rules)
                finally:
                    os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)


def supervise(descriptors: list[int], config: dict[str, Any], rules: int) -> None:
    """Fork the candidate, end it at its limits or when nobody waits for it any more, and say how it ended."""
    payload, report, output, status = descriptors
    job = json.loads(os.pread(payload, os.fstat(payload).st_size, 0))
    os.close(payload)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    own_ids = config["level"] == "namespaces"
    if own_ids:
        # The candidate becomes process 1 of its own world: when it ends, the kernel ends whatever it left there. Its
        # own user namespace counts its threads apart from its neighbours'.
        linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWPID | linux.CLONE_NEWIPC)
    supervisor = os.getpid()
    is_ready, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            linux.die_with_parent(0 if own_ids else supervisor)
            enter_inner_wall(job, config, rules, report, output, ready)
        except BaseException as error:
            os.write(report, describe(error).encode("ascii", "backslashreplace"))
            os._exit(1)
        try:
            run_program(job) if "stdin" in job else answer_calls(job)
        finally:
            os._exit(0)
    for descriptor in (report, output, ready):
        os.close(descriptor)
    begun = time.monotonic()
    reason = wait(pid, job, status, counts_threads=config["level"] == "landlock")
    on_the_clock = time.monotonic() - begun
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _, code, usage = os.wait4(pid, 0)
    end = os.waitstatus_to_exitcode(code)
    # Written before the first line of model-written code ran, so no such code can make its end look like ours.
    has_no_wall = reason == "done" and os.read(is_ready, 1) == b""
    seconds = usage.ru_utime + usage.ru_stime
    words = {"reason": "no_wall" if has_no_wall else reason, "exit": end, "cpu": seconds, "wall": on_the_clock}
    with contextlib.suppress(OSError):
        os.write(status, json.dumps(words).encode() + b"\n")
    os._exit(0)


def wait(pid: int, job: dict[str, Any], status: int, counts_threads: bool) -> str:
    """Return why the candidate is to end: `done`, `cpu`, `wall`, `threads` or `abandoned`."""
    # clock id of the processor time of another process, as clock_getcpuclockid(3) makes it
    clock = (~pid << 3) | 2
    deadline = time.monotonic() + job["wall_seconds"]
    events = select.poll()
    candidate = os.pidfd_open(pid)
    events.register(candidate, select.POLLIN)
    events.register(status, 0)  # POLLERR as soon as the pool has closed its end
    while True:
        try:
            left = job["cpu_seconds"] - time.clock_gettime(clock)
        except OSError:
            left = 0.001  # it has just ended
        patience = deadline - time.monotonic()
        if left <= 0:
            return "cpu"
        if patience <= 0:
            return "wall"
        if counts_threads:
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{pid}/task").st_nlink - 2 > job["threads"] + 1:
                    return "threads"
        ready = dict(events.poll(1000 * min(max(left, 0.002), max(patience, 0.002), 0.05)))
        if candidate in ready:
            return "done"
        if status in ready:
            return "abandoned"


def enter_inner_wall(
    job: dict[str, Any], config: dict[str, Any], rules: int, report: int, output: int, ready: int
) -> None:
    """Raise the wall around this process, from which there is no way back. Raises OSError if any part does not hold."""
    if "stdin" in job:
        text = os.memfd_create("stdin")
        os.write(text, job["stdin"].encode("utf-8", "surrogatepass"))
        os.lseek(text, 0, os.SEEK_SET)
        os.dup2(text, 0)
        os.dup2(output, 1)
    os.dup2(report, _REPORT)
    os.dup2(ready, _READY)
    linux.drop_capabilities()
    if rules >= 0:
        linux.enter_landlock(rules)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    os.closerange(_READY + 1, 1024)
    memory = int(job["memory_mib"]) << 20
    # The exact time is the supervisor's; the kernel's own limit, in whole seconds, stands in for it.
    seconds = math.ceil(job["cpu_seconds"]) + 1
    limits = {
        resource.RLIMIT_AS: memory, resource.RLIMIT_CPU: seconds, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0,
        resource.RLIMIT_STACK: _STACK_BYTES, resource.RLIMIT_MEMLOCK: 0, resource.RLIMIT_MSGQUEUE: 0,
    }  # fmt: skip
    # The kernel counts threads for each user, and here two more: the candidate itself and its supervisor.
    if config["level"] == "namespaces":
        limits[resource.RLIMIT_NPROC] = int(job["threads"]) + 2
    elif config["has_own_user"]:
        limits[resource.RLIMIT_NPROC] = (int(job["threads"]) + 2) * config["workers"]
    for what, limit in limits.items():
        hard = resource.getrlimit(what)[1]  # of the notebook's own process, which may be lower
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (limit, limit))
    linux.set_dumpable(False)
    # Between namespaces every file system is read-only.
    may_truncate = config["level"] == "namespaces" or linux.landlock_version() >= 3
    linux.enter_seccomp(linux.make_seccomp_filter(os.getpid(), may_truncate=may_truncate))
    os.write(_READY, b"1")
    os.close(_READY)


def answer_calls(job: dict[str, Any]) -> None:
    """Run the candidate's code, then each call, and report one line for each. Nothing here knows a right answer."""
    module = types.ModuleType("candidate")
    error = prepare(job, module)
    if error:
        say({"load": error})
        return
    for number, (function, arguments, keywords) in enumerate(job["calls"]):
        try:
            positional = [values.decode(argument) for argument in arguments]
            named = {name: values.decode(argument) for name, argument in keywords.items()}
            say({"call": number, "value": values.encode(find(module, function)(*positional, **named))})
        except BaseException as problem:
            say({"call": number, "error": describe(problem)})


def run_program(job: dict[str, Any]) -> None:
    """Run the candidate's code as a program; its standard input and output are in place."""
    # With the buffers of any program, which has `sys.stdin.buffer.read1` and writes all that it is given.
    read, written = io.FileIO(0, closefd=False), io.FileIO(1, "w", closefd=False)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(read), encoding="utf-8", errors="surrogateescape")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(written), encoding="utf-8")
    output = sys.stdout
    error = prepare(job, types.ModuleType("__main__"))
    try:
        output.flush()
    except BaseException as problem:
        error = error or describe(problem)
    say({"end": error})


def prepare(job: dict[str, Any], module: types.ModuleType) -> str | None:
    """Run the code in `module`; return what went wrong, if anything did."""
    random.seed(0)  # so that the same code gives the same answers, and a reward the same score
    sys.modules[module.__name__] = module
    sys.argv = ["candidate.py"]
    try:
        exec(compile(job["code"], "<candidate>", "exec"), module.__dict__)
    except SystemExit as end:
        return None if "stdin" in job and end.code in (None, 0) else describe(end)
    except BaseException as problem:
        return describe(problem)
    return None


def find(module: types.ModuleType, path: str) -> Any:
    """Return what `f`, `Class.f` or `Class().f` names in the candidate's module."""
    found: Any = module
    for part in path.split("."):
        name = part.removesuffix("()")
        if not hasattr(found, name):
            raise NameError(f"name {name!r} is not defined")
        found = getattr(found, name)
        if part != name:
            found = found()
    return found


def describe(problem: BaseException) -> str:
    """Return type and message of an exception, whatever its own methods do."""
    try:
        return f"{type(problem).__name__}: {problem}"[:_LONGEST_ERROR]
    except BaseException:
        return "an exception that cannot be shown"


def say(line: dict[str, Any]) -> None:
    data = values.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(_REPORT, data) :]


if __name__ == "__main__":
    main()
