"""The process in which one candidate runs. `runner.py` starts this script; nothing imports it.

It imports the modules that the code will need, isolates itself, and only then runs the code. Once
isolated, it may make only the system calls that computing needs. None of them opens a file, creates
a network socket or a process, runs a program or reaches another process.

Standard input holds the job. The original standard error carries the report, one line of JSON for
each step: `["isolated",null]`, `["loaded",error or null]`, and for each call `["value",value]` or
`["error",text]`. If the isolation fails, the report is the reason as plain text. What the code
prints is lost.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import resource
import struct
import sys
import time
import types

# `signal` would import enum and re, which takes half of the time that a candidate needs to start.
from _signal import ITIMER_PROF, SIGKILL, setitimer

# Found in the folder of this script, which Python puts first on the path. This interpreter does not
# find the package `grpo_nb`, and the code must not import from this folder.
import values

sys.path.pop(0)

_REPORT_DESCRIPTOR = 3
_MAX_THREADS = 16
_STACK_BYTES = 64 << 20
# The kernel's buffers of a descriptor are not part of the address space: a pair of sockets holds
# about half a megabyte.
_MAX_DESCRIPTORS = 64
_FIRST_UNNAMED_USER = 61184

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_THP_DISABLE = 41
_SCMP_ACT_ALLOW = 0x7FFF0000
# The error that the caller gets is added to this action.
_SCMP_ACT_ERRNO = 0x00050000
_SCMP_CMP_MASKED_EQ = 7
_ALL_BITS = 0xFFFFFFFF
# CLONE_VM, CLONE_FILES and CLONE_THREAD. A thread without CLONE_FILES would have descriptors of its
# own, with a limit of its own.
_THREAD_FLAGS = 0x00010500
# Every CLONE_NEW*.
_NAMESPACES = 0x7E020080
_MAP_TYPE = 0xF
_MAP_PRIVATE = 2

# System calls that are allowed with any argument.
_SYSTEM_CALLS = """
read write readv writev pread64 pwrite64 close fstat lseek dup dup2 dup3 pipe pipe2
poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2
sendto recvfrom shutdown mprotect munmap mremap madvise brk
futex sched_yield sched_getaffinity set_robust_list rseq set_tid_address
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack
pause alarm restart_syscall exit exit_group getpid gettid getuid geteuid getgid getegid
getrusage times sysinfo uname clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday
time getrandom
"""
# System calls that are allowed only with some arguments. Each condition has the number of an
# argument, a mask, and the value that the masked argument must have.
_RESTRICTED_SYSTEM_CALLS = [
    ("clone", (0, _THREAD_FLAGS | _NAMESPACES, _THREAD_FLAGS)),
    # AF_UNIX, SOCK_STREAM: asyncio wakes itself with such a pair.
    ("socketpair", (0, _ALL_BITS, 1), (1, 0xF, 1)),
    # Shared memory is a file in the kernel: unmapping all but one page of it frees none of it.
    ("mmap", (3, _MAP_TYPE, _MAP_PRIVATE)),
    # The new limit must be NULL, so a limit can only be read.
    ("prlimit64", (2, 0xFFFFFFFFFFFFFFFF, 0)),
    # TCGETS, FIONBIO, FIONCLEX and FIOCLEX. Others list the network interfaces, on any socket.
    *[("ioctl", (1, _ALL_BITS, number)) for number in (0x5401, 0x5421, 0x5450, 0x5451)],
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL and F_DUPFD_CLOEXEC. With F_SETOWN and F_SETSIG, a
    # pipe could kill another process.
    *[("fcntl", (1, _ALL_BITS, number)) for number in (0, 1, 2, 3, 4, 1030)],
]


def main() -> None:
    """Read the job, isolate this process, run the code and make the calls.

    No expected value is in this process. Only the three standard descriptors are open, because
    `subprocess` has closed all others.
    """
    # The notebook wrote these bytes, so marshal may read them. The code in them is untrusted.
    job = marshal.load(sys.stdin.buffer)
    os.dup2(2, _REPORT_DESCRIPTOR)
    # Standard error now goes nowhere, as standard output does.
    os.dup2(1, 2)
    for name in job["modules"]:
        try:
            __import__(name)
        except Exception:
            # This is no module here, or a module that is not meant to be imported.
            continue
    try:
        _isolate(job)
    except (OSError, ValueError) as error:
        os.write(_REPORT_DESCRIPTOR, _error_text(error).encode())
        return
    _send("isolated", None)
    module = types.ModuleType("candidate")
    sys.modules[module.__name__] = module
    if "random" in sys.modules:
        # The same code must give the same results, and so the same score.
        sys.modules["random"].seed(0)
    load_error = None
    try:
        # Without `dont_inherit`, the code would get this file's `from __future__` import, and
        # names of types that it forgot to import would be no error.
        exec(compile(job["code"], "<string>", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        # `sys.exit()` at the end of a program is no error.
        if not (isinstance(error, SystemExit) and error.code in (None, 0)):
            load_error = _error_text(error)
    _send("loaded", load_error)
    if not load_error:
        for function, args, kwargs in job["calls"]:
            try:
                _send("value", eval(function, module.__dict__)(*args, **kwargs))
            except BaseException as error:
                _send("error", _error_text(error))
    # End at once: do not wait for the code's threads, and do not run its exit functions.
    os._exit(0)


def _isolate(job: dict) -> None:
    """Isolate this process: give up rights, set limits, and refuse all but the listed system calls.

    Raises:
        OSError, ValueError: This machine does not support a part of the isolation.
    """
    libc = ctypes.CDLL(None)
    os.environ.clear()
    existing_threads = _become_nobody()
    limits = {
        # This limit counts all threads of the user, also those of other processes.
        resource.RLIMIT_NPROC: existing_threads + _MAX_THREADS,
        resource.RLIMIT_AS: job["memory_mib"] << 20,
        # In whole seconds. The timer below is exact, but code can ignore its signal.
        resource.RLIMIT_CPU: int(time.process_time() + job["cpu_seconds"]) + 2,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_STACK: _STACK_BYTES,
        resource.RLIMIT_NOFILE: _MAX_DESCRIPTORS,
    }
    for resource_limit, limit in limits.items():
        # The hard limit of the notebook's own process may be lower.
        hard_limit = resource.getrlimit(resource_limit)[1]
        if hard_limit != resource.RLIM_INFINITY:
            limit = min(limit, hard_limit)
        resource.setrlimit(resource_limit, (limit, limit))
    # The kernel kills this process when the thread that started it ends. That thread waits for this
    # process, so it ends early only if the notebook does. A change of user would clear this option.
    if libc.prctl(_PR_SET_PDEATHSIG, SIGKILL):
        raise OSError("the kernel does not end this process with the notebook")
    if os.getppid() != job["parent"]:
        raise OSError("the notebook has ended")
    # A crash writes no core dump, neither to a file nor to a service.
    if libc.prctl(_PR_SET_DUMPABLE, 0):
        raise OSError("the kernel does not switch off core dumps")
    # No limit counts what a huge page still occupies after most of it is unmapped. A kernel without
    # huge pages may refuse this option, so its result is not checked.
    libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    setitimer(ITIMER_PROF, job["cpu_seconds"])
    _allow_only_listed_system_calls()


def _become_nobody() -> int:
    """Change to a user that owns nothing; return an upper bound of the threads the user has now.

    The new user is one of 61184 to 65519, which systemd reserves for users without a name. Only
    root can change the user. An ordinary user stays the same, and may already own every thread of
    this machine.
    """
    user = _FIRST_UNNAMED_USER + os.getpid() % 4096
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        return 1
    except OSError:
        with open("/proc/loadavg") as file:
            return int(file.read().split()[3].partition("/")[2])


def _allow_only_listed_system_calls() -> None:
    """Refuse, from now on, every system call that is not listed.

    - clone3 is reported as absent, so that the C library falls back to clone. clone3 passes its
      flags in memory, where the filter cannot see them.
    - newfstatat is refused, although glibc uses it for fstat, because it can look at any path.
    - sendto is allowed. It takes an address, but the only possible sockets are connected pairs, for
      which the kernel refuses an address.

    Raises:
        OSError: libseccomp or the kernel does not support this.
    """
    lib = ctypes.CDLL("libseccomp.so.2")
    lib.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(lib.seccomp_init(_SCMP_ACT_ERRNO | errno.EPERM))
    unrestricted = [(name,) for name in _SYSTEM_CALLS.split()]
    for name, *conditions in [*unrestricted, *_RESTRICTED_SYSTEM_CALLS, ("clone3",)]:
        action = _SCMP_ACT_ERRNO | errno.ENOSYS if name == "clone3" else _SCMP_ACT_ALLOW
        number = lib.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            # This kind of processor does not have the call.
            continue
        # An array of libseccomp's `struct scmp_arg_cmp`: argument, operator, mask, value.
        array = b"".join(
            struct.pack("IIQQ", argument, _SCMP_CMP_MASKED_EQ, mask, value)
            for argument, mask, value in conditions
        )
        if lib.seccomp_rule_add_array(context, action, number, len(conditions), array):
            raise OSError(f"libseccomp makes no rule for {name}")
    if lib.seccomp_load(context):
        raise OSError("the kernel takes no filter of system calls")


def _error_text(error: BaseException) -> str:
    """Return type and message of an exception, whatever its own methods do."""
    try:
        return f"{type(error).__name__}: {error}"[: values.MAX_ERROR_CHARACTERS]
    except BaseException:
        return "an exception that cannot be shown"


def _send(tag: str, content: object) -> None:
    data = f'["{tag}",{values.encode(content)}]\n'.encode()
    while data:
        data = data[os.write(_REPORT_DESCRIPTOR, data) :]


if __name__ == "__main__":
    main()
