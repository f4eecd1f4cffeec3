"""The parts of Linux that the sandbox is built from, through ctypes, Landlock's rules and seccomp's filter among them.

Constants and structures are those of the kernel's public headers (linux/sched.h, linux/mount.h, linux/prctl.h,
linux/landlock.h up to ABI 6, linux/seccomp.h, linux/filter.h); system call numbers those of asm/unistd_64.h for x86_64
and asm-generic/unistd.h for aarch64. Other machines are refused.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable, Sequence

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_CLONE_VM, _CLONE_THREAD = 0x00000100, 0x00010000
_ALL_NAMESPACES = 0x7E020080  # the six above, CLONE_NEWTIME and CLONE_NEWUSER

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2

_PRCTL = {"PR_SET_PDEATHSIG": 1, "PR_SET_DUMPABLE": 4, "PR_SET_SECCOMP": 22, "PR_SET_NO_NEW_PRIVS": 38}
_SECCOMP_MODE_FILTER = 2

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables below, AUDIT_ARCH_*

# Number on x86_64 and on aarch64; "-" where the machine has no such call.
_SPECIAL = {
    "clone": (56, 220), "clone3": (435, 435), "kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261),
    "ioctl": (16, 29), "fcntl": (72, 25), "socketpair": (53, 199),
    "unshare": (272, 97), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "capset": (126, 91),
    "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445), "landlock_restrict_self": (446, 446),
}  # fmt: skip

# What a candidate may call with any argument: computing, memory, threads, reading what the walls leave to be read.
# Everything else fails with EPERM, so a call that a future kernel adds is closed, as are io_uring, userfaultfd, bpf,
# keyctl, ptrace, mount, mknod, memfd_create, socket, execve and fork.
_ALLOWED = """
read:0:63 write:1:64 close:3:57 fstat:5:80 lseek:8:62 mmap:9:222 mprotect:10:226 munmap:11:215 brk:12:214
mremap:25:216 madvise:28:233 msync:26:227 mincore:27:232 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68
open:2:- openat:257:56 stat:4:- lstat:6:- newfstatat:262:79 statx:332:291 access:21:- faccessat:269:48
faccessat2:439:439 readlink:89:- readlinkat:267:78 getdents64:217:61 getcwd:79:17 dup:32:23 dup2:33:-
dup3:292:24 pipe:22:- pipe2:293:59 poll:7:- ppoll:271:73 select:23:- pselect6:270:72 epoll_create1:291:20
epoll_ctl:233:21 epoll_wait:232:- epoll_pwait:281:22 eventfd2:290:19 sendto:44:206 recvfrom:45:207
shutdown:48:210 close_range:436:436 rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136
rt_sigtimedwait:128:137 rt_sigsuspend:130:133 sigaltstack:131:132 pause:34:- alarm:37:- setitimer:38:103
getitimer:36:102 restart_syscall:219:128 futex:202:98 sched_yield:24:124 sched_getaffinity:204:123
set_tid_address:218:96 set_robust_list:273:99 rseq:334:293 exit:60:93 exit_group:231:94 wait4:61:260
waitid:247:95 getpid:39:172 getppid:110:173 gettid:186:178 getuid:102:174 geteuid:107:175 getgid:104:176
getegid:108:177 getgroups:115:158 getpgrp:111:- getpgid:121:155 getsid:124:156 getrusage:98:165 times:100:153
sysinfo:99:179 uname:63:160 getrlimit:97:163 clock_gettime:228:113 clock_getres:229:114 clock_nanosleep:230:115
nanosleep:35:101 gettimeofday:96:169 time:201:- getrandom:318:278
"""

_libc = ctypes.CDLL(None, use_errno=True)


def is_known_machine() -> bool:
    """Whether the tables of this module cover this processor."""
    return platform.machine() in _MACHINES and struct.calcsize("P") == 8


def system_call(name: str, *arguments: object) -> int:
    """Make a system call by name. Raises OSError with the name where it fails."""
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    number = _SPECIAL[name][_MACHINES[platform.machine()][0]]
    return _checked(name, _libc.syscall(ctypes.c_long(number), *converted))


def _prctl(name: str, *arguments: int) -> None:
    padded = [*arguments, 0, 0, 0, 0][:4]
    _checked(name, _libc.prctl(ctypes.c_int(_PRCTL[name]), *map(ctypes.c_ulong, padded)))


def _checked(name: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def die_with_parent(parent: int) -> None:
    """Be killed when the thread that forked this process ends. `parent` is its pid as seen from here, 0 if it is not.

    Only for children of single-threaded processes: the kernel watches the thread, not the process.
    """
    _prctl("PR_SET_PDEATHSIG", 9)
    if os.getppid() != parent:
        os._exit(1)  # it ended between fork and prctl


def set_dumpable(is_dumpable: bool) -> None:
    """Say whether processes of the same user may trace this one and write its /proc files."""
    _prctl("PR_SET_DUMPABLE", int(is_dumpable))


def unshare(flags: int) -> None:
    """Move this process (its children, for CLONE_NEWPID) to new namespaces."""
    system_call("unshare", flags)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Mount, bind or remount, as mount(2)."""
    *texts, data_text = (ctypes.c_char_p(os.fsencode(part) or None) for part in (source, target, kind, data))
    system_call("mount", *texts, flags, data_text)


def change_root(folder: str) -> None:
    """Make `folder` the root and detach the old one, so that no path leads back to it."""
    os.chdir(folder)
    dot = ctypes.c_char_p(b".")
    system_call("pivot_root", dot, dot)
    system_call("umount2", dot, _MNT_DETACH)
    os.chdir("/")


def drop_capabilities() -> None:
    """Give up every capability and the way back to one through a set-user-id file."""
    header = struct.pack("<Ii", 0x20080522, 0)
    system_call("capset", ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))
    _prctl("PR_SET_NO_NEW_PRIVS", 1)


_READ_FILE, _READ_DIR, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
_VERSION_FLAG = 1
_PATH_BENEATH = 1


def landlock_version() -> int:
    """The Landlock ABI of this kernel, 0 if there is none. 3 adds truncation, 4 TCP, 6 signals and abstract sockets."""
    try:
        return system_call("landlock_create_ruleset", 0, 0, _VERSION_FLAG)
    except OSError:
        return 0  # not built in, not switched on, or blocked by a container: all the same to us


def make_landlock_rules(stdlib: str, skip: Sequence[str] = ()) -> int:
    """Return a ruleset that lets a process read the standard library and /dev/null and nothing else.

    Args:
        stdlib: Folder of the standard library.
        skip: Entries of it that stay closed, as site-packages.
    """
    version = landlock_version()
    files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    network = 0b11 if version >= 4 else 0
    scoped = 0b11 if version >= 6 else 0
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = struct.pack("<QQQ", files, network, scoped)[:size]
    rules = system_call("landlock_create_ruleset", ctypes.c_char_p(attributes), size, 0)
    _allow(rules, stdlib, _READ_DIR)
    for name in os.listdir(stdlib):
        path = os.path.join(stdlib, name)
        if name not in skip and os.path.exists(path):  # Debian links to files in /etc, which a wall may have taken away
            _allow(rules, path, _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0))
    _allow(rules, "/dev/null", _READ_FILE | _WRITE_FILE)
    return rules


def _allow(rules: int, path: str, access: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("<Qi", access, folder)
        system_call("landlock_add_rule", rules, _PATH_BENEATH, ctypes.c_char_p(rule), 0)
    finally:
        os.close(folder)


def enter_landlock(rules: int) -> None:
    """Apply a ruleset to this process for ever. Needs `drop_capabilities` first."""
    system_call("landlock_restrict_self", rules, 0)


_LOAD, _JUMP_EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_DENY, _ABSENT = 0x00050000 | 1, 0x00050000 | 38  # EPERM; ENOSYS, on which glibc falls back to the older call

_NUMBER_OFFSET, _MACHINE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_O_TRUNC = 0o1000
_Instruction = tuple[int, int, int, int]


def _one_of(argument: int, values: Iterable[int], mask: int | None = None) -> list[_Instruction]:
    """Go on with the next instruction if (argument & mask) is one of the values, else refuse the call."""
    wanted = list(values)
    block = [(_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument)]
    if mask is not None:
        block.append((_AND, 0, 0, mask))
    block += [(_JUMP_EQUAL, len(wanted) - i, 0, value) for i, value in enumerate(wanted)]
    return [*block, (_RETURN, 0, 0, _DENY)]


def make_seccomp_filter(pid: int, *, may_truncate: bool) -> bytes:
    """Return the filter program for a candidate whose own process id is `pid`.

    Without `may_truncate` no file is opened with O_TRUNC, which empties one that is only read: Landlock stands before that
    from ABI 3 on (Linux 6.2). /dev/null cannot be opened with mode "w" then.

    New processes, programs and sockets are closed, threads are open. Signals go to itself only. Of `fcntl` only
    duplication and flags are open: F_SETOWN with F_SETSIG would let a pipe send SIGKILL to another process.
    """
    column, machine = _MACHINES[platform.machine()]
    conditional = {
        "clone": _one_of(0, [_CLONE_VM | _CLONE_THREAD], _CLONE_VM | _CLONE_THREAD | _ALL_NAMESPACES),
        "kill": _one_of(0, [pid]),
        "tgkill": _one_of(0, [pid]),
        "prlimit64": _one_of(0, [0, pid]),
        # TCGETS (isatty), FIONBIO, FIONCLEX, FIOCLEX. On a socket of any kind, others name the network interfaces.
        "ioctl": _one_of(1, [0x5401, 0x5421, 0x5450, 0x5451]),
        # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC.
        "fcntl": _one_of(1, [0, 1, 2, 3, 4, 1030]),
        # AF_UNIX, SOCK_STREAM: what asyncio wakes itself with. A datagram pair could send to any address with sendto, which
        # is open because a stream pair cannot: the kernel refuses an address on what is connected (EISCONN).
        "socketpair": [*_one_of(0, [1]), *_one_of(1, [1], 0xF)],
    }
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _MACHINE_OFFSET),
        (_JUMP_EQUAL, 1, 0, machine),
        (_RETURN, 0, 0, _KILL),  # 32-bit entry, where the same numbers mean other calls
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    for name, block in conditional.items():
        program += [(_JUMP_EQUAL, 0, len(block) + 1, _SPECIAL[name][column]), *block, (_RETURN, 0, 0, _ALLOW)]
    program += [(_JUMP_EQUAL, 0, 1, _SPECIAL["clone3"][column]), (_RETURN, 0, 0, _ABSENT)]
    opening = {} if may_truncate else {"open": _one_of(1, [0], _O_TRUNC), "openat": _one_of(2, [0], _O_TRUNC)}
    for entry in _ALLOWED.split():
        name, *numbers = entry.split(":")
        if numbers[column] != "-":
            block = [*opening.get(name, ()), (_RETURN, 0, 0, _ALLOW)]
            program += [(_JUMP_EQUAL, 0, len(block), int(numbers[column])), *block]
    program.append((_RETURN, 0, 0, _DENY))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def enter_seccomp(program: bytes) -> None:
    """Apply a filter to this process for ever. Needs `drop_capabilities` first."""
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("<H6xQ", len(program) // 8, ctypes.addressof(code)), 16)
    _prctl("PR_SET_SECCOMP", _SECCOMP_MODE_FILTER, ctypes.addressof(header))
