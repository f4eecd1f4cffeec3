"""Memory of the machine that attacks on the sandbox's memory limit take, alone and four at once.

Claim: no attack takes more than the limit of its candidate and a tenth.

python benchmarks/sandbox_memory.py > benchmarks/results/sandbox_memory.md
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from _measure import machine

from grpo_nb.sandbox.candidates import holes, run_untrusted_batch
from grpo_nb.sandbox.jobs import Call, Candidate, Limits

LIMIT_MIB = 512
LIMITS = Limits(cpu_seconds=3.0, wall_seconds=20.0, memory_mib=LIMIT_MIB)
PRELUDE = """
import ctypes, mmap, os, socket, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
MIB, FAILED = 1 << 20, ctypes.c_void_p(-1).value
def new(size, flags):
    start = libc.mmap(None, size, 3, flags, -1, 0)
    if start == FAILED: raise MemoryError
    return start
def f():
    end = time.process_time() + 2.0
    try:
        while time.process_time() < end: step()
    except (OSError, MemoryError): pass
    time.sleep(1)
"""
ATTACKS = {
    "the limit itself: private memory": "held = []\ndef step(): held.append(bytearray(b'x') * (8 * MIB))",
    "sockets": """
held = []
def step():
    held.append(socket.socketpair())
    for end in held[-1]:
        end.setblocking(False)
        try:
            while True: end.send(bytes(1 << 16))
        except BlockingIOError: pass
""",
    "pipes": """
held = []
def step():
    held.append(os.pipe())
    os.set_blocking(held[-1][1], False)
    os.write(held[-1][1], bytes(1 << 16))
""",
    "shared memory, unmapped but for a page": """
def step():
    start = new(32 * MIB, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    ctypes.memset(start, 1, 32 * MIB)
    libc.munmap(start + 4096, 32 * MIB - 4096)
""",
    "huge pages, unmapped but for a page": """
def step():
    first = new(34 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first = -(-first // (2 * MIB)) * 2 * MIB
    libc.madvise(first, 32 * MIB, 14)
    for start in range(first, first + 32 * MIB, 2 * MIB):
        ctypes.memset(start, 1, 4096)
        libc.munmap(start + 4096, 2 * MIB - 4096)
""",
    "page tables": """
def step():
    start = new(128 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    ctypes.string_at(start, 1)
    libc.munmap(start + 4096, 128 * MIB - 4096)
""",
}


def available_mb() -> float:
    """Return the memory that the machine could give to a new program, in 10^6 bytes."""
    with open("/proc/meminfo") as file:
        sizes = dict(line.split(":") for line in file)
    return int(sizes["MemAvailable"].split()[0]) * 1024 / 1e6


@contextmanager
def watched() -> Iterator[list[float]]:
    """Yield a list that holds, after the block, the largest loss of available memory within it."""
    before = available_mb()
    losses = [0.0]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            losses[0] = max(losses[0], before - available_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield losses
    finally:
        is_over.set()
        watcher.join()


def main() -> None:
    assert holes() == (), holes()
    lines = []
    for name, code in ATTACKS.items():
        taken = []
        for count in (1, 4):
            time.sleep(1)  # the memory of the attack before is given back
            candidate = Candidate(code=PRELUDE + code, calls=[Call("f")])
            with watched() as losses:
                outcomes = run_untrusted_batch([[candidate]] * count, limits=LIMITS)
            taken.append(f"{losses[0]:,.0f}")
        ((outcome,), *_) = outcomes
        ending = outcome.error or outcome.answers[0].error or "ran to its end"
        lines.append(f"| {name} | {' | '.join(taken)} | {ending} |")
    date = datetime.date.today()
    print(
        f"# Memory that attacks on the sandbox take\n\n`python benchmarks/sandbox_memory.py`, {date.day} {date:%B %Y}; "
        f"{machine()}. Largest loss of available memory of the whole machine, MB; other work on it counts too. Limit of a "
        f"candidate: {LIMIT_MIB} MiB and {LIMITS.cpu_seconds:g} s.\n\n"
        "| attack | one | four at once | ending |\n| --- | ---: | ---: | --- |\n" + "\n".join(lines)
    )


if __name__ == "__main__":
    main()
