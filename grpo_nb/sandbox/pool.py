"""The user's side of the wall: starts the zygote, hands it jobs, reads what comes back, never more than it asked for.

Jobs run at once up to the number of workers; results come in the order of the jobs. No thread of its own, no fork of the
user's process, safe to use from several threads.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import selectors
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.core.words import EnvironmentProblem

_SCRIPT = Path(__file__).with_name("zygote.py")
_START_SECONDS = 60
_GRACE_SECONDS = 10
_CHUNK = 1 << 16


@dataclass
class Finished:
    """What came back for one job, nothing of it to be trusted but `reason`, `exit_code` and the seconds."""

    reason: str = "lost"
    """`done`, `cpu`, `wall`, `threads`, `output`; or, twice in a row and no fault of the job, `lost` where the pool broke
    down under it and `no_wall` where its wall could not be raised, so that it was not run."""
    exit_code: int = 0
    cpu: float = 0.0
    wall: float = 0.0
    report: bytes = b""
    output: bytes = b""


@dataclass(eq=False)
class _Running:
    number: int
    deadline: float
    limit: int
    control: socket.socket
    pipes: dict[str, io.FileIO]
    data: dict[str, bytes]

    @property
    def is_over_limit(self) -> bool:
        return any(len(held) > self.limit for held in self.data.values())


@dataclass
class _Group:
    """Jobs that run one after the other and share the time of one: their numbers, and the seconds that are left."""

    waiting: deque[int]
    left: dict[str, float]

    def charge(self, finished: Finished) -> str | None:
        """Take what a job used; return the kind of time that is used up, if one is."""
        for kind in self.left:
            self.left[kind] -= self.left[kind] if kind == finished.reason else getattr(finished, kind)
        return next((kind for kind, seconds in self.left.items() if seconds <= 0), None)


class Pool:
    """A zygote at one isolation level. Starts with the first job, starts again if it is lost."""

    def __init__(self, level: str, *, workers: int) -> None:
        self.level = level
        self.workers = workers
        self._slots = threading.BoundedSemaphore(workers)
        self._lock = threading.RLock()
        self._control: socket.socket | None = None
        self._stop: weakref.finalize | None = None

    def start(self) -> None:
        """Start the zygote now. Raises `EnvironmentProblem` with the reason where the wall cannot be raised."""
        with self._lock:
            if self._control is None:
                self._start()

    def close(self) -> None:
        """End the zygote and with it everything that runs in it. The next job starts a new one."""
        with self._lock:
            if self._stop is not None:
                self._stop()
            self._control = self._stop = None

    def run(self, jobs: Sequence[Mapping[str, Any]]) -> list[Finished]:
        """Run every job and return what came back, in order.

        Jobs of one `group` run one after the other and share the time of one: what the first uses is not there for the others.
        """
        results = [Finished() for _ in jobs]
        groups: dict[Any, _Group] = {}
        for number, job in enumerate(jobs):
            key = ("alone", number) if job.get("group") is None else job["group"]
            left = {"cpu": job["cpu_seconds"], "wall": job["wall_seconds"]}
            groups.setdefault(key, _Group(deque(), left)).waiting.append(number)
        idle = deque(groups.values())
        retried: set[int] = set()
        running: dict[_Running, _Group] = {}
        selector = selectors.DefaultSelector()
        try:
            while idle or running:
                # Only a thread with nothing running may block here, so that two threads never wait for each other.
                while idle and self._slots.acquire(blocking=not running):
                    number, left = idle[0].waiting[0], idle[0].left
                    limits = {"cpu_seconds": left["cpu"], "wall_seconds": left["wall"]}
                    try:
                        job = self._submit(number, {**jobs[number], **limits}, selector)
                    except BaseException:
                        self._slots.release()
                        raise
                    idle[0].waiting.popleft()
                    running[job] = idle.popleft()
                for key, _ in selector.select(timeout=0.25):
                    job, name = key.data
                    if job in running and name in job.pipes and _is_over(job, name, selector):
                        # What the candidate, which has ended, left in its pipes.
                        for rest in {"report", "output"} & {*job.pipes}:
                            while not job.is_over_limit and (chunk := _read(job, rest)):
                                job.data[rest] += chunk
                        group = self._release(job, running, selector)
                        finished = _finish(job)
                        if finished.reason in ("lost", "no_wall") and job.number not in retried:
                            retried.add(job.number)
                            if finished.reason == "lost":
                                self._restart(job.control)
                            group.waiting.appendleft(job.number)
                        else:
                            results[job.number] = finished
                            if (spent := group.charge(finished)) is not None:
                                for other in group.waiting:
                                    results[other] = Finished(spent)
                                group.waiting.clear()
                        if group.waiting:
                            idle.appendleft(group)
                for job in [job for job in running if time.monotonic() > job.deadline]:
                    # The supervisor should have ended it long ago: the zygote itself must be stuck.
                    group = self._release(job, running, selector)
                    if group.waiting:
                        idle.append(group)
                    self._restart(job.control)
        finally:
            # Also on KeyboardInterrupt: closing the pipes makes the supervisors end their candidates.
            for job in list(running):
                self._release(job, running, selector)
            selector.close()
        return results

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = {
            "level": self.level, "control": theirs.fileno(), "parent": os.getpid(), "workers": self.workers,
            "has_own_user": os.geteuid() == 0, "user_id": 60000 + secrets.randbelow(5000),
        }  # fmt: skip
        # The interpreter behind the virtual environment, without site-packages (-S, -s) or the script's folder (-P);
        # a fixed hash seed, so that the order of a set, and with it a reward, is the same each time.
        interpreter = getattr(sys, "_base_executable", None) or sys.executable
        # LD_LIBRARY_PATH: some interpreters do not start without.
        kept = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
        process = subprocess.Popen(
            [interpreter, "-S", "-s", "-P", "-B", "-X", "utf8", str(_SCRIPT), json.dumps(config)],
            env={"PYTHONHASHSEED": "0", **kept}, cwd="/", pass_fds=[theirs.fileno()], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()
        stop = weakref.finalize(self, _stop, process, ours)
        ours.settimeout(_START_SECONDS)
        try:
            words = json.loads(ours.recv(_CHUNK) or b'{"failed": "it ended before it was ready"}')
        except (OSError, ValueError) as error:
            words = {"failed": f"no answer in {_START_SECONDS} s ({error})"}
        if "failed" in words:
            stop()
            raise EnvironmentProblem(f"the sandbox level {self.level!r} cannot start: {words['failed']}")
        self._control, self._stop = ours, stop

    def _restart(self, control: socket.socket) -> None:
        with self._lock:
            if self._control is control:
                self.close()

    def _submit(self, number: int, job: Mapping[str, Any], selector: selectors.BaseSelector) -> _Running:
        ends, mine = [os.memfd_create("job")], {}
        try:
            with open(ends[0], "wb", closefd=False) as payload:
                payload.write(json.dumps(job).encode())
            for name in ("report", "output", "status"):
                ours, theirs = os.pipe()
                mine[name] = io.FileIO(ours)  # closes itself where what follows fails
                ends.append(theirs)
                os.set_blocking(ours, False)
            control = self._send(ends)
        finally:
            for end in ends:
                os.close(end)
        deadline = time.monotonic() + job["wall_seconds"] + _GRACE_SECONDS
        running = _Running(number, deadline, int(job["output_kib"]) << 10, control, mine, dict.fromkeys(mine, b""))
        for name, end in mine.items():
            selector.register(end, selectors.EVENT_READ, (running, name))
        return running

    def _send(self, descriptors: list[int]) -> socket.socket:
        with self._lock:
            for _ in range(2):
                self.start()
                try:
                    socket.send_fds(self._control, [b"job"], descriptors)
                    return self._control
                except OSError as error:
                    self.close()
                    problem = error
        raise EnvironmentProblem(
            f"the sandbox broke down twice in a row ({problem}). Restart the kernel; if it happens again, "
            "run grpo_nb.sandbox.check_sandbox() and look for a row that is not ok."
        ) from problem

    def _release(self, job: _Running, running: dict[_Running, _Group], selector: selectors.BaseSelector) -> _Group:
        for name in list(job.pipes):
            _close(job, name, selector)
        self._slots.release()
        return running.pop(job)


def _read(job: _Running, name: str) -> bytes | None:
    """What has arrived in one pipe: None if nothing has, b"" at its end."""
    return job.pipes[name].read(min(job.limit + 1 - len(job.data[name]), _CHUNK))


def _is_over(job: _Running, name: str, selector: selectors.BaseSelector) -> bool:
    """Take what has arrived in one pipe; return whether the job is over."""
    chunk = _read(job, name)
    job.data[name] += chunk or b""
    if chunk == b"":
        _close(job, name, selector)
    # A whole line from the supervisor is the end, and not only the end of the pipe: a worker that the user's process
    # forks at the wrong moment may hold the pipe open for long.
    return job.is_over_limit or (name == "status" and (chunk == b"" or job.data[name].endswith(b"\n")))


def _close(job: _Running, name: str, selector: selectors.BaseSelector) -> None:
    selector.unregister(job.pipes[name])
    job.pipes.pop(name).close()


def _finish(job: _Running) -> Finished:
    words = json.loads(job.data["status"] or b"{}")
    data = {name: job.data[name] for name in ("report", "output")}
    reason = "output" if job.is_over_limit else words.get("reason", "lost")
    return Finished(reason, words.get("exit", 0), words.get("cpu", 0.0), words.get("wall", 0.0), **data)


def _stop(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    """End the launcher; the kernel then ends the zygote, and with it every supervisor and candidate."""
    control.close()
    process.kill()
    process.wait()
