"""The process that compares expressions: bounded in time and memory, replaced, and ended."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.rewards import math_worker, maths
from grpo_nb.rewards.answers import Undecided
from tests.rewards.cases import judged_as_labelled, slot


def scores_of(answers: list[str], gold: str) -> list[float | None]:
    completions = [slot(answer) for answer in answers]
    return maths()(completions=completions, answer=[gold] * len(answers))


SLOW = [
    r"((x+1)(x-1))^{512}",
    r"(x+y+z+w)^{99}",
    r"\sin(x)^{77}\cos(x)^{77}(x+1)^{200}",
    r"(x^{97}+1)^{89}+(x^{89}+1)^{97}",
]


def works() -> bool:
    """Return True if an expression that was never asked before is compared."""
    works.count += 1
    return scores_of([f"{works.count}+x"], f"x+{works.count}") == [1.0]


works.count = 100


def test_slow_expressions_score_none_next_to_quick_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_worker, "PAIR_SECONDS", 0.3)
    quick = [f"{number}+x" for number in range(8)]
    scores = scores_of([*SLOW, *quick], "x+3")
    assert scores[:4] == [None] * 4
    assert scores[4:] == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_undecided_pair_is_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_worker, "PAIR_SECONDS", 0.001)
    assert scores_of(["(x+2)^{2}-7"], "x^{2}+4x-3") == [None]
    monkeypatch.setattr(math_worker, "PAIR_SECONDS", 10.0)
    assert scores_of(["(x+2)^{2}-7"], "x^{2}+4x-3") == [1.0]


def test_answer_beside_an_undecided_gold_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_worker, "PAIR_SECONDS", 0.3)
    completions = [slot(SLOW[0]), slot("y+1")]
    assert maths()(completions=completions, answer=[["x+8", SLOW[0]], ["x+8"]]) == [1.0, 0.0]


def test_pair_time_is_processor_time_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_worker, "PAIR_SECONDS", 1.0)
    assert works()
    worker = math_worker._worker
    # A stopped worker gets no processor for longer than the pair may take.
    os.kill(worker.pid, signal.SIGSTOP)
    threading.Timer(1.6, os.kill, (worker.pid, signal.SIGCONT)).start()
    assert works()
    assert math_worker._worker is worker


def test_worker_that_only_waits_ends_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "from grpo_nb.rewards import math_worker\n"
        "import time\n"
        "math_worker._MAX_ELAPSED_PER_CPU_SECOND = 1\n"
        "math_worker._are_equal = lambda given, gold: given == 'slow' and time.sleep(60)\n"
        "math_worker._serve()\n"
    )
    popen = functools.partial(subprocess.Popen, [sys.executable, "-c", script])
    monkeypatch.setattr(math_worker, "_worker", None)
    monkeypatch.setattr(
        math_worker.subprocess, "Popen", lambda command, **options: popen(**options)
    )
    with pytest.raises(Undecided):
        math_worker.are_equal_expressions("slow", "x")


def test_worker_without_a_needed_module_shows_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on Windows.
    script = "import sys\nsys.modules['resource'] = None\n"
    script += "from grpo_nb.rewards import math_worker\nmath_worker._serve()\n"
    popen = functools.partial(subprocess.Popen, [sys.executable, "-c", script])
    monkeypatch.setattr(math_worker, "_worker", None)
    monkeypatch.setattr(
        math_worker.subprocess, "Popen", lambda command, **options: popen(**options)
    )
    with pytest.raises(EnvironmentProblem, match=r"import math_verify, resource.*Windows"):
        math_worker.are_equal_expressions("x+300", "300+x")


def test_decided_pair_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scores_of(["y+x+200"], "x+200+y") == [1.0]
    monkeypatch.setattr(math_worker, "_ask_worker", None)
    assert scores_of(["y+x+200"], "x+200+y") == [1.0]


def test_threads_do_not_mix_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_worker, "PAIR_SECONDS", 0.3)

    def scores_in_thread(number: int) -> list[float | None]:
        answers = [f"{number}+x", f"{SLOW[0]}+{number + 50}", f"x+{number + 1}"]
        return scores_of(answers, f"x+{number}")

    with ThreadPoolExecutor(4) as threads:
        scores = list(threads.map(scores_in_thread, range(4), timeout=60))
    assert scores == [[1.0, None, 0.0]] * 4


def test_killed_worker_is_replaced() -> None:
    assert works()
    os.killpg(math_worker._worker.pid, signal.SIGKILL)
    math_worker._worker.wait()
    assert works()


def test_forked_process_gets_a_worker_of_its_own() -> None:
    assert works()
    child = os.fork()
    if child == 0:
        os._exit(0 if works() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert works()


def test_worker_out_of_memory_is_replaced() -> None:
    # The number has 10^9 digits, gigabytes. Whatever stops it first, the next answer comes.
    assert scores_of([r"\binom{999999999}{499999999}x"], "x+1") in ([0.0], [None])
    assert works()


def test_pair_without_memory_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "from grpo_nb.rewards import math_worker\n"
        "def judge(given, gold):\n"
        "    if given == 'large':\n"
        "        raise MemoryError\n"
        "math_worker._are_equal = judge\n"
        "math_worker._serve()\n"
    )
    popen = functools.partial(subprocess.Popen, [sys.executable, "-c", script])
    monkeypatch.setattr(math_worker, "_worker", None)
    monkeypatch.setattr(
        math_worker.subprocess, "Popen", lambda command, **options: popen(**options)
    )
    with pytest.raises(Undecided):
        math_worker.are_equal_expressions("large", "x")


def live_processes_of(session: int) -> list[str]:
    """Return the id of every live process of a session, from /proc."""
    processes = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            processes.append(stat.parent.name)
    return processes


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "ending",
    [
        pytest.param("", id="exit"),
        pytest.param("import os; os.kill(os.getpid(), 9)", id="killed"),
    ],
)
def test_worker_ends_with_its_interpreter(ending: str) -> None:
    code = (
        "import sys\n"
        "from grpo_nb.rewards import math_worker, maths\n"
        "assert maths()(completions=['<answer>1+x</answer>'], answer=['x+1']) == [1.0]\n"
        f"print(math_worker._worker.pid, flush=True)\n{ending}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    session = int(done.stdout)
    end = time.monotonic() + 10
    while live_processes_of(session) and time.monotonic() < end:
        time.sleep(0.05)
    assert live_processes_of(session) == []


def test_expression_beyond_its_time_scores_none() -> None:
    assert scores_of(["((x+1)(x-1))^{4096}"], "x+1") == [None]


def test_labelled_maths_answers_get_the_score_of_their_label() -> None:
    result = judged_as_labelled("maths")
    assert result.wrongly_scored == []
    assert result.right > 300
    assert len(result.wrongly_refused) <= 0.05 * result.right, result.wrongly_refused
