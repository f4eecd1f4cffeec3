"""The code reward pays for hidden tests that pass, for nothing else, and finds bad tests before training."""

import math
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_nb.rewards.code import code_tests, extract_code
from grpo_nb.rewards.hidden_tests import read_tests
from grpo_nb.sandbox.jobs import Limits
from grpo_nb.tasks import formats
from tests.rewards.cases import QUICK, TABLES, Case

_, CASES = TABLES["code_tests"]
ADD = [{"call": "add", "args": [1, 2], "expected": 3}]


def slot(code: str) -> str:
    return f"<answer>\n{code}\n</answer>"


def score(code: str, tests: Any, **more: Any) -> float:
    (value,) = code_tests(limits=QUICK, **more)(completions=[slot(code)], tests=[tests])
    return value


@pytest.fixture(scope="module")
def scores() -> dict[str, float]:
    tests = [case.columns["tests"] for case in CASES]
    values = code_tests(limits=QUICK)(completions=[case.completion for case in CASES], tests=tests)
    return dict(zip([case.label for case in CASES], values, strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_cases(case: Case, scores: dict[str, float]) -> None:
    assert scores[case.label] == case.expected


def test_one_by_one_is_as_all_at_once_and_again(scores: dict[str, float]) -> None:
    reward = code_tests(limits=QUICK)
    assert [case.score(reward) for case in CASES] == list(scores.values())
    assert [reward.score_text(case.completion, dict(case.columns)) for case in CASES] == list(scores.values())


def test_strings_and_chat_messages_score_alike() -> None:
    texts = [slot("def add(a, b): return a + b"), "no code"]
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    reward = code_tests()
    assert reward(completions=texts, tests=[ADD] * 2) == reward(completions=chats, tests=[ADD] * 2) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (slot("x = 1"), "x = 1"),
        ("<answer>```python\nx = 1\n```</answer>", "x = 1\n"),
        ("<answer>\nsee:\n```py\nx = 1\n```\nor\n```Python\nx = 2\n```\n</answer>", "x = 2\n"),
        ("```bash\nls\n```\n```python\nx = 1\n```\n```text\nout\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("  ```python\n  x = 1\n  ```", "  x = 1\n"),
        ("```python\nx = 1\n```\n<answer>y = 2</answer>", "y = 2"),
        ("```python\nx = 1\n```\n<answer>", None),
        ("<answer>x = 1</answer><answer>x = 2</answer>", None),
        ("<answer>```python\nx = 1</answer>", None),
        ("x = 1", None), ("", None), ("```python\nx = 1", None), ("```", None),
    ],
)  # fmt: skip
def test_where_the_code_is_taken_from(text: str, code: str | None) -> None:
    assert extract_code(text, formats.xml()) == code


def test_needs_slot_and_other_formats() -> None:
    block = "```python\ndef add(a, b): return a + b\n```"
    assert code_tests()(completions=[block], tests=[ADD]) == [1.0]
    assert code_tests(needs_slot=True)(completions=[block], tests=[ADD]) == [0.0]
    thinking = f"why</think>\n{slot('def add(a, b): return a + b')}"
    assert code_tests(format=formats.think_answer())(completions=[thinking], tests=[ADD]) == [1.0]


@pytest.mark.parametrize(
    ("test", "right", "wrong"),
    [
        ("assert f(1) == 2", "lambda x: 2", "lambda x: 3"),
        ("assert f(1) == 2", "lambda x: 2.0", "lambda x: '2'"),  # as == says
        ("assert 2 == f(1), 'message'", "lambda x: 2", "lambda x: 1"),
        ("assert f([1, 2], k={'a': (1,)}) == {'a': (1,)}", "lambda x, k: k", "lambda x, k: x"),
        ("assert f(-1) is None", "lambda x: None", "lambda x: 0"),
        ("assert f(1) is True", "lambda x: True", "lambda x: 1"),
        ("assert f(1) == True", "lambda x: 1", "lambda x: 2"),
        ("assert f(1)", "lambda x: [0]", "lambda x: []"),
        ("assert not f(1)", "lambda x: ''", "lambda x: 'a'"),
        ("assert f(1) != 2", "lambda x: 3", "lambda x: 2"),
        ("assert set(f(1)) == set([2, 1])", "lambda x: [1, 2, 2]", "lambda x: [1]"),
        ("assert sorted(f(1)) == [1, 2]", "lambda x: (2, 1)", "lambda x: 5"),
        ("assert abs(f(1) - 2.5) < 0.01", "lambda x: 2.501", "lambda x: 2.6"),
        ("assert abs(2.5 - f(1)) <= 1e-1", "lambda x: 2.59", "lambda x: float('nan')"),
        ("assert math.isclose(f(1), 2.5, rel_tol=0.1)", "lambda x: 2.6", "lambda x: 'a'"),
        ("assert Solution().go(1) == 2", "0\nclass Solution:\n    def go(self, x): return 2", "0"),
        ({"call": "f", "args": [1], "expected": 2}, "lambda x: 2", "lambda x: 2.0"),  # type and value
        ({"call": "f", "args": [1], "expected": None}, "lambda x: None", "lambda x: 0"),
        ({"call": "f", "kwargs": {"x": 1}, "expected": [1]}, "lambda x: [x]", "lambda x: (x,)"),
        ({"call": "f", "args": [1], "expected": 1.0, "tolerance": 0.1}, "lambda x: 1.05", "lambda x: 1.2"),
        ({"call": "f", "args": [1], "expected": 2, "stdin": None, "stdout": None}, "lambda x: 2", "lambda x: 1"),
        ('{"call": "f", "args": [1], "expected": 2}', "lambda x: 2", "lambda x: 1"),
        ("assert f(1) == 2\nassert f(2) == 2", "lambda x: 2", "lambda x: 1"),
        ("assert list(f(3)) == [0, 1, 2]", "range", "lambda n: range(2)"),
        ("assert sorted(f(3)) == [0, 1, 2]", "lambda n: (i for i in range(n))", "lambda n: map(str, range(n))"),
        ("assert len(f(3)) == 3", "lambda n: __import__('collections').deque('abc')", "lambda n: iter('abc')"),
        ("assert f(3) == [0, 1, 2]", "lambda n: [*range(n)]", "range"),  # as == says
        ("assert f(1) == 0.5", "lambda x: __import__('decimal').Decimal('0.5')", "lambda x: '0.5'"),
        ("assert sum(f(1)) == 1", "lambda x: [__import__('fractions').Fraction(1, 3)] * 3", "lambda x: iter([])"),
        ("assert f(list(range(6)), 'ab' * 2) == [0] * 2 + [4]", "lambda n, s: [0, 0, len(s)]", "lambda n, s: [0, 4]"),
        ("assert f([[0] * 3, 2**10 - 1]) == 10**9 + 7", "lambda x: 10**6 * 10**3 + 7 * len(x[0]) // 3", "lambda x: 7"),
        ({"call": "f", "expected": 0.3, "tolerance": 0.1}, "lambda: __import__('fractions').Fraction(1, 3)", "lambda: 1j"),
    ],
)  # fmt: skip
def test_what_a_test_means(test: Any, right: str, wrong: str) -> None:
    is_json = isinstance(test, str) and test.startswith("{")
    for tests in [test] if is_json else [test, [test]]:
        assert score(f"f = {right}", tests) == 1.0
        assert score(f"f = {wrong}", tests) == 0.0


def test_programs() -> None:
    tests = [{"stdin": "3 4\n", "stdout": "7"}, {"stdin": "1 1\n", "stdout": "2\n"}, {"stdin": "2 2\n", "stdout": "4"}]
    assert score("a, b = map(int, input().split())\nprint(a + b, ' ')", tests) == 1.0  # white space at the end is free
    assert score("print(7)", tests) == pytest.approx(1 / 3)
    assert score("print(7)\nprint(2)", tests) == 0.0
    assert score("print(7)\nraise ValueError", tests) == 0.0
    slow = "a = int(input().split()[0])\nwhile a == 1: pass\nprint(a * 2 + (a == 3))"
    assert score(slow, tests) == pytest.approx(1 / 3), "the first; the others have no time left"
    assert score("import os\nos.write(1, b'7\\n')\nos._exit(0)", tests) == 0.0  # it ended before its end


def test_partial_credit_and_all_or_nothing() -> None:
    tests = [f"assert f({n}) == {n}" for n in range(4)]
    assert score("def f(n): return n if n < 3 else 1 / 0", tests) == 0.75
    assert score("def f(n): return n if n < 3 else 1 / 0", tests, all_or_nothing=True) == 0.0
    assert score("def f(n): return n", tests, all_or_nothing=True) == 1.0


def test_hash_collisions_do_not_reach_a_set_of_ours() -> None:
    started = time.monotonic()
    value = score("def f(): return [n * (2**61 - 1) for n in range(1, 8000)]", ["assert set(f()) == {1}"])
    assert value == 0.0 and time.monotonic() - started < 5


def test_many_open_fences_are_read_in_time() -> None:
    started = time.monotonic()
    assert extract_code("```python\n" * 50_000, formats.xml()) is None
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        (["assert f(x) == 2"], r"'assert f\(x\) == 2'.*Write both out"),
        (["assert f(1) == g(2)"], "Write both out"), (["assert f(1) < 3"], "Write both out"),
        (["assert f(1) and g(2)"], "Write both out"), (["x = 1"], "no assert"), (["assert 1 == 1"], "no call"),
        (["assert f(*[1]) == 1"], "Write both out"), (["assert f(**{'a': 1}) == 1"], "not a value"),
        (["assert f(1) is 5"], "identity"), (["assert f(1)("], "not Python"), (["import os"], "no assert"),
        ([], "no tests"), ("", "no tests"), (5, "list of tests"), (None, "list of tests"), ([5], "no assert"),
        ([{"call": "f"}], "keys"), ([{"call": "f", "args": [], "expcted": 1}], "keys"),
        ([{"stdin": "a"}], "stdout"), ([{"call": "f(1)", "expected": 1}], "not a function"), ("[1", "not"),
        ([{}], "keys"), (["assert f([0] * 10**9) == 1"], "more than"), (["assert f(10**10**9) == 1"], "more than"),
        (["assert f(range(10**9)) == 1"], "more than"), (["assert f(1) == 'a' - 1"], "Write both out"),
        (["assert f(x for x in y) == 1"], "is no value.*Write both out"),
    ],
)  # fmt: skip
def test_bad_tests_are_errors_with_the_fix(tests: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_tests(tests)
    with pytest.raises(ValueError, match=f"row 1: .*{said}"):
        code_tests().check([{"tests": ADD}, {"tests": tests}])


def test_tests_are_read_and_never_run(tmp_path: Any) -> None:
    target = tmp_path / "ran"
    with pytest.raises(ValueError):
        read_tests([f"assert open({str(target)!r}, 'w') == f(1)", f"open({str(target)!r}, 'w')"])
    assert not target.exists()


def test_check_counts_and_a_missing_column_says_what_to_write() -> None:
    assert code_tests().check([{"tests": ADD}, {"tests": ["assert f(1) == 1", "assert f(2) == 2"]}]) == 3
    with pytest.raises(ValueError, match=r"row 1: .*So it is with 2 more rows: 2, 4\."):
        code_tests().check([{"tests": tests} for tests in (ADD, ["x"], "x = 1", ADD, ["assert 1"])])
    with pytest.raises(ValueError, match=r"needs the data column 'cases'.*column="):
        code_tests(column="cases")(completions=["x"], tests=[ADD])


def test_a_batch_with_a_loop_costs_its_limit_once() -> None:
    reward = code_tests(limits=Limits(cpu_seconds=1.0))
    loop, good = slot("def add(a, b):\n    while True: pass"), slot("def add(a, b): return a + b")
    started = time.monotonic()
    values = reward(completions=[loop, *[good] * 15], tests=[ADD * 5] * 16)
    assert values == [0.0] + [1.0] * 15 and time.monotonic() - started < 5


def test_picklable_named_and_weighted_also_after_use() -> None:
    reward = code_tests(weight=3.0, name="mbpp", column="cases", all_or_nothing=True)
    completions, cases = [slot("def add(a, b): return a + b")], [ADD]
    assert reward(completions=completions, cases=cases) == [1.0]
    copy = pickle.loads(pickle.dumps(reward))
    assert copy == reward and copy.__name__ == "mbpp" and copy.weight == 3.0
    assert copy(completions=completions, cases=cases) == [1.0]
    with pytest.raises(ValueError, match="finite"):
        code_tests(weight=math.nan)


def test_works_off_the_main_thread_and_leaves_the_inputs_alone() -> None:
    completions, tests = [slot("def add(a, b): return a + b")], [[dict(ADD[0])]]
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(code_tests(), completions=completions, tests=tests).result(60) == [1.0]
    assert tests == [ADD] and completions == [slot("def add(a, b): return a + b")]


def test_the_same_code_gets_the_same_score_in_another_process() -> None:
    code = """
import random
def f(): return [random.random(), list({"a", "b", "c", "d", "e"}), hash("x")]"""
    script = (
        f"from grpo_nb.sandbox import Call, run_untrusted\nprint(run_untrusted({code!r}, [Call('f')]).answers[0].value)"
    )
    first, second = (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout for _ in "12"
    )
    assert first == second and len(first) > 30


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(), st.sampled_from(["{}", "<answer>{}</answer>", "```python\n{}\n```", "<answer>```\n{}\n```</answer>"]))
def test_no_text_makes_it_raise_or_pay(text: str, frame: str) -> None:
    reward = code_tests(limits=QUICK)
    assert reward(completions=[frame.replace("{}", text)], tests=[ADD]) == [0.0]
    assert reward(completions=[slot(text)], tests=[[{"stdin": text, "stdout": "\x01 never"}]]) == [0.0]
