"""Torch's threads wait without keeping the cores from other programs, and compute the same numbers."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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
        monkeypatch.delenv(name, raising=False)


def test_spin_count_is_set_where_nobody_has_set_it() -> None:
    environment: dict[str, str] = {}
    spinning.set_spin_count(environment)
    assert environment == {"GOMP_SPINCOUNT": "20000"}


@pytest.mark.parametrize("own", [{"GOMP_SPINCOUNT": "0"}, {"OMP_WAIT_POLICY": "ACTIVE"}])
def test_spin_count_of_the_user_stands(own: dict[str, str]) -> None:
    environment = dict(own)
    spinning.set_spin_count(environment)
    assert environment == own
    assert spinning.has_own_policy(environment)


def test_torch_that_was_loaded_before_is_reported_once(caplog) -> None:
    environment: dict[str, str] = {}
    with caplog.at_level(logging.INFO, logger=spinning.__name__):
        spinning.set_spin_count(environment)
        spinning.set_spin_count(environment)
    (record,) = caplog.records
    assert "torch was imported before grpo_nb" in record.getMessage()


def test_torch_that_comes_later_is_not_reported(caplog, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    with caplog.at_level(logging.INFO, logger=spinning.__name__):
        spinning.set_spin_count({})
    assert caplog.records == []


def test_children_get_the_spin_count() -> None:
    assert processes.run_command(PRINT) == ["20000"]


def test_children_keep_the_spin_count_of_the_user(monkeypatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert processes.run_command(PRINT) == ["7"]
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert processes.run_command(PRINT) == ["None"]


@NEEDS_LIBGOMP
def test_torch_in_a_child_reads_the_spin_count() -> None:
    shown = processes.run_command(
        [sys.executable, "-c", "import torch"], environment={"OMP_DISPLAY_ENV": "verbose"}
    )
    assert any("GOMP_SPINCOUNT = '20000'" in line for line in shown)


def test_import_of_unsloth_sets_the_spin_count() -> None:
    code = (
        "from grpo_nb.models.import_unsloth import import_unsloth\n"
        "import_unsloth()\n"
        "import os; print(os.environ['GOMP_SPINCOUNT'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "20000"


def test_kernel_of_the_runner_gets_the_spin_count(tmp_path: Path, monkeypatch) -> None:
    """A cell may import torch before the kit."""
    seen: list[str | None] = []

    class Client:
        def __init__(self, *_: object) -> None:
            self.title = ""

        def execute(self) -> None:
            seen.append(os.environ.get("GOMP_SPINCOUNT"))

    notebook = tmp_path / "empty.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), notebook)
    monkeypatch.setattr(run_notebook, "Client", Client)
    monkeypatch.setenv("GOMP_SPINCOUNT", "3")
    run_notebook.run(notebook, tmp_path, [])
    monkeypatch.delenv("GOMP_SPINCOUNT")
    run_notebook.run(notebook, tmp_path, [])
    monkeypatch.setenv("GOMP_SPINCOUNT", "3")  # taken back afterwards
    assert seen == ["3", "20000"]


SPINNING = """
import sys, time, torch
from grpo_nb.machine.spinning import IdleThreads, load_libgomp
torch.set_num_threads(2)
values = torch.ones(1 << 20)
def waited():
    used = []
    for _ in range(5):
        values.add_(1)
        begun = time.process_time()
        time.sleep(0.1)
        used.append(time.process_time() - begun)
    return min(used) if len(sys.argv) > 1 else max(used)
spinning = waited()
sys.argv.append("least")
idle = IdleThreads(load_libgomp())
yielding = waited()
idle.stop()
sys.argv.pop()
print(spinning, yielding, waited())
"""


@NEEDS_LIBGOMP
def test_idle_threads_end_the_spinning_and_give_it_back() -> None:
    """With a spin count of seconds, a thread that waits uses processor time while Python sleeps."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("with one core libgomp never spins long")
    names = {"GOMP_SPINCOUNT": "3000000000", "OMP_NUM_THREADS": str(len(cores))}
    code = SPINNING.replace("set_num_threads(2)", f"set_num_threads({len(cores)})")
    (said,) = processes.run_command([sys.executable, "-c", code], environment=names)
    spun, yielded, spun_again = map(float, said.split())
    assert spun > 0.02
    assert yielded < 0.005
    assert spun_again > 0.02


@NEEDS_LIBGOMP
def test_idle_threads_change_no_number() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(300, 300, generator=generator) for _ in range(2))
    alone = [(left @ right), left.sum(), left.softmax(-1)]
    idle = spinning.IdleThreads(spinning.load_libgomp())
    beside = [(left @ right), left.sum(), left.softmax(-1)]
    assert torch.get_num_threads() == 2
    idle.stop()
    torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(alone, beside, strict=True))


MAPS = """7f00-7f01 r-xp 0 00:1 1 /env/site-packages/sentencepiece.libs/libgomp-6a29.so.1
7f02-7f03 r-xp 0 00:1 2 {torch}
"""


@pytest.mark.parametrize(
    "path", ["/env/site-packages/torch/lib/libgomp-a34b.so.1", "/env/lib/libgomp.so.1.0.0"]
)
def test_libgomp_of_torch_is_found_among_others(path, tmp_path, monkeypatch) -> None:
    """In a wheel's own folder, or a conda environment's."""
    maps = tmp_path / "maps"
    maps.write_text(MAPS.format(torch=path))
    monkeypatch.setattr(spinning, "_MAPS", maps)
    torch_there = SimpleNamespace(__file__="/env/site-packages/torch/__init__.py")
    monkeypatch.setitem(sys.modules, "torch", torch_there)
    assert spinning.find_libgomp() == path


def test_system_without_libgomp_has_nothing_to_watch(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(spinning, "_MAPS", tmp_path / "none")
    assert spinning.load_libgomp() is None


class Clock:
    """Processor and wall time that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = self.own = self.all = 0.0
        clock = SimpleNamespace(
            monotonic=lambda: self.wall, process_time=lambda: self.own, sleep=None
        )
        monkeypatch.setattr(spinning, "time", clock)
        monkeypatch.setattr(spinning, "read_busy_seconds", lambda: self.all)
        ended = self.ended = []
        idle = SimpleNamespace(stop=lambda: ended.append(True))
        monkeypatch.setattr(spinning, "IdleThreads", lambda library: idle)

    def pass_second(self, *, own: float, others: float) -> None:
        self.wall += 1.0
        self.own += own
        self.all += own + others


def test_watcher_yields_while_others_need_the_cores(monkeypatch) -> None:
    clock = Clock(monkeypatch)
    watcher = spinning.Watcher(None, spare_cores=0)
    seen = []
    for own, others in ((2.0, 0.05), (1.0, 1.0), (1.0, 0.2), (2.0, 0.02)):
        clock.pass_second(own=own, others=others)
        watcher.measure()
        seen.append(watcher.is_yielding)
    assert seen == [False, True, True, False]
    assert clock.ended == [True]


def test_watcher_lets_others_use_the_cores_that_torch_leaves(monkeypatch) -> None:
    clock = Clock(monkeypatch)
    watcher = spinning.Watcher(None, spare_cores=2)
    clock.pass_second(own=2.0, others=2.0)
    watcher.measure()
    assert not watcher.is_yielding
    clock.pass_second(own=2.0, others=2.5)
    watcher.measure()
    assert watcher.is_yielding


def test_processor_time_of_the_machine_grows_with_work() -> None:
    before = spinning.read_busy_seconds()
    end = spinning.time.process_time() + 0.1
    while spinning.time.process_time() < end:
        pass
    assert spinning.read_busy_seconds() - before >= 0.08


@pytest.mark.parametrize(
    ("line", "ticks"),
    [("cpu  10 20 30 9999 9999 4 5 6 7 8", 75), ("cpu 10 20 30 9999", 60), ("cpu", 0)],
)
def test_processor_time_is_read_without_idle_and_guests(line, ticks, tmp_path, monkeypatch) -> None:
    stat = tmp_path / "stat"
    stat.write_text(f"{line}\ncpu0 1 1 1 1\n")
    monkeypatch.setattr(spinning, "_STAT", stat)
    assert spinning.read_busy_seconds() == ticks / os.sysconf("SC_CLK_TCK")


@NEEDS_LIBGOMP
@pytest.mark.parametrize("text", [None, "cpu of another kind\n"])
def test_system_that_hides_the_times_does_not_stop_a_training(text, tmp_path, monkeypatch) -> None:
    if text is not None:
        (tmp_path / "stat").write_text(text)
    monkeypatch.setattr(spinning, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(spinning, "_watching", None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    spinning.yield_cores()
    assert spinning._watching is None


WATCHED = """
import threading, torch
from grpo_nb.machine.spinning import yield_cores
torch.set_num_threads({threads})
yield_cores()
yield_cores()
print([thread.name for thread in threading.enumerate()].count("grpo_nb-watcher"))
"""


@NEEDS_LIBGOMP
@pytest.mark.parametrize(
    ("threads", "own", "expected"),
    [
        (2, {}, "1"),
        (1, {}, "0"),
        (2, {"GOMP_SPINCOUNT": "5"}, "0"),
        (2, {"OMP_WAIT_POLICY": "PASSIVE"}, "0"),
    ],
)
def test_watcher_starts_once_where_threads_may_spin(threads, own, expected) -> None:
    code = WATCHED.format(threads=threads)
    assert processes.run_command([sys.executable, "-c", code], environment=own) == [expected]
