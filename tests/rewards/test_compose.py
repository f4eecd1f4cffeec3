"""Rewards made of rewards keep names, weights and ranges; the adaptive one goes back with its checkpoint; the dummy refuses."""

import functools
import math
import pickle
from types import SimpleNamespace

import pytest
from trl.trainer.utils import get_callable_name

from grpo_nb.rewards.answers import correctness
from grpo_nb.rewards.base import reward_name, weights_by_name
from grpo_nb.rewards.compose import adaptive, clipped, combined, dummy
from grpo_nb.rewards.form import xml_format, xml_tags
from grpo_nb.rewards.style import soft_overlong

RIGHT, WRONG = "<reasoning>r</reasoning><answer>7</answer>", "<answer>8</answer>"


def unbounded(completions: list, **columns: object) -> list[float | None]:
    """Module level, so that it pickles as a user's reward in a module does."""
    return [{"nan": math.nan, "none": None, "inf": math.inf}.get(c, float(len(c))) for c in completions]


unbounded.weight = 0.3


def state(step: int, max_steps: int = 100) -> SimpleNamespace:
    return SimpleNamespace(global_step=step, max_steps=max_steps)


def test_clipped_keeps_name_and_weight() -> None:
    reward = clipped(unbounded, 1, 3)
    assert reward(completions=["", "ab", "abcdef", "nan", "none", "inf"]) == [1.0, 2.0, 3.0, None, None, 3.0]
    assert (reward.__name__, reward.weight, reward.range) == ("unbounded", 0.3, (1.0, 3.0))
    assert clipped(soft_overlong(10, 5), -0.5, 5).range == (-0.5, 0.0)
    assert pickle.loads(pickle.dumps(reward))(completions=["abcdef"]) == [3.0]
    for low, high in ((1, 1), (2, 1), (0, math.inf), (math.nan, 1)):
        with pytest.raises(ValueError, match="below"):
            clipped(unbounded, low, high)


def test_combined_adds_up_as_trl_does() -> None:
    reward = combined([correctness(), xml_tags(weight=0.5), unbounded], name="total")
    assert reward(completions=[RIGHT, WRONG, ""], answer=["7"] * 3) == pytest.approx(
        [2 + 0.5 + 0.3 * len(RIGHT), 0.25 + 0.3 * len(WRONG), 0]
    )
    # What has nothing to say is left out; where nobody has, there is no score.
    assert combined([correctness(), xml_tags()])(completions=[RIGHT], answer=[None]) == [1.0]
    assert combined([correctness()])(completions=[RIGHT], answer=[None]) == [None]
    assert combined([correctness(), xml_tags(weight=-1.0)]).range == (-1.0, 2.0)
    with pytest.raises(ValueError, match="two rewards are named"):
        combined([correctness(), correctness()])
    with pytest.raises(ValueError, match="empty"):
        combined([])


def test_adaptive_follows_its_formula() -> None:
    reward = adaptive(xml_format(), floor=0.2, decay=0.5)
    success, expected = 0.0, []
    shares = [0.0, 0.5, 1.0, 1.0, 0.5]
    for share in shares:
        expected.append(0.2 + 0.8 * (1 - success))
        success = 0.5 * success + 0.5 * share
    found = []
    for step, share in enumerate(shares):
        texts = [RIGHT] * round(4 * share) + [WRONG] * round(4 - 4 * share)
        found.append(reward.factor if step == 0 else None)
        scores = reward(completions=texts, trainer_state=state(step))
        found[-1] = reward.factor
        assert scores == pytest.approx([(text == RIGHT) * found[-1] for text in texts])
    assert found == pytest.approx(expected)


def test_adaptive_is_pure_outside_training_and_within_a_step() -> None:
    reward = adaptive(xml_format())
    for _ in range(5):
        assert reward(completions=[RIGHT]) == [1.0]
        assert reward(completions=[RIGHT], trainer_state=None) == [1.0]
        assert reward(completions=[RIGHT], trainer_state=state(3)) == [1.0]  # several calls of one step, one factor
    assert reward(completions=[RIGHT], trainer_state=state(4)) == pytest.approx([0.91])


def test_adaptive_goes_back_with_its_checkpoint() -> None:
    def run(reward, first: int, last: int) -> list[float]:
        found = []
        for step in range(first, last):
            reward(completions=[RIGHT] * (step % 4) + [WRONG] * 2, trainer_state=state(step))
            found.append(reward.factor)
        return found

    straight = run(adaptive(xml_format()), 0, 12)
    assert len(set(straight)) > 5
    crashed = adaptive(xml_format())
    assert run(crashed, 0, 9) == straight[:9]
    # Back at the checkpoint of step 6, pickled or as an object that lived on: the same factors as without the crash.
    copy = pickle.loads(pickle.dumps(crashed))
    assert run(copy, 6, 12) == run(crashed, 6, 12) == straight[6:]
    # A run from the start starts from the start.
    assert run(crashed, 0, 12) == straight and len(crashed.state.history) == 12


def test_adaptive_logs_its_factor_and_passes_names_on() -> None:
    logged: dict[str, float] = {}
    reward = adaptive(correctness(name="right"), floor=0.0)
    reward(completions=[RIGHT], answer=["7"], trainer_state=state(0), log_metric=logged.__setitem__)
    assert logged == {"right/factor": 1.0} and reward.__name__ == "right" and reward.weight == 2.0
    assert reward(completions=[RIGHT], answer=[None], trainer_state=state(1)) == [None]
    for wrong in ({"floor": 2}, {"decay": 1.0}):
        with pytest.raises(ValueError, match=r"floor|decay"):
            adaptive(xml_format(), **wrong)
    with pytest.raises(ValueError, match="threshold"):
        adaptive(unbounded)


def test_penalties_stay_in_their_range_when_faded() -> None:
    reward = adaptive(soft_overlong(10, 5), floor=0.1, decay=0.0)
    for step in range(3):
        scores = reward(completions=["", ""], completion_ids=[[1] * 20, [1]], trainer_state=state(step))
        low, high = reward.range
        assert all(low <= score <= high for score in scores)


def test_a_dummy_is_not_taken_for_a_reward() -> None:
    for kind in ("hash", "length", "constant"):
        reward = dummy(kind)
        assert reward.__name__.startswith("dummy_")
        first = reward(completions=["a", "b" * 500], trainer_state=state(0, max_steps=20))
        assert reward(completions=["a", "b" * 500]) == first
        with pytest.raises(ValueError, match="for debugging"):
            reward(completions=["a"], trainer_state=state(0, max_steps=21))
    a, b = dummy()(completions=["a", "b"])
    assert a != b
    with pytest.raises(ValueError, match="kind"):
        dummy("real")


def test_a_partial_has_the_name_that_trl_gives_it() -> None:
    reward = functools.partial(functools.partial(unbounded, level=[1]), other=2)
    assert reward_name(reward) == get_callable_name(reward) == "unbounded"
    assert reward_name(functools.partial(correctness(name="right"))) == "right"
    assert list(weights_by_name([reward, xml_tags()])) == ["unbounded", "xml_tags"]
    with pytest.raises(ValueError, match="two rewards are named 'unbounded'"):
        weights_by_name([reward, unbounded])


def test_adaptive_does_not_learn_from_evaluation_or_a_trial() -> None:
    reward = adaptive(xml_format(), decay=0.5)
    reward(completions=[WRONG], trainer_state=state(0))
    trial = state(1)  # the step of the training call that follows it
    trial.is_trial = True
    reward(completions=[RIGHT] * 50, trainer_state=trial)
    reward(completions=[RIGHT], trainer_state=state(1))
    assert reward.state.history == [(0, 0.0), (1, 0.0)]
    reward(completions=[RIGHT], trainer_state=state(2))
    assert reward.state.history[-1] == (2, 0.5)
