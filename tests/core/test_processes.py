"""Child processes end in time, with what they started, and their failures say why."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from grpo_nb.core.processes import ChildError, run_command, run_script

# Prints the process id of a child of its own, and waits.
STARTS_ANOTHER = ["sh", "-c", "sleep 600 & echo $!; wait"]


def has_ended(pid: int) -> bool:
    for _ in range(500):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_command_returns_its_lines_with_errors() -> None:
    assert run_command(["sh", "-c", "echo 1; echo 2 >&2"]) == ["1", "2"]


def test_command_reports_each_line() -> None:
    lines: list[str] = []
    run_command(["sh", "-c", "echo 1; echo 2"], on_line=lines.append)
    assert lines == ["1", "2"]


def test_command_gets_added_variables() -> None:
    assert run_command(["sh", "-c", "printf $MORE"], environment={"MORE": "x"}) == ["x"]


def test_command_has_no_input() -> None:
    with pytest.raises(ChildError, match="EOFError"):
        run_command([sys.executable, "-c", "input()"])


@pytest.fixture
def failure() -> ChildError:
    with pytest.raises(ChildError) as caught:
        run_command(["sh", "-c", "echo b; echo; echo c; exit 7"])
    return caught.value


def test_failed_command_says_status_and_last_lines(failure: ChildError) -> None:
    assert str(failure) == "ended with 7. Its last lines of output:\nb\nc"


def test_failed_command_keeps_lines(failure: ChildError) -> None:
    assert failure.last(2) == "b\nc"
    assert failure.last(1) == "c"


def test_command_ended_by_signal_says_its_number() -> None:
    with pytest.raises(ChildError, match=r"ended with -9. Its last lines of output:\n\(nothing\)"):
        run_command(["sh", "-c", "kill -9 $$"])


def test_command_over_its_time_is_ended_with_its_children() -> None:
    with pytest.raises(ChildError, match=r"took longer than 1 s and was ended\.") as caught:
        run_command(STARTS_ANOTHER, seconds=1)
    assert has_ended(int(caught.value.last(1)))


def test_command_that_leaves_a_child_returns_at_once() -> None:
    start = time.monotonic()
    # The child of the shell holds stdout open after the shell has ended.
    (pid,) = run_command(["sh", "-c", "sleep 600 & echo $!"])
    assert time.monotonic() - start < 60
    assert has_ended(int(pid))


def test_command_that_ends_leaves_no_child() -> None:
    (pid,) = run_command(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"])
    assert has_ended(int(pid))


def test_interrupted_command_is_ended_with_its_children() -> None:
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_command(STARTS_ANOTHER, on_line=interrupt)
    assert has_ended(pids[0])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "script.py"
    file.write_text(
        "import sys\n"
        "def answer(request):\n"
        "    print('line')\n"
        "    return [1 / request, 'grpo_nb' in sys.modules]\n"
    )
    return file


def test_script_answers_without_the_kit(script: Path) -> None:
    assert run_script(script, 0.1) == [10, False]


def test_script_imports_what_this_kernel_can(script: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    script.write_text(
        "import sys\n"
        "def answer(request):\n"
        "    return [sys.flags.no_user_site, '/elsewhere' in sys.path, '' in sys.path]\n"
    )
    assert run_script(script, None) == [0, False, False]


def test_script_reports_each_line(script: Path) -> None:
    lines: list[str] = []
    run_script(script, 0.1, on_line=lines.append)
    assert lines == ["line"]


def test_failed_script_says_its_error(script: Path) -> None:
    with pytest.raises(ChildError, match=r"(?s)ended with 1.*division by zero"):
        run_script(script, 0)
