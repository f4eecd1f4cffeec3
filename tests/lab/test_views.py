"""Check the views of the reward lab, which are plain functions of data."""

import pytest

from grpo_nb.lab.views import Mark, push, split_at_marks
from grpo_nb.scoring.highlights import Span


@pytest.mark.parametrize(
    ("advantage", "words"), [(0.7, "more likely"), (-0.7, "less likely"), (0.0, "not moved")]
)
def test_push_names_the_effect_of_an_advantage(advantage: float, words: str) -> None:
    assert push(advantage) == words


@pytest.mark.parametrize(
    ("earned", "css_class", "words"),
    [
        (2.0, "gn-earned", "+2"),
        (-1.0, "gn-lost", "-1"),
        (0.0, "gn-nothing", "+0"),
        (float("nan"), "gn-nothing", "no score"),
    ],
)
def test_marked_piece_shows_what_it_earned(earned: float, css_class: str, words: str) -> None:
    before, piece = split_at_marks("b7", [Mark(Span(1, 2, "answer slot"), earned, "right")])
    assert before.text == "b"
    assert piece == ("7", css_class, f"right: answer slot, {words}")


def test_overlapping_marks_keep_the_first() -> None:
    marks = [Mark(Span(0, 3, "tag"), 1.0, "a"), Mark(Span(1, 4, "tag"), 5.0, "b")]
    pieces = split_at_marks("<x>y", marks)
    assert [piece.text for piece in pieces] == ["<x>", "y"]
    assert pieces[0].title == "a: tag, +1"
