"""The maths reward: one answer is one answer, and nothing a model writes holds it up. Forms of one answer are in `cases`."""

import functools
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.rewards import accuracy_reward

from grpo_nb.rewards import algebra, maths
from grpo_nb.tasks import formats
from tests.rewards.cases import slot

module = importlib.import_module(
    "grpo_nb.rewards.maths"
)  # as an attribute of the package it is the class
HARD = [
    r"((x+1)(x-1))^{512}", r"(x+y+z+w)^{99}", r"\sin(x)^{77}\cos(x)^{77}(x+1)^{200}", r"(x^{97}+1)^{89}+(x^{89}+1)^{97}",
]  # fmt: skip


def paid(contents: list[str], gold: str) -> list[float | None]:
    return maths()(
        completions=[slot(content) for content in contents], answer=[gold] * len(contents)
    )


def works() -> bool:
    """Whether algebra is done: of other letters each time, for what was asked before is remembered."""
    works.asked += 1
    return paid([f"{works.asked}+x"], f"x+{works.asked}") == [1.0]


works.asked = 100

JOINTS = [
    " or ", ", ", ",", " = ", r" \text{ or } ", "; ", r" \lor ", r" \quad ", "\n", " ", "/", ":", r"\,", "~",
    " & ", ")(", r"\\",
]  # fmt: skip


@pytest.mark.parametrize("joint", JOINTS)
def test_a_second_answer_beside_the_right_one_is_a_hedge(joint: str) -> None:
    others = ["x+2", "7", "y", "x", "41x"]
    assert paid([f"x+1{joint}{other}" for other in others], "x+1") == [0.0] * 5
    # `y = x+1` names the answer, as `f = x+1` would.
    names = [float(other == "y" and joint == " = ") for other in others]
    assert paid([f"{other}{joint}x+1" for other in others], "x+1") == names


def test_beside_trl() -> None:
    texts = [
        r"\boxed{\frac{1}{3}}",
        r"\boxed{\frac{1}{2}}",
        "\\boxed{41 = 42}",
        r"\boxed{42 \text{ is wrong}}",
    ]
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    golds = [r"\frac{1}{3}", r"\frac{1}{3}", "42", "42"]
    assert accuracy_reward(chats, golds) == [1.0, 0.0, 1.0, 1.0], (
        "TRL has mended this: say so in maths()"
    )
    assert maths(format=formats.boxed())(completions=chats, answer=golds) == [1.0, 0.0, 0.0, 0.0]


LATEX = st.lists(
    st.sampled_from([
        "x", "y", "1", "9", "+", "-", "^", "{", "}", "(", ")", "\\frac", "\\sqrt", "=", ",", "\\text{or}",
        " ", "/", "!", "\\sum", "_", "\\left(", "\\right)", "\\int", "\\cdot", "%", "\\\\", "&", "\x00",
        "\ud800", "\u4e03", "sin", "\\pi", "i", "e",
    ]),
    max_size=14,
).map("".join)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(
    texts=st.lists(LATEX, min_size=1, max_size=3),
    gold=st.sampled_from(["x+1", r"2\sqrt{3}", "(1,2)", "x=1, x=2", r"\frac{x}{y}"]),
)
def test_no_latex_makes_it_raise(texts: list[str], gold: str) -> None:
    found = paid(texts, gold)
    assert set(found) <= {0.0, 1.0} and [paid([text], gold)[0] for text in texts] == found


def test_hostile_expressions_cost_a_bounded_time_and_no_other_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(algebra, "PAIR_SECONDS", 0.3)
    monkeypatch.setattr(module, "BATCH_SECONDS", 2.0)
    texts = [f"{text}+{i}" for i in range(4) for text in HARD] + [f"{i}+x" for i in range(8)]
    assert works()  # which starts the worker
    starts = []
    start = algebra._started
    monkeypatch.setattr(algebra, "_started", lambda budget: starts.append(1) or start(budget))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert paid(texts, "x+3") == [None] * 16 + [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    # Each of them ends its worker and costs 0.3 s of the two: 7 at most, however busy the machine is.
    assert 1 <= len(starts) <= 7
    monkeypatch.setattr(module, "BATCH_SECONDS", 0.5)
    with pytest.warns(RuntimeWarning, match=r"longest expressions are not scored \(None\)"):
        assert paid([f"{HARD[0]}+{i}" for i in range(100, 104)], "x+3") == [None] * 4


def test_pair_beyond_its_time_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algebra, "PAIR_SECONDS", 0.001)
    assert paid(["(x+2)^{2}-7"], "x^{2}+4x-3") == [None]
    monkeypatch.setattr(algebra, "PAIR_SECONDS", 10.0)
    assert paid(["(x+2)^{2}-7"], "x^{2}+4x-3") == [1.0]


def test_right_answer_is_scored_beside_an_undecided_gold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algebra, "PAIR_SECONDS", 0.3)
    assert maths()(
        completions=[slot(HARD[0]), slot("y+1")], answer=[["x+8", HARD[0]], ["x+8"]]
    ) == [1.0, 0.0]


def test_pair_time_is_processor_time_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algebra, "PAIR_SECONDS", 1.0)
    assert works()
    worker = algebra._worker
    os.kill(worker.pid, signal.SIGSTOP)  # it gets no processor for longer than the pair may take
    threading.Timer(1.6, os.kill, (worker.pid, signal.SIGCONT)).start()
    assert works()
    assert algebra._worker is worker


def test_worker_that_waits_for_ever_ends_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose judge sleeps, and whose clock is as short as its processor time."""
    script = (
        "from grpo_nb.rewards import algebra\nimport time\nalgebra._CLOCK_PER_PROCESSOR_TIME = 1\n"
    )
    script += (
        "algebra._judge = lambda gold, given: gold == 'slow' and time.sleep(60)\nalgebra._serve()"
    )
    started = functools.partial(subprocess.Popen, [sys.executable, "-c", script])
    monkeypatch.setattr(algebra, "_worker", None)
    monkeypatch.setattr(algebra.subprocess, "Popen", lambda command, **options: started(**options))
    budget = algebra.Budget(60.0)
    assert algebra.is_equal("slow", "x", budget) is False
    assert budget.has_undecided


def test_only_so_many_pairs_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algebra, "_MOST_REMEMBERED", 3)
    monkeypatch.setattr(algebra, "_cache", {})
    golds = [f"x+{number}" for number in range(200, 205)]
    for gold in [*golds[:3], golds[0], *golds[3:]]:
        paid([f"y+{gold}"], f"{gold}+y")
    remembered = [gold.removesuffix("+y") for gold, _ in algebra._cache]
    assert remembered == [golds[0], golds[3], golds[4]]


def test_one_completion_is_scored_as_in_a_batch() -> None:
    reward = maths()
    assert reward.score_text(slot("1+x"), {"answer": "x+1"}) == 1.0
    assert reward.score_text(slot("2+x"), {"answer": "x+1"}) == 0.0
    assert reward.score_text(slot("2+x"), {"answer": ""}) is None


def test_limits_hold_off_the_main_thread_and_threads_do_not_mix_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(algebra, "PAIR_SECONDS", 0.3)

    def work(number: int) -> list[float | None]:
        return paid([f"{number}+x", f"{HARD[0]}+{number + 50}", f"x+{number + 1}"], f"x+{number}")

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(work, range(4), timeout=60)] == [[1.0, None, 0.0]] * 4


def test_a_worker_that_was_killed_forked_away_or_ran_out_of_memory_is_replaced() -> None:
    assert works()
    os.killpg(algebra._worker.pid, signal.SIGKILL)
    algebra._worker.wait()
    assert works()
    child = os.fork()
    if child == 0:
        os._exit(0 if works() else 1)
    assert os.waitpid(child, 0)[1] == 0 and works()
    # 10^9 terms would be gigabytes; whatever stops it first, the next answer comes.
    assert paid([r"\binom{999999999}{499999999}x"], "x+1") in ([0.0], [None]) and works()
    assert pickle.loads(pickle.dumps(maths()))(completions=[slot("a+m")], answer=["m+a"]) == [1.0]


def _processes_of(session: int) -> list[str]:
    """Every live process of a session, from /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="needs /proc to see which processes are left"
)
@pytest.mark.parametrize(
    "ending", ["", "import os; os.kill(os.getpid(), 9)"], ids=["exit", "killed"]
)
def test_nothing_is_left_when_the_interpreter_goes(ending: str) -> None:
    code = (
        "import sys\nfrom grpo_nb.rewards import maths\n"
        "assert maths()(completions=['<answer>1+x</answer>'], answer=['x+1']) == [1.0]\n"
        f"print(sys.modules['grpo_nb.rewards.algebra']._worker.pid, flush=True)\n{ending}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    session = int(done.stdout)
    end = time.monotonic() + 10
    while _processes_of(session) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _processes_of(session)
