"""Correct answers, and held-out questions that were trained on."""

import pytest

import grpo_nb as gn
from grpo_nb.evaluation.holdout import grade_answers
from grpo_nb.generation.completions import GeneratedCompletion
from grpo_nb.scoring.grader import Grader
from grpo_nb.tasks.contamination import find_contamination, normalize_question


def correct_of(
    gold: str, texts: list[str], reward: gn.rewards.correctness | None = None
) -> list[bool]:
    """Return which of the texts are correct answers to one question."""
    questions = [{"question": "?", "answer": gold}] * len(texts)
    completions = [GeneratedCompletion(text, False, ids=range(5)) for text in texts]
    grader = Grader(reward=reward or gn.rewards.correctness())
    rows = grade_answers(questions, completions, gn.tasks.xml(), grader=grader)
    return [row["is_correct"] for row in rows]


TEXTS = ["<answer>\n17.4\n</answer>", "17.4", "<answer>17</answer>", "<answer>17</answer>!?"]


def test_correct_answer_is_right_and_last_in_the_format() -> None:
    assert correct_of("17", TEXTS) == [False, False, True, False]


def test_correct_answer_is_what_the_reward_scores_in_full() -> None:
    reward = gn.rewards.correctness(tolerance=0.5)
    assert correct_of("17", TEXTS, reward) == [True, False, True, False]


def test_correct_json_answer_may_be_written_differently() -> None:
    texts = ['<answer>{"a":1.0}</answer>', '<answer>{"a": 2}</answer>']
    assert correct_of('{"a": 1}', texts) == [True, False]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        pytest.param("What is 2 + 2?", "What is  2+2", True, id="spaces"),
        pytest.param("What is $3 \u00d7 4 \u00f7 2$?", "What is 3 * 4 / 2?", True, id="signs"),
        pytest.param(r"What is 3 \times 4?", "What is 3 * 4?", True, id="latex"),
        pytest.param("What is CO\u2082?", "What is CO2?", True, id="index"),
        pytest.param("Is x\u00b2 even?", "Is x^2 even?", True, id="exponent"),
        pytest.param("Is x\u00b2 even?", "Is x2 even?", False, id="no exponent"),
        pytest.param("Is 1\u00bd big?", "Is 11/2 big?", False, id="mixed number"),
        pytest.param("What is 7.0 + 2.50?", "What is 7 + 2.5?", True, id="zeros"),
        pytest.param("Capitals in aB?", "Capitals in ab?", False, id="capital"),
        pytest.param("What is .5 + 2?", "What is 5 + 2?", False, id="leading point"),
        pytest.param('What is "7."?', "What is 7?", True, id="quotes"),
        pytest.param("What is 3.4?", "What is 34?", False, id="decimal point"),
        pytest.param("What came in 1.10.0?", "What came in 1.1?", False, id="version"),
        pytest.param("2*(3+4)", "2*3+4", False, id="brackets"),
    ],
)
def test_normalized_question_keeps_what_matters(one: str, other: str, is_same: bool) -> None:
    assert (normalize_question(one) == normalize_question(other)) == is_same


def test_run_knows_its_training_questions_from_hashes(
    tiny_run: gn.runs.Run, task: gn.tasks.Task
) -> None:
    trained = dict.fromkeys(gn.open_run(tiny_run.path).train_question_hashes, "the run")
    assert find_contamination(task.train["question"], trained).trained_count == 20
    assert find_contamination(task.holdout["question"], trained).trained_count == 0
    assert "What is" not in (tiny_run.path / "train_questions.txt").read_text()
