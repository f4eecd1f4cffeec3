"""Check the views of the reward lab, which are plain functions of data."""

import re

import pytest

import grpo_nb as gn
from grpo_nb.lab.examples import example_completions
from grpo_nb.lab.views import Mark, marks_html, marks_of, scores_html, split_at_marks
from grpo_nb.rewards import correctness, exact_format, partial_format
from grpo_nb.tasks import formats
from tests.support.lab_controls import page_html

BOTH = "<reasoning>a</reasoning><answer> 7 </answer>"
TAGS = ["<reasoning>", "</reasoning>", "<answer>", "</answer>"]


@pytest.mark.parametrize(
    ("earned", "css_class", "words"),
    [
        (2.0, "gn-earned", "+2"),
        (-1.0, "gn-lost", "-1"),
        (0.0, "gn-nothing", "+0"),
    ],
)
def test_mark_shows_what_the_part_earned(earned: float, css_class: str, words: str) -> None:
    (mark,) = marks_of(correctness(), "right", earned, "<answer>7</answer>")
    assert (mark.css_class, mark.title) == (css_class, f"right: answer slot, {words}")


@pytest.mark.parametrize(
    ("weight", "answer", "element"),
    [
        pytest.param(1.0, "7", "mark", id="earned"),
        pytest.param(1.0, "8", "u", id="nothing"),
        pytest.param(-1.0, "7", "del", id="lost"),
    ],
)
def test_marks_differ_on_a_page_without_styles(weight: float, answer: str, element: str) -> None:
    reward = correctness(weight=weight)
    scores = gn.score([reward], [f"<answer>{answer}</answer>"], {"answer": "7"})
    view = re.sub(r' (class|style|title)="[^"]*"', "", marks_html(scores, [reward]))
    assert f"<{element}>{answer}</{element}>" in view


def test_texts_of_the_table_stay_at_the_left_without_styles() -> None:
    scores = gn.score([correctness()], ["<answer>8</answer>"], {"answer": "7"})
    view = scores_html(scores)
    for text in ("Completion", "&lt;answer&gt;8&lt;/answer&gt;", "In training", "no push"):
        assert f'<div align="left">{text}</div>' in view


def test_reward_without_a_score_marks_nothing() -> None:
    def unscored(completions: list, **columns: object) -> list[None]:
        return [None for _ in completions]

    lab = gn.RewardLab([correctness(), unscored], [{"question": "3 + 4?", "answer": "7"}])
    assert "nan" not in page_html(lab)


def test_overlapping_marks_keep_the_first() -> None:
    marks = [Mark(0, 3, "gn-earned", "a: tag, +1"), Mark(1, 4, "gn-earned", "b: tag, +5")]
    pieces = split_at_marks("<x>y", marks)
    assert pieces == [("<x>", marks[0]), ("y", None)]


def test_equal_marks_show_both_titles_and_nothing_earned() -> None:
    marks = [Mark(0, 3, "gn-earned", "a: tag, +1"), Mark(0, 3, "gn-nothing", "b: tag, +0")]
    both = Mark(0, 3, "gn-nothing", "a: tag, +1; b: tag, +0")
    assert split_at_marks("<x>", marks) == [("<x>", both)]


@pytest.mark.parametrize(
    ("reward", "text", "expected"),
    [
        pytest.param(correctness(), BOTH, ["7"], id="slot"),
        pytest.param(correctness(), BOTH + " no, 8", [], id="text after the slot"),
        pytest.param(
            correctness(format=formats.boxed()),
            r"so $\boxed{\frac{1}{2}}$.",
            [r"\frac{1}{2}"],
            id="box",
        ),
        pytest.param(
            correctness(format=formats.hashes()), "7 or 8\n#### 8\n", ["8"], id="after hashes"
        ),
        pytest.param(partial_format(), BOTH, TAGS, id="tags"),
        pytest.param(
            partial_format(), "<answer><answer>7</answer>", ["</answer>"], id="tag given twice"
        ),
        pytest.param(exact_format(), "7", [], id="no tags"),
        pytest.param(len, "anything", [], id="plain function"),
    ],
)
def test_marks_are_the_parts_a_reward_reads(reward, text: str, expected: list[str]) -> None:
    marks = marks_of(reward, "reward", 1.0, text)
    assert [text[mark.start : mark.end] for mark in marks] == expected


def test_example_of_the_lab_is_wrong_for_every_accepted_answer() -> None:
    row = {"answer": "42", "accepted_answers": ["42", "53"]}
    _, wrong = example_completions(row, formats.xml())
    assert "53" not in wrong
