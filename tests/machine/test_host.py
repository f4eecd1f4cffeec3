"""Cores and memory that the host, or a container on it, gives to this process."""

from pathlib import Path

import psutil
import pytest

from grpo_nb.machine import host

MEMORY_STAT = """\
anon 60000000
inactive_file 20000000
active_file 10000000
unevictable 0
total_inactive_file 20000000
"""


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the one in which Linux reports the limits of a container."""
    monkeypatch.setattr(host, "CGROUP", tmp_path)
    return tmp_path


def limit_memory(container: Path, limit: str) -> None:
    (container / "memory.max").write_text(f"{limit}\n")
    (container / "memory.current").write_text("90000000\n")
    (container / "memory.stat").write_text(MEMORY_STAT)


def test_free_memory_of_a_container_is_below_its_limit(container: Path) -> None:
    limit_memory(container, "100000000")
    # The cache of files (30 MB) counts as free.
    assert host.free_memory_bytes() == 40_000_000


def test_free_memory_without_limit_is_that_of_the_machine(
    container: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    limit_memory(container, "max")
    assert host.free_memory_bytes() == machine.available


def test_usable_cores_of_a_container_are_its_limit(container: Path) -> None:
    (container / "cpu.max").write_text("100000 100000\n")
    assert host.usable_cores() == 1


def test_usable_cores_without_limit_are_those_of_the_process(container: Path) -> None:
    without_file = host.usable_cores()
    (container / "cpu.max").write_text("max 100000\n")
    assert host.usable_cores() == without_file
