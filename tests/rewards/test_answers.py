"""Rewards for answers: a strict person's labels, every format, and what cannot be judged; single forms are in `cases`."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_nb import rewards
from grpo_nb.rewards.answers import (
    correctness,
    exact_text,
    json_answer,
    multiple_choice,
    regex_answer,
)
from grpo_nb.tasks import formats
from tests.rewards.cases import CASES, slot

TABLE = Path(__file__).parents[1] / "data" / "answers.jsonl"


@pytest.mark.parametrize(("name", "most_refused"), [("correctness", 0.02), ("maths", 0.05)])
def test_the_answers_labelled_by_hand(name: str, most_refused: float) -> None:
    """What a strict and fair person would pay for, labelled before any run; those of other rewards than these are not asked."""
    wrongly_paid, wrongly_refused, right = [], [], 0
    for case in map(json.loads, TABLE.read_text().splitlines()):
        options = case.get("options", {})
        is_of_numbers = (
            name == "correctness"
            and case["rewards"] == ["number"]
            and options.keys() <= {"tolerance"}
        )
        if name not in case["rewards"] and not is_of_numbers:
            continue
        reward = getattr(rewards, name)(**options)
        (paid,) = reward(
            completions=[slot(case["slot"])], answer=[case["gold"]]
        )  # alone: no batch runs out of time
        right += case["pay"]
        if bool(paid) != case["pay"]:
            (wrongly_paid if paid else wrongly_refused).append(case)
    assert not wrongly_paid
    assert right > 300 and len(wrongly_refused) <= most_refused * right, wrongly_refused


ASKED = [
    case for case in CASES if isinstance(case.reward, correctness) and "prompts" in case.columns
]


@pytest.mark.parametrize("case", ASKED, ids=str)
def test_a_copy_of_the_question_is_seen_in_a_chat_and_with_a_tolerance(case) -> None:
    chat = [
        {"role": "user", "content": "Example: 1/8."},
        {"role": "user", "content": case.columns["prompts"]},
    ]
    for reward, prompts in (
        (replace(case.reward, tolerance=0.001), case.columns["prompts"]),
        (case.reward, chat),
    ):
        assert (
            replace(case, reward=reward, columns=case.columns | {"prompts": prompts}).paid()
            == case.scores
        )


@pytest.mark.parametrize(
    "format", [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes()]
)
def test_every_format(format: formats.AnswerFormat) -> None:
    text = format.render("many\nlines", r"\frac{1}{2}")
    texts = [text, text + "\nNo, it is 41.", format.render(r"\frac12", "41"), "0.5"]
    assert correctness(format=format)(completions=texts, answer=["1/2"] * 4) == [1.0, 0.0, 0.0, 0.0]
    for reward in (rewards.xml_format(format=format), rewards.incremental_format(format=format)):
        exact, longer, _, bare = reward(completions=texts)
        has_no_end = reward.__name__ == "incremental_format" and not format.answer_close
        assert exact == 1.0 and bare == 0.0 and (has_no_end or longer < 1.0)


@pytest.mark.parametrize(
    "make", [correctness, exact_text, multiple_choice, json_answer, regex_answer, rewards.maths]
)
def test_a_missing_column_says_what_to_write(make) -> None:
    with pytest.raises(ValueError, match=r"needs the data column 'solution'.*column="):
        make(column="solution")(completions=["7"], answer=["7"])


def test_a_pattern_that_backtracks_for_ever_is_stopped_in_any_thread() -> None:
    hostile = [
        slot("ab" * n + "cd") for n in range(1000, 1008)
    ]  # without a c, one look would be enough
    texts, found = [*hostile, slot("abc"), slot("abc d")], []
    reward = regex_answer(r"(?:(?:a|b|ab)*)*c")
    thread, start = (
        threading.Thread(target=lambda: found.append(reward(completions=texts))),
        time.monotonic(),
    )
    thread.start()
    thread.join(30)
    assert found == [[0.0] * 8 + [1.0, 0.0]] and time.monotonic() - start < 15
