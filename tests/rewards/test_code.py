"""The code reward pays for hidden tests that pass, for nothing else, and finds bad tests before training."""

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
from tests.rewards.cases import QUICK, TABLES, score_of, slot

REWARD, CASES = TABLES["code_tests"]
ADD = [{"call": "add", "args": [1, 2], "expected": 3}]
GOOD = slot("def add(a, b): return a + b")


def score(code: str, tests: Any, **more: Any) -> float:
    (value,) = code_tests(limits=QUICK, **more)(completions=[slot(code)], tests=[tests])
    return value


def test_cases_together_are_as_one_by_one_and_as_messages() -> None:
    cases = [(completion, score, columns["tests"]) for completion, score, columns, *more in CASES if not more]
    texts, expected, tests = map(list, zip(*cases, strict=True))
    assert REWARD(completions=texts, tests=tests) == expected
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    assert REWARD(completions=chats, tests=tests) == expected
    for completion, wanted, *more in CASES:
        assert score_of(REWARD, completion, *more) == wanted, completion[:200]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (slot("x = 1"), "x = 1"),
        ("<answer>```python\nx = 1\n```</answer>", "x = 1\n"),
        ("<answer>\nsee:\n```py\nx = 1\n```\nor\n```Python\nx = 2\n```\n</answer>", "x = 2\n"),
        ("```bash\nls\n```\n```python\nx = 1\n```\n```text\nout\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```python\nx = 1\n```\n<answer>y = 2</answer>", "y = 2"),
        ("```python\nx = 1\n```\n<answer>", None),
        ("<answer>x = 1</answer><answer>x = 2</answer>", None),
        ("<answer>```python\nx = 1</answer>", None),
        ("x = 1", None), ("", None), ("```python\nx = 1", None), ("```", None),
    ],
)  # fmt: skip
def test_where_the_code_is_taken_from(text: str, code: str | None) -> None:
    assert extract_code(text, formats.xml()) == code


@pytest.mark.parametrize(
    ("test", "right", "wrong"),
    [
        ("assert f(1) == 2", "lambda x: 2", "lambda x: 3"),
        ("assert f(1) == 2, 'message'", "lambda x: 2.0", "lambda x: '2'"),  # as == says
        ("assert f([1, 2], k={'a': (1,)}) == {'a': (1,)}", "lambda x, k: k", "lambda x, k: x"),
        ("assert f(-1) is None", "lambda x: None", "lambda x: 0"),
        ("assert f(1) is True", "lambda x: True", "lambda x: 1"),
        ("assert f(1) == True", "lambda x: 1", "lambda x: 2"),
        ("assert f(1)", "lambda x: [0]", "lambda x: []"),
        ("assert not f(1)", "lambda x: ''", "lambda x: 'a'"),
        ("assert set(f(1)) == set([2, 1])", "lambda x: [1, 2, 2]", "lambda x: [1]"),
        ("assert f(1) == tuple([2, 1])", "lambda x: (2, 1)", "lambda x: [2, 1]"),
        ("assert sorted(f(1)) == [1, 2]", "lambda x: (2, 1)", "lambda x: 5"),
        ("assert Solution().go(1) == 2", "0\nclass Solution:\n    def go(self, x): return 2", "0"),
        ("assert f(1) == 2\nassert f(2) == 2", "lambda x: 2", "lambda x: 1"),
        ("assert list(f(3)) == [0, 1, 2]", "range", "lambda n: range(2)"),
        ("assert len(f(3)) == 3", "lambda n: __import__('collections').deque('abc')", "lambda n: iter('abc')"),
        ({"call": "f", "args": [1], "expected": 2}, "lambda x: 2", "lambda x: 2.0"),  # type and value
        ({"call": "f", "args": [1], "expected": None}, "lambda x: None", "lambda x: 0"),
        ({"call": "f", "args": [1], "expected": None}, "lambda x: None", "lambda x: 1 / 0"),
        ({"call": "f", "args": [1], "expected": 1.0, "tolerance": 0.1}, "lambda x: 1", "lambda x: True"),
        ({"call": "f", "kwargs": {"x": 1}, "expected": [1]}, "lambda x: [x]", "lambda x: (x,)"),
        ({"call": "f", "args": [1], "expected": 1.0, "tolerance": 0.1}, "lambda x: 1.05", "lambda x: 1.2"),
        ({"call": "f", "args": [1], "expected": 2, "stdin": None, "stdout": None}, "lambda x: 2", "lambda x: 1"),
        ('{"call": "f", "args": [{"a": null}], "expected": {"a": null}}', "lambda x: x", "lambda x: {}"),
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
    assert score("print(7)\nprint(2)", tests) == score("print(7)\nraise ValueError", tests) == 0.0
    assert score("import os\nos.write(1, b'7\\n')\nos._exit(0)", tests) == 0.0  # it ended before its end


def test_partial_credit_and_all_or_nothing() -> None:
    tests = [f"assert f({n}) == {n}" for n in range(4)]
    assert score("def f(n): return n if n < 3 else 1 / 0", tests) == 0.75
    assert score("def f(n): return n if n < 3 else 1 / 0", tests, all_or_nothing=True) == 0.0
    assert score("def f(n): return n", tests, all_or_nothing=True) == 1.0


def test_what_is_slow_to_compare_or_to_read_is_not() -> None:
    (test,) = read_tests(["assert set(f()) == {1}"])
    started = time.process_time()
    assert not test.passes([n * (2**61 - 1) for n in range(1, 20_000)])  # all of one hash
    assert extract_code("```python\n" * 50_000, formats.xml()) is None
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        (["assert f(x) == 2"], r"'assert f\(x\) == 2' cannot be read.*Write call and value out"),
        (["assert f(1) == g(2)"], "Write call"), (["assert f(1) < 3"], "no assert of a call"), (["x = 1"], "no assert"),
        (["assert abs(f(1) - 2.5) < 0.01"], '"tolerance": 0.01'), (["assert 1 == 1"], "no call"),
        (["assert f(*[1]) == 1"], "Write call"), (["assert f(**{'a': 1}) == 1"], "not a value"),
        (["assert f(1)("], "cannot be read"), ([], "no tests"), ("", "no tests"), (5, "list of tests"), ([5], "must be"),
        ([{"call": "f"}], "must be"), ([{"call": "f", "args": [], "expcted": 1}], "must be"), ([{"stdin": "a"}], "must be"),
        ([{"call": "f(1)", "expected": 1}], "not a function"), ("[1", "Expecting"), ([{}], "must be"),
        ([{"call": "f", "args": "abc", "expected": 1}], "must be"), ([{"call": "f", "args": {1: 1}, "expected": 1}], "must be"),
        ([{"call": "f", "expected": "a", "tolerance": 0.1}], "must be"),
        # What Arrow makes of {"a": 1} in one row and {"b": 1} in another.
        ([{"call": "f", "args": [{"a": 1, "b": None}], "expected": 1}], r"json\.dumps\(tests\)"),
        (["assert f([0] * 10**9) == 1"], "cannot be read"), ([f"assert f({'(' * 500}) == 1"], "cannot be read"),
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
        read_tests([f"assert f(1) == open({str(target)!r}, 'w')", f"open({str(target)!r}, 'w')"])
    assert not target.exists()


def test_check_counts_and_a_missing_column_says_what_to_write() -> None:
    assert code_tests().check([{"tests": ADD}, {"tests": ["assert f(1) == 1", "assert f(2) == 2"]}]) == 3
    with pytest.raises(ValueError, match=r"needs the data column 'cases'.*column="):
        code_tests(column="cases")(completions=["x"], tests=[ADD])


def test_a_batch_with_a_loop_costs_its_limit_once_in_any_thread() -> None:
    reward = code_tests(limits=Limits(cpu_seconds=1.0))
    completions = [slot("def add(a, b):\n    while True: pass"), *[GOOD] * 15]
    started = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        values = threads.submit(reward, completions=completions, tests=[ADD * 5] * 16).result(60)
    assert values == [0.0] + [1.0] * 15 and time.monotonic() - started < 5


def test_the_same_code_gets_the_same_score() -> None:
    code = "import random\ndef f(n): return sorted({*'abcd'}, key=lambda c: random.random() + hash(c))[0] == 'abcd'[n]"
    tests = [f"assert f({n})" for n in range(4)] * 5
    assert len({score(code, tests) for _ in range(3)}) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(), st.sampled_from(["{}", "<answer>{}</answer>", "```python\n{}\n```", "<answer>```\n{}\n```</answer>"]))
def test_no_text_makes_it_raise_or_pay(text: str, frame: str) -> None:
    assert REWARD(completions=[frame.replace("{}", text)], tests=[ADD]) == [0.0]
    assert REWARD(completions=[slot(text)], tests=[[{"stdin": text, "stdout": "\x01 never"}]]) == [0.0]
