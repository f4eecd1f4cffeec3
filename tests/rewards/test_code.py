"""The code reward scores passed hidden tests only, and finds bad tests before training."""

from pathlib import Path
from typing import Any

import pytest

from grpo_nb.rewards.code import code_tests, extract_code, read_tests
from grpo_nb.tasks import formats
from tests.rewards.cases import slot

ADD = ["assert add(1, 2) == 3"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(slot("x = 1"), "x = 1", id="slot"),
        pytest.param(slot("```python\nx = 1\n```"), "x = 1\n", id="block in the slot"),
        pytest.param(
            slot("\nsee:\n```py\nx = 1\n```\nor\n```Python\nx = 2\n```\n"),
            "x = 2\n",
            id="last block",
        ),
        pytest.param(
            slot("```bash\nls\n```\n```python\nx = 1\n```\n```text\nout\n```"),
            "x = 1\n",
            id="block of another language",
        ),
        pytest.param(slot("```\nx = 1\n```"), "x = 1\n", id="block without language"),
        pytest.param("```python\nx = 1\n```", None, id="block without slot"),
        pytest.param("```python\nx = 1\n```\n<answer>y = 2</answer>", "y = 2", id="block and slot"),
        pytest.param("```python\nx = 1\n```\n<answer>", None, id="open slot"),
        pytest.param(slot("x = 1") + slot("x = 2"), None, id="two slots"),
        pytest.param(
            slot("```python\nx = 1\n```\nDone:\n```\n\n```"), "x = 1\n", id="empty last block"
        ),
        pytest.param(slot("```python\n```"), None, id="empty block"),
        pytest.param("x = 1", None, id="no slot"),
        pytest.param("", None, id="empty"),
        pytest.param("<answer>```python\nx = 1</answer>", None, id="open block in the slot"),
        pytest.param("```python\nx = 1", None, id="open block"),
        pytest.param("```", None, id="fence"),
        pytest.param(
            slot("```python\nx = '```'\ny = '```py\\n'\nz = \"\\n```\"\n```"),
            "x = '```'\ny = '```py\\n'\nz = \"\\n```\"\n",
            id="backticks in strings",
        ),
        pytest.param(slot('x = "```"'), 'x = "```"', id="backticks without a block"),
    ],
)
def test_code_is_taken_from_slot_or_last_block(text: str, code: str | None) -> None:
    assert extract_code(text, formats.xml()) == code


def test_tests_as_json_text_are_an_error_with_the_fix() -> None:
    with pytest.raises(ValueError, match=r"not an assert of a call.*json\.loads\(text\)"):
        read_tests('["assert f(1) == 2"]')


BAD_TESTS = [
    (["assert f(x) == 2"], r"'assert f\(x\) == 2' cannot be read.*Write call and value out"),
    (["assert f(1) == g(2)"], "Write call"),
    (["assert f(1) < 3"], "not an assert of a call"),
    (["x = 1"], "not an assert"),
    (["assert f(1) is None"], "not an assert of a call, with =="),
    (["assert sorted(f(1)) == [1]"], "Write call and value out"),
    (["assert abs(f(1) - 2.5) < 0.01"], "not an assert of a call"),
    (["assert 1 == 1"], "not an assert of a call"),
    (["assert f(*[1]) == 1"], "Write call"),
    (["assert f(**{'x': 1}) == 1"], "keywords must be strings.*Write call"),
    (["assert f(1)("], "cannot be read"),
    ([], "no tests"),
    ("", "no tests"),
    (5, "the test 5 must be an assert"),
    (None, "the test None must be an assert"),
    ([5], "must be"),
    ([{"call": "f", "args": [1], "expected": 2}], "must be"),
    (["assert f(1)(2) == 3"], "not a function"),
    ([{"stdin": "a"}], "must be"),
    ([{"stdin": "a", "stdout": "b"}], "must be an assert.*standard input"),
    ("[1", "cannot be read"),
    ([{}], "must be"),
    (["assert f([0] * 10**9) == 1"], "cannot be read"),
    ([f"assert f({'(' * 500}) == 1"], "cannot be read"),
]


@pytest.mark.parametrize(("tests", "message"), BAD_TESTS, ids=lambda value: repr(value)[:40])
def test_bad_tests_are_errors_with_the_fix(tests: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"row 1: .*{message}"):
        code_tests().check([{"tests": ADD}, {"tests": tests}])


def test_asserts_are_parsed_and_never_run(tmp_path: Path) -> None:
    target = tmp_path / "ran"
    with pytest.raises(ValueError):
        read_tests([f"assert f(1) == open({str(target)!r}, 'w')", f"open({str(target)!r}, 'w')"])
    assert not target.exists()


def test_check_accepts_readable_rows() -> None:
    code_tests().check([{"tests": ADD}, {"tests": ["assert f(1) == 1"]}])


def test_indented_block_is_read_without_its_indentation() -> None:
    text = slot("1. So:\n   ```python\n   def f(x):\n       return x\n   ```\n")
    assert extract_code(text, formats.xml()) == "def f(x):\n    return x\n"


def test_fence_on_one_line_opens_no_block() -> None:
    text = slot("Use\n```x```\nhere:\n```python\nx = 1\n```\n")
    assert extract_code(text, formats.xml()) == "x = 1\n"


def test_missing_tests_column_error_shows_the_fix() -> None:
    with pytest.raises(ValueError, match=r"needs the data column 'cases'.*column="):
        code_tests(column="cases")(completions=["x"], tests=[ADD])


def test_missing_tests_column_is_no_test_that_cannot_be_read() -> None:
    with pytest.raises(ValueError, match=r"^the reward 'code_tests' needs the data column 'cases'"):
        code_tests(column="cases").check([{"tests": ADD}])
