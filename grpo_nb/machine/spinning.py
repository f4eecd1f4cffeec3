"""Keep a training on a CPU fast while other programs use the same cores.

torch computes with one OpenMP thread per core. At the end of each parallel part the threads wait
for the slowest one. GNU's OpenMP (libgomp, a part of torch for Linux) lets the waiting threads
spin: they check again and again whether the slowest thread has finished. On a quiet machine that is
the fastest way to wait. If another program needs a core, the spinning threads take time from the
thread that they wait for, and a training step takes many times as long.

The kit limits the spinning in two ways. Neither changes a result, because the number of threads
stays the same (fewer threads would round sums differently):

- `set_spin_count` sets `GOMP_SPINCOUNT`, from which libgomp reads the spin count when torch is
  loaded.
- libgomp spins only 100 times if there are more threads than cores (its manual, `GOMP_SPINCOUNT`).
  So `start_spin_watcher` starts a watcher, which adds threads that do nothing while other programs
  need cores.

A user's own `GOMP_SPINCOUNT` or `OMP_WAIT_POLICY` takes precedence over both. Compared with a quiet
machine, a step next to one busy process takes 1.7 times as long with both, and 3.4 times with
libgomp's own spin count and no watcher (benchmarks/results/busy_step.md).
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

_log = logging.getLogger(__name__)
_STAT = Path("/proc/stat")
_MAPS = Path("/proc/self/maps")
# Time between two measurements. A measurement takes 0.1 ms.
_MEASURE_SECONDS = 0.5
# Cores that other programs need, as processor time per second. The watcher adds idle threads above
# the first number, and removes them below the second.
_BUSY_CORES = 0.25
_QUIET_CORES = 0.1


def set_spin_count(environment: MutableMapping[str, str]) -> None:
    """Set libgomp's spin count for this process, and log once if torch was loaded before."""
    if has_own_policy(environment):
        return
    is_too_late = "torch" in sys.modules and SPIN_VARIABLE not in environment
    environment[SPIN_VARIABLE] = SPIN_COUNT
    if is_too_late:
        _log.info(
            "torch was imported before grpo_nb, so its threads spin longer than they need to, and "
            "other programs on this machine slow down training more. Import grpo_nb first, or set "
            "%s=%s before Python starts.",
            SPIN_VARIABLE,
            SPIN_COUNT,
        )


def has_own_policy(environment: MutableMapping[str, str]) -> bool:
    """Return True if the user has chosen how OpenMP threads wait."""
    is_own_count = environment.get(SPIN_VARIABLE, SPIN_COUNT) != SPIN_COUNT
    return is_own_count or WAIT_POLICY in environment


def load_libgomp() -> ctypes.CDLL | None:
    """Return the libgomp that torch has loaded; None on another system, or with another OpenMP."""
    file = find_libgomp()
    if file is None:
        return None
    # torch has loaded this file already, so CDLL returns a second handle of the same library.
    library = ctypes.CDLL(file)
    pointer = ctypes.c_void_p
    library.GOMP_parallel.argtypes = (pointer, pointer, ctypes.c_uint, ctypes.c_uint)
    return library


def find_libgomp() -> str | None:
    """Return the path of the libgomp that torch uses, among the files that this process has loaded.

    A wheel of torch has a libgomp in its own folder, and its file name varies. A conda environment
    has one libgomp for all packages. The wheels of other packages have copies that torch does not
    use, in folders named `*.libs`.
    """
    torch = sys.modules.get("torch")
    if torch is None or not _MAPS.is_file():
        return None
    torch_folder = str(Path(torch.__file__).parent)
    paths = {line.split()[-1] for line in _MAPS.read_text().splitlines() if "/libgomp" in line}
    in_torch = [path for path in paths if path.startswith(torch_folder)]
    shared = [path for path in paths if ".libs/" not in path]
    return next(iter(in_torch or shared), None)


class IdleThreads:
    """Idle OpenMP threads that exist until `stop()`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._stop = threading.Event()
        # libgomp keeps the OpenMP threads that a thread has started until that thread ends. So a
        # thread of its own starts them here, and lives until `stop()`.
        self._owner = threading.Thread(target=self._hold, name="grpo_nb-idle-threads", daemon=True)
        self._owner.start()

    def _hold(self) -> None:
        # GOMP_parallel needs a C function. `omp_get_level` has no effect and ignores its argument.
        does_nothing = ctypes.cast(self._library.omp_get_level, ctypes.c_void_p)
        thread_count = max(self._library.omp_get_num_procs(), 2)
        self._library.GOMP_parallel(does_nothing, None, thread_count, 0)
        self._stop.wait()

    def stop(self) -> None:
        """End the threads."""
        self._stop.set()
        self._owner.join()


def read_busy_seconds() -> float:
    """Return the processor time that all programs have used since the machine started."""
    first_line = _STAT.read_text().split("\n", 1)[0]
    # The fields are user, nice, system, idle, iowait, irq, softirq and steal. The fields after them
    # are the time of guests, which `user` already includes. Some systems have fewer fields.
    fields = [int(field) for field in first_line.split()[1:9]]
    idle = sum(fields[3:5])
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK")


class Watcher:
    """Adds idle threads while other programs need the cores that torch computes on."""

    def __init__(self, library: ctypes.CDLL, spare_cores: int) -> None:
        self._library = library
        self._spare_cores = spare_cores
        self._idle_threads: IdleThreads | None = None
        self._others_seconds = self._read_others_seconds()
        self._time = time.monotonic()

    @property
    def is_yielding(self) -> bool:
        """True while the idle threads exist, so that torch's threads hardly spin."""
        return self._idle_threads is not None

    def measure(self) -> None:
        """Add or remove idle threads, depending on what other programs used since the last call."""
        others_seconds = self._read_others_seconds()
        now = time.monotonic()
        others_cores = (others_seconds - self._others_seconds) / (now - self._time)
        self._others_seconds = others_seconds
        self._time = now
        needed_cores = others_cores - self._spare_cores
        if needed_cores > _BUSY_CORES and self._idle_threads is None:
            self._idle_threads = IdleThreads(self._library)
        elif needed_cores < _QUIET_CORES and self._idle_threads is not None:
            self._idle_threads.stop()
            self._idle_threads = None

    def run(self) -> None:
        """Measure until the process ends."""
        while True:
            time.sleep(_MEASURE_SECONDS)
            self.measure()

    def _read_others_seconds(self) -> float:
        return read_busy_seconds() - time.process_time()


_watching: threading.Thread | None = None


def start_spin_watcher() -> None:
    """Start a watcher in the background, unless one is running.

    Nothing happens without libgomp, with a single thread, or if the user has chosen how OpenMP
    threads wait.
    """
    global _watching
    # After a fork, the child's thread is not alive.
    if _watching is not None and _watching.is_alive():
        return
    import torch

    thread_count = torch.get_num_threads()
    if thread_count < 2 or has_own_policy(os.environ):
        return
    library = load_libgomp()
    if library is None:
        return
    spare_cores = library.omp_get_num_procs() - thread_count
    try:
        watcher = Watcher(library, spare_cores)
    except (OSError, ValueError) as error:
        _log.debug("%s does not show how much other programs compute: %s", _STAT, error)
        return
    _watching = threading.Thread(target=watcher.run, name="grpo_nb-watcher", daemon=True)
    _watching.start()
