"""The maths reward: equal expressions are equal, one answer is one answer, and nothing a model writes holds it up."""

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

import grpo_nb as gn
from grpo_nb.rewards import expressions
from grpo_nb.rewards.expressions import maths
from grpo_nb.tasks import formats

HARD = [
    r"((x+1)(x-1))^{512}",
    r"(x+y+z+w)^{99}",
    r"\sin(x)^{77}\cos(x)^{77}(x+1)^{200}",
    r"(x^{97}+1)^{89}+(x^{89}+1)^{97}",
]


NO_SOLUTION = ["\u2205", "{}", r"\{\}", "no solution", "No real solutions", r"x \in \emptyset"]


def score(given_answer: str, gold: object, **columns: object) -> float | None:
    extra = {key: [value] for key, value in columns.items()}
    return maths()(completions=[f"<answer>{given_answer}</answer>"], answer=[gold], **extra)[0]


@pytest.mark.parametrize(
    ("given_answer", "gold"),
    [
        ("1+x", "x+1"),
        ("x+1", "1 + x"),
        (r"\frac{1}{2}", "0.5"),
        ("0.5", r"\frac12"),
        (r"\sqrt{12}", r"2\sqrt{3}"),
        ("x**2 - 1", "x^2-1"),
        ("(x-1)(x+1)", "x^2-1"),
        (r"\{2, 1\}", r"\{1, 2\}"),
        ("-1, 1", "1,-1"),
        ("(1, 2)", r"\left(1,2\right)"),
        (r"\left(\frac{1}{2}, 3\right)", r"(\frac12,3)"),
        ("[0,1)", "[0, 1)"),
        (r"(-\infty, 2) \cup (2, \infty)", r"(-\infty,2)\cup(2,\infty)"),
        ("x > 3", "x>3"),
        ("3 < x", "x > 3"),
        ("y = 2x + 1", "2x+1"),
        ("2x+1", "y=2x+1"),
        ("x = 42", "42"),
        ("3.141593", r"\pi"),
        ("2\u03c0", r"2\pi"),
        ("\u221a3", r"\sqrt{3}"),
        (r"\boxed{x+1}", "x+1"),
        ("$x+1$", "x+1"),
        (r"\(x+1\)", "x+1"),
        ("50", r"50\%"),
        (r"50\%", r"50\%"),
        ("5 cm", r"5\text{ cm}"),
        ("2 hours", "2hr"),
        ("5 dollars", "\\$5"),
        ("90", r"90^\circ"),
        (r"90^{\circ}", r"90^\circ"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"),
        (r"\text{Even}", "even"),
        ("x=2, x=1", "x=1, x=2"),
        (r"x \cdot y", "xy"),
        ("2yx", "2xy"),
        (r"e^{x}+e^{x}", r"2e^x"),
        (r"\log 8 + 1", r"1+\log(8)"),
        ("1 - 2i", "-2i + 1"),
        *(
            (number, f"{number} {unit}")
            for number, unit in zip("2345678", ("N", "J", "V", "K", "°C", "Pa", "%"), strict=True)
        ),
        ("-3 > x or x > 3", "x < -3 or x > 3"),
        (r"(-\infty, -3) \cup (3, \infty)", "x < -3 or x > 3"),
        ("x ≥ 4 or x ≤ 1", "(-∞, 1] \u222a [4, ∞)"),
        ("2 < x < 5", "x > 2 and x < 5"),
        ("(2; 5)", "x > 2 and x < 5"),
        ("x > 2, x < 5", "2 < x < 5"),
        ("x = -3 or x = 7", "x_1 = 7, x_2 = -3"),
        ("x1 = 7, x2 = -3", "x_1 = 7, x_2 = -3"),
        ("x_1 = 9, x_2 = -1", "{-1; 9}"),
        *((a, b) for a in NO_SOLUTION for b in NO_SOLUTION),
    ],
)
def test_equal_forms_are_paid(given_answer: str, gold: str) -> None:
    assert score(given_answer, gold) == 1.0


@pytest.mark.parametrize(
    ("given_answer", "gold"),
    [
        (r"x+1 \text{ is wrong}", "x+1"),
        (r"\text{not} (x+1)", "x+1"),
        ("41 = 42", "42"),
        (r"42 \text{ is wrong}", "42"),
        ("42 is wrong", "42"),
        ("41 or 42", "42"),
        ("41, 42", "42"),
        (r"41 \lor 42", "42"),
        (r"41 \text{ or } 42", "42"),
        (r"\{41, 42\}", "42"),
        (r"\pm 42", "42"),
        ("1 2 3 4", "10"),
        ("23+19", "42"),
        ("6 \\cdot 7", "42"),
        ("2^{10}", "1024"),
        ("x+1=42", "42"),
        ("x = 41 = 42", "42"),
        ("0", r"10^{-8}\pi"),
        ("0.0000001", r"10^{-8}\pi"),
        ("0.33", "1/3"),
        (r"42\%", "42"),
        ("5 km", r"5\text{ cm}"),
        ("x+2 = x+1", "x+1"),
        ("x+1 or x+2", "x+1"),
        (r"x+1 \\ x+2", "x+1"),
        (r"x+1 \quad x+2", "x+1"),
        ("x+1; x+2", "x+1"),
        ("x+1 | x+2", "x+1"),
        ("x+1\nx+2", "x+1"),
        (r"x+2 \to x+1", "x+1"),
        (r"x+2 \neq x+1", "x+1"),
        (r"x+2 \approx x+1", "x+1"),
        ("x+1?", "x+1"),
        ("not x+1", "x+1"),
        (r"\text{not } x+1", "x+1"),
        (r"\boxed{x+2}\boxed{x+1}", "x+1"),
        ("x<3, x>3", "x>3"),
        ("x < 3", "x > 3"),
        ("x+1}", "x+1"),
        ("(2,1)", "(1,2)"),
        ("[1,2]", "(1,2)"),
        ("1,2,3", "1,2"),
        ("Pairs", "Paris"),
        ("on", "no"),
        (r"\infty - \infty", "x+1"),
        (r"\frac{x}{0}", "x+1"),
        ("f(x)", "x+1"),
        ("25", "25 December"),
        ("20 m", "20 cm"),
        ("0.4", "12:30"),
        ("204", "204_5"),
        ("(3,1)", r"\{1,3\}"),
        ("x < 5 e 7", "x<5"),
        ("2", r"so \boxed{1} or \boxed{2}"),
        ("2, 1", "x = 1, y = 2"),
        ("1 \\quad x+1", "x+1"),
        ("x < -3 and x > 3", "x < -3 or x > 3"),
        ("x > 2 or x < 5", "x > 2 and x < 5"),
        ("x > 0 or y > 0", "x > 0 and y > 0"),
        ("x > 2 and x = -1", "x > 2 or x = -1"),
        ("(-∞, -3] \u222a [3, ∞)", "x < -3 or x > 3"),
        ("(2, 5)", "2 < x < 5 or x = 7"),
        ("x_1 = -3, x_2 = 7", "x_1 = 7, x_2 = -3"),
        ("-3, 7", "x_1 = 7, x_2 = -3"),
        ("y = 7 or y = -3", "x_1 = 7, x_2 = -3"),
        ("20 s", "20 m"),
        ("2500 g", "2.5·10³ kg"),
        ("20", "20N"),
        ("20", "x = 20N"),
        ("2", "2 x y z"),
        ("0", "no solution"),
        ("no solution", "0"),
    ],
)
def test_what_is_not_one_right_answer_is_not_paid(given_answer: str, gold: str) -> None:
    assert score(given_answer, gold) == 0.0


def test_copied_from_the_question() -> None:
    asked = [{"role": "user", "content": r"Simplify $2x + 3x$."}]
    assert score("2x+3x", "5x", prompts=asked) == 0.0
    assert score("2x+3x", "5x") == 1.0  # where the question is not known, this cannot be seen
    assert score("5x", "5x", prompts=asked) == 1.0
    assert score("2x+3x", "2x + 3x", prompts=asked) == 1.0  # the gold answer itself


def test_same_numbers_as_trl_on_its_documented_examples() -> None:
    ours = maths(format=formats.boxed(), column="solution")
    texts = [r"My answer is \boxed{\frac{1}{3}}", r"My answer is \boxed{\frac{1}{2}}"]
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    gold = [r"\frac{1}{3}"] * 2
    assert ours(completions=chats, solution=gold) == accuracy_reward(chats, gold) == [1.0, 0.0]


@pytest.mark.parametrize("text", ["41 = 42", r"42 \text{ is wrong}"])
def test_where_trl_pays_for_nonsense_we_do_not(text: str) -> None:
    chat = [[{"role": "assistant", "content": rf"\boxed{{{text}}}"}]]
    assert accuracy_reward(chat, ["42"]) == [1.0], "TRL has mended this: say so in maths()"
    assert maths(format=formats.boxed())(completions=chat, answer=["42"]) == [0.0]


def test_gold_answers_of_all_kinds() -> None:
    assert score("x+1", r"The sum is $\boxed{1+x}$, so we are done.") == 1.0
    assert score("x+1", ["x+2", "1+x"]) == 1.0
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


def test_hostile_expressions_cost_a_bounded_time_and_no_other_answer() -> None:
    hostile = [f"<answer>{text}+{i}</answer>" for i in range(4) for text in HARD]
    honest = [f"<answer>{i}+x</answer>" for i in range(8)]
    reward = maths(seconds=0.3, batch_seconds=4)
    reward(completions=["<answer>z+1</answer>"], answer=["1+z"])  # starts the worker
    start = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = reward(completions=hostile + honest, answer=["x+3"] * 24)
    assert time.monotonic() - start < 4 + expressions._GRACE_SECONDS + 4
    assert found == [0.0] * 16 + [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_a_batch_that_runs_out_of_time_says_so() -> None:
    hostile = [f"<answer>{HARD[0]}+{i}</answer>" for i in range(100, 104)]
    with pytest.warns(RuntimeWarning, match=r"left unjudged and score 0.0"):
        assert maths(seconds=5, batch_seconds=0.5)(completions=hostile, answer=["x+3"] * 4) == [0.0] * 4


def test_limits_hold_off_the_main_thread_and_threads_do_not_mix_answers() -> None:
    def work(number: int) -> list[float | None]:
        answers = (f"{number}+x", f"{HARD[0]}+{number + 50}", f"x+{number + 1}")
        texts = [f"<answer>{answer}</answer>" for answer in answers]
        return maths(seconds=0.3)(completions=texts, answer=[f"x+{number}"] * 3)

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(work, range(4), timeout=60)] == [[1.0, 0.0, 0.0]] * 4


def test_a_killed_worker_is_replaced() -> None:
    assert score("a+b", "b+a") == 1.0
    os.killpg(expressions._worker.pid, signal.SIGKILL)
    expressions._worker._process.wait()
    assert score("a+c", "c+a") == 1.0


def test_a_fork_of_this_process_starts_its_own_worker() -> None:
    assert score("a+d", "d+a") == 1.0
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, b"1" if score("a+f", "f+a") == 1.0 else b"0")
            expressions.stop_worker()
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 1) == b"1"
    os.waitpid(child, 0)
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
        "from grpo_nb.rewards import expressions, maths\n"
        "assert maths()(completions=['<answer>1+x</answer>'], answer=['x+1']) == [1.0]\n"
        f"print(expressions._worker.pid, flush=True)\n{ending}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    session = int(done.stdout)
    end = time.monotonic() + 10
    while _processes_of(session) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _processes_of(session)


def test_the_limit_of_a_pair_is_processor_time_kept_by_the_kernel() -> None:
    # A minute of waiting is allowed here: only the limit on processor time can end this sooner.
    code = f"from grpo_nb.rewards import maths_worker as w\nprint(w._Child().ask('x+1', {HARD[0]!r}, 0.2, 60.0))"
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "None"
    assert time.monotonic() - start < 40


def test_memory_is_limited_too() -> None:
    # 10^9 terms would be gigabytes; whatever stops it first, the next answer comes.
    assert score(r"\binom{999999999}{499999999}x", "x+1") == 0.0
    assert score("h+1", "1+h") == 1.0


def test_pickled_without_its_process() -> None:
    assert score("a+k", "k+a") == 1.0
    copy = pickle.loads(pickle.dumps(maths(seconds=0.2)))
    assert copy.seconds == 0.2 and copy(completions=["<answer>a+m</answer>"], answer=["m+a"]) == [1.0]


@pytest.mark.parametrize("limits", [{"seconds": 0}, {"batch_seconds": -1}, {"seconds": float("nan")}])
def test_limits_must_be_seconds(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="seconds"):
        maths(**limits)


def test_without_a_fork_nothing_is_judged_and_it_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    expressions.stop_worker()
    monkeypatch.delattr(os, "fork")
    with pytest.raises(gn.machine.EnvironmentProblem, match=r"needs Linux, macOS or WSL 2.*rewards\.correctness"):
        score("a+b+q", "b+q+a")
    assert score("42.0", "42") == 1.0, "plain numbers need no computer algebra"
