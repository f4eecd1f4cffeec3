"""Numbers, JSON and the five kinds of answers, on tests/data/written_by_people.json."""

import json
import time
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_nb.tasks.answers import is_right_answer, read_json, summarize_answers
from grpo_nb.tasks.markup import strip_markup
from grpo_nb.tasks.number_reading import read_number
from tests.conftest import ROOT

WRITTEN = json.loads((ROOT / "tests/data/written_by_people.json").read_text())
# The answers of kind text were once taken for units, dates and codes.
KINDS = WRITTEN["kinds: answers, kind, hint"]


@pytest.mark.parametrize(("value", "forms"), WRITTEN["numbers"].items())
def test_read_number_reads_common_spellings(value: str, forms: list[str]) -> None:
    assert {form: read_number(form).value for form in forms} == dict.fromkeys(
        forms, Fraction(value)
    )


@pytest.mark.parametrize("text", WRITTEN["no numbers"])
def test_read_number_other_text_is_none(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize("text", ["42 thirteen", "42 zero", "5 nineteens"])
def test_read_number_before_a_number_word_is_none(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize("text", ["3 sixteenths", "5 twelfths", "7 twentieths", "1 millionth"])
def test_read_number_fraction_in_words_is_none(text: str) -> None:
    assert read_number(text) is None
    assert not is_right_answer(text, text[0])


@pytest.mark.parametrize("text", ["100~200", "$100~200$", "100\uff5e200"])
def test_read_number_range_with_a_tilde_is_none(text: str) -> None:
    assert read_number(text) is None
    assert not is_right_answer("100200", text)


def test_read_number_reads_a_tilde_before_a_unit() -> None:
    assert read_number(r"42~\text{cm}") == read_number("42 cm")


@pytest.mark.parametrize(
    ("given", "gold"),
    [
        ("500 rupees", "\u20b9500"),
        ("\u00a55", "5 yen"),
        ("5 JPY", "\u00a55"),
        ("\u00a55 yen", "\u00a55"),
        ("\u20b95 rupees", "\u20b95"),
    ],
)
def test_sign_of_a_currency_is_its_name(given: str, gold: str) -> None:
    assert is_right_answer(given, gold)


@pytest.mark.parametrize(
    ("given", "gold"),
    [
        ("42 marbles left", "42 marbles"),
        ("12 students", "12 students in total"),
        ("12 students total", "12 total students"),
        ("3 apples each", "3 apples"),
    ],
)
def test_words_after_a_thing_are_no_part_of_it(given: str, gold: str) -> None:
    assert is_right_answer(given, gold)
    assert not is_right_answer(given.replace(given.split()[1], "girls"), gold)


@pytest.mark.parametrize(
    ("words", "digits"), [("two dozen", "24"), ("two trillion", "2 trillion"), ("a million", "1e6")]
)
def test_read_number_reads_each_scale_in_words(words: str, digits: str) -> None:
    assert read_number(words) == read_number(digits)


def test_read_number_words_need_spaces() -> None:
    assert read_number("two hundred five").value == 205
    assert read_number("two hundredfive") is None


@pytest.mark.parametrize("text", ["1/-\n5", "\\frac{1}{-\n5}"])
def test_read_number_allows_a_line_break_after_a_sign(text: str) -> None:
    assert read_number(text).value == Fraction(-1, 5)


@pytest.mark.parametrize("is_same", [True, False])
def test_is_right_answer_agrees_with_people(is_same: bool) -> None:
    pairs = WRITTEN["one answer" if is_same else "two answers"]
    assert [pair for pair in pairs if is_right_answer(*pair) is not is_same] == []


@pytest.mark.parametrize("given", ["B) 3 m", "B) x = 4", "B) 5 A"])
def test_option_with_a_unit_or_variable_is_no_hedge(given: str) -> None:
    assert is_right_answer(given, "B")
    assert not is_right_answer(f"{given}, C", "B")


@given(st.integers(-(10**15), 10**15))
def test_read_number_reads_each_spelling_of_an_integer(value: int) -> None:
    for text in (
        str(value),
        f"{value:,}",
        f"{value}.0",
        f"{value}e0",
        f"x = {value}",
        f"{value} km",
    ):
        assert is_right_answer(text, str(value)), text
    assert not is_right_answer(str(value + 1), str(value))


@given(st.text(max_size=60))
@example("\\\\\\%")
def test_read_number_any_text_does_not_raise(text: str) -> None:
    number = read_number(text)
    assert number is None or is_right_answer(text, text)
    assert strip_markup(strip_markup(text)) == strip_markup(strip_markup(strip_markup(text))), (
        "text without markup does not change"
    )


@pytest.mark.parametrize(("golds", "kind", "hint"), KINDS)
def test_answers_of_finds_kind_and_hint(golds: list[str], kind: str, hint: str) -> None:
    answers = summarize_answers(golds)
    assert (answers.kind, answers.hint, answers.exceptions) == (kind, hint, ())


def test_quotation_marks_around_an_answer_are_ignored() -> None:
    quoted = ['"Paris"', "'Paris'", "\u201cParis\u201d", "\u201eParis\u201c", "\u2018Paris\u2019"]
    assert all(is_right_answer(given, "Paris") for given in quoted)


def test_answers_of_other_kinds_are_kept_apart() -> None:
    golds = [str(n) for n in range(18)] + ["n/a", "unknown"]
    assert summarize_answers(golds).kind == "number"
    assert summarize_answers(golds).exceptions == ("n/a", "unknown")
    assert summarize_answers(golds, "text").kind == "text"
    assert summarize_answers(["7"], "expression").exceptions == ()
    assert summarize_answers(["1", "2", "2"] * 4).majority == ("2", 2 / 3)
    assert summarize_answers(["1", "2", "3", "4"] * 2).majority is None
    assert summarize_answers(["no"] * 6 + ["yes"] * 2).in_words == "choice: no (75%), yes (25%)"
    assert summarize_answers([]).kind == "text"


def test_answers_of_equally_frequent_labels_keep_their_order() -> None:
    answers = summarize_answers(["pear", "fig", "date", "plum", "Plum", "Date", "Fig", "Pear"] * 16)
    assert [label for label, _ in answers.labels] == ["pear", "fig", "date", "plum"]


def test_answers_of_many_distinct_answers_takes_little_time() -> None:
    golds = [f"answer {number}" for number in range(10_000)]
    started = time.process_time()
    summarize_answers(golds, "text")
    assert time.process_time() - started < 5


@pytest.mark.parametrize("given", ['{"city": "PARIS"}', '{"City": "Paris"}', "city: Paris"])
def test_json_of_another_value_is_another_answer(given: str) -> None:
    assert not is_right_answer(given, '{"city": "Paris"}')


@pytest.mark.parametrize(
    ("given", "is_same"),
    [
        ('{"b": [1.0, 2], "a": 1}', True),
        ('{"a": 1, "b": [2, 1]}', False),
        ('{"a": true, "b": [1, 2]}', False),
        ("null", False),
    ],
)
def test_json_is_compared_by_value_and_type(given: str, is_same: bool) -> None:
    assert is_right_answer(given, '{"a": 1, "b": [1, 2]}') is is_same


def test_read_json_refuses_text_that_is_not_json() -> None:
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
        assert read_json(text) is None, text[:20]
    assert read_json("```json\n[1]\n```") == [1]
    assert is_right_answer('{"a": 1}.', '{"a": 1}')
    start = time.process_time()
    assert read_json("```json\n" + " \n" * 9_000) is None
    assert time.process_time() - start < 0.2  # a pattern of squares: 2 s
