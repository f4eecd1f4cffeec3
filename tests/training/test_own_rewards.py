"""A training with rewards of one's own says what is wrong with them, once, without becoming slow or another one."""

import itertools
import time
import warnings

import pytest

import grpo_nb as gn
from grpo_nb.rewards.base import completion_text
from grpo_nb.training.own_rewards import said_of_own_rewards
from grpo_nb.training.run_info import checked_rewards

SETTINGS = gn.preset("cpu")
ALL = {"named_anywhere", "tidy", "correctness", "xml_format", "xml_tags"}
calls = itertools.count()


@pytest.fixture(scope="module")
def task() -> gn.tasks.Task:
    return gn.load_task("arithmetic", train_size=20, holdout_size=5)


def named_anywhere(completions, answer, **columns):
    return [float(gold in completion_text(text)) for text, gold in zip(completions, answer, strict=True)]


def tidy(completions, **columns):
    return [0.5 * completion_text(text).rstrip().endswith("</answer>") for text in completions]


class Counting:
    """Pays by how often it was called: a check would make another reward of it."""

    calls = 0

    def __call__(self, completions, **columns):
        self.calls += 1
        return [1.0 / self.calls] * len(completions)


def asks_far_away(completions, **columns):
    next(calls)
    time.sleep(0.1)
    return [0.0] * len(completions)


def test_the_faults_are_said_once_in_a_line(task: gn.tasks.Task) -> None:
    said = said_of_own_rewards([named_anywhere, gn.rewards.xml_tags()], task, SETTINGS, ALL)
    assert said.startswith(
        "Training begins all the same, but your rewards have faults: named_anywhere: several answers (critical)"
    )
    assert said.endswith("gn.check_rewards(rewards, task) shows each with its mend.") and "\n" not in said
    assert said_of_own_rewards([named_anywhere], task, SETTINGS, ALL) == ""


def test_sound_rewards_and_those_of_the_kit_are_not_spoken_of(task: gn.tasks.Task) -> None:
    assert said_of_own_rewards([tidy, gn.rewards.correctness()], task, SETTINGS, ALL) == ""
    assert said_of_own_rewards([gn.rewards.xml_format()], task, SETTINGS, ALL) == ""


@pytest.mark.parametrize("reward", [Counting(), asks_far_away], ids=["changes", "slow"])
def test_what_a_check_would_change_or_wait_for_is_only_named(reward, task: gn.tasks.Task) -> None:
    _, harmless = checked_rewards([reward], task, SETTINGS)
    before = next(calls), getattr(reward, "calls", None)
    said = said_of_own_rewards([reward], task, SETTINGS, harmless)
    assert said.startswith("Not checked before this training, for a call takes long or changes it: ")
    assert (next(calls) - 1, getattr(reward, "calls", None)) == before, "it was not called for that"


def test_a_training_says_it_before_its_first_step(task: gn.tasks.Task, tiny_settings: gn.Settings) -> None:
    def first_row_for_all(completions, answer, **columns):
        return [float(answer[0] in completion_text(text)) for text in completions]

    settings = tiny_settings.replace(max_steps=1)
    model, tokenizer = gn.load_model(settings)
    with pytest.warns(UserWarning, match="first_row_for_all: depends on the order") as told:
        run = gn.train(model, tokenizer, task, [first_row_for_all], settings)
    assert run.status == "finished" and any(w.filename == __file__ for w in told)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*your rewards")
        gn.train(model, tokenizer, task, [first_row_for_all], settings)
