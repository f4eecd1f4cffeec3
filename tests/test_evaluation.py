"""Comparisons say no more than the data shows, on the real path and on made-up answers."""

import json

import pytest

import grpo_nb as gn
from grpo_nb import evaluation


def made(label: str, right: list[bool]) -> gn.evaluation.Evaluation:
    rows = [
        {"question": f"<q{i}>", "answer": "7", "completion": "<script>alert(1)</script>", "given": "7" if ok else None,
         "is_correct": ok, "is_formatted": ok, "tokens": 5, "is_cut": False}
        for i, ok in enumerate(right)
    ]  # fmt: skip
    share = sum(right) / len(right)
    return evaluation.Evaluation(label, share, (0.0, 1.0), share, 5.0, 0.0, rows)


def paired(before: list[bool], after: list[bool]) -> evaluation.Comparison:
    return evaluation._paired(made("before", before), made("after", after))


def test_verdicts() -> None:
    no, yes = [False], [True]
    assert paired(no * 40, yes * 30 + no * 10).verdict == "better"
    assert paired(yes * 30 + no * 10, no * 40).verdict == "worse"
    assert paired(no * 40, yes * 2 + no * 38).verdict == "no difference shown"
    assert paired(yes * 10, yes * 10).verdict == "no difference shown"
    assert paired(no * 3, yes * 3).verdict == "no difference shown", "three questions show nothing"


def test_numbers_against_the_definitions() -> None:
    comparison = paired([False] * 20 + [True] * 20, [True] * 15 + [False] * 10 + [True] * 15)
    assert comparison.difference == pytest.approx((15 - 5) / 40)
    # Exact McNemar: 15 gained, 5 lost; two-sided binomial(20, 1/2).
    assert comparison.p_value == pytest.approx(0.04139, abs=1e-5)
    low, high = comparison.interval
    assert low < comparison.difference < high
    assert low == pytest.approx(0.25 - 1.96 * 0.1037, abs=0.03)
    assert "difference +25.0 points" in comparison.sentence and "on 40 questions" in comparison.sentence


def test_changed_answers_come_first_and_everything_is_escaped() -> None:
    comparison = paired([True, True, False], [True, True, True])
    assert comparison.transcripts(1)[0][0]["question"] == "<q2>"
    shown = comparison._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown and "&lt;q2&gt;" in shown
    assert "[right]" in shown and "[no answer]" in shown


def test_compare_a_run_from_memory_and_from_disk(tiny_run: gn.Run) -> None:
    task = gn.load_task("arithmetic", tiny_run.settings, train_size=20, holdout_size=10)
    here = gn.compare(tiny_run, task)
    assert [row["question"] for row in here.before.rows] == task.holdout["question"]
    assert here.before.rows[0]["completion"] != here.after.rows[0]["completion"], "the adapter was not switched"
    saved = json.loads((tiny_run.path / "comparison" / "comparison.json").read_text())
    assert saved["sentence"] == here.sentence
    assert "Held-out:" in repr(tiny_run) and here.sentence in (tiny_run.path / "README.md").read_text()
    opened = gn.compare(gn.open_run(tiny_run.path))
    assert [row["completion"] for row in opened.after.rows] == [row["completion"] for row in here.after.rows]
    assert [row["completion"] for row in opened.before.rows] == [row["completion"] for row in here.before.rows]


def test_questions_that_were_trained_on_are_refused(tiny_run: gn.Run) -> None:
    from dataclasses import replace

    task = gn.load_task("arithmetic", tiny_run.settings, train_size=20, holdout_size=10)
    with pytest.raises(ValueError, match="10 held-out questions are also in the training part"):
        gn.compare(tiny_run, replace(task, holdout=task.train.select(range(10))))
