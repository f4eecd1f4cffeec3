"""Numbers, JSON and the five kinds of answers."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_nb.tasks.answers import answers_of, is_same_answer, read_json
from grpo_nb.tasks.numbers import plain, read_number

NUMBERS = {
    "3/4": ["3/4", r"\frac{3}{4}", r"\frac34", "\u00be", "75%", r"75\%", "0.75", ".75", "$\\dfrac{3}{4}$"],
    "-7/4": ["-1 3/4", r"-1\frac{3}{4}", r"\frac{-7}{4}", r"\frac{7}{-4}", "\u22121.75"],
    "1500": ["1.5E3", r"1.5 \times 10^{3}", "1.5x10^3", "1,500", "1 500", "1'500", r"1\,500", "1.5k", "fifteen hundred"],
    "1234567": ["1,234,567", "12,34,567", "1 234 567", r"1,\!234,\!567"],
    "42": ["$42$", "**42**", r"\boxed{42}", r"\(42\)", "\uff14\uff12", "\u0664\u0662", "forty-two", "$42", "42 km", "#### 42"],
    "205001": ["two hundred and five thousand and one"],
}  # fmt: skip
NO_NUMBERS = [
    "3/0", "1 7/4", "1 2", "1/2/3", "1 000 00", "1,00", "1e9999", "10^10^10", "40+2", "2^5", "2\u2075", "1..2", "--5", "+-5",
    "x", "", "%", "1%%", "0x1F", "1_000", "0,500", "007", "one two", "4" * 101, "42 43", "42, 43", "2x", "3 y", "42 or 43",
    "$5 m", "42 is wrong", "42ish", "42 more", "5th", "2 pi", "2\u03c0", "18!", "about 42", "7/4 or so", "forty-twelve",
]  # fmt: skip


@pytest.mark.parametrize(("value", "forms"), NUMBERS.items())
def test_numbers_as_people_write_them(value: str, forms: list[str]) -> None:
    assert {form: read_number(form).value for form in forms} == dict.fromkeys(forms, Fraction(value))


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_number(text: str) -> None:
    assert read_number(text) is None


@given(st.integers(-(10**15), 10**15))
def test_every_integer_reads_back_in_every_form(value: int) -> None:
    for text in (str(value), f"{value:,}", f"{value}.0", f"{value}e0", f"x = {value}", f"{value} km"):
        assert is_same_answer(text, str(value)), text
    assert not is_same_answer(str(value + 1), str(value))


@given(st.text(max_size=60))
def test_no_text_makes_it_raise(text: str) -> None:
    number = read_number(text)
    assert number is None or is_same_answer(text, text)
    assert plain(plain(text)) == plain(plain(plain(text))), "what is plain stays as it is"


@pytest.mark.parametrize(
    ("given_answer", "gold", "is_same"),
    [
        ("42", "x = 42", True),
        ("y = 42", "x = 42", False),
        ("f(x) = 42", "y = 42", True),
        ("x = y = 42", "42", False),
        ("answer = 42", "42", False),
        ("5 mW", "5 MW", False),
        ("60 miles per hour", "60 mile/hour", True),
        ("12 grams", "12 gram", True),
        ("90 degrees", "90^\\circ", True),
        ("$5", "\u20ac5", False),
        ("init", "__init__", False),
        ("0.333333", "1/3", False),
        ("n", "n!", False),
    ],
)
def test_one_answer(given_answer: str, gold: str, is_same: bool) -> None:
    assert is_same_answer(given_answer, gold) is is_same


@pytest.mark.parametrize(
    ("golds", "kind", "hint"),
    [
        (["1,250", "-3.5", "12 kg", r"\frac12"], "number", "number"),
        (["positive", "negative"] * 4, "choice", "one of: negative, positive"),
        (["Paris", "the river Seine"], "text", "answer"),
        ([r"\frac{x}{2}", "x^2", "2x"], "expression", "expression"),
        (['{"a": 1, "b": 2}', '{"a": 2, "b": 3}'], "json", 'JSON with the keys "a", "b"'),
        (["[1, 2]", "[3]"], "json", "JSON"),
        # What was once taken for units, dates and codes.
        (["ISO 9001", "ISO 27001", "ISO 14001", "CSE 101"], "text", "answer"),
        (["3.11.12", "3.10.14", "3.9.18", "3.12.10"], "text", "answer"),
        ([f"{n:08b}" for n in range(1, 100)], "text", "answer"),
    ],
)
def test_kinds(golds: list[str], kind: str, hint: str) -> None:
    answers = answers_of(golds)
    assert (answers.kind, answers.hint, answers.odd) == (kind, hint, ())


def test_what_is_of_another_kind_is_kept_beside_it() -> None:
    golds = [str(n) for n in range(18)] + ["n/a", "unknown"]
    assert answers_of(golds).kind == "number" and answers_of(golds).odd == ("n/a", "unknown")
    assert answers_of(golds, "text").kind == "text" and answers_of(["7"], "expression").odd == ()
    assert answers_of(["1", "2", "2"] * 4).floor == ("2", 2 / 3) and answers_of(["1", "2", "3"] * 4).floor is None
    assert answers_of(["no"] * 6 + ["yes"] * 2).sentence == "choice: no (75%), yes (25%)"
    assert answers_of([]).kind == "text"


def test_strict_json() -> None:
    for text in ("NaN", "1e999", '{"a": 1, "a": 1}', "[1,]", "01", "'a'", "[" * 100_000, '"' + "a" * 20_001 + '"'):
        assert read_json(text) == (None, False), text[:20]
    assert read_json("```json\n[1]\n```") == ([1], True) and is_same_answer('{"a": 1}.', '{"a": 1}')
    assert read_json("null") == (None, True)
    start = time.process_time()
    assert read_json("```json\n" + " \n" * 9_000) == (None, False)
    assert time.process_time() - start < 0.2  # a pattern of squares: 2 s
