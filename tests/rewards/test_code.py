"""The code reward pays for hidden tests that pass, for nothing else, and finds bad tests before training."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_nb.rewards.code import code_tests, extract_code
from grpo_nb.rewards.hidden_tests import read_tests
from grpo_nb.sandbox.jobs import Limits
from grpo_nb.tasks import formats
from tests.rewards.cases import KINDS, slot

ADD = [{"call": "add", "args": [1, 2], "expected": 3}]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (slot("x = 1"), "x = 1"),
        ("<answer>```python\nx = 1\n```</answer>", "x = 1\n"),
        ("<answer>\nsee:\n```py\nx = 1\n```\nor\n```Python\nx = 2\n```\n</answer>", "x = 2\n"),
        ("```bash\nls\n```\n```python\nx = 1\n```\n```text\nout\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```python\nx = 1\n```\n<answer>y = 2</answer>", "y = 2"),
        *((text, None) for text in ("```python\nx = 1\n```\n<answer>", slot("x = 1") + slot("x = 2"), "x = 1", "")),
        *((text, None) for text in ("<answer>```python\nx = 1</answer>", "```python\nx = 1", "```")),
    ],
)  # fmt: skip
def test_where_the_code_is_taken_from(text: str, code: str | None) -> None:
    assert extract_code(text, formats.xml()) == code


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
    with pytest.raises(ValueError, match=f"row 1: .*{said}"):
        code_tests().check([{"tests": ADD}, {"tests": tests}])


def test_tests_are_read_and_never_run(tmp_path: Path) -> None:
    target = tmp_path / "ran"
    with pytest.raises(ValueError):
        read_tests([f"assert f(1) == open({str(target)!r}, 'w')", f"open({str(target)!r}, 'w')"])
    assert not target.exists()


def test_check_counts_and_a_missing_column_says_what_to_write() -> None:
    assert (
        code_tests().check([{"tests": ADD}, {"tests": ["assert f(1) == 1", "assert f(2) == 2"]}])
        == 3
    )
    with pytest.raises(ValueError, match=r"needs the data column 'cases'.*column="):
        code_tests(column="cases")(completions=["x"], tests=[ADD])


def test_a_batch_with_a_loop_costs_its_limit_once_in_any_thread() -> None:
    completions = [
        slot("def add(a, b):\n    while True: pass"),
        *[slot("def add(a, b): return a + b")] * 15,
    ]
    started = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        reward = code_tests(limits=Limits(cpu_seconds=1.0))
        values = threads.submit(reward, completions=completions, tests=[ADD * 5] * 16).result(60)
    assert values == [0.0] + [1.0] * 15 and time.monotonic() - started < 5


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.text(),
    st.sampled_from(
        ["{}", "<answer>{}</answer>", "```python\n{}\n```", "<answer>```\n{}\n```</answer>"]
    ),
)
def test_no_text_makes_it_raise_or_pay(text: str, frame: str) -> None:
    tests = [ADD, [{"stdin": text, "stdout": "\x01 never"}]]
    assert KINDS["code_tests"](
        completions=[frame.replace("{}", text), slot(text)], tests=tests
    ) == [0.0, 0.0]
