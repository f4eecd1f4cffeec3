"""Every reward gives the labelled scores, on strings and chat messages, and none ever raises."""

import functools
import math
import pickle
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import datasets
import numpy
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.trainer.utils import get_callable_name

import grpo_nb as gn
from grpo_nb.rewards import base, correctness, partial_format
from tests.rewards.cases import CASES, KINDS, Case, slot

# Code needs a sandbox: tests/sandbox/test_code_reward.py.
WITHOUT_CODE = [KINDS[kind] for kind in KINDS if kind != "code_tests"]
CASES_WITHOUT_CODE = [case for case in CASES if not isinstance(case.reward, gn.rewards.code_tests)]
every_reward = pytest.mark.parametrize("reward", WITHOUT_CODE, ids=lambda reward: reward.__name__)


@pytest.mark.parametrize("is_chat", [False, True], ids=["texts", "chats"])
@pytest.mark.parametrize("case", CASES_WITHOUT_CODE, ids=str)
def test_reward_gives_the_score_labelled_by_hand(case: Case, is_chat: bool) -> None:
    expected = [score if score is None else pytest.approx(score) for score in case.scores]
    assert case.scores_given(is_chat=is_chat) == expected, case.completions


def test_every_kind_has_labelled_cases() -> None:
    classes = [value for value in vars(gn.rewards).values() if isinstance(value, type)]
    names = {kind.__name__ for kind in classes if issubclass(kind, base.Reward)}
    assert names - {"Reward", "SlotReward", "judge"} == KINDS.keys()


PARTS = '\x00 \ud800 \u202e <answer> </answer> <reasoning> </reasoning> \\boxed{ } { " [ 42 x = '
PARTS = [*PARTS.split(), " or ", "\\frac", "^", "9", ",", "\n", "1. ", "```", "\u0664", "B", "a|a"]
TEXT = st.one_of(
    st.text(max_size=200),
    st.text(alphabet=st.characters(categories=["Cs", "Cc", "L", "N", "S"]), max_size=50),
    st.lists(st.sampled_from(PARTS), max_size=30).map("".join),
    st.lists(st.sampled_from(PARTS), max_size=12).map(lambda parts: slot("".join(parts))),
)


def call(reward: base.Reward, texts: list, prompt: str = "?") -> list[float | None]:
    token_ids = [list(range(len(base.completion_text(text)))) for text in texts]
    return reward(
        completions=texts,
        completion_ids=token_ids,
        answer=["42"] * len(texts),
        prompts=[prompt] * len(texts),
    )


@every_reward
@settings(deadline=None, max_examples=60)
@given(texts=st.lists(TEXT, min_size=1, max_size=4))
def test_no_text_makes_a_reward_raise_or_leave_its_range(
    reward: base.Reward, texts: list[str]
) -> None:
    scores = call(reward, texts)
    low, high = reward.range
    assert len(scores) == len(texts)
    for score in scores:
        assert score is None or isinstance(score, float)
        assert score is None or low <= score <= high
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    assert call(reward, chats) == scores, "chat messages score differently"
    assert call(reward, texts[::-1]) == scores[::-1], "the order of the batch matters"
    assert [call(reward, [text])[0] for text in texts] == scores, "neighbours matter"


LONG_SLOTS = [text * 40_000 for text in ("999999", "{[{[", "\\frac", "1,1,1,", "      ")]
LONG_SLOTS.append("\\text{" * 30_000 + "}" * 30_000)
LONG = [text * 200_000 for text in "(\ud800$"]
LONG.append("<answer>" * 25_000)
LONG += [slot(text + "x") for text in LONG_SLOTS]


@every_reward
@pytest.mark.parametrize("text", LONG, ids=lambda text: repr(text[:12]))
def test_reward_is_fast_on_200_kb_of_text(reward: base.Reward, text: str) -> None:
    start = time.process_time()
    call(reward, [text], prompt="A) x\n" * 1000)
    # Linear time is some tens of milliseconds; what is quadratic takes minutes.
    assert time.process_time() - start < 5


@every_reward
def test_pickled_reward_is_the_same_reward(reward: base.Reward) -> None:
    copy = pickle.loads(pickle.dumps(reward))
    assert copy == reward
    assert copy.__name__ == reward.__name__
    assert repr(copy) == repr(reward)


@every_reward
def test_reward_called_as_trl_does_leaves_its_columns_alone(reward: base.Reward) -> None:
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
    assert len(scores) == 2
    assert scores[0] == scores[1]
    assert pickle.dumps(columns) == before


@every_reward
def test_reward_takes_another_name_and_a_finite_weight(reward: base.Reward) -> None:
    assert replace(reward, weight=3.0, name="other").__name__ == "other"
    with pytest.raises(ValueError, match="finite"):
        replace(reward, weight=math.nan)


def test_repr_of_a_subclass_is_its_own() -> None:
    @dataclass(frozen=True, repr=False)
    class Shown(base.Reward):
        def __repr__(self) -> str:
            return "shown"

    @dataclass(frozen=True)
    class Heir(Shown):
        pass

    assert repr(Shown()) == "shown"
    assert repr(Heir()) == "shown"


def test_importing_rewards_loads_no_heavy_library() -> None:
    code = (
        "import sys, grpo_nb as gn\n"
        "gn.rewards.maths()\n"
        "gn.rewards.correctness()\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = "torch transformers trl unsloth numpy pandas sympy math_verify jsonschema"
    assert set(done.stdout.split()) & set(heavy.split()) == set()


def graded(completions: list, **columns: object) -> list[float]:
    return [float(len(completion)) for completion in completions]


def test_name_of_a_partial_is_the_one_trl_gives_it() -> None:
    reward = functools.partial(functools.partial(graded, level=[1]), other=2)
    assert base.reward_name(reward) == get_callable_name(reward) == "graded"


def test_partial_has_name_weight_and_mark_of_its_function() -> None:
    def ranked(completions: list, **columns: object) -> list[float]:
        return [0.0 for _ in completions]

    ranked.weight = 3.0
    reward = functools.partial(functools.partial(base.relative(ranked), level=1), other=2)
    assert base.weights_by_name(reward) == {"ranked": 3.0}
    assert base.is_relative(reward)
    reward.weight = 0.5
    assert base.weights_by_name(reward) == {"ranked": 0.5}


def test_partial_does_not_inherit_the_range_of_its_function() -> None:
    """Its arguments may change the scale."""

    def scaled(completions: list, scale: float = 1, **columns: object) -> list[float]:
        return [scale * bool(completion) for completion in completions]

    scaled.range = (0, 1)
    reward = functools.partial(scaled, scale=5)
    assert base.range_of(reward) is None
    reward.range = (0, 5)
    assert base.range_of(reward) == (0.0, 5.0)


def test_method_can_be_marked_as_relative() -> None:
    class Ranking:
        def ranks(self, completions: list, **columns: object) -> list[float]:
            return [0.0 for _ in completions]

    reward = base.relative(Ranking().ranks)
    assert base.is_relative(reward)
    assert base.reward_name(reward) == "ranks"


def test_weights_are_one_where_a_reward_has_none() -> None:
    rewards = [graded, partial_format(weight=0.5)]
    assert base.weights_by_name(rewards) == {"graded": 1.0, "partial_format": 0.5}


def test_class_in_place_of_a_reward_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"class .*correctness.* is not a reward function: write .*correctness\(\)"
    ):
        base.reward_list([correctness])


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(numpy.array(["7", "7"]), id="numpy"),
        pytest.param(pandas.Series([7, 7], index=[5, 6]), id="pandas"),
        pytest.param(datasets.Dataset.from_dict({"a": ["7", "7"]})["a"], id="datasets"),
    ],
)
def test_column_may_be_of_another_library(column) -> None:
    texts = ["<answer>7</answer>", "<answer>8</answer>"]
    assert correctness()(completions=texts, answer=column) == [1.0, 0.0]
