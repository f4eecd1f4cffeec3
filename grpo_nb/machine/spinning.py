"""How torch's threads wait for each other on a CPU that other programs use as well.

torch computes with one OpenMP thread per core. At the end of each parallel part the threads wait for
the slowest. GNU's OpenMP (libgomp, which torch's Linux builds bring) lets them spin meanwhile: they
compute nothing, but they notice the end at once. On a quiet machine that is the fastest way. If
another program needs one of the cores, the spinning threads keep that core from the thread they
wait for, and a training step takes many times as long.

Two settings of libgomp limit it, and neither changes a number, because the threads and their shares
of the work stay the same (fewer threads would round sums differently):

- `GOMP_SPINCOUNT`, read when torch is loaded. `set_spin_count` sets it.
- With more OpenMP threads than cores libgomp spins 100 times only (the manual's `GOMP_SPINCOUNT`).
  `yield_cores` watches what other programs use and, while they need the cores, keeps an idle
  second group of threads, which makes it so.

A user's own `GOMP_SPINCOUNT` or `OMP_WAIT_POLICY` takes precedence over both.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import MutableMapping
from pathlib import Path

from grpo_nb.core.processes import SPIN_COUNT, SPIN_VARIABLE, WAIT_POLICY

_LOG = logging.getLogger(__name__)
_STAT = Path("/proc/stat")
_MAPS = Path("/proc/self/maps")
# Time between two looks. A look takes 0.1 ms.
_LOOK_SECONDS = 0.5
# Cores' worth of time that others may use before the threads stop spinning, and before they go on.
_BUSY_CORES = 0.25
_QUIET_CORES = 0.1


def set_spin_count(environment: MutableMapping[str, str]) -> None:
    """Set libgomp's spin count for this process, and report once if torch has read it before."""
    if has_own_policy(environment):
        return
    is_too_late = "torch" in sys.modules and SPIN_VARIABLE not in environment
    environment[SPIN_VARIABLE] = SPIN_COUNT
    if is_too_late:
        _LOG.info(
            "torch was imported before grpo_nb, so its threads spin longer than the kit would have "
            "them: other programs on this machine slow training down more. Import grpo_nb first, or "
            "set %s=%s before Python starts.",
            SPIN_VARIABLE,
            SPIN_COUNT,
        )


def has_own_policy(environment: MutableMapping[str, str]) -> bool:
    """Return True if the user has chosen how OpenMP threads wait."""
    is_own_count = environment.get(SPIN_VARIABLE, SPIN_COUNT) != SPIN_COUNT
    return is_own_count or WAIT_POLICY in environment


def load_libgomp() -> ctypes.CDLL | None:
    """Return the libgomp that torch has loaded, or None: another system, or another OpenMP."""
    file = find_libgomp()
    if file is None:
        return None
    library = ctypes.CDLL(file)  # it is loaded already, so this is a second handle of the same
    pointer = ctypes.c_void_p
    library.GOMP_parallel.argtypes = (pointer, pointer, ctypes.c_uint, ctypes.c_uint)
    return library


def find_libgomp() -> str | None:
    """Return the file of torch's libgomp among those that this process has loaded.

    A wheel of torch brings one in its own folder, under different names; a conda environment has one
    for all. Other wheels bring copies that torch does not use, in folders that end in `.libs`.
    """
    torch = sys.modules.get("torch")
    if torch is None or not _MAPS.is_file():
        return None
    paths = {line.split()[-1] for line in _MAPS.read_text().splitlines() if "/libgomp" in line}
    own = [path for path in paths if path.startswith(str(Path(torch.__file__).parent))]
    shared = [path for path in paths if ".libs/" not in path]
    return next(iter(own or shared), None)


class IdleThreads:
    """A second group of OpenMP threads that does nothing, for as long as it is kept."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._end = threading.Event()
        # libgomp keeps a group of threads for each thread that has started one, until it ends.
        self._owner = threading.Thread(target=self._own, name="grpo_nb-idle-threads", daemon=True)
        self._owner.start()

    def _own(self) -> None:
        does_nothing = ctypes.cast(self._library.omp_get_level, ctypes.c_void_p)
        count = max(self._library.omp_get_num_procs(), 2)
        self._library.GOMP_parallel(does_nothing, None, count, 0)
        self._end.wait()

    def end(self) -> None:
        self._end.set()
        self._owner.join()


def read_busy_seconds() -> float:
    """Return the processor time that all programs have used since the machine started."""
    first_line = _STAT.read_text().split("\n", 1)[0]
    # user, nice, system, idle, waiting, interrupts, soft interrupts, stolen; time of guests, which
    # follows, is counted in user as well. Some systems have fewer fields.
    fields = [int(field) for field in first_line.split()[1:9]]
    return (sum(fields) - sum(fields[3:5])) / os.sysconf("SC_CLK_TCK")


class Watcher:
    """Keeps idle threads while other programs need the cores that torch computes on.

    Attributes:
        is_yielding: The idle threads are there, so that torch's threads hardly spin.
    """

    def __init__(self, library: ctypes.CDLL, spare_cores: int) -> None:
        self._library = library
        self._spare_cores = spare_cores
        self._idle: IdleThreads | None = None
        self._busy = read_busy_seconds()
        self._own = time.process_time()
        self._at = time.monotonic()

    @property
    def is_yielding(self) -> bool:
        return self._idle is not None

    def look(self) -> None:
        """Compare what others have used since the last look with what torch leaves free."""
        busy, own, at = read_busy_seconds(), time.process_time(), time.monotonic()
        others = (busy - self._busy - (own - self._own)) / (at - self._at)
        self._busy, self._own, self._at = busy, own, at
        needed = others - self._spare_cores
        if needed > _BUSY_CORES and self._idle is None:
            self._idle = IdleThreads(self._library)
        elif needed < _QUIET_CORES and self._idle is not None:
            self._idle.end()
            self._idle = None

    def run(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            self.look()


_watching: threading.Thread | None = None


def yield_cores() -> None:
    """Start to watch, in the background, whether other programs need the cores; call it any time.

    Nothing happens without libgomp, with one thread, or where the user has chosen how to wait.
    """
    global _watching
    # Of a forked process the thread is not alive.
    if _watching is not None and _watching.is_alive():
        return
    import torch

    threads = torch.get_num_threads()
    if threads < 2 or has_own_policy(os.environ):
        return
    library = load_libgomp()
    if library is None:
        return
    try:
        watcher = Watcher(library, library.omp_get_num_procs() - threads)
    except (OSError, ValueError) as error:
        _LOG.debug("%s does not show what other programs use: %s", _STAT, error)
        return
    _watching = threading.Thread(target=watcher.run, name="grpo_nb-watcher", daemon=True)
    _watching.start()
