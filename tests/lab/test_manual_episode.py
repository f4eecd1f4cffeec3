"""Check an episode played by hand: results and scores are those that the model gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from trl import chat_template_utils

import grpo_nb as gn
from grpo_nb.lab import ManualEpisode
from tests.support.lab_controls import control, shown_scores, text_of
from tests.support.village import FORM, Village, progress, village_rows, village_task

REWARDS = [gn.rewards.correctness(format=FORM), progress]


@pytest.fixture(scope="module")
def tokenizer(embedded_folder: Path) -> Any:
    return gn.models.set_tool_template(AutoTokenizer.from_pretrained(embedded_folder))


@pytest.fixture
def episode() -> ManualEpisode:
    """Return an episode with two places to read."""
    task = village_task(gn.preset("cpu"))
    row = next(i for i, row in enumerate(task.train) if len(row["chain"]) == 2)
    return ManualEpisode(task, row)


def test_episode_is_scored_step_by_step(episode: ManualEpisode) -> None:
    first, second = episode.row["chain"]
    assert episode.scores(REWARDS).totals == (0.0,)
    assert episode.do("read", place=first) == f"Go to the {second}."
    assert episode.scores(REWARDS).totals == (0.5,)
    assert episode.do("read", place=second) == f"The number is {episode.row['number']}."
    # A tool's result is no answer of the model.
    assert episode.scores(REWARDS).totals == (1.0,)
    episode.say(f"<answer>{episode.row['number']}</answer>")
    assert episode.scores(REWARDS).totals == (3.0,)


def test_episode_shows_calls_and_results(episode: ManualEpisode) -> None:
    first, second = episode.row["chain"]
    episode.do("read", place=first)
    assert f"read(place={first})\\n→ Go to the {second}." in repr(episode)


def test_error_of_a_tool_is_returned_as_text(episode: ManualEpisode) -> None:
    assert "Tool fly not found" in episode.do("fly", to="moon")
    assert "unexpected keyword" in episode.do("read", where="x")


def test_task_without_tools_is_refused() -> None:
    with pytest.raises(ValueError, match="the task has no tools"):
        ManualEpisode(gn.load_task(village_rows(), holdout=4))


def test_played_episode_can_be_the_example(tokenizer: Any) -> None:
    settings = gn.preset("cpu", max_prompt_length=300)
    task = village_task(settings, tokenizer)
    episode = ManualEpisode(task)
    episode.do("read", place=episode.row["chain"][0])
    example = episode.say("<answer>7</answer>").example(tokenizer)
    assert [turn["role"] for turn in example] == ["user", "assistant", "tool", "assistant"]
    assert example[1]["content"] == f"<call>read(place={episode.row['chain'][0]})</call>"

    with_example = village_task(settings, tokenizer, example=example)
    # Without the row that the example shows.
    assert len(with_example.train) == len(task.train) - 1
    rendered = tokenizer.apply_chat_template(
        with_example.train[1]["prompt"], tokenize=False, **with_example.render_kwargs
    )
    call = f"<|im_start|>assistant\n{example[1]['content']}<|im_end|>\n<|im_start|>tool\n"
    assert call in rendered
    assert "read(place): Read the note at a place." in rendered


def test_question_of_a_played_example_is_left_out(tokenizer: Any) -> None:
    settings = gn.preset("cpu", max_prompt_length=300)
    question = village_task(settings, tokenizer).holdout[0]["question"]
    example = [{"role": "user", "content": question}]
    task = village_task(settings, tokenizer, example=example)
    assert question not in [*task.train["question"], *task.holdout["question"]]


def make_example(family: str, folder: Path) -> list[dict[str, str]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = getattr(chat_template_utils, f"{family}_chat_template")
    episode = ManualEpisode(village_task(gn.preset("cpu")))
    episode.do("read", place=episode.row["chain"][0])
    return episode.say("<answer>7</answer>").example(tokenizer)


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3"])
def test_example_for_a_template_with_plain_calls(family: str, embedded_folder: Path) -> None:
    result = make_example(family, embedded_folder)[2]["content"]
    assert result.startswith(("Go to the", "The number is"))


def test_example_that_a_template_would_drop_is_refused(embedded_folder: Path) -> None:
    # Gemma 4 shows a result only after calls that are not text, and silently drops it elsewhere.
    with pytest.raises(ValueError, match="leave the example out"):
        make_example("gemma4", embedded_folder)


def test_lab_scores_an_episode_that_has_begun() -> None:
    lab = gn.RewardLab(REWARDS, village_task(gn.preset("cpu")))
    assert lab.scores.values["progress"] == (0.0, 0.0)
    assert isinstance(lab.row["environments"], Village)


class TellingVillage(Village):
    """A village that tells the first place when an episode starts."""

    def reset(self, chain: list[str], **row: Any) -> str:
        super().reset(chain, **row)
        return f" A voice says: {chain[0]}."


def test_lab_shows_the_prompt_with_the_first_text_of_its_environment() -> None:
    task = village_task(gn.preset("cpu")).with_tools(environment=TellingVillage)
    lab = gn.RewardLab(REWARDS, task)
    assert f"A voice says: {lab.row['chain'][0]}." in text_of(lab)


class LockedVillage(Village):
    """A village of which one episode cannot start."""

    locked: tuple[str, ...] = ()

    def reset(self, chain: list[str], **row: Any) -> None:
        if list(self.locked) == chain:
            raise RuntimeError("the gate is locked")
        super().reset(chain, **row)


def test_lab_shows_no_old_numbers_if_an_episode_cannot_start(monkeypatch) -> None:
    task = village_task(gn.preset("cpu")).with_tools(environment=LockedVillage)
    lab = gn.RewardLab(REWARDS, task)
    first_question = lab.row["question"]
    monkeypatch.setattr(LockedVillage, "locked", tuple(task.train[1]["chain"]))
    control(lab, f"Row, 0 to {len(task.train) - 1}").value = 1
    shown = text_of(lab)
    assert "the gate is locked" in shown
    assert "Not scored." in shown
    assert not shown_scores(lab)
    assert first_question not in shown


def test_lab_samples_no_episode() -> None:
    lab = gn.RewardLab(REWARDS, village_task(gn.preset("cpu")))
    with pytest.raises(ValueError, match=r"Run one with gn.lab.ManualEpisode\(task, row_number\)"):
        lab.sample()


def test_lab_row_is_one_episode_until_it_is_scored_again() -> None:
    lab = gn.RewardLab(REWARDS, village_task(gn.preset("cpu")))
    environment = lab.row["environments"]
    assert lab.row["environments"] is environment
    lab.completions = ["another"]
    assert lab.row["environments"] is not environment
