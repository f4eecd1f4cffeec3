"""Rewards pay for what they say and for nothing else, on strings and on chat messages."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_nb import formats
from grpo_nb.rewards import correctness, xml_format, xml_tags
from grpo_nb.rewards.answers import is_same_answer, parse_number

REWARDS = [correctness(), xml_format(), xml_tags()]


@pytest.mark.parametrize(
    ("given_answer", "gold", "same"),
    [
        ("42", "42", True), (" 42 ", "42", True), ("42.0", "42", True), ("+42", "42", True), ("42.", "42", True),
        ("1,234", "1234", True), ("$1,234.50", "1234.5", True), ("-7", "-7", True), ("\u22127", "-7", True),
        (".5", "0.5", True),
        ("41 = 42", "42", False), ("42 is wrong", "42", False), ("41 or 42", "42", False), ("42 43", "42", False),
        ("0 1 2 42", "42", False), ("1,23", "123", False), ("4 2", "42", False), ("x", "42", False), ("", "42", False),
        ("\u0664\u0662", "42", False), ("4" * 5000, "42", False), ("NaN", "42", False), ("-", "42", False), (".", "42", False),
        ("Paris", "paris", True), ("New  York", "new york", True), ("London", "Paris", False),
    ],
)  # fmt: skip
def test_same_answer(given_answer: str, gold: str, same: bool) -> None:
    assert is_same_answer(given_answer, gold) is same


def test_only_the_answer_slot_counts() -> None:
    texts = [
        "<answer>7</answer>", "7", "7 <answer>8</answer>", "<answer>8</answer> no, <answer>7</answer>",
        "<reasoning>7</reasoning>", "<answer>the answer is 7</answer>",
    ]  # fmt: skip
    assert correctness()(completions=texts, answer=["7"] * len(texts)) == [1, 0, 0, 0, 0, 0]


def test_strings_and_chat_messages_score_alike() -> None:
    texts = ["<reasoning>r</reasoning><answer>7</answer>", "7", ""]
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    for reward in REWARDS:
        assert reward(completions=texts, answer=["7"] * 3) == reward(completions=chats, answer=["7"] * 3)


def test_other_formats() -> None:
    assert correctness(format=formats.boxed())(completions=[r"so \boxed{7}"], answer=["7"]) == [1.0]
    assert correctness(format=formats.hashes())(completions=["so\n#### 7"], answer=["7"]) == [1.0]


def test_a_missing_column_says_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"needs the data column 'solution'.*column="):
        correctness(column="solution")(completions=["7"], answer=["7"])


@pytest.mark.parametrize("reward", REWARDS, ids=lambda r: r.__name__)
def test_picklable_named_and_weighted(reward) -> None:
    copy = pickle.loads(pickle.dumps(reward))
    assert copy == reward and copy.__name__ == reward.__name__
    assert type(reward)(weight=3.0, name="other").__name__ == "other"
    with pytest.raises(ValueError, match="finite"):
        type(reward)(weight=math.nan)


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_no_text_makes_a_reward_raise_or_return_nonsense(texts: list[str]) -> None:
    for reward in REWARDS:
        scores = reward(completions=texts, answer=["7"] * len(texts))
        assert len(scores) == len(texts) and all(0 <= score <= 1 for score in scores)


@given(st.text(max_size=80))
def test_parse_number_never_raises(text: str) -> None:
    number = parse_number(text)
    assert number is None or parse_number(str(float(number))) is not None or abs(number) > 1e15 or abs(number) < 1e-4
