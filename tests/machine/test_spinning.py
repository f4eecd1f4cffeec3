"""Torch's threads leave the cores to other programs while they wait, and compute the same."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import nbformat
import pytest
import torch

from grpo_nb.core import processes
from grpo_nb.machine import spinning
from scripts import run_notebook

NEEDS_LIBGOMP = pytest.mark.skipif(
    spinning.load_libgomp() is None, reason="torch has no libgomp on this system"
)
PRINT = [sys.executable, "-c", "import os; print(os.environ.get('GOMP_SPINCOUNT'))"]


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (processes.SPIN_VARIABLE, processes.WAIT_POLICY):
        # Set first, so that a value that a test leaves behind is removed at its end.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_spin_count_of_nobody_is_set() -> None:
    environment: dict[str, str] = {}
    spinning.set_spin_count(environment)
    assert environment == {"GOMP_SPINCOUNT": "20000"}


@pytest.mark.parametrize(
    "own",
    [
        pytest.param({"GOMP_SPINCOUNT": "0"}, id="count"),
        pytest.param({"OMP_WAIT_POLICY": "ACTIVE"}, id="policy"),
    ],
)
def test_spin_count_of_the_user_is_kept(own: dict[str, str]) -> None:
    environment = dict(own)
    spinning.set_spin_count(environment)
    assert environment == own
    assert spinning.has_own_policy(environment)


def test_spin_count_after_import_of_torch_is_logged_once(caplog) -> None:
    environment: dict[str, str] = {}
    with caplog.at_level(logging.INFO, logger=spinning.__name__):
        spinning.set_spin_count(environment)
        spinning.set_spin_count(environment)
    (record,) = caplog.records
    assert "torch was imported before grpo_nb" in record.getMessage()


def test_spin_count_before_import_of_torch_is_not_logged(caplog, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    with caplog.at_level(logging.INFO, logger=spinning.__name__):
        spinning.set_spin_count({})
    assert caplog.records == []


def test_child_gets_the_spin_count() -> None:
    assert processes.run_command(PRINT) == ["20000"]


def test_child_keeps_the_spin_count_of_the_user(monkeypatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert processes.run_command(PRINT) == ["7"]


def test_child_of_user_with_wait_policy_gets_no_spin_count(monkeypatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert processes.run_command(PRINT) == ["None"]


@NEEDS_LIBGOMP
def test_torch_in_a_child_reads_the_spin_count() -> None:
    shown = processes.run_command(
        [sys.executable, "-c", "import torch"], environment={"OMP_DISPLAY_ENV": "verbose"}
    )
    assert any("GOMP_SPINCOUNT = '20000'" in line for line in shown)


class Client:
    """Stand-in for the client of a kernel, which notes the spin count that the kernel gets."""

    counts: ClassVar[list[str | None]] = []

    def __init__(self, *_: object) -> None:
        self.title = ""

    def execute(self) -> None:
        self.counts.append(os.environ.get("GOMP_SPINCOUNT"))


@pytest.fixture
def run_empty_notebook(tmp_path: Path, monkeypatch) -> Callable[[], str | None]:
    """Return a function that runs a notebook and returns the spin count of its kernel."""
    notebook = tmp_path / "empty.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), notebook)
    monkeypatch.setattr(run_notebook, "Client", Client)

    def run() -> str | None:
        run_notebook.run(notebook, tmp_path, [])
        return Client.counts.pop()

    return run


def test_kernel_of_the_runner_gets_the_spin_count(run_empty_notebook) -> None:
    """A cell may import torch before the kit."""
    assert run_empty_notebook() == "20000"


def test_kernel_of_the_runner_keeps_the_users_count(run_empty_notebook, monkeypatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "3")
    assert run_empty_notebook() == "3"


# Prints the processor time that torch's threads use while Python sleeps: before, during and after
# the idle threads. Other programs disturb measurements, so the clearest of five is taken.
MEASURE_SPINNING = """
import time, torch
from grpo_nb.machine.spinning import IdleThreads, load_libgomp
torch.set_num_threads({threads})
values = torch.ones(1 << 20)
def times_used_in_sleep():
    times = []
    for _ in range(5):
        values.add_(1)
        start = time.process_time()
        time.sleep(0.1)
        times.append(time.process_time() - start)
    return times
before = max(times_used_in_sleep())
idle = IdleThreads(load_libgomp())
during = min(times_used_in_sleep())
idle.stop()
print(before, during, max(times_used_in_sleep()))
"""


@NEEDS_LIBGOMP
def test_idle_threads_stop_the_spinning_until_they_end() -> None:
    core_count = len(os.sched_getaffinity(0))
    if core_count < 2:
        pytest.skip("with one core libgomp never spins long")
    # The threads spin for seconds, so that they use processor time while Python sleeps.
    environment = {"GOMP_SPINCOUNT": "3000000000", "OMP_NUM_THREADS": str(core_count)}
    code = MEASURE_SPINNING.format(threads=core_count)
    (line,) = processes.run_command([sys.executable, "-c", code], environment=environment)
    before, during, after = map(float, line.split())
    assert before > 0.02
    assert during < 0.005
    assert after > 0.02


def computed() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(300, 300, generator=generator)
    right = torch.randn(300, 300, generator=generator)
    return [left @ right, left.sum(), left.softmax(-1)]


@NEEDS_LIBGOMP
def test_idle_threads_change_no_result() -> None:
    thread_count = torch.get_num_threads()
    torch.set_num_threads(2)
    alone = computed()
    idle = spinning.IdleThreads(spinning.load_libgomp())
    beside_idle_threads = computed()
    assert torch.get_num_threads() == 2
    idle.stop()
    torch.set_num_threads(thread_count)
    for expected, result in zip(alone, beside_idle_threads, strict=True):
        assert torch.equal(expected, result)


MAPS = """7f00-7f01 r-xp 0 00:1 1 /env/site-packages/sentencepiece.libs/libgomp-6a29.so.1
7f02-7f03 r-xp 0 00:1 2 {torch}
"""


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/env/site-packages/torch/lib/libgomp-a34b.so.1", id="wheel"),
        pytest.param("/env/lib/libgomp.so.1.0.0", id="conda"),
    ],
)
def test_libgomp_of_torch_is_found_among_others(path, tmp_path, monkeypatch) -> None:
    maps = tmp_path / "maps"
    maps.write_text(MAPS.format(torch=path))
    monkeypatch.setattr(spinning, "_MAPS", maps)
    torch_there = SimpleNamespace(__file__="/env/site-packages/torch/__init__.py")
    monkeypatch.setitem(sys.modules, "torch", torch_there)
    assert spinning.find_libgomp() == path


def test_libgomp_on_another_system_is_none(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(spinning, "_MAPS", tmp_path / "none")
    assert spinning.load_libgomp() is None


class Clock:
    """Processor and wall time that a test moves, and stand-ins for idle threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = 0.0
        self.own = 0.0
        self.all = 0.0
        self.stops = 0
        clock = SimpleNamespace(monotonic=lambda: self.wall, process_time=lambda: self.own)
        monkeypatch.setattr(spinning, "time", clock)
        monkeypatch.setattr(spinning, "read_busy_seconds", lambda: self.all)
        idle_threads = SimpleNamespace(stop=self._count_stop)
        monkeypatch.setattr(spinning, "IdleThreads", lambda library: idle_threads)

    def _count_stop(self) -> None:
        self.stops += 1

    def pass_second(self, *, own: float, others: float) -> None:
        self.wall += 1.0
        self.own += own
        self.all += own + others


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def is_yielding_after(clock: Clock, watcher: spinning.Watcher, own: float, others: float) -> bool:
    """Return the state of a watcher after a second in which programs used this many cores."""
    clock.pass_second(own=own, others=others)
    watcher.measure()
    return watcher.is_yielding


def test_watcher_yields_while_others_need_the_cores(clock: Clock) -> None:
    watcher = spinning.Watcher(None, spare_cores=0)
    assert not is_yielding_after(clock, watcher, own=2.0, others=0.05)
    assert is_yielding_after(clock, watcher, own=1.0, others=1.0)
    # Between the two limits nothing changes.
    assert is_yielding_after(clock, watcher, own=1.0, others=0.2)
    assert not is_yielding_after(clock, watcher, own=2.0, others=0.02)
    assert clock.stops == 1


def test_watcher_lets_others_use_spare_cores(clock: Clock) -> None:
    watcher = spinning.Watcher(None, spare_cores=2)
    assert not is_yielding_after(clock, watcher, own=2.0, others=2.0)
    assert is_yielding_after(clock, watcher, own=2.0, others=2.5)


def test_busy_seconds_grow_with_work() -> None:
    before = spinning.read_busy_seconds()
    end = spinning.time.process_time() + 0.1
    while spinning.time.process_time() < end:
        pass
    assert spinning.read_busy_seconds() - before >= 0.08


@pytest.mark.parametrize(
    ("line", "ticks"),
    [
        pytest.param("cpu  10 20 30 9999 9999 4 5 6 7 8", 75, id="all fields"),
        pytest.param("cpu 10 20 30 9999", 60, id="few fields"),
        pytest.param("cpu", 0, id="no fields"),
    ],
)
def test_busy_seconds_are_read_without_idle_and_guests(line, ticks, tmp_path, monkeypatch) -> None:
    stat = tmp_path / "stat"
    stat.write_text(f"{line}\ncpu0 1 1 1 1\n")
    monkeypatch.setattr(spinning, "_STAT", stat)
    assert spinning.read_busy_seconds() == ticks / os.sysconf("SC_CLK_TCK")


@NEEDS_LIBGOMP
@pytest.mark.parametrize(
    "text",
    [pytest.param(None, id="no file"), pytest.param("cpu of another kind\n", id="other text")],
)
def test_spin_watcher_without_readable_times_starts_nothing(text, tmp_path, monkeypatch) -> None:
    if text is not None:
        (tmp_path / "stat").write_text(text)
    monkeypatch.setattr(spinning, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(spinning, "_watching", None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    spinning.start_spin_watcher()
    assert spinning._watching is None


WATCHED = """
import threading, torch
from grpo_nb.machine.spinning import start_spin_watcher
torch.set_num_threads({threads})
start_spin_watcher()
start_spin_watcher()
print([thread.name for thread in threading.enumerate()].count("grpo_nb-watcher"))
"""


@NEEDS_LIBGOMP
@pytest.mark.parametrize(
    ("threads", "own", "expected"),
    [
        pytest.param(2, {}, "1", id="two threads"),
        pytest.param(1, {}, "0", id="one thread"),
        pytest.param(2, {"GOMP_SPINCOUNT": "5"}, "0", id="own count"),
        pytest.param(2, {"OMP_WAIT_POLICY": "PASSIVE"}, "0", id="own policy"),
    ],
)
def test_spin_watcher_starts_one_watcher_if_threads_spin(threads, own, expected) -> None:
    code = WATCHED.format(threads=threads)
    assert processes.run_command([sys.executable, "-c", code], environment=own) == [expected]
