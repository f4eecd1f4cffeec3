"""Lines go to the worker and come back, and it ends with its block but not by a fork."""

import os
import sys
import time
from pathlib import Path

import pytest

from grpo_nb.rewards.lines import LineProcess

MIRROR = """
import subprocess, sys
print(subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL).pid, flush=True)
for line in sys.stdin:
    print(line.strip()[::-1], flush=True)
"""


def test_lines_are_exchanged_until_the_end_which_a_fork_does_not_bring() -> None:
    with LineProcess([sys.executable, "-c", MIRROR]) as child:
        grandchild = int(child.line(20))
        forked = os.fork()
        if forked == 0:
            child.end()
            os._exit(1 if child.is_alive else 0)
        assert os.waitpid(forked, 0)[1] == 0
        child.send("abc")
        assert child.line(20) == "cba" and child.is_alive
        with pytest.raises(TimeoutError, match=r"0\.1 s"):
            child.line(0.1)
    status, end = Path(f"/proc/{grandchild}/stat"), time.monotonic() + 10
    while status.exists() and ") Z " not in status.read_text():
        assert time.monotonic() < end, "what it started has ended with it"
        time.sleep(0.02)
