"""Check that `gn.baseline` samples as training would, with a model of real architecture."""

import pytest
import torch

import grpo_nb as gn
from grpo_nb.checks.learning_signal import Baseline
from grpo_nb.cpu import engine
from grpo_nb.generation import sampling
from tests.support.own_rewards import Fading, hashed
from tests.support.tiny import load_tiny

pytestmark = pytest.mark.begins(130)

REWARDS = [gn.rewards.correctness(), gn.rewards.exact_format(), gn.rewards.partial_format()]


@pytest.fixture(scope="module")
def tiny(tiny_folder) -> tuple:
    return load_tiny(tiny_folder, 12, 4, max_completion_length=12, num_generations=4)


@pytest.fixture(scope="module")
def before(tiny) -> Baseline:
    return measure(tiny, seed=1)


def measure(tiny: tuple, seed: int) -> Baseline:
    model, tokenizer, task, settings = tiny
    return gn.baseline(model, tokenizer, task, REWARDS, settings.replace(seed=seed), prompts=3)


def test_baseline_keeps_model_and_random_state(tiny) -> None:
    model = tiny[0]
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    torch.manual_seed(5)
    state = torch.get_rng_state()
    measure(tiny, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(weights[name], now) for name, now in model.state_dict().items())


def test_baseline_with_the_same_seed_is_the_same(tiny, before) -> None:
    again = measure(tiny, seed=1)
    assert again.scores.completions == before.scores.completions
    assert repr(again) == repr(before)


def test_baseline_with_another_seed_takes_other_rows(tiny, before) -> None:
    assert measure(tiny, seed=2).rows != before.rows


def test_baseline_calls_each_reward_before_it_samples(tiny, monkeypatch) -> None:
    def broken(completions, **columns):
        raise KeyError("unit")

    model, tokenizer, task, settings = tiny
    monkeypatch.setattr(sampling, "generate", lambda *_, **__: pytest.fail("it sampled"))
    with pytest.raises(gn.scoring.RewardError, match="'broken' raised KeyError"):
        gn.baseline(model, tokenizer, task, [*REWARDS, broken], settings, prompts=3)


def test_baseline_has_a_greedy_completion_per_prompt(before) -> None:
    assert len(before.greedy_scores) == 3


def test_greedy_baseline_leaves_out_generation_config(tiny, before, monkeypatch) -> None:
    # A held-out comparison leaves it out too: vLLM and llama.cpp do not read it.
    monkeypatch.setattr(tiny[0].generation_config, "no_repeat_ngram_size", 1)
    again = measure(tiny, seed=1)
    assert again.greedy_scores.completions == before.greedy_scores.completions
    assert tiny[0].generation_config.no_repeat_ngram_size == 1


def test_baseline_samples_with_the_settings_of_training(tiny, monkeypatch) -> None:
    model, tokenizer, task, settings = tiny
    calls = []
    sample = engine.sample

    def watched(model, prompts, config, folded):
        calls.append({**config.to_dict(), "prompts": prompts})
        return sample(model, prompts, config, folded)

    def length(completions, completion_ids, **columns):
        return [float(len(ids)) for ids in completion_ids]

    monkeypatch.setattr(engine, "sample", watched)
    wanted = {"temperature": 0.7, "top_p": 0.8, "top_k": 30}
    settings = settings.replace(max_completion_length=7, extra={"min_p": 0.01}, **wanted)
    before = gn.baseline(model, tokenizer, task, length, settings, prompts=2)

    sampled = calls[0]  # greedy completions come after it
    assert {name: sampled[name] for name in wanted} == wanted
    assert sampled["max_new_tokens"] == 7
    assert sampled["min_p"] == 0.01
    assert len(sampled["prompts"]) == 8
    assert len({tuple(prompt) for prompt in sampled["prompts"]}) == 2
    # The reward saw the sampled token ids.
    assert max(before.scores.values["length"]) == 7
    assert min(before.scores.values["length"]) > 0


def test_baseline_teaches_rewards_nothing(tiny) -> None:
    model, tokenizer, task, settings = tiny
    fading = Fading(hashed)
    calls = []

    class Counting:
        """A reward that adds to its memory on every call, in a trial too."""

        __name__ = "counting"

        def __call__(self, completions, trainer_state, **columns):
            assert trainer_state.is_trial
            calls.extend(completions)
            return [0.0] * len(completions)

        def state_dict(self):
            return {"calls": calls}

        def load_state_dict(self, state):
            calls[:] = state["calls"]

    gn.baseline(model, tokenizer, task, [fading, Counting()], settings, prompts=2)
    assert fading.mean == 0
    assert calls == []


def wants_solution(completions, solution, **columns):
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"prompts": 0}, "prompts = 0", id="no prompts"),
        pytest.param({"rewards": []}, "reward", id="no rewards"),
        pytest.param({"rewards": wants_solution}, "solution", id="a column that is missing"),
    ],
)
def test_baseline_refuses_before_it_samples(tiny, monkeypatch, change, message) -> None:
    model, tokenizer, task, settings = tiny
    monkeypatch.setattr(sampling, "generate", lambda *_, **more: pytest.fail("it sampled first"))
    arguments = {"task": task, "rewards": REWARDS, "settings": settings, **change}
    with pytest.raises(Exception, match=message):
        gn.baseline(model, tokenizer, **arguments)
