"""Rewards for answers against a strict person's labels, in every format. See also `cases`."""

import json
from dataclasses import replace
from pathlib import Path

import numpy
import pytest

from grpo_nb import rewards
from grpo_nb.rewards.answers import (
    correctness,
    exact_text,
    json_answer,
    multiple_choice,
)
from grpo_nb.tasks import formats
from tests.rewards.cases import CASES, slot

TABLE = Path(__file__).parents[1] / "data" / "answers.jsonl"


def is_for(case: dict, name: str) -> bool:
    """Return True if a labelled answer was labelled for this reward."""
    if name in case["rewards"]:
        return True
    # Labels for plain numbers hold for correctness too, unless they are about units that convert.
    is_of_numbers = case["rewards"] == ["number"] and name == "correctness"
    return is_of_numbers and case.get("options", {}).keys() <= {"tolerance"}


@pytest.mark.parametrize(("name", "most_refused"), [("correctness", 0.02), ("maths", 0.05)])
def test_labelled_answers_get_the_score_of_their_label(name: str, most_refused: float) -> None:
    wrongly_scored = []
    wrongly_refused = []
    right = 0
    for case in map(json.loads, TABLE.read_text().splitlines()):
        if not is_for(case, name):
            continue
        reward = getattr(rewards, name)(**case.get("options", {}))
        # One answer per call, so that no batch runs out of time.
        (score,) = reward(completions=[slot(case["slot"])], answer=[case["gold"]])
        right += case["pay"]
        if score and not case["pay"]:
            wrongly_scored.append(case)
        if case["pay"] and not score:
            wrongly_refused.append(case)
    assert wrongly_scored == []
    assert right > 300
    assert len(wrongly_refused) <= most_refused * right, wrongly_refused


WITH_QUESTION = [
    case for case in CASES if isinstance(case.reward, correctness) and "prompts" in case.columns
]


@pytest.mark.parametrize("case", WITH_QUESTION, ids=str)
def test_copied_question_is_seen_with_a_tolerance(case) -> None:
    tolerant = replace(case, reward=replace(case.reward, tolerance=0.001))
    assert tolerant.scores_given() == case.scores


@pytest.mark.parametrize("case", WITH_QUESTION, ids=str)
def test_copied_question_is_seen_in_the_last_chat_turn(case) -> None:
    chat = [
        {"role": "user", "content": "Example: 1/8."},
        {"role": "user", "content": case.columns["prompts"]},
    ]
    assert replace(case, columns=case.columns | {"prompts": chat}).scores_given() == case.scores


FORMATS = pytest.mark.parametrize(
    "format",
    [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes()],
    ids=lambda format: format.name,
)


@FORMATS
def test_correctness_reads_the_last_word_of_any_format(format: formats.AnswerFormat) -> None:
    right = format.render("many\nlines", r"\frac{1}{2}")
    wrong = format.render(r"\frac12", "41")
    texts = [right, right + "\nNo, it is 41.", wrong, "0.5"]
    assert correctness(format=format)(completions=texts, answer=["1/2"] * 4) == [1.0, 0.0, 0.0, 0.0]


@FORMATS
def test_xml_format_works_for_any_format(format: formats.AnswerFormat) -> None:
    text = format.render("many\nlines", r"\frac{1}{2}")
    reward = rewards.xml_format(format=format)
    assert reward(completions=[text, text + "\nNo, it is 41.", "0.5"]) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "make", [correctness, exact_text, multiple_choice, json_answer, rewards.maths]
)
def test_missing_column_error_shows_the_fix(make) -> None:
    with pytest.raises(ValueError, match=r"needs the data column 'solution'.*column="):
        make(column="solution")(completions=["7"], answer=["7"])


QUESTION = "A worked example:\nA) Oslo\nB) Bern\nQ: Which city?\nA) Paris\nB) Rome"


@pytest.mark.parametrize(
    ("given", "score"),
    [
        pytest.param("B", 1.0, id="letter"),
        pytest.param("Rome", 1.0, id="text"),
        pytest.param("B) Rome", 1.0, id="letter and text"),
        pytest.param("B) Paris", 0.0, id="text of another option"),
        pytest.param("Bern", 0.0, id="option of the worked example"),
    ],
)
def test_options_are_those_of_the_last_block(given: str, score: float) -> None:
    reward = multiple_choice()
    assert reward(completions=[slot(given)], answer=["B"], prompts=[QUESTION]) == [score]


@pytest.mark.parametrize(
    ("given", "score"),
    [
        pytest.param("[1]", 1.0, id="first"),
        pytest.param("[ 2.0 ]", 1.0, id="second"),
        pytest.param("[3]", 0.0, id="neither"),
    ],
)
def test_json_answer_accepts_each_right_answer(given: str, score: float) -> None:
    accepted = [["[1]", "[2]"]]
    reward = json_answer()
    assert reward(completions=[slot(given)], answer=["[1]"], accepted_answers=accepted) == [score]


@pytest.mark.parametrize(
    ("given", "score"),
    [
        pytest.param("N/A", 1.0, id="same text"),
        pytest.param("none", 0.0, id="other text"),
        pytest.param("{}", 0.0, id="JSON"),
    ],
)
def test_json_answer_compares_words_as_text(given: str, score: float) -> None:
    assert json_answer()(completions=[slot(given)], answer=["n/a"]) == [score]


def test_json_answer_reads_numpy_numbers_in_an_object() -> None:
    gold = {"b": numpy.int64(1)}
    assert json_answer()(completions=[slot('{"b": 1}')], answer=[gold]) == [1.0]
