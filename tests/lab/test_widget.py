"""Drive the reward lab as a front end does: set values, click buttons, read what is shown.

Runs without torch too: `test_old_widgets.py` runs it with the ipywidgets and IPython of Colab.
"""

from __future__ import annotations

import pydoc
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter

import grpo_nb as gn
from grpo_nb.rewards.answers import correctness
from grpo_nb.rewards.format_rewards import exact_format
from grpo_nb.scoring.advantages import group_advantages
from grpo_nb.scoring.scores import score
from grpo_nb.tasks.formats import xml
from grpo_nb.tasks.task import Task
from tests.support.lab_controls import (
    click,
    control,
    html_views,
    page_html,
    remove_completion,
    shown_scores,
    text_of,
)

RIGHT = "<reasoning>\nr\n</reasoning>\n<answer>\n23\n</answer>"
WRONG = "<answer>99</answer>"


def make_rows(count: int = 5, **more: Any) -> list[dict[str, Any]]:
    rows = []
    for n in range(20, 20 + count):
        question = f"What is {n} + 3?"
        prompt = [{"role": "user", "content": question}]
        rows.append({"prompt": prompt, "question": question, "answer": str(n + 3), **more})
    return rows


class Brevity:
    """A reward of the user that counts its calls and fails on an empty text."""

    __name__ = "brevity"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, completions: list, **columns: Any) -> list[float]:
        self.calls += 1
        return [1 / len(c[0]["content"]) for c in completions]


def constant_brevity(value: float) -> Any:
    """Return another reward of the same name."""

    def brevity(completions: list, **columns: Any) -> list[float]:
        return [value for _ in completions]

    return brevity


@pytest.fixture
def task() -> Task:
    return Task("sums", xml(), make_rows(), make_rows(1))


@pytest.fixture
def lab(task: Task) -> gn.RewardLab:
    return gn.RewardLab([correctness(), exact_format(), Brevity()], task)


# ---- Scores ----


def test_lab_starts_with_a_right_and_a_wrong_completion(lab: gn.RewardLab) -> None:
    assert "23" in lab.completions[0]
    assert "23" not in lab.completions[1]
    assert lab.scores.values["correctness"] == (1.0, 0.0)


def test_lab_without_a_model_says_what_sampling_needs(lab: gn.RewardLab) -> None:
    click(lab, "Sample a group")
    shown = " ".join(text_of(lab).split())
    assert "needs a model and its tokenizer. Write RewardLab(rewards, task, model" in shown


def test_lab_shows_the_numbers_of_score(lab: gn.RewardLab, task: Task) -> None:
    texts = [RIGHT, WRONG, "no tags at all"]
    lab.completions = texts
    scores = score([correctness(), exact_format(), Brevity()], texts, task.train[0])
    advantages = group_advantages(scores.totals, 3)
    expected = []
    for i in range(3):
        numbers = [values[i] for values in scores.values.values()]
        line = [f"{number:.4g}" for number in (*numbers, scores.totals[i])]
        expected.append([*line, f"{advantages[i]:+.3f}"])
    assert shown_scores(lab) == expected
    assert lab.scores.advantages() == advantages
    assert lab.scores.totals == scores.totals


def test_lab_says_that_equal_totals_teach_nothing(lab: gn.RewardLab) -> None:
    lab.completions = [RIGHT, RIGHT]
    assert "GRPO learns nothing from this group" in text_of(lab)
    assert lab.scores.advantages() == [0.0, 0.0]


def test_lab_marks_what_rewards_looked_at(lab: gn.RewardLab) -> None:
    lab.completions = [RIGHT, WRONG]
    html = page_html(lab)
    assert 'title="correctness: answer slot, +2">23</mark>' in html
    assert 'title="correctness: answer slot, +0">99</u>' in html


def test_model_without_its_tokenizer_is_not_sampled(task: Task) -> None:
    lab = gn.RewardLab(correctness(), task, SimpleNamespace(generate=None))
    with pytest.raises(ValueError, match="sampling needs a model and its tokenizer"):
        lab.sample()


# ---- Completions and rows ----


def test_written_completion_is_scored(lab: gn.RewardLab) -> None:
    control(lab, "Completion 1").value = WRONG
    assert lab.scores.values["correctness"] == (0.0, 0.0)


def test_added_completion_keeps_the_other_boxes(lab: gn.RewardLab) -> None:
    boxes = [control(lab, "Completion 1"), control(lab, "Completion 2")]
    control(lab, "Completion 1").value = WRONG
    click(lab, "Add a completion")
    assert [control(lab, "Completion 1"), control(lab, "Completion 2")] == boxes
    control(lab, "Completion 3").value = RIGHT
    assert lab.completions[0] == WRONG
    assert lab.scores.values["correctness"] == (0.0, 0.0, 1.0)


def test_removed_completion_is_gone_and_the_last_one_stays(lab: gn.RewardLab) -> None:
    lab.completions = [WRONG, RIGHT]
    remove_completion(lab, 1).click()
    assert lab.completions == [RIGHT]
    assert len(shown_scores(lab)) == 1
    assert "GRPO learns nothing from this group" in text_of(lab)
    assert remove_completion(lab, 1).disabled


def test_picked_row_is_shown(lab: gn.RewardLab, task: Task) -> None:
    control(lab, "Row, 0 to 4").value = 3
    assert lab.row == task.train[3]
    assert "What is 23 + 3?" in text_of(lab)


def test_completions_stay_on_another_row(lab: gn.RewardLab) -> None:
    control(lab, "Completion 1").value = "<answer>24</answer>"
    control(lab, "Row, 0 to 4").value = 1
    assert lab.completions[0] == "<answer>24</answer>"
    assert lab.scores.values["correctness"][0] == 1.0
    click(lab, "Right and wrong example")
    assert len(lab.completions) == 2
    assert "24" in lab.completions[0]


# ---- Weights and rewards ----


def test_moved_weight_changes_totals_without_a_call(task: Task) -> None:
    brevity = Brevity()
    lab = gn.RewardLab([correctness(), brevity], task)
    lab.completions = ["a" * 10, RIGHT]
    calls = brevity.calls
    before = lab.scores.advantages()
    control(lab, "correctness").value = 0.0
    control(lab, "brevity").value = 4.0
    assert brevity.calls == calls
    assert lab.scores.totals == (4.0 * 0.1, 4.0 / len(RIGHT))
    assert lab.scores.advantages() == group_advantages(lab.scores.totals, 2)
    assert before[0] < 0
    assert lab.scores.advantages()[0] > 0
    assert shown_scores(lab)[0][-2:] == ["0.4", f"{lab.scores.advantages()[0]:+.3f}"]


def test_set_rewards_scores_the_same_completions(lab: gn.RewardLab) -> None:
    lab.completions = [RIGHT, WRONG]
    control(lab, "correctness").value = 5.0
    lab.set_rewards([correctness(weight=3.0), constant_brevity(-1.0)])
    assert lab.completions == [RIGHT, WRONG]
    assert lab.scores.values == {"correctness": (1.0, 0.0), "brevity": (-1.0, -1.0)}
    assert lab.weights == {"correctness": 3.0, "brevity": 1.0}


def test_set_rewards_refuses_invalid_rewards_and_changes_none(lab: gn.RewardLab) -> None:
    brevity = constant_brevity(-1.0)
    totals = lab.scores.totals
    with pytest.raises(ValueError, match="brevity"):
        lab.set_rewards([brevity, brevity])
    assert len(lab.rewards) == 3
    assert lab.scores.totals == totals


# ---- Errors ----


def test_failing_reward_is_shown_with_its_completion(lab: gn.RewardLab) -> None:
    lab.completions = [RIGHT, "", WRONG]
    shown = " ".join(text_of(lab).split())
    assert "the reward 'brevity' raised ZeroDivisionError: division by zero (on row 1: '')" in shown
    assert 'return [1 / len(c[0]["content"])' in shown
    assert "Not scored." in shown


def test_error_is_gone_when_its_cause_is(lab: gn.RewardLab) -> None:
    lab.completions = [RIGHT, "", WRONG]
    control(lab, "Completion 2").value = "something"
    assert "Not scored." not in text_of(lab)
    assert "raised" not in text_of(lab)


def test_reward_with_a_missing_column_is_shown(lab: gn.RewardLab) -> None:
    lab.set_rewards(lambda completions, colour, **columns: [1.0 for _ in completions])
    assert "missing 1 required" in text_of(lab)


def test_everything_written_by_others_is_escaped() -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"

    def raises(completions: list, **columns: Any) -> list[float]:
        raise RuntimeError(evil)

    raises.__name__ = evil
    rows = make_rows(note=evil)
    rows[0]["question"] = rows[0]["prompt"][0]["content"] = rows[0]["answer"] = evil

    def scores(completions: list, **columns: Any) -> list[float]:
        return [1.0] * len(completions)

    scores.__name__ = evil
    views = []
    for reward in (raises, scores):
        lab = gn.RewardLab([correctness(), reward], rows)
        lab.completions = [f"<answer>{evil}</answer>", evil]
        views += [*html_views(lab), page_html(lab)]
    assert sum("alert(1)" in view for view in views) >= 6
    for view in views:
        assert "<script" not in view
        assert "<img" not in view


@pytest.mark.parametrize(
    ("message", "change"),
    [
        pytest.param("no rows", {"task": []}, id="no rows"),
        pytest.param("empty", {"rewards": []}, id="no rewards"),
        pytest.param(r"row 0 \(counted from 0\) is", {"task": [1, 2]}, id="rows of numbers"),
        pytest.param(
            "class .*correctness.* is not a reward function", {"rewards": correctness}, id="a class"
        ),
    ],
)
def test_lab_refuses_invalid_arguments(task: Task, message: str, change: dict) -> None:
    arguments = {"rewards": correctness(), "task": task, **change}
    with pytest.raises((ValueError, TypeError), match=message):
        gn.RewardLab(**arguments)


# ---- Rows without the kit's columns ----


def in_words(completions: list[str], **columns: object) -> list[float]:
    return [float(len(text.split())) for text in completions]


def test_rows_without_answer_are_scored() -> None:
    lab = gn.RewardLab(in_words, [{"question": "Tell me a story."}])
    assert lab.completions == [""]
    lab.completions = ["Once upon a time"]
    assert lab.scores.values == {"in_words": (4.0,)}


def test_prompt_of_a_bare_row_is_shown_as_it_is_asked() -> None:
    lab = gn.RewardLab(in_words, [{"question": "Tell me a story."}])
    assert f"system: {xml().system_prompt()}\nuser: Tell me a story." in text_of(lab)


class Refusing:
    """A tokenizer whose template refuses every prompt."""

    def __init__(self, chat_template: str | None) -> None:
        self.chat_template = chat_template

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [0]}

    def apply_chat_template(self, *args: Any, **options: Any) -> str:
        raise ValueError("System role not supported")


def test_tokenizer_without_a_template_shows_the_prompt_by_turns() -> None:
    rows = [{"question": "What is 20 + 3?", "answer": "23"}]
    lab = gn.RewardLab(correctness(), rows, tokenizer=Refusing(None))
    assert "user: What is 20 + 3?" in text_of(lab)
    assert "not supported" not in text_of(lab)


def test_prompt_that_the_template_refuses_leaves_the_scores() -> None:
    rows = [{"question": "What is 20 + 3?", "answer": "23"}]
    lab = gn.RewardLab(correctness(), rows, tokenizer=Refusing("{{ messages }}"))
    assert "System role not supported" in text_of(lab)
    assert lab.scores.values["correctness"] == (1.0, 0.0)


def test_example_of_an_answer_in_several_lines_is_right() -> None:
    lab = gn.RewardLab([gn.rewards.exact_text()], [{"question": "Two lines?", "answer": "a\nb"}])
    assert lab.scores.values["exact_text"] == (1.0, 0.0)


# ---- Display ----


def test_lab_shows_itself_as_widget_text_and_page(lab: gn.RewardLab) -> None:
    lab.completions = [RIGHT, "", WRONG]
    shown = DisplayFormatter().format(lab)[0]
    assert shown["application/vnd.jupyter.widget-view+json"]["model_id"] == lab.model_id
    assert shown["text/plain"] == repr(lab)
    assert "What is 20 + 3?" in shown["text/html"]
    assert "ZeroDivisionError" in shown["text/html"]
    lab.completions = [RIGHT, WRONG]
    shown = DisplayFormatter().format(lab)[0]
    assert '<td class="gn-number gn-strong gn-total">' in shown["text/html"]


def test_page_of_the_lab_follows_its_state(lab: gn.RewardLab) -> None:
    control(lab, "Row, 0 to 4").value = 1
    page = DisplayFormatter().format(lab)[0]["text/html"]
    assert "What is 21 + 3?" in page


def test_closed_lab_still_shows_its_text(lab: gn.RewardLab) -> None:
    lab.close()
    assert "text/plain" in DisplayFormatter().format(lab)[0]


def test_help_shows_own_methods_of_lab_first() -> None:
    text = pydoc.plain(pydoc.render_doc(gn.RewardLab))
    own, _, inherited = text.partition("inherited from")
    for name in (
        "set_rewards(self",
        "score_by_hand(self",
        "row_number",
        "completions",
        "weights",
        "scores",
    ):
        assert name in own
    assert "add_class" not in own
    assert "add_class" in inherited
