"""A folder's writer is recognised when it lives, and not confused with another process."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_nb.core.writers import liveness, process_identity, writing_here


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_liveness_of_living_process_is_running(other_process, tmp_path: Path) -> None:
    assert liveness(process_identity(other_process.pid), tmp_path) == "running"


def test_liveness_of_dead_process_is_crashed(other_process, tmp_path: Path) -> None:
    identity = process_identity(other_process.pid)
    other_process.kill()
    other_process.wait()
    assert liveness(identity, tmp_path) == "crashed"


def test_liveness_of_reused_pid_is_crashed(other_process, tmp_path: Path) -> None:
    identity = process_identity(other_process.pid)
    identity["process_start"] -= 60
    assert liveness(identity, tmp_path) == "crashed"


def test_liveness_on_other_host_is_unknown(other_process, tmp_path: Path) -> None:
    identity = process_identity(other_process.pid) | {"host": "elsewhere"}
    identity["process_start"] -= 60
    assert liveness(identity, tmp_path) == "unknown"


def test_liveness_of_old_record_on_other_host_is_unknown(other_process, tmp_path: Path) -> None:
    record = {"pid": other_process.pid, "host": "elsewhere"}
    assert liveness(record, tmp_path) == "unknown"


def test_identity_by_default_is_of_this_process() -> None:
    assert process_identity() == process_identity(os.getpid())


def test_liveness_of_kernel_after_its_run_is_crashed(tmp_path: Path) -> None:
    with writing_here(tmp_path):
        pass
    assert liveness(process_identity(), tmp_path) == "crashed"


def test_liveness_of_kernel_during_its_run_is_running(tmp_path: Path) -> None:
    with writing_here(tmp_path):
        assert liveness(process_identity(), tmp_path) == "running"
