"""The maths reward: equal expressions are equal, one answer is one answer, and nothing a model writes holds it up."""

import importlib
import os
import pickle
import signal
import subprocess
import sys
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

module = importlib.import_module("grpo_nb.rewards.maths")  # as an attribute of the package it is the class
HARD = [
    r"((x+1)(x-1))^{512}",
    r"(x+y+z+w)^{99}",
    r"\sin(x)^{77}\cos(x)^{77}(x+1)^{200}",
    r"(x^{97}+1)^{89}+(x^{89}+1)^{97}",
]


def score(given_answer: str, gold: object, **columns: object) -> float | None:
    extra = {key: [value] for key, value in columns.items()}
    return maths()(completions=[f"<answer>{given_answer}</answer>"], answer=[gold], **extra)[0]


# Forms that the table of labelled answers has not.
@pytest.mark.parametrize(
    ("given_answer", "gold"),
    [
        ("-3 > x or x > 3", "x < -3 or x > 3"),
        (r"(-\infty, -3) \cup (3, \infty)", "x < -3 or x > 3"),
        ("x ≥ 4 or x ≤ 1", "(-∞, 1] \u222a [4, ∞)"),
        ("(x,y) = (1, 2)", "x=1, y=2"),
        # A slash fraction before a letter, the imaginary unit, an equation turned round, a function's name, a unit.
        ("2/3\u03c0", r"\frac{2\pi}{3}"),
        ("1/2 x + 2", r"\frac{x}{2}+2"),
        (r"\frac{3}{4}x", "3/4x"),
        ("i^5", "i"),
        ("(1+i)^2", "2i"),
        ("2=x", "x=2"),
        ("f(x) = 2x+1", "y = 2x+1"),
        (r"5\sqrt3 \text{ cm}", r"5\sqrt{3}"),
        (r"\sqrt{75}", r"5\sqrt{3}\text{ cm}"),
    ],
)
def test_equal_forms_are_paid(given_answer: str, gold: str) -> None:
    assert score(given_answer, gold) == 1.0


@pytest.mark.parametrize(
    ("given_answer", "gold"),
    [
        (r"\text{not} (x+1)", "x+1"),
        ("1 2 3 4", "10"),
        ("x+1=42", "42"),
        ("0.0000001", r"10^{-8}\pi"),
        (r"x+1 \quad x+2", "x+1"),
        ("1 \\quad x+1", "x+1"),
        (r"\boxed{x+2}\boxed{x+1}", "x+1"),
        ("x<3, x>3", "x>3"),
        ("x+1}", "x+1"),
        ("[1,2]", "(1,2)"),
        ("Pairs", "Paris"),
        (r"\infty - \infty", "x+1"),
        (r"\frac{x}{0}", "x+1"),
        ("2", r"so \boxed{1} or \boxed{2}"),
        ("2, 1", "x = 1, y = 2"),
        ("x < -3 and x > 3", "x < -3 or x > 3"),
        ("x > 2 or x < 5", "x > 2 and x < 5"),
        ("x > 0 or y > 0", "x > 0 and y > 0"),
        ("x > 2 and x = -1", "x > 2 or x = -1"),
        ("(2, 5)", "2 < x < 5 or x = 7"),
        ("x_1 = -3, x_2 = 7", "x_1 = 7, x_2 = -3"),
        ("20", "20N"),
        ("2", "2 x y z"),
        ("0", "no solution"),
        ("no solution", "0"),
        (r"\frac{3}{4x}", "3/4x"),
        ("f(x) = 2x-1", "y = 2x+1"),
        (r"5\sqrt{3}\text{ m}", r"5\sqrt{3}\text{ cm}"),
        (r"5\sqrt{3} \text{ is wrong}", r"5\sqrt{3}"),
        # What is no expression is not computed.
        ("2016", "2025-06-03"),
        ("2/2024", "12/6/2024"),
        ("4 h 10 min", "2 h 20 min"),
        ("['a', 'c-b']", "['a', 'b-c']"),
        ("x+1" + "+0" * 300, "1+x"),
    ],
)
def test_what_is_not_one_right_answer_is_not_paid(given_answer: str, gold: str) -> None:
    assert score(given_answer, gold) == 0.0


JOINTS = [
    " or ", ", ", ",", " = ", r" \text{ or } ", "; ", r" \lor ", r" \quad ", "\n", " ", "/", ":", r"\,", "~",
    " & ", ")(", r"\\",
]  # fmt: skip


@pytest.mark.parametrize("joint", JOINTS)
@pytest.mark.parametrize("wrong", ["x+2", "7", "y", "x", "41x"])
def test_a_second_answer_beside_the_right_one_is_a_hedge(wrong: str, joint: str) -> None:
    assert score(f"x+1{joint}{wrong}", "x+1") == 0.0
    # `y = x+1` names the answer, as `f = x+1` would.
    assert score(f"{wrong}{joint}x+1", "x+1") == float(wrong == "y" and joint == " = ")


def test_copied_from_the_question() -> None:
    asked = [{"role": "user", "content": r"Simplify $2x + 3x$."}]
    assert score("2x+3x", "5x", prompts=asked) == 0.0
    assert score("2x+3x", "5x") == 1.0  # where the question is not known, this cannot be seen
    assert score("5x", "5x", prompts=asked) == score("2x+3x", "2x + 3x", prompts=asked) == 1.0


def test_beside_trl() -> None:
    reward = maths(format=formats.boxed())
    texts = [r"\boxed{\frac{1}{3}}", r"\boxed{\frac{1}{2}}", "\\boxed{41 = 42}", r"\boxed{42 \text{ is wrong}}"]
    chats, gold = (
        [[{"role": "assistant", "content": text}] for text in texts],
        [r"\frac{1}{3}", r"\frac{1}{3}", "42", "42"],
    )
    assert accuracy_reward(chats, gold) == [1.0, 0.0, 1.0, 1.0], "TRL has mended this: say so in maths()"
    assert reward(completions=chats, answer=gold) == [1.0, 0.0, 0.0, 0.0]


def test_gold_answers_of_all_kinds() -> None:
    assert score("x+1", r"The sum is $\boxed{1+x}$, so we are done.") == score("x+1", ["x+2", "1+x"]) == 1.0
    assert score("7", None) is None


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
    completions = [f"<answer>{text}</answer>" for text in texts]
    found = maths()(completions=completions, answer=[gold] * len(texts))
    assert set(found) <= {0.0, 1.0}
    assert [maths()(completions=[c], answer=[gold])[0] for c in completions] == found


def test_hostile_expressions_cost_a_bounded_time_and_no_other_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algebra, "PAIR_SECONDS", 0.3)
    monkeypatch.setattr(module, "BATCH_SECONDS", 4.0)
    texts = [f"<answer>{text}+{i}</answer>" for i in range(4) for text in HARD] + [
        f"<answer>{i}+x</answer>" for i in range(8)
    ]
    score("z+1", "1+z")  # starts the worker
    start = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = maths()(completions=texts, answer=["x+3"] * 24)
    assert time.monotonic() - start < 4 + 6
    assert found == [0.0] * 16 + [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_a_batch_that_runs_out_of_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_SECONDS", 0.5)
    hostile = [f"<answer>{HARD[0]}+{i}</answer>" for i in range(100, 104)]
    with pytest.warns(RuntimeWarning, match=r"left unjudged, score 0.0"):
        assert maths()(completions=hostile, answer=["x+3"] * 4) == [0.0] * 4


def test_limits_hold_off_the_main_thread_and_threads_do_not_mix_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algebra, "PAIR_SECONDS", 0.3)
    monkeypatch.setattr(module, "BATCH_SECONDS", 30.0)  # the others' time counts, too

    def work(number: int) -> list[float | None]:
        texts = [f"<answer>{a}</answer>" for a in (f"{number}+x", f"{HARD[0]}+{number + 50}", f"x+{number + 1}")]
        return maths()(completions=texts, answer=[f"x+{number}"] * 3)

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(work, range(4), timeout=60)] == [[1.0, 0.0, 0.0]] * 4


def test_a_killed_worker_is_replaced() -> None:
    assert score("a+b", "b+a") == 1.0
    os.killpg(algebra._worker.pid, signal.SIGKILL)
    algebra._worker.wait()
    assert score("a+c", "c+a") == 1.0


def test_a_fork_of_this_process_starts_its_own_worker() -> None:
    assert score("a+d", "d+a") == 1.0
    child = os.fork()
    if child == 0:
        os._exit(0 if score("a+f", "f+a") == 1.0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert score("a+g", "g+a") == 1.0


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


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see which processes are left")
@pytest.mark.parametrize("ending", ["", "import os; os.kill(os.getpid(), 9)"], ids=["exit", "killed"])
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


def test_memory_is_limited_too() -> None:
    # 10^9 terms would be gigabytes; whatever stops it first, the next answer comes.
    assert score(r"\binom{999999999}{499999999}x", "x+1") == 0.0
    assert score("h+1", "1+h") == 1.0


def test_pickled_without_its_process() -> None:
    assert score("a+k", "k+a") == 1.0
    assert pickle.loads(pickle.dumps(maths()))(completions=["<answer>a+m</answer>"], answer=["m+a"]) == [1.0]
