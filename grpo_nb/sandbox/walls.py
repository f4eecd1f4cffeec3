"""The outer walls (namespaces, a user that owns nothing), raised once for a pool, before any candidate runs.

Each returns with the wall around this process.

The inner wall (no capabilities, Landlock, limits, seccomp) is raised around every candidate, in `zygote.py`.
"""

from __future__ import annotations

import os

import linux

_NOBODY = 65534  # where a container maps few ids
_INSIDE_ID = 65534
_STAGE = "/tmp"
SKIPPED = ("site-packages", "dist-packages")


def drop_user(number: int) -> None:
    """Leave root for a user that owns nothing: RLIMIT_NPROC and file permissions do not hold for root.

    Args:
        number: An id that no other pool has, since the kernel counts threads for each user; `nobody` if it is not mapped.
    """
    if os.geteuid() != 0:
        return
    os.setgroups([])
    try:
        os.setresgid(number, number, number)
        os.setresuid(number, number, number)
    except OSError:
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def enter_namespaces(stdlib: str, user_id: int) -> None:
    """Give this process its own users, mounts, network, IPC and host name, and its children their own process ids."""
    everything = (
        linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWNET
        | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP
    )  # fmt: skip
    own_proc = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    is_root = os.geteuid() == 0
    if is_root:
        # Root first builds the new root, since the interpreter may be in a folder that only root can enter.
        linux.unshare(linux.CLONE_NEWNS)
        _build_root(stdlib)
        drop_user(user_id)
        linux.set_dumpable(True)  # else /proc/self belongs to root after the change of user
    user, group = os.getuid(), os.getgid()
    linux.unshare(everything)
    ids = {"setgroups": "deny", "uid_map": f"{_INSIDE_ID} {user} 1", "gid_map": f"{_INSIDE_ID} {group} 1"}
    for name, content in ids.items():
        with open(name, "w", opener=lambda path, flags: os.open(path, os.O_WRONLY, dir_fd=own_proc)) as file:
            file.write(content)
    os.close(own_proc)
    if not is_root:
        _build_root(stdlib)


def _build_root(stdlib: str) -> None:
    """Make a root that holds the standard library and /dev/null, all read-only, and detach the old one.

    No /proc: containers often refuse to mount one, and Python does not need it.
    """
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    # Opened first, because the stage may hide them; bound through their descriptors.
    sources = [(os.open(path, os.O_PATH), path) for path in (stdlib, "/dev/null")]
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("tmpfs", _STAGE, "tmpfs", flags, "mode=755,size=1m")
    for source, path in sources:
        target = _STAGE + path
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        if path == stdlib:
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
        linux.mount(f"/proc/self/fd/{source}", target, "", linux.MS_BIND | linux.MS_REC)
        os.close(source)
        # Flags that the host set on this mount are locked in a user namespace: a remount must repeat them.
        kept = os.statvfs(target).f_flag & (linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
        if path == stdlib:
            kept |= flags
        linux.mount("", target, "", linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | kept)
    for name in SKIPPED:
        if os.path.isdir(f"{_STAGE}{stdlib}/{name}"):
            linux.mount("tmpfs", f"{_STAGE}{stdlib}/{name}", "tmpfs", flags | linux.MS_RDONLY, "mode=755,size=4k")
    linux.change_root(_STAGE)
    linux.mount("", "/", "", linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | flags)
