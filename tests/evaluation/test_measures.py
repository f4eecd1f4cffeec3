"""Correct answers, the format and answers anywhere are three numbers; the sentence names the one
that changed.
"""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import grpo_nb as gn
from grpo_nb.evaluation.comparison import Comparison
from grpo_nb.evaluation.holdout import grade_answers
from grpo_nb.evaluation.results import MEASURES, Evaluation
from grpo_nb.generation.completions import GeneratedCompletion
from grpo_nb.scoring.grader import Grader


def everything(completions: list, **columns: object) -> list[float]:
    return [1.0] * len(completions)


FULL = "<reasoning>\n{0} + {0} = {1}\n</reasoning>\n<answer>\n{1}\n</answer>"


def answered(label: str, texts: list[str]) -> Evaluation:
    """Grade one text for each of the sums 0 + 0, 1 + 1, ..."""
    rows = [{"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(len(texts))]
    completions = [GeneratedCompletion(text, False, ids=range(5)) for text in texts]
    grader = Grader(reward=gn.rewards.correctness())
    read = grade_answers(rows, completions, gn.tasks.xml(), grader)
    return Evaluation(label, read, grader)


def sums(right: list[bool], is_formatted: bool) -> list[str]:
    texts = []
    for i, is_right in enumerate(right):
        total = 2 * i if is_right else 2 * i + 1
        texts.append(FULL.format(i, total) if is_formatted else f"{i} + {i} = {total}")
    return texts


def compared(before: list[str], after: list[str]) -> Comparison:
    return Comparison(answered("before", before), answered("after", after))


HALF = [True, False] * 20
MOST = [True, True, True, False] * 10
ALL = [True] * 40
NONE = [False] * 40


def test_rows_tell_format_and_answer_apart() -> None:
    evaluation = answered("x", ["0 + 0 = 0", FULL.format(1, 2), FULL.format(2, 9), "no idea"])
    assert [row["is_correct"] for row in evaluation.rows] == [False, True, False, False]
    assert [row["is_formatted"] for row in evaluation.rows] == [False, True, True, False]
    assert [row["is_correct_anywhere"] for row in evaluation.rows] == [True, True, False, False]
    assert evaluation.accuracy == 0.25
    assert evaluation.share_of("in_format") == 0.5
    assert evaluation.share_of("anywhere") == 0.5


def test_each_measure_has_its_interval() -> None:
    evaluation = answered("x", sums(HALF, is_formatted=True))
    shown = dict(evaluation.table_rows)
    assert shown["correct"] == "50.0% (35.2% to 64.8%)"
    assert shown["in the format"] == "100.0% (91.2% to 100.0%)"
    assert shown["correct anywhere"] == "50.0% (35.2% to 64.8%)"
    assert "anywhere in the completion: the last answer in the text, " in repr(evaluation)


def test_gain_in_the_format_alone_is_not_sold_as_skill() -> None:
    comparison = compared(sums(HALF, is_formatted=False), sums(HALF, is_formatted=True))
    assert comparison.verdict == "better"
    assert comparison.sentence.startswith(
        "Better: the format. The answers themselves: 50 % to 50 % (no difference shown). "
        "In the format: 0 % to 100 % (better, p < 0.001)."
    )


def test_gain_mostly_in_the_format_names_it_first() -> None:
    comparison = compared(sums(HALF, is_formatted=False), sums(MOST, is_formatted=True))
    assert comparison.sentence.startswith(
        "Better: mostly the format, but also the answers. "
        "The answers themselves: 50 % to 75 % (better, p = 0.002)."
    )


def test_gain_in_the_answers_names_the_answers() -> None:
    comparison = compared(sums(HALF, is_formatted=True), sums(ALL, is_formatted=True))
    assert comparison.headline == "Better: the answers."


def test_gain_in_both_names_both() -> None:
    comparison = compared(sums(NONE, is_formatted=False), sums(ALL, is_formatted=True))
    assert comparison.headline == "Better: the answers and the format."


def test_loss_of_the_format_names_the_format() -> None:
    comparison = compared(sums(HALF, is_formatted=True), sums(HALF, is_formatted=False))
    assert comparison.headline == "Worse: the format."


def test_no_difference_still_reports_the_format() -> None:
    comparison = compared(sums(NONE, is_formatted=False), sums(NONE, is_formatted=True))
    assert comparison.headline == "No difference shown in correct answers."
    assert "In the format: 0 % to 100 % (better, p < 0.001)" in comparison.sentence


def test_transcripts_have_the_three_grades() -> None:
    table = compared(sums(HALF, is_formatted=False), sums(HALF, is_formatted=True)).transcripts()
    first = table.iloc[0]
    expected = {
        "change": "gained",
        "before_grade": "no answer",
        "after_grade": "right",
        "before_in_format": False,
        "before_anywhere": True,
        "after_in_format": True,
        "after_anywhere": True,
    }
    assert {name: first[name] for name in expected} == expected


def test_saved_comparison_keeps_the_three_measures(tmp_path: Path) -> None:
    comparison = compared(sums(HALF, is_formatted=False), sums(MOST, is_formatted=True))
    comparison.save(tmp_path / "kept")
    stored = json.loads((tmp_path / "kept" / "comparison.json").read_text())
    assert stored["sentence"] == comparison.sentence
    assert stored["tests"]["anywhere"]["verdict"] == "better"
    assert stored["tests"]["accuracy"]["interval"] == list(comparison.accuracy_test.interval)
    assert stored["after"]["anywhere"] == 0.75


def test_majority_baseline_of_an_unproven_grader_is_left_out() -> None:
    numbers = answered("after", sums(HALF, is_formatted=True))
    side = replace(numbers, rows=[row | {"answer": "spam"} for row in numbers.rows])
    assert not Comparison(side, side).majority.is_beaten
    unproven = Grader(reward=everything, tells_gold_from_wrong=False)
    graded = replace(side, grader=unproven)
    assert Comparison(graded, graded).majority is None


def texts_of_figure(comparison: Comparison) -> list[str]:
    """Return the shares that are written in a figure, from top to bottom."""
    (axes,) = comparison.plot().axes
    texts = sorted(axes.texts, key=lambda text: text.get_position()[1])
    return [text.get_text().strip() for text in texts]


def test_figure_has_a_line_for_each_measure_of_the_table() -> None:
    comparison = compared(sums(HALF, is_formatted=False), sums(MOST, is_formatted=True))
    (axes,) = comparison.plot().axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [measure.label for measure in MEASURES.values()]
    assert axes.yaxis_inverted()


def test_figure_without_answers_anywhere_leaves_out_their_line() -> None:
    side = answered("x", sums(HALF, is_formatted=True))
    side = replace(side, rows=[row | {"is_correct_anywhere": None} for row in side.rows])
    (axes,) = Comparison(side, side).plot().axes
    assert len(axes.get_yticklabels()) == 2


def test_figure_writes_the_shares_before_and_after() -> None:
    format_lost = compared(sums(HALF, is_formatted=True), sums(MOST, is_formatted=False))
    assert texts_of_figure(format_lost) == ["50%", "0%", "100%", "0%", "50%", "75%"]


def test_figure_writes_shares_that_do_not_overlap() -> None:
    side = answered("model", sums(HALF, is_formatted=True))
    figure = Comparison(side, side).plot()
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    for first, second in itertools.combinations(boxes, 2):
        assert not first.overlaps(second)


def test_figure_separates_equal_models() -> None:
    side = answered("model", sums(HALF, is_formatted=True))
    (axes,) = Comparison(side, side).plot().axes
    assert len({line.get_ydata().item() for line in axes.lines}) == 6
    assert texts_of_figure(Comparison(side, side))[:2] == ["50%", "50%"]


def test_figure_tells_models_apart_without_colour() -> None:
    side = answered("$^$", sums(HALF, is_formatted=True))
    figure = Comparison(side, side).plot()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["before", "after"]
    fills = [line.get_markerfacecolor() for line in figure.axes[0].lines[:2]]
    assert fills[0] == "none" != fills[1]


def test_figure_has_a_transparent_background() -> None:
    figure = compared(sums(HALF, is_formatted=False), sums(MOST, is_formatted=True)).plot()
    assert figure.get_facecolor()[3] == 0


def test_better_format_with_worse_answers_names_both() -> None:
    known = [f"{i} + {i} = {2 * i}" for i in range(36)] + ["no"] * 4
    comparison = compared(known, sums(HALF, is_formatted=True))
    assert comparison.verdict == "better"
    assert comparison.anywhere_verdict == "worse"
    assert comparison.headline == "Better: the format. Worse: the answers."


def test_function_as_grader_does_not_claim_the_format() -> None:
    comparison = compared(sums(HALF, is_formatted=True), sums(MOST, is_formatted=True))
    grader = Grader(reward=everything)
    graded = Comparison(*(replace(side, grader=grader) for side in comparison.sides.values()))
    assert "Correct, which needs both: 50 % to 75 %" in comparison.sentence
    assert "Correct: 50 % to 75 %" in graded.sentence
