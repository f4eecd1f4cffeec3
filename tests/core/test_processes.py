"""Children end in time, with what they started, and their failures say how."""

import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

from grpo_nb.core.processes import ChildError, LineProcess, run_command, run_script


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


def test_lines_are_exchanged_until_the_end() -> None:
    code = """
        import sys
        for line in sys.stdin:
            print(line.strip()[::-1], flush=True)
            if "end" in line:
                sys.stdout.write("no line end")
                break
    """
    with LineProcess(python(code)) as child:
        child.send("abc")
        assert child.line(20) == "cba" and child.is_alive
        with pytest.raises(TimeoutError, match=r"0\.1 s"):
            child.line(0.1)
        child.send("the end")
        assert [child.line(20) for _ in "123"] == ["dne eht", "no line end", None]
        assert child.wait() == 0
        with pytest.raises(OSError):
            child.send("too late")


def test_the_end_takes_its_children_along_but_not_from_a_fork() -> None:
    code = """
        import subprocess, time
        print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
        time.sleep(600)
    """
    with LineProcess(python(code)) as child:
        grandchild = int(child.line(20))
        forked = os.fork()
        if forked == 0:
            child.end()
            os._exit(1 if child.is_alive else 0)
        assert os.waitpid(forked, 0)[1] == 0 and child.is_alive
    assert not child.is_alive and is_gone(child.pid) and is_gone(grandchild)


def test_a_command_is_heard_and_limited() -> None:
    heard: list[str] = []
    code = "import os, sys; print(1); print(2, file=sys.stderr); print(os.environ['MORE'], input() if 0 else 3)"
    assert run_command(python(code), on_line=heard.append, environment={"MORE": "x"}) == heard == ["1", "2", "x 3"]
    with pytest.raises(ChildError, match=r"ended with 7\. It said last:\nb\nc") as failed:
        run_command(python("print('b', '', 'c', sep=chr(10)); raise SystemExit(7)"))
    assert failed.value.status == 7 and failed.value.lines == ["b", "c"] and failed.value.last(1) == "c"
    started = time.monotonic()
    with pytest.raises(ChildError, match=r"took longer than 3 s and was ended\. It said last:\nhello") as late:
        run_command(python("import time; print('hello'); time.sleep(600)"), seconds=3)
    assert late.value.status is None and time.monotonic() - started < 20
    with pytest.raises(ChildError, match=r"ended with -9. It said last:\n\(nothing\)"):
        run_command(python("import os; os.kill(os.getpid(), 9)"))
    assert "EOFError" in failing(run_command, python("input()"))
    with pytest.raises(FileNotFoundError):
        run_command(["no-such-program"])


def failing(run: object, *arguments: object) -> str:
    with pytest.raises(ChildError) as failed:
        run(*arguments)
    return str(failed.value)


def test_a_script_answers_and_is_ended_when_it_says_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import sys, time
            def answer(asked):
                print("line", flush=True)
                time.sleep(asked["seconds"])
                if asked["fails"]:
                    raise RuntimeError("in the child")
                return [asked["seconds"], "grpo_nb" in sys.modules]
        """)
    )
    heard: list[str] = []
    assert run_script(script, {"seconds": 0, "fails": False}, on_line=heard.append) == [0, False] and heard == ["line"]
    said = failing(run_script, script, {"seconds": 0, "fails": True})
    assert "ended with 1" in said and "in the child" in said
    with pytest.raises(ChildError, match="gave no sign of life for 1 s and was ended"):
        run_script(script, {"seconds": 600, "fails": False}, patience=1)
    with pytest.raises(TimeoutError, match="the caller's own"):
        run_script(script, {"seconds": 600, "fails": False}, on_line=raise_timeout, patience=20)


def raise_timeout(line: str) -> None:
    raise TimeoutError("the caller's own")


def test_a_script_ends_with_the_process_that_asked(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, time\ndef answer(asked):\n    print(os.getpid(), flush=True)\n    time.sleep(600)\n")
    code = f"from grpo_nb.core.processes import *; run_script(Path({str(script)!r}), {{}}, on_line=lambda x: print(x, flush=1))"
    with LineProcess(python(code)) as asking:
        answering = int(asking.line(20))
        os.kill(asking.pid, 9)
        assert is_gone(answering)
