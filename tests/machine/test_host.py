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
VERSION_2 = {"limit": "memory.max", "used": "memory.current", "parts": "memory.stat"}
VERSION_1 = {
    "limit": "memory/memory.limit_in_bytes",
    "used": "memory/memory.usage_in_bytes",
    "parts": "memory/memory.stat",
}


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the one in which Linux reports the limits of a container."""
    monkeypatch.setattr(host, "CGROUP", tmp_path)
    (tmp_path / "memory").mkdir()
    return tmp_path


def limit_memory(container: Path, files: dict[str, str], limit: str) -> None:
    (container / files["limit"]).write_text(f"{limit}\n")
    (container / files["used"]).write_text("90000000\n")
    (container / files["parts"]).write_text(MEMORY_STAT)


@pytest.mark.parametrize("files", [VERSION_2, VERSION_1], ids=["version 2", "version 1"])
def test_free_memory_of_a_container_is_below_its_limit(container: Path, files: dict) -> None:
    limit_memory(container, files, "100000000")
    # The cache of files (30 MB) counts as free.
    assert host.free_memory_bytes() == 40_000_000


@pytest.mark.parametrize(
    ("files", "no_limit"),
    [(VERSION_2, "max"), (VERSION_1, "9223372036854771712")],
    ids=["version 2", "version 1"],
)
def test_free_memory_without_limit_is_that_of_the_machine(
    container: Path, files: dict, no_limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    limit_memory(container, files, no_limit)
    assert host.free_memory_bytes() == machine.available


def test_usable_cores_of_a_container_are_its_limit(container: Path) -> None:
    (container / "cpu.max").write_text("100000 100000\n")
    assert host.usable_cores() == 1


def test_usable_cores_without_limit_are_those_of_the_process(container: Path) -> None:
    without_file = host.usable_cores()
    (container / "cpu.max").write_text("max 100000\n")
    assert host.usable_cores() == without_file
