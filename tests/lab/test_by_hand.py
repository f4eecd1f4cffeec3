"""An episode played by hand: what is told and paid is what the model gets, and it can be shown to the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from trl import chat_template_utils

import grpo_nb as gn
from grpo_nb.lab import ByHand
from tests.support.village import FORM, Village, progress, village_rows, village_task


@pytest.fixture(scope="module")
def tokenizer(embedded_folder: Path) -> Any:
    return gn.models.give_tool_template(AutoTokenizer.from_pretrained(embedded_folder))


def test_it_is_paid_step_by_step_as_the_model_is() -> None:
    task = village_task(gn.preset("cpu"))
    row = next(i for i, row in enumerate(task.train) if len(row["chain"]) == 2)
    rewards, hand = [gn.rewards.correctness(format=FORM), progress], gn.lab.ByHand(task, row)
    first, second = hand.row["chain"]
    assert hand.scores(rewards).totals == (0.0,)
    assert hand.do("read", place=first) == f"Go to the {second}." and hand.scores(
        rewards
    ).totals == (0.5,)
    assert "Tool fly not found" in hand.do("fly", to="moon") and "unexpected keyword" in hand.do(
        "read", where="x"
    )
    assert hand.do("read", place=second) == f"The number is {hand.row['number']}."
    assert hand.scores(rewards).totals == (1.0,), "what a tool says is no answer"
    assert hand.say(f"<answer>{hand.row['number']}</answer>").scores(rewards).totals == (3.0,)
    assert f"read(place={first})\\n→ Go to the {second}." in repr(hand)
    with pytest.raises(ValueError, match="the task has no tools"):
        ByHand(gn.load_task(village_rows(), holdout=4))


def test_a_played_episode_can_be_the_example(tokenizer: Any) -> None:
    settings = gn.preset("cpu", max_prompt_length=300)
    task = village_task(settings, tokenizer)
    hand = ByHand(task)
    hand.do("read", place=hand.row["chain"][0])
    shown = hand.say("<answer>7</answer>").example(tokenizer)
    assert [turn["role"] for turn in shown] == ["user", "assistant", "tool", "assistant"]
    assert shown[1]["content"] == f"<call>read(place={hand.row['chain'][0]})</call>"
    told = village_task(settings, tokenizer, example=shown)
    assert len(told.train) == len(task.train)
    rendered = tokenizer.apply_chat_template(
        told.train[1]["prompt"], tokenize=False, **told.template_kwargs
    )
    called = f"<|im_start|>assistant\n{shown[1]['content']}<|im_end|>\n<|im_start|>tool\n"
    assert called in rendered and "read(place): Read the note at a place." in rendered
    with pytest.raises(ValueError, match="is held out"):
        village_task(
            settings, tokenizer, example=[{"role": "user", "content": task.holdout[0]["question"]}]
        )


@pytest.mark.parametrize(
    ("family", "is_served"), [("qwen2_5", True), ("qwen3", True), ("gemma4", False)]
)
def test_an_example_that_a_template_would_show_otherwise_is_refused(
    family: str, is_served: bool, embedded_folder: Path
) -> None:
    """Gemma 4 shows a result only behind calls that are no text, and would leave it out without a word."""
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    tokenizer.chat_template = getattr(chat_template_utils, f"{family}_chat_template")
    hand = ByHand(village_task(gn.preset("cpu")))
    hand.do("read", place=hand.row["chain"][0])
    hand.say("<answer>7</answer>")
    if is_served:
        assert "Go to the" in str(hand.example(tokenizer)) or "The number is" in str(
            hand.example(tokenizer)
        )
        return
    with pytest.raises(ValueError, match="leave the example out"):
        hand.example(tokenizer)


def test_the_reward_lab_scores_a_row_that_has_begun_and_samples_no_episode() -> None:
    lab = gn.RewardLab([gn.rewards.correctness(), progress], village_task(gn.preset("cpu")))
    assert lab.scores.values["progress"] == (0.0, 0.0) and isinstance(
        lab.row["environments"], Village
    )
    lab._sample(None)
    assert "gn.lab.ByHand(task, row) plays one" in lab._errors.value
