"""Children end in time, with what they started, and their failures say how."""

import sys
import textwrap
import time
from pathlib import Path

import pytest

from grpo_nb.core.processes import ChildError, run_command, run_script


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def is_gone(pid: int) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] in "ZX":
            return True
        time.sleep(0.02)
    return False


def test_a_command_is_heard_and_its_failure_says_how() -> None:
    heard: list[str] = []
    code = "import os, sys; print(1); print(2, file=sys.stderr); sys.stdout.write(os.environ['MORE'])"
    assert run_command(python(code), on_line=heard.append, environment={"MORE": "x"}) == heard == ["1", "2", "x"]
    with pytest.raises(ChildError, match=r"ended with 7\. It said last:\nb\nc") as failed:
        run_command(python("print('b', '', 'c', sep=chr(10)); raise SystemExit(7)"))
    assert failed.value.status == 7 and failed.value.lines == ["b", "c"] and failed.value.last(1) == "c"
    with pytest.raises(ChildError, match=r"ended with -9. It said last:\n\(nothing\)"):
        run_command(python("import os; os.kill(os.getpid(), 9)"))
    with pytest.raises(ChildError, match="EOFError"):
        run_command(python("input()"))
    with pytest.raises(FileNotFoundError):
        run_command(["no-such-program"])


def test_what_is_late_or_interrupted_is_ended_with_what_it_started() -> None:
    code = """
        import subprocess, time
        print(subprocess.Popen(["sleep", "600"]).pid)
        time.sleep(600)
    """
    started = time.monotonic()
    with pytest.raises(ChildError, match=r"took longer than 3 s and was ended\. It said last:\n\d+") as late:
        run_command(python(code), seconds=3)
    assert late.value.status is None and time.monotonic() - started < 20 and is_gone(int(late.value.lines[0]))
    heard: list[int] = []

    def interrupt(line: str) -> None:
        heard.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_command(python(code), on_line=interrupt)
    assert is_gone(heard[0])


def test_a_script_answers_without_the_kit_and_its_error_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import sys
            def answer(asked):
                print("line", flush=True)
                if not asked:
                    raise RuntimeError("in the child")
                return [asked, "grpo_nb" in sys.modules]
        """)
    )
    heard: list[str] = []
    assert run_script(script, 0.1, on_line=heard.append) == [0.1, False] and heard == ["line"]
    with pytest.raises(ChildError, match=r"(?s)ended with 1.*in the child"):
        run_script(script, 0)
