"""Numbers, JSON and the five kinds of answers; what people write stands in tests/data/written_by_people.json."""

import json
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_nb.tasks.answers import answers_of, is_same_answer, read_json
from grpo_nb.tasks.numbers import plain, read_number
from tests.conftest import ROOT

WRITTEN = json.loads((ROOT / "tests/data/written_by_people.json").read_text())
KINDS = WRITTEN[
    "kinds: answers, kind, hint"
]  # those of text were once taken for units, dates and codes


@pytest.mark.parametrize(("value", "forms"), WRITTEN["numbers"].items())
def test_numbers_as_people_write_them(value: str, forms: list[str]) -> None:
    assert {form: read_number(form).value for form in forms} == dict.fromkeys(
        forms, Fraction(value)
    )


@pytest.mark.parametrize("text", WRITTEN["no numbers"])
def test_what_is_no_number(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize("is_same", [True, False])
def test_one_answer_or_two(is_same: bool) -> None:
    pairs = WRITTEN["one answer" if is_same else "two answers"]
    assert [pair for pair in pairs if is_same_answer(*pair) is not is_same] == []


@given(st.integers(-(10**15), 10**15))
def test_every_integer_reads_back_in_every_form(value: int) -> None:
    for text in (
        str(value),
        f"{value:,}",
        f"{value}.0",
        f"{value}e0",
        f"x = {value}",
        f"{value} km",
    ):
        assert is_same_answer(text, str(value)), text
    assert not is_same_answer(str(value + 1), str(value))


@given(st.text(max_size=60))
def test_no_text_makes_it_raise(text: str) -> None:
    number = read_number(text)
    assert number is None or is_same_answer(text, text)
    assert plain(plain(text)) == plain(plain(plain(text))), "what is plain stays as it is"


@pytest.mark.parametrize(("golds", "kind", "hint"), KINDS)
def test_kinds(golds: list[str], kind: str, hint: str) -> None:
    answers = answers_of(golds)
    assert (answers.kind, answers.hint, answers.odd) == (kind, hint, ())


def test_what_is_of_another_kind_is_kept_beside_it() -> None:
    golds = [str(n) for n in range(18)] + ["n/a", "unknown"]
    assert answers_of(golds).kind == "number" and answers_of(golds).odd == ("n/a", "unknown")
    assert answers_of(golds, "text").kind == "text" and answers_of(["7"], "expression").odd == ()
    assert (
        answers_of(["1", "2", "2"] * 4).floor == ("2", 2 / 3)
        and answers_of(["1", "2", "3"] * 4).floor is None
    )
    assert answers_of(["no"] * 6 + ["yes"] * 2).sentence == "choice: no (75%), yes (25%)"
    assert answers_of([]).kind == "text"


def test_strict_json() -> None:
    for text in (
        "NaN",
        "1e999",
        '{"a": 1, "a": 1}',
        "[1,]",
        "01",
        "'a'",
        "[" * 100_000,
        '"' + "a" * 20_001 + '"',
    ):
        assert read_json(text) == (None, False), text[:20]
    assert read_json("```json\n[1]\n```") == ([1], True) and is_same_answer('{"a": 1}.', '{"a": 1}')
    assert read_json("null") == (None, True)
    start = time.process_time()
    assert read_json("```json\n" + " \n" * 9_000) == (None, False)
    assert time.process_time() - start < 0.2  # a pattern of squares: 2 s
