"""Check scores by hand: given by click or from a cell, saved, and read again."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

import grpo_nb as gn
from grpo_nb.lab.hand_scores import SCORE_CHOICES, HandScoreFile
from tests.support.judges import by_length
from tests.support.lab_controls import click, control, has_control, page_html, text_of

ROWS = [{"question": f"Why {i}?", "answer": str(i)} for i in range(3)]
TEXTS = ["one", 'one, "two"\nthree', "<b>"]


def make_lab(folder: Path) -> gn.RewardLab:
    judge = gn.rewards.judge(by_length, "Long is good.", cache=None)
    lab = gn.RewardLab(
        [judge, gn.rewards.partial_format()], ROWS, hand_scores=folder / "scores.csv"
    )
    lab.completions = TEXTS
    return lab


def scores_of(lab: gn.RewardLab) -> list[float]:
    return [float(row["score"]) for row in lab.hand_scores]


def test_clicks_give_scores_in_order(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    click(lab, "4")
    click(lab, "2")
    given = [(row["completion"], row["score"]) for row in lab.hand_scores]
    assert given == [(TEXTS[0], 4), (TEXTS[1], 2)]
    assert "Completion 3 of 3: your score?" in text_of(lab)
    assert "&lt;b&gt;" in page_html(lab)


def test_question_is_saved_to_a_file_without_that_column(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.write_text("prompt,completion,score\nOld?,yes,3\n")
    HandScoreFile(file).add("New?", "no", 1)
    assert HandScoreFile(file).scores_of("New?", ["no"]) == [1]
    assert HandScoreFile(file).rows[0]["prompt"] == "Old?"


@pytest.mark.parametrize("text", ["", "\n"])
def test_empty_file_has_no_scores(tmp_path: Path, text: str) -> None:
    file = tmp_path / "scores.csv"
    file.write_text(text)
    assert HandScoreFile(file).rows == []


def test_file_without_completions_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.write_text("question,score\nWhy?,4\n")
    with pytest.raises(ValueError, match="no column 'completion'"):
        HandScoreFile(file)


def test_score_that_could_not_be_saved_is_not_kept(tmp_path: Path, monkeypatch) -> None:
    scores = HandScoreFile(tmp_path / "scores.csv")
    monkeypatch.setattr("grpo_nb.lab.hand_scores.write_text", Mock(side_effect=OSError("full")))
    with pytest.raises(OSError, match="full"):
        scores.add("Why?", "one", 4)
    assert scores.rows == []


def test_score_off_the_scale_is_refused(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    with pytest.raises(ValueError, match="score = 9 must be a finite number between 1 and 5"):
        lab.score_by_hand(9)
    assert lab.hand_scores == []


def test_file_with_another_scale_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "percent.csv"
    file.write_text("question,completion,score\nWhy 0?,one,80\n")
    with pytest.raises(ValueError, match=r"percent\.csv has the score 80.*Pass a new file"):
        gn.RewardLab(gn.rewards.partial_format(), ROWS, hand_scores=file)


def test_score_file_of_another_ending_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the ending of hand_scores = '\.txt'.*\.csv"):
        gn.RewardLab(gn.rewards.partial_format(), ROWS, hand_scores="mine.txt")


def test_scores_are_read_again_by_question(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    click(lab, "4")
    click(lab, "5")
    control(lab, "Row, 0 to 2").value = 1
    click(lab, "1")
    again = gn.RewardLab(lab.rewards, ROWS, hand_scores=tmp_path / "scores.csv")
    again.completions = TEXTS
    given = [(row["question"], row["completion"]) for row in again.hand_scores]
    assert given == [("Why 0?", TEXTS[0]), ("Why 0?", TEXTS[1]), ("Why 1?", TEXTS[0])]
    assert scores_of(again) == [4, 5, 1]
    assert "1: 4, 2: 5, 3: none yet" in text_of(again)


def test_lab_has_a_button_for_each_choice(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    assert all(has_control(lab, f"{choice}") for choice in SCORE_CHOICES)


def test_table_of_the_user_keeps_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text('question,completion,score,who\nWhy 0?," one",,Ada\nWhy 0?,two,3,Bo\n')
    lab = gn.RewardLab(gn.rewards.partial_format(), ROWS, hand_scores=file)
    lab.completions = [" one", "two"]
    lab.score_by_hand(5)
    again = gn.RewardLab(gn.rewards.partial_format(), ROWS, hand_scores=file)
    again.completions = [" one", "two"]
    assert "1: 5, 2: 3;" in text_of(again)
    assert [row["who"] for row in again.hand_scores][:2] == ["Ada", "Bo"]


def test_score_without_an_open_completion_is_refused(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    for text in TEXTS:
        lab.score_by_hand(min(5, len(text)))
    with pytest.raises(ValueError, match="has a score by hand"):
        lab.score_by_hand(3)
    assert len(lab.hand_scores) == len(TEXTS)


@pytest.mark.parametrize("score", ["nan", "None", " ", None])
def test_row_without_a_number_has_no_score(tmp_path: Path, score: str | None) -> None:
    row = {"question": "Why?", "completion": "one", "score": score}
    scores = HandScoreFile(
        tmp_path / "none.csv", rows=[row, {"question": "Why?", "completion": "b"}]
    )
    assert scores.scores_of("Why?", ["one", "b"]) == [None, None]


def test_score_file_may_be_in_the_home_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    gn.RewardLab(gn.rewards.partial_format(), ROWS, hand_scores="~/mine.csv").score_by_hand(3)
    assert (tmp_path / "mine.csv").is_file()


def test_score_file_is_named_after_the_task(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"Why {i}?,{i}\n" for i in range(5))
    (tmp_path / "mail.csv").write_text(f"question,answer\n{rows}")
    gn.RewardLab(gn.rewards.partial_format(), gn.load_task("mail.csv")).score_by_hand(3)
    assert "Why" in (tmp_path / "mail.hand_scores.csv").read_text()
