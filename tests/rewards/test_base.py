"""Every reward pays for what it says and for nothing else, on strings and on chat messages; none raises on any text."""

import functools
import math
import pickle
import subprocess
import sys
import time
from dataclasses import replace

import datasets
import numpy
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.trainer.utils import get_callable_name

import grpo_nb as gn
from grpo_nb.rewards import base, correctness, xml_tags
from tests.rewards.cases import CASES, KINDS, Case, slot

# Code needs a sandbox: tests/rewards/test_code.py.
PLAIN = [KINDS[kind] for kind in KINDS if kind != "code_tests"]
every = pytest.mark.parametrize("reward", PLAIN, ids=lambda reward: reward.__name__)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_was_labelled_by_hand(case: Case) -> None:
    expected = [score if score is None else pytest.approx(score) for score in case.scores]
    assert case.paid() == case.paid(is_chat=True) == expected, case.completions


def test_every_kind_has_labelled_cases() -> None:
    made = [
        kind
        for kind in vars(gn.rewards).values()
        if isinstance(kind, type) and issubclass(kind, base.Reward)
    ]
    assert {kind.__name__ for kind in made} - {"Reward", "SlotReward", "judge"} == KINDS.keys()


ODD = [
    "\x00", "\ud800", "\u202e", "<answer>", "</answer>", "<reasoning>", "</reasoning>", "\\boxed{", "}", "{", '"', "[", "42",
    "x", "=", " or ", "\\frac", "^", "9", ",", "\n", "1. ", "```", "\u0664", "B", "a|a",
]  # fmt: skip
TEXT = st.one_of(
    st.text(max_size=200),
    st.text(alphabet=st.characters(categories=["Cs", "Cc", "L", "N", "S"]), max_size=50),
    st.lists(st.sampled_from(ODD), max_size=30).map("".join),
    st.lists(st.sampled_from(ODD), max_size=12).map(
        lambda parts: f"<answer>{''.join(parts)}</answer>"
    ),
)


def call(reward: base.Reward, texts: list, prompt: str = "?") -> list[float | None]:
    ids = [list(range(len(base.completion_text(text)))) for text in texts]
    return reward(
        completions=texts,
        completion_ids=ids,
        answer=["42"] * len(texts),
        prompts=[prompt] * len(texts),
    )


@every
@settings(deadline=None, max_examples=60)
@given(texts=st.lists(TEXT, min_size=1, max_size=4))
def test_no_text_makes_a_reward_raise_or_leave_its_range(
    reward: base.Reward, texts: list[str]
) -> None:
    scores, (low, high) = call(reward, texts), reward.range
    assert len(scores) == len(texts)
    assert all(
        score is None or (isinstance(score, float) and low <= score <= high) for score in scores
    ), scores
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    assert call(reward, chats) == scores, "chat messages score differently"
    assert call(reward, texts[::-1]) == scores[::-1], "the order of the batch matters"
    assert [call(reward, [text])[0] for text in texts] == scores, "neighbours matter"


INSIDE = [text * 40_000 for text in ("999999", "{[{[", "\\frac", "1,1,1,", "      ")]
NESTED = "\\text{" * 30_000 + "}" * 30_000
LONG = [text * 200_000 for text in "(\ud800$"] + [
    "<answer>" * 25_000,
    *(slot(text + "x") for text in (*INSIDE, NESTED)),
]


@every
@pytest.mark.parametrize("text", LONG, ids=lambda text: repr(text[:12]))
def test_200_kb_take_no_more_than_a_moment(reward: base.Reward, text: str) -> None:
    start = time.process_time()
    call(reward, [text], prompt="A) x\n" * 1000)
    # Linear time is some tens of milliseconds; what is quadratic takes minutes.
    assert time.process_time() - start < 5


@every
def test_a_reward_is_kept_and_called_as_trl_does_it(reward: base.Reward) -> None:
    copy = pickle.loads(pickle.dumps(reward))
    assert copy == reward == replace(reward) and (copy.__name__, repr(copy)) == (
        reward.__name__,
        repr(reward),
    )
    columns = {
        "prompts": [[{"role": "user", "content": "?"}]] * 2,
        "completions": [[{"role": "assistant", "content": "<answer>42</answer>"}]] * 2,
        "completion_ids": [[1, 2, 3]] * 2,
        "answer": ["42"] * 2,
    }
    before = pickle.dumps(columns)
    scores = reward(
        **columns, trainer_state=None, log_extra=lambda *a: None, log_metric=lambda *a: None
    )
    assert len(scores) == 2 and scores[0] == scores[1] and pickle.dumps(columns) == before
    assert replace(reward, weight=3.0, name="other").__name__ == "other"
    with pytest.raises(ValueError, match="finite"):
        replace(reward, weight=math.nan)


def test_importing_rewards_is_light() -> None:
    code = "import sys, grpo_nb as gn; gn.rewards.maths(); gn.rewards.correctness(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {
        "torch",
        "transformers",
        "trl",
        "unsloth",
        "numpy",
        "pandas",
        "sympy",
        "math_verify",
        "jsonschema",
    }
    assert not set(done.stdout.split()) & heavy


def graded(completions: list, **columns: object) -> list[float]:
    return [float(len(c)) for c in completions]


def test_names_are_trls() -> None:
    reward = functools.partial(functools.partial(graded, level=[1]), other=2)
    assert base.reward_name(reward) == get_callable_name(reward) == "graded"
    assert base.weights_by_name([reward, xml_tags(weight=0.5)]) == {"graded": 1.0, "xml_tags": 0.5}


def test_columns_of_numpy_pandas_and_datasets_are_columns() -> None:
    held = datasets.Dataset.from_dict({"a": ["7", "7"]})["a"]
    for column in (numpy.array(["7", "7"]), pandas.Series([7, 7], index=[5, 6]), held):
        assert correctness()(
            completions=["<answer>7</answer>", "<answer>8</answer>"], answer=column
        ) == [1.0, 0.0]
