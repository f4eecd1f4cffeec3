"""Every reward pays for what it says and for nothing else, on strings and on chat messages; none raises on any text."""

import functools
import math
import pickle
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.trainer.utils import get_callable_name

import grpo_nb as gn
from grpo_nb.rewards import base, correctness, length, xml_format, xml_tags
from grpo_nb.tasks import formats
from tests.rewards.cases import TABLES, score_of

# Code needs a sandbox: tests/rewards/test_code.py.
EVERY = [reward for kind, (reward, _) in TABLES.items() if kind != "code_tests"]
CASES = [(reward, *row) for reward in EVERY for row in TABLES[type(reward).__name__][1]]
every = pytest.mark.parametrize("reward", EVERY, ids=lambda reward: type(reward).__name__)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{type(case[0]).__name__} {case[1][:50]!a}")
def test_cases(case: tuple) -> None:
    reward, completion, expected, *more = case
    assert score_of(reward, completion, *more) == (expected if expected is None else pytest.approx(expected))


def test_every_kind_has_cases_and_there_are_eleven() -> None:
    made = [kind for kind in vars(gn.rewards).values() if isinstance(kind, type) and issubclass(kind, base.Reward)]
    assert {kind.__name__ for kind in made} - {"Reward", "SlotReward", "judge"} == TABLES.keys() and len(TABLES) == 11


ODD = [
    "\x00", "\ud800", "\u202e", "<answer>", "</answer>", "<reasoning>", "</reasoning>", "\\boxed{", "}", "{", '"', "[", "42",
    "x", "=", " or ", "\\frac", "^", "9", ",", "\n", "1. ", "```", "\u0664", "B", "a|a",
]  # fmt: skip
TEXT = st.one_of(
    st.text(max_size=200),
    st.text(alphabet=st.characters(categories=["Cs", "Cc", "L", "N", "S"]), max_size=50),
    st.lists(st.sampled_from(ODD), max_size=30).map("".join),
    st.lists(st.sampled_from(ODD), max_size=12).map(lambda parts: f"<answer>{''.join(parts)}</answer>"),
)


def call(reward: base.Reward, texts: list, prompt: str = "?") -> list[float | None]:
    ids = [list(range(len(base.completion_text(text)))) for text in texts]
    return reward(completions=texts, completion_ids=ids, answer=["42"] * len(texts), prompts=[prompt] * len(texts))


@every
@settings(deadline=None, max_examples=60)
@given(texts=st.lists(TEXT, min_size=1, max_size=4))
def test_no_text_makes_a_reward_raise_or_leave_its_range(reward: base.Reward, texts: list[str]) -> None:
    scores, (low, high) = call(reward, texts), reward.range
    assert len(scores) == len(texts)
    assert all(score is None or (isinstance(score, float) and low <= score <= high) for score in scores), scores
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    assert call(reward, chats) == scores, "chat messages score differently"
    assert call(reward, texts[::-1]) == scores[::-1], "the order of the batch matters"
    assert [call(reward, [text])[0] for text in texts] == scores, "neighbours matter"


@every
@pytest.mark.parametrize(
    "text",
    [
        "<answer>" * 25_000, "(" * 200_000, "<answer>" + "9" * 200_000 + "</answer>", "\ud800" * 200_000, "$" * 200_000,
        "<answer>" + "{[" * 100_000 + "</answer>", "<answer>" + "\\frac" * 40_000 + "</answer>",
        "<answer>" + "1," * 100_000 + "</answer>", "<answer>" + " " * 200_000 + "x</answer>",
        "<answer>" + "\\text{" * 30_000 + "}" * 30_000 + "</answer>",
    ],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_200_kb_take_no_more_than_a_moment(reward: base.Reward, text: str) -> None:
    start = time.process_time()
    call(reward, [text], prompt="A) x\n" * 1000)
    # Linear time is some tens of milliseconds; what is quadratic takes minutes.
    assert time.process_time() - start < 5


@every
def test_a_reward_is_kept_and_called_as_trl_does_it(reward: base.Reward) -> None:
    copy = pickle.loads(pickle.dumps(reward))
    assert copy == reward == replace(reward) and (copy.__name__, repr(copy)) == (reward.__name__, repr(reward))
    columns = {
        "prompts": [[{"role": "user", "content": "?"}]] * 2,
        "completions": [[{"role": "assistant", "content": "<answer>42</answer>"}]] * 2,
        "completion_ids": [[1, 2, 3]] * 2,
        "answer": ["42"] * 2,
    }
    before = pickle.dumps(columns)
    scores = reward(**columns, trainer_state=None, log_extra=lambda *a: None, log_metric=lambda *a: None)
    assert len(scores) == 2 and scores[0] == scores[1] and pickle.dumps(columns) == before


@every
def test_what_cannot_be_is_told_when_the_reward_is_made(reward: base.Reward) -> None:
    assert replace(reward, weight=3.0, name="other").__name__ == "other"
    with pytest.raises(ValueError, match="finite"):
        replace(reward, weight=math.nan)


def test_a_reward_of_ones_own_class_shows_itself_as_the_kits() -> None:
    @dataclass(frozen=True)
    class Polite(base.Reward):
        word: str = "please"

        def score_text(self, text: str, row: dict) -> float:
            return float(self.word in text)

    reward = Polite(word="<b>", weight=0.5, format=formats.boxed())
    assert repr(reward) == "Polite(weight=0.5, format='boxed', word='<b>')" and repr(correctness()) == "correctness()"
    assert repr(length(2, 4)) == "length(low=2, high=4)"
    assert reward(completions=["a", "<b>"]) == [0.0, 1.0] and "Polite" not in base.kinds()


def test_importing_rewards_is_light() -> None:
    code = (
        "import sys, grpo_nb as gn; gn.rewards.maths(); gn.rewards.correctness(); "
        "print(*{m.split('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "trl", "unsloth", "numpy", "pandas", "sympy", "math_verify", "jsonschema"}
    assert not set(done.stdout.split()) & heavy


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("7", "7"), ([], ""), ([{"role": "assistant", "content": None}], ""), ([{"role": "assistant"}], ""),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "b"),
            ],
)  # fmt: skip
def test_completion_text(completion, text: str) -> None:
    assert base.completion_text(completion) == text


def graded(completions: list, **columns: object) -> list[float]:
    return [float(len(c)) for c in completions]


def test_names_are_trls_and_two_of_one_are_refused() -> None:
    reward = functools.partial(functools.partial(graded, level=[1]), other=2)
    assert base.reward_name(reward) == get_callable_name(reward) == "graded"
    assert base.weights_by_name([reward, xml_tags(weight=0.5)]) == {"graded": 1.0, "xml_tags": 0.5}
    for twice in ([reward, graded], [correctness(), xml_tags(), correctness()]):
        with pytest.raises(ValueError, match=r"two rewards are named '(graded|correctness)'"):
            base.weights_by_name(twice)
    for wrong in ([correctness()(completions=["7"], answer=["7"])], [correctness], ["correctness"]):
        with pytest.raises(ValueError, match="no reward function"):
            base.weights_by_name(wrong)


def test_one_reward_or_several() -> None:
    one = xml_format()
    assert base.reward_list(one) == base.reward_list([one]) == base.reward_list(iter([one])) == [one]
    assert base.reward_list([], least=0) == []
    with pytest.raises(ValueError, match="rewards is empty"):
        base.reward_list([])


def test_columns_of_numpy_pandas_and_datasets_are_columns() -> None:
    import datasets
    import numpy
    import pandas

    held = datasets.Dataset.from_dict({"a": ["7", "7"]})["a"]
    for column in (numpy.array(["7", "7"]), pandas.Series([7, 7], index=[5, 6]), held):
        assert correctness()(completions=["<answer>7</answer>", "<answer>8</answer>"], answer=column) == [1.0, 0.0]
