"""The cores of this process: how many, and whether others hold them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from grpo_nb.machine import cores
from grpo_nb.machine.cores import busy_sentence, ran_and_waited, usable_cores


def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    limit = tmp_path / "cpu.max"
    monkeypatch.setattr(cores, "Path", lambda path: limit)
    for text, count in (("200000 100000\n", 2), ("50000 100000\n", 1), ("max 100000\n", 64)):
        limit.write_text(text)
        assert usable_cores() == count
    limit.unlink()
    assert usable_cores() == 64


def test_what_is_said_of_waiting() -> None:
    assert busy_sentence(None, (9.0, 9.0), 2) == busy_sentence((0.0, 0.0), (9.0, 1.0), 2) == ""
    assert busy_sentence((0.0, 0.0), (0.1, 0.4), 2) == "", "too short to tell"
    said = busy_sentence((1.0, 1.0), (6.0, 6.0), 2)
    assert "waited 50%" in said and "torch.set_num_threads(1)" in said
    assert "set_num_threads" not in busy_sentence((1.0, 1.0), (6.0, 6.0), 1)


@pytest.mark.skipif(ran_and_waited() is None, reason="only Linux says how long a thread waited for a core")
def test_another_process_on_the_same_core_is_seen() -> None:
    here = (
        "import os, subprocess, sys, time\n"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "busy = lambda s: [None for _ in iter(lambda: time.monotonic() < s, False)]\n"
        "from grpo_nb.machine.cores import busy_sentence, ran_and_waited\n"
        "others = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(3)]\n"
        "before = ran_and_waited(); busy(time.monotonic() + 2.5)\n"
        "print(busy_sentence(before, ran_and_waited(), 2))\n"
        "[other.kill() for other in others]\n"
    )
    done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, timeout=60)
    assert "Other work holds the cores" in done.stdout, done.stderr
