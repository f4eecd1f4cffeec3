"""The last answer decides if an answer is right anywhere in a completion."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from grpo_nb.rewards import (
    correctness,
    exact_text,
    maths,
)
from grpo_nb.scoring.grader import Grader, make_grader
from grpo_nb.scoring.last_answer import readings_of_last_answer
from grpo_nb.tasks.formats import AnswerFormat, bare, boxed, xml

SUM = "What is 8 + 4?"
OPTIONS = "Which is a capital?\nA) Milan\nB) Paris\nC) Turin"
LETTERS = ["A", "B", "C"]
LABELS = ["ham", "not spam", "spam"]
DEFAULT_REWARD = correctness()
DEFAULT_GRADER = Grader(reward=DEFAULT_REWARD)


def is_anywhere(
    text: str,
    gold: str,
    question: str = SUM,
    reward: Any = DEFAULT_REWARD,
    format: AnswerFormat | None = None,
    other_golds: Sequence[str] = (),
) -> bool:
    format = format or xml()
    golds = [gold, *other_golds]
    prompt = [{"role": "user", "content": question}]
    rows = [{"question": question, "answer": one, "prompt": prompt} for one in golds]
    grader = make_grader(reward, rows, format)
    is_right = grader.are_correct(grader.score([text], rows[:1], format))[0]
    return grader.is_last_answer_correct(text, rows[0], format, is_correct_in_format=is_right)


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("8 + 4 = 12", "12", True),
        ("<reasoning>8 + 4 = 12</reasoning>\n<answer>12</answer>", "12", True),
        ("<answer>12</answer> No, it is 13.", "12", False),
        ("It is 12. Let me check: 8 + 4 = 13", "12", False),
        ("It is $1,250.50.", "1250.5", True),
        ("the difference 12-5", "5", True),
        ("The result is -5.", "5", False),
        (r"so it is $\frac{3}{4}$.", "0.75", True),
        ("It is 3 1/2 apples", "3.5", True),
        ("The total is 1{,}250.", "1250", True),
        (r"It is 3 \cdot 10^3.", "3000", True),
        ("It is 3 \u00b7 10^3.", "3000", True),
        (r"so it is $\frac12$.", "0.5", True),
        ("So the answer is...42", "42", True),
        ("So the answer is 1.42", "42", False),
        ("It weighs 5 kg.", "5 g", False),
        ("It weighs 5 g.", "5 g", True),
        ("She makes $18 every day.", "$18", True),
        ("It is $2.5 million.", "$2,500,000", True),
        ("It is 2.5 million km away.", "2500000 km", True),
        ("It is 2.5 million km away.", "2500000 m", False),
        ("You need 5 in total.", "5 kg", True),
        ("It is 5 in long.", "5 inches", True),
        ("It is 6 in total.", "5 kg", False),
        ("It is 50% in total.", "50%", True),
        ("It is 35% in total.", "0.35", True),
        ("It moves at 5 m/s.", "5 km/h", False),
        ("It moves at 5 km/h now.", "5 km/h", True),
        ("It moves at 5 km per hour.", "5 km/h", True),
        ("The area is 60 cm^2.", "60 cm^2", True),
        ("The area is 60 m\u00b2.", "60 m^2", True),
        ("The area is 60 cm^3.", "60 cm^2", False),
        ("The rate is 5 s^{-1}.", "5", True),
        ("The acceleration is 5 m s^-2.", "5", True),
        ("The acceleration is 5 m s^\u22122.", "5", True),
        ("So 5 is the value of $x_{1}$.", "5", True),
        (r"It is \boxed{-5}.", "-5", True),
        ("The speed is 60km/h.", "60 km/h", True),
        ("The area is 5cm^2.", "5 cm^2", True),
        (r"So it is $2\frac{1}{2}$.", "2.5", True),
        (r"So it is $2\frac{1}{2}$.", "0.5", False),
        ("It is 2\u00bd.", "2.5", True),
        ("It is 2\u00bd.", "2", False),
        (r"It is -\frac{1}{2}.", "-0.5", True),
        ("It is 1 000 000.", "1000000", True),
        ("First 12\n100", "100", True),
        ("It is 5 \u00b0C now.", "5 \u00b0C", True),
        ("There are 12 left.", "12 apples", True),
        ("It is 5 pears.", "5 apples", True),
        ("It is 5 pears.", "5 kg", True),
        ("It is 5 red apples.", "5 apples", True),
        ("It is 20 apples.", "20 apples per day", True),
        ("It is 5 always.", "5 apples", True),
        ("The area is 50sq ft.", "50", True),
        ("The area is 50sq ft.", "50 sq ft", True),
        ("The volume is 5cu m.", "5 m^2", False),
        ("The speed is 60km/ h.", "60", True),
        ("So it is $20$ cm.", "20 cm", True),
        ("So it is $20$ cm.", "20 m", False),
        ("It costs $5, and not $6.", "$6", True),
        ("It costs \u20ac5.", "$5", False),
        (r"It is 12\text{ cm}^2.", "12 cm^2", True),
        (r"It is 12\text{ cm}^3.", "12 cm^2", False),
        ("It is 12,34,567.", "1234567", True),
        ("It is 18\u00b2.", "18", False),
        ("It is 20 in.", "20 cm", False),
        ("See section 1.5.0", "1.5", False),
        ("It is 0,500.", "500", False),
        (r"It is 540\pi.", "540", False),
        (r"It is 60\ \text{km}\cdot\text{h}^{-1}.", "60", True),
        ("It is 12:05.", "12", False),
        ("no number at all", "12", False),
        ("", "12", False),
    ],
)
def test_last_number_decides(text: str, gold: str, expected: bool) -> None:
    assert is_anywhere(text, gold) is expected


def test_gold_number_in_a_repeated_question_is_no_answer() -> None:
    assert not is_anywhere("What is 8 + 4?", "4")


def test_gold_number_in_a_repeated_question_loses_to_a_later_one() -> None:
    assert not is_anywhere("The numbers are 8 and 4, so it is 13.", "4")


def test_longer_number_than_in_the_question_is_kept() -> None:
    assert readings_of_last_answer("What is 8 + 45?", "45", question=SUM, format=xml()) == ["45"]


def test_short_question_is_not_removed_from_the_text() -> None:
    assert is_anywhere("12", "12", question="12")


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("I would say ham.", "ham", True),
        ("Not spam", "not spam", True),
        ("It is not spam", "spam", False),
        ("ham or spam? Spam!", "spam", True),
        ("hamster", "ham", False),
    ],
)
def test_label_named_last_decides(text: str, gold: str, expected: bool) -> None:
    assert is_anywhere(text, gold, "Classify this message.", other_golds=LABELS * 4) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is B.", True),
        ("**B** (Paris)", True),
        ("B is tempting, C it is.", False),
        ("A capital is B", True),
        ("A dog", False),
        ("The answer is (b).", True),
        ("It is C, the value of f(b).", False),
        ("(b) because it is in France", True),
        ("C\nb) Paris", True),
        ("b", True),
        ("Option b fits.", True),
        ("It is C (see a and b)", False),
    ],
)
def test_option_named_last_decides(text: str, expected: bool) -> None:
    assert is_anywhere(text, "B", question=OPTIONS, other_golds=LETTERS * 4) is expected


@pytest.mark.parametrize(
    ("text", "gold", "reward", "expected"),
    [
        (r"thus \boxed{\sqrt{12}}", r"2\sqrt{3}", maths(), True),
        ("so $y = 1 + x$ holds", "x + 1", maths(), True),
        ("first $x+1$, then $x+2$", "x + 1", maths(), False),
        ("y = a = 1 + x", "x + 1", maths(), True),
        ('Here: {"a": 1.0} as asked', '{"a": 1}', correctness(), True),
        ('{"a": 1} or {"a": 2}', '{"a": 1}', correctness(), False),
        ('} or ] of {"a": 1', '{"a": 1}', correctness(), False),
        ("It is Paris.", "Paris", exact_text(), True),
        ("It is paris.", "Paris", exact_text(), False),
        ('the record is {"a": [1, {}]}.', '{"a": [1, {}]}', correctness(), True),
        ("The derivative is 2x + 3.", "2x+3", maths(), True),
        ("The point is (1, 2).", "(1,2)", maths(), True),
        ("so y = 2x + 3", "y=2x+3", maths(), True),
        ("so x <= 2y", "2y", maths(), False),
        ("so x <= 2y", "x <= 2y", maths(), True),
        ("so x != 2y", "2y", maths(), False),
        ("We get y = 2x + 3.", "2x+3", maths(), True),
        ("So the result is .5x", ".5x", maths(), True),
        ("So the result is (n+1)!", "(n+1)!", maths(), True),
        ("So the result is 2x + 3!", "2x+3", maths(), True),
        ("It is 2x + 3. No, it is 2x + 4.", "2x+3", maths(), False),
        ("It is Paris.", "Paris.", exact_text(), True),
        ("It is the U.S.A.", "U.S.A.", exact_text(), True),
        ("Paris? It is Rome.", "Paris", correctness(), False),
        ("It is 12.4", "12", correctness(tolerance=0.5), True),
    ],
)
def test_last_answer_is_compared_by_the_grader(
    text: str, gold: str, reward: Any, expected: bool
) -> None:
    assert is_anywhere(text, gold, question="Find it, please.", reward=reward) is expected


@pytest.mark.parametrize("first", ["City of Paris", "Paris"])
def test_each_accepted_answer_is_looked_for(first: str) -> None:
    row = {"question": "Where?", "answer": first, "accepted_answers": ["City of Paris", "Paris"]}
    assert DEFAULT_GRADER.is_last_answer_correct(
        "It is Paris.", row, xml(), is_correct_in_format=False
    )


def test_rule_says_what_is_searched() -> None:
    assert DEFAULT_GRADER.last_answer_rule.startswith("the last answer in the text")


@pytest.mark.parametrize("format", [xml(), boxed(), bare()], ids=lambda format: format.name)
def test_correct_answer_in_the_format_is_one_anywhere(format: AnswerFormat) -> None:
    assert is_anywhere(format.render("8 + 4", "12"), "12", format=format)


def test_last_answer_of_a_function_is_not_measured() -> None:
    grader = Grader(reward=len)
    row = {"question": SUM, "answer": "12"}
    for is_correct in (False, True):
        verdict = grader.is_last_answer_correct("12", row, xml(), is_correct_in_format=is_correct)
        assert verdict is None
    assert "len() does not say where it reads the answer" in grader.last_answer_rule


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("The answer is A because it fits.", True, id="label before a word"),
        pytest.param("I choose A since it fits.", True, id="label inside a sentence"),
        pytest.param("B is wrong. Answer: A because it is red.", True, id="label after a colon"),
        pytest.param("B is odd. A was right.", True, id="label before a verb"),
        pytest.param("It is B. A dog barks.", False, id="article"),
    ],
)
def test_label_a_is_told_from_the_article(text: str, expected: bool) -> None:
    assert is_anywhere(text, "A", question="Which letter?", other_golds=["A", "B"] * 4) is expected


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        pytest.param("The answer is B, I think.", "ABCDEFGHI", "B", id="pronoun"),
        pytest.param("It is B. I\u2019m sure.", "ABCDEFGHI", "B", id="short form"),
        pytest.param("It is I because H fits not.", "ABCDEFGI", "I", id="label I"),
        pytest.param("It is b, a city.", "abc", "b", id="article"),
        pytest.param("The answer is a.", "abc", "a", id="label a"),
        pytest.param("b is too small, so option a fits.", "abc", "a", id="option a"),
    ],
)
def test_label_is_told_from_an_ordinary_word(text: str, labels: str, expected: str) -> None:
    readings = readings_of_last_answer(text, "b", question="", format=xml(), labels=[*labels, "b"])
    assert readings == [expected]


def test_digit_of_a_decimal_is_no_label() -> None:
    arguments = {"question": "", "format": xml(), "labels": ["1", "5", "none"]}
    assert readings_of_last_answer("I rate it 4.5", "5", **arguments) == []
    assert readings_of_last_answer("Not 5.1, but 5.", "5", **arguments) == ["5"]


@pytest.mark.parametrize("gold", ["12", '{"a": 1}', "x^2 + 1", "Paris"])
@pytest.mark.parametrize(
    "part", ["[", "{", "1,", "$x ", r"\boxed{", "is ", r"\frac{1}", r"\( ", "$"]
)
def test_last_answer_search_is_fast_on_long_texts(part: str, gold: str) -> None:
    started = time.process_time()
    readings_of_last_answer(part * 60_000, gold, question=SUM, format=xml())
    assert time.process_time() - started < 2


def test_labels_are_those_of_the_graders_column() -> None:
    labels = ["spam", "ham"] * 4
    rows = [{"question": "?", "answer": f"{i}", "label": label} for i, label in enumerate(labels)]
    grader = make_grader(correctness(column="label"), rows, xml())
    for text, is_correct in (("It is spam, I think.", True), ("", False)):
        verdict = grader.is_last_answer_correct(text, rows[0], xml(), is_correct_in_format=False)
        assert verdict is is_correct
