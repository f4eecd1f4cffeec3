"""Questions to evaluate on, and those that were trained on are found among them."""

import pytest

import grpo_nb as gn
from grpo_nb.evaluation.heldout import read_answers
from grpo_nb.generation.samples import Completion
from grpo_nb.tasks.contamination import find_contamination, normalized_question


def test_right_is_what_the_reward_pays_in_full() -> None:
    form = gn.tasks.xml()

    def right(
        gold: str, texts: list[str], reward: gn.rewards.correctness | None = None
    ) -> list[bool]:
        rows = [{"question": "?", "answer": gold}] * len(texts)
        read = read_answers(
            rows, [Completion(text, 5, False) for text in texts], form, reward=reward
        )
        return [row["is_correct"] for row in read]

    said = ["<answer>\n17.4\n</answer>", "17.4", "<answer>17</answer>", "<answer>17</answer>!?"]
    assert right("17", said) == [False, False, True, False]
    assert right("17", said, gn.rewards.correctness(tolerance=0.5)) == [True, False, True, False]
    json = [f"<answer>{text}</answer>" for text in ('{"a":1.0}', '{"a": 2}')]
    assert right('{"a": 1}', json) == [True, False]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("What is 2 + 2?", "What is  2+2", True),
        ("What is $3 \u00d7 4 \u00f7 2$?", "What is 3 * 4 / 2?", True),
        ("What is 7.0 + 2.50?", "What is 7 + 2.5?", True),
        ("How many capitals has aB?", "How many capitals has ab?", False),
        ("What is 3.4?", "What is 34?", False),
        ("What came in 1.10.0?", "What came in 1.1?", False),
        ("2*(3+4)", "2*3+4", False),
    ],
)
def test_what_is_the_same_question(one: str, other: str, same: bool) -> None:
    assert (normalized_question(one) == normalized_question(other)) == same


def test_a_run_remembers_what_it_was_trained_on(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> None:
    kept = gn.open_run(tiny_run.path).trained_questions
    assert find_contamination(task.train["question"], kept).count == 20
    assert find_contamination(task.holdout["question"], kept).count == 0
    assert "What is" not in (tiny_run.path / "train_questions.txt").read_text()
