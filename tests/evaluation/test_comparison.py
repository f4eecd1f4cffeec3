"""A comparison claims no more than the data shows, and its card is readable and escaped."""

import dataclasses
from typing import Any

import pytest

from grpo_nb.evaluation.comparison import Comparison
from grpo_nb.evaluation.results import Evaluation
from grpo_nb.rewards import maths
from grpo_nb.scoring.grader import Grader
from grpo_nb.tasks.contamination import Contamination
from tests.evaluation.made_comparisons import SCRIPT, comparison, evaluation

BETTER = comparison([False] * 40, [True] * 30 + [False] * 10)
NONE_SHOWN = "no difference shown"

VERDICTS = [
    pytest.param([False] * 40, [True] * 30 + [False] * 10, "better", id="better"),
    pytest.param([True] * 30 + [False] * 10, [False] * 40, "worse", id="worse"),
    pytest.param([False] * 40, [True] * 4 + [False] * 36, NONE_SHOWN, id="p of 0.125"),
    pytest.param([True] * 10, [True] * 10, NONE_SHOWN, id="nothing changed"),
    pytest.param([False] * 9, [True] * 9, NONE_SHOWN, id="p of 0.004 on nine questions"),
]


@pytest.mark.parametrize(("before", "after", "verdict"), VERDICTS)
def test_verdict_needs_a_test_and_ten_questions(
    before: list[bool], after: list[bool], verdict: str
) -> None:
    found = comparison(before, after)
    assert found.verdict == verdict
    assert found.sentence.startswith(verdict.capitalize())


@pytest.mark.parametrize(("before", "after", "verdict"), VERDICTS)
def test_sentence_without_difference_names_what_it_could_detect(
    before: list[bool], after: list[bool], verdict: str
) -> None:
    expected = "this test detects a true change of"
    if len(before) < 10:
        expected = "With fewer than 10 questions no difference is claimed"
    assert (expected in comparison(before, after).sentence) == (verdict == NONE_SHOWN)


def test_comparison_of_other_questions_is_refused() -> None:
    sides = evaluation("x", [True] * 4), evaluation("y", [True] * 3)
    with pytest.raises(ValueError, match="'x' and 'y' have different questions"):
        Comparison(*sides)


def test_comparison_of_other_numbers_of_answers_is_refused() -> None:
    one = evaluation("x", [True] * 4)
    two = dataclasses.replace(one, label="y", samples=2)
    with pytest.raises(ValueError, match="'x' and 'y' have different numbers of samples: 1 and 2"):
        Comparison(one, two)


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        pytest.param(
            {"grader": Grader(reward=maths())},
            r"different graders: 'answers to which correctness\(\) .*' and '.* maths\(\) gives",
            id="grader",
        ),
        pytest.param({"temperature": 0.7}, "different temperatures: 0.0 and 0.7", id="temperature"),
        pytest.param(
            {"contamination": Contamination(question_count=4, trained_count=1, source="a run")},
            "different numbers of trained questions: None and 1",
            id="contamination",
        ),
    ],
)
def test_comparison_under_other_conditions_is_refused(
    conditions: dict[str, Any], message: str
) -> None:
    before = evaluation("x", [True] * 4)
    after = dataclasses.replace(before, label="y", **conditions)
    with pytest.raises(ValueError, match=message):
        Comparison(before, after)


def test_one_question_is_written_in_the_singular() -> None:
    assert evaluation("x", [True]).conditions_in_words.startswith("1 question, one greedy answer")


def test_p_value_and_interval_equal_their_definitions() -> None:
    # 15 questions gained, 5 lost. The exact McNemar test is a two-sided binomial(20, 1/2).
    found = comparison([False] * 20 + [True] * 20, [True] * 15 + [False] * 10 + [True] * 15)
    assert found.accuracy_test.p_value == pytest.approx(0.04139, abs=1e-5)
    # Bonett and Price add one question in each direction, to 42.
    half = 1.959964 * ((16 / 42 + 6 / 42 - (10 / 42) ** 2) / 42) ** 0.5
    assert found.accuracy_test.interval == pytest.approx((10 / 42 - half, 10 / 42 + half))
    assert "changed by +25.0 points on 40 questions" in found.sentence


def test_majority_baseline_of_frequent_answers_is_named() -> None:
    sides = [evaluation(label, [False] * 18, golds=list("551534" * 3)) for label in ("x", "after")]
    found = Comparison(*sides)
    assert found.majority.sentence == (
        "Always answering '5' would get 50.0% right: the accuracy of 0.0% is not clearly "
        "above this majority-class baseline."
    )
    assert found.majority.sentence in repr(found)


def test_majority_baseline_of_sums_is_left_out() -> None:
    golds = [str(number % 14) for number in range(20)]
    sides = [evaluation(label, [False] * 20, golds=golds) for label in ("before", "after")]
    assert Comparison(*sides).majority is None


def test_transcripts_begin_with_changed_questions() -> None:
    found = comparison([True, True, False, False], [True, False, True, False])
    table = found.transcripts()
    assert table["question"].tolist() == ["<q1>", "<q2>", "<q3>", "<q0>"]
    assert table["change"].tolist() == ["lost", "gained", "both wrong", "both right"]
    assert table["before_grade"][0] == "right"
    assert table["after_grade"][0] == "no answer"


def test_card_escapes_labels_and_gold_answers() -> None:
    golds = ["<q1>"] * 4
    side = evaluation(SCRIPT, [True, False, True, False], golds=golds)
    page = Comparison(side, side)._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;q1&gt;" in page


def test_card_draws_a_label_that_looks_like_a_formula() -> None:
    side = evaluation("$run_$", [True, False, True, False])
    assert "<img" in Comparison(side, side)._repr_html_()


def test_card_has_an_alternative_text_for_its_figure() -> None:
    assert 'alt="Held-out comparison. Better: ' in BETTER._repr_html_()


def test_text_of_a_comparison_draws_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a second, and a notebook shows the text and the page of the same object."""
    drawn = []
    monkeypatch.setattr(Comparison, "plot", lambda self: drawn.append(self))
    assert "Better" in repr(BETTER)
    assert drawn == []


@pytest.mark.parametrize("row", ["correct", "in the format", "correct anywhere"])
def test_card_shows_change_and_certainty_of_each_measure(row: str) -> None:
    lines = repr(BETTER).splitlines()
    (line,) = [line for line in lines if line.startswith(f"{row}  ")]
    assert "+75.0 points" in line
    assert "better, p < 0.001" in line


def test_card_begins_with_what_improved() -> None:
    first, second, *_ = repr(BETTER).splitlines()
    assert first == "Better: the answers and the format."
    assert second.startswith("The answers themselves: 0 % to 75 % (better, p < 0.001).")


def shown_and_folded(found: Comparison | Evaluation) -> tuple[str, str]:
    """Return the page without the folded notes, and the folded notes."""
    before, _, after = found._repr_html_().partition("<details><summary>")
    folded, _, rest = after.partition("</details>")
    return before + rest, folded


def test_card_folds_the_explanations_of_its_table() -> None:
    after = dataclasses.replace(BETTER.after, model_id="abc123")
    shown, folded = shown_and_folded(dataclasses.replace(BETTER, after=after))
    assert folded.startswith("<small>How to read this table</small></summary>")
    for words in ("In brackets:", "p: how often", "abc123", "the last number", "80 % of the time"):
        assert words in folded
        assert words not in shown


def test_card_does_not_fold_grader_and_warnings() -> None:
    grader = Grader(reward=maths())
    sides = [dataclasses.replace(side, grader=grader) for side in BETTER.sides.values()]
    shown, _ = shown_and_folded(Comparison(*sides))
    assert "Counted as correct: answers to which maths() gives the full score." in shown
    assert "may have been trained on" in shown
    assert "majority-class baseline" in shown


def test_card_without_difference_shows_what_it_could_detect() -> None:
    shown, folded = shown_and_folded(comparison([False] * 40, [False] * 40))
    assert "this test detects a true change of" in shown
    assert "this test detects" not in folded


def test_text_of_a_comparison_has_the_folded_notes() -> None:
    lines = repr(BETTER).splitlines()
    assert lines[-6].startswith("In brackets:")
    assert "How to read" not in repr(BETTER)


def test_card_of_one_model_folds_the_explanation_only() -> None:
    shown, folded = shown_and_folded(BETTER.after)
    assert "the last number" in folded
    assert "the last number" not in shown
    assert "may have been trained on" in shown


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        pytest.param([0] * 40, [1] * 10 + [0] * 30, "points  better, p = 0.002", id="better"),
        pytest.param([1] * 10 + [0] * 30, [0] * 40, "points  worse, p = 0.002", id="worse"),
        pytest.param([0] * 40, [1] * 4 + [0] * 36, f"points  {NONE_SHOWN}", id="p of 0.125"),
        pytest.param([1] * 40, [1] * 40, f"points  {NONE_SHOWN}", id="no change"),
        pytest.param([0] * 9, [1] * 9, f"points  {NONE_SHOWN}", id="nine questions"),
    ],
)
def test_table_says_how_sure_a_change_is(before: list[int], after: list[int], words: str) -> None:
    card = repr(comparison(list(map(bool, before)), list(map(bool, after))))
    (line,) = [line for line in card.splitlines() if line.startswith("correct  ")]
    assert words in line


@pytest.fixture
def eight_samples() -> Comparison:
    """Twelve questions with eight samples each, of which one question changed."""
    return comparison([False] * 96, [True] * 8 + [False] * 88, samples=8)


def test_samples_of_a_question_are_no_further_questions(eight_samples: Comparison) -> None:
    assert eight_samples.accuracy_test.questions == 12
    assert eight_samples.verdict == NONE_SHOWN
    assert eight_samples.accuracy_test.p_value == 1.0
    as_questions = comparison([False] * 96, [True] * 8 + [False] * 88)
    assert as_questions.verdict == "better"


def test_pass_at_k_counts_questions(eight_samples: Comparison) -> None:
    assert eight_samples.after.pass_at_samples[0] == pytest.approx(1 / 12)


def test_transcripts_have_all_samples_of_a_question(eight_samples: Comparison) -> None:
    changes = eight_samples.transcripts()["change"].tolist()
    assert changes == ["gained"] * 8 + ["both wrong"] * 88
