"""Scores by hand in the lab: given by key and by click, saved, read again, and shown beside a judge's."""

from __future__ import annotations

from pathlib import Path

import ipywidgets
import pytest

import grpo_nb as gn
from tests.support.judges import by_length

ROWS = [{"question": f"Why {i}?", "answer": str(i)} for i in range(3)]


@pytest.fixture
def lab(tmp_path: Path) -> gn.RewardLab:
    judge = gn.rewards.judge(by_length, "Long is good.", cache=None)
    lab = gn.RewardLab([judge, gn.rewards.xml_tags()], ROWS, labels=tmp_path / "labels.csv")
    lab.completions = ["one", 'one, "two"\nthree', "<b>"]
    return lab


def everything(widget: ipywidgets.Widget) -> list[ipywidgets.Widget]:
    return [
        widget,
        *(one for child in getattr(widget, "children", ()) for one in everything(child)),
    ]


def click(lab: gn.RewardLab, words: str) -> None:
    (found,) = [
        one
        for one in everything(lab)
        if isinstance(one, ipywidgets.Button) and one.description == words
    ]
    found.click()


def press(lab: gn.RewardLab, key: str) -> None:
    (box,) = [
        one
        for one in everything(lab)
        if isinstance(one, ipywidgets.Text) and "key" in one.description
    ]
    box.value = key
    assert box.value == "", "ready for the next key"


def test_keys_and_clicks_give_scores_that_are_saved_and_read_again(lab: gn.RewardLab) -> None:
    press(lab, "4")
    click(lab, "2")
    press(lab, "x")
    assert [(row["completion"], row["score"]) for row in lab.labels] == [
        ("one", 4),
        ('one, "two"\nthree', 2),
    ]
    assert "Completion 3 of 3" in lab._snapshot() and "&lt;b&gt;" in lab._label_view.value
    click(lab, "Take the last one back")
    click(lab, "5")
    lab.row_number = 1
    press(lab, "9")
    assert "score = 9 must be between 1 and 5" in lab._errors.value
    press(lab, "1")
    again = gn.RewardLab(lab.rewards, ROWS, labels=lab.labels_file)
    scores = [(row["question"], row["completion"], float(row["score"])) for row in again.labels]
    assert scores == [
        ("Why 0?", "one", 4),
        ("Why 0?", 'one, "two"\nthree', 5),
        ("Why 1?", "one", 1),
    ]
    again.completions = lab.completions
    assert again._given == [4, 5, None]


def lab_of_scale(tmp_path: Path, *scale: float) -> gn.RewardLab:
    judge = gn.rewards.judge(by_length, "Long is good.", scale=scale, cache=None)
    lab = gn.RewardLab([judge], ROWS, labels=tmp_path / "labels.csv")
    lab.completions = ["one", "two", "three"]
    return lab


def test_labels_on_fractional_scale_are_given_by_click(tmp_path: Path) -> None:
    lab = lab_of_scale(tmp_path, 0, 0.5)
    click(lab, "0.25")
    click(lab, "0.5")
    lab.label(0.3)
    assert [row["score"] for row in lab.labels] == [0.25, 0.5, 0.3]


def test_labels_on_fractional_scale_are_given_by_key(tmp_path: Path) -> None:
    lab = lab_of_scale(tmp_path, 0, 0.5)
    press(lab, "1")
    press(lab, "4")
    press(lab, "6")
    assert [row["score"] for row in lab.labels] == [0, 0.375]


def test_labels_outside_fractional_scale_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"score = 0.6 must be between 0 and 0.5"):
        lab_of_scale(tmp_path, 0, 0.5).label(0.6)


@pytest.mark.parametrize(
    ("scale", "choices"),
    [
        ((1, 5), [1, 2, 3, 4, 5]),
        ((0, 0.5), [0, 0.125, 0.25, 0.375, 0.5]),
        ((0.0, 1.0), [0, 1]),
        ((-1, 1), [-1, 0, 1]),
        ((0, 100), [0, 25, 50, 75, 100]),
    ],
)
def test_lab_offers_a_button_for_each_choice(tmp_path: Path, scale: tuple, choices: list) -> None:
    lab = lab_of_scale(tmp_path, *scale)
    words = [
        one.description for one in everything(lab._buttons) if isinstance(one, ipywidgets.Button)
    ]
    assert words[: len(choices)] == [f"{choice:g}" for choice in choices]
    assert len(words) == len(choices) + 2


def test_update_with_other_judge_offers_its_scale(lab: gn.RewardLab) -> None:
    lab.update([gn.rewards.judge(by_length, "Long is good.", scale=(0, 0.5), cache=None)])
    click(lab, "0.125")
    assert lab.labels[-1]["score"] == 0.125


def test_a_table_of_ones_own_keeps_its_columns_and_rows_without_a_score(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text('question,completion,score,who\nWhy 0?," one",,Ada\nWhy 0?,two,3,Bo\n')
    lab = gn.RewardLab(gn.rewards.xml_tags(), ROWS, labels=file)
    lab.completions = [" one", "two"]
    press(lab, "45")  # two keys before the box was emptied: the last
    again = gn.RewardLab(gn.rewards.xml_tags(), ROWS, labels=file)
    again.completions = lab.completions
    assert again._given == [5, 3] and [row.get("who") for row in again.labels] == ["Ada", "Bo", ""]


def test_person_and_judge_stand_side_by_side(lab: gn.RewardLab) -> None:
    for score in (2, 2, 5):
        lab.label(score)
    click(lab, "Person and judge side by side")
    shown = lab._labels_view.value
    assert (
        "too few labels to tell; on 3 answers" in shown
        and shown.count("<tr>") == 4
        and "It has words." in shown
    )
    lab.update([gn.rewards.xml_tags()])
    click(lab, "Person and judge side by side")
    assert "No reward here is a judge" in lab._labels_view.value


def test_the_file_is_named_after_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mail.csv").write_text(
        "question,answer\n" + "".join(f"Why {i}?,{i}\n" for i in range(5))
    )
    gn.RewardLab(gn.rewards.xml_tags(), gn.load_task("mail.csv")).label(3)
    assert "Why" in (tmp_path / "mail.labels.csv").read_text()
