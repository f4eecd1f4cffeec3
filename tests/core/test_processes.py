"""Children end in time, with what they started, and their failures say how."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from grpo_nb.core.processes import ChildError, run_command, run_script

# Says the number of what it started, and waits.
STARTS_ANOTHER = ["sh", "-c", "sleep 600 & echo $!; wait"]


def is_gone(pid: int) -> bool:
    for _ in range(500):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_a_command_is_heard_and_its_failure_says_how() -> None:
    heard: list[str] = []
    says = ["sh", "-c", "echo 1; echo 2 >&2; printf $MORE"]
    assert (
        run_command(says, on_line=heard.append, environment={"MORE": "x"})
        == heard
        == ["1", "2", "x"]
    )
    with pytest.raises(ChildError, match=r"ended with 7\. It said last:\nb\nc") as failed:
        run_command(["sh", "-c", "echo b; echo; echo c; exit 7"])
    assert (
        failed.value.status == 7
        and failed.value.lines == ["b", "c"]
        and failed.value.last(1) == "c"
    )
    with pytest.raises(ChildError, match=r"ended with -9. It said last:\n\(nothing\)"):
        run_command(["sh", "-c", "kill -9 $$"])
    with pytest.raises(ChildError, match="EOFError"):
        run_command([sys.executable, "-c", "input()"])


def test_what_is_late_or_interrupted_is_ended_with_what_it_started() -> None:
    with pytest.raises(
        ChildError, match=r"took longer than 1 s and was ended\. It said last:\n\d+"
    ) as late:
        run_command(STARTS_ANOTHER, seconds=1)
    assert late.value.status is None and is_gone(int(late.value.lines[0]))
    heard: list[int] = []

    def interrupt(line: str) -> None:
        heard.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_command(STARTS_ANOTHER, on_line=interrupt)
    assert is_gone(heard[0])


def test_a_script_answers_without_the_kit_and_its_error_is_told(tmp_path: Path) -> None:
    script, heard = tmp_path / "script.py", []
    script.write_text(
        "import sys\ndef answer(asked):\n print('line')\n return [1 / asked, 'grpo_nb' in sys.modules]"
    )
    assert run_script(script, 0.1, on_line=heard.append) == [10, False] and heard == ["line"]
    with pytest.raises(ChildError, match=r"(?s)ended with 1.*division by zero"):
        run_script(script, 0)
