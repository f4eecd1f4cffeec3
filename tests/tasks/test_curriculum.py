"""Pass rates count right completions, and decide which questions are kept."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pandas
import pytest
from datasets import Dataset

import grpo_nb as gn
from grpo_nb.runs.run_folder import Run
from grpo_nb.tasks.prompts import with_prompts
from tests.checks.test_learning_signal import RIGHT, WRONG, make
from tests.support.run_folders import info_of, write_run_folder

QUESTIONS = [f"What is {n} + 1?" for n in range(10)]


@pytest.fixture
def task() -> gn.tasks.Task:
    """Ten questions in their order; the held-out ones are two more."""
    rows = [{"question": q, "answer": "1"} for q in [*QUESTIONS, "held out 0", "held out 1"]]
    asked = with_prompts(rows, gn.tasks.xml(), None)
    return gn.tasks.Task(
        "sums", gn.tasks.xml(), Dataset.from_list(asked[:10]), Dataset.from_list(asked[10:])
    )


def make_run(folder: Path, task: gn.tasks.Task, steps: list[dict[int, list[float]]]) -> Run:
    """Write a run's folder; `steps` has the scores of `correctness` by row of the question."""
    run = write_run_folder(folder, info_of({"correctness": 1.0}))
    (folder / "completions").mkdir()
    for number, groups in enumerate(steps, 1):
        rows = [
            {
                "step": number,
                "group": at,
                "prompt": json.dumps(task.train[row]["prompt"]),
                "completion": f"{number} {at} {i}",
                "correctness": score,
                "total": 2.0 * score,
                "advantage": 0.0,
            }
            for at, (row, scores) in enumerate(groups.items())
            for i, score in enumerate(scores)
        ]
        pandas.DataFrame(rows).to_parquet(
            folder / "completions" / f"step_{number:06d}.parquet", index=False
        )
    return run


@pytest.fixture
def run(task: gn.tasks.Task, tmp_path: Path) -> Run:
    nan = float("nan")
    steps = [
        {0: [0, 0], 1: [0, 1]},
        {2: [1, 1], 3: [nan, 1]},
        {0: [0, 0], 2: [1, 1]},
        {1: [1, 1], 4: [1, 1]},
    ]
    return make_run(tmp_path / "run", task, steps)


@pytest.fixture
def later(task: gn.tasks.Task, tmp_path: Path) -> Run:
    return make_run(tmp_path / "later", task, [{0: [1, 0], 7: [0, 1]}])


def test_pass_rates_are_those_of_a_run(task: gn.tasks.Task, run: Run) -> None:
    assert task.pass_rates(run)[:6] == [0.0, 0.75, 1.0, 1.0, 1.0, None]


def test_pass_rates_are_those_of_a_baseline(task: gn.tasks.Task) -> None:
    baseline = make([[RIGHT, WRONG], [WRONG, WRONG]])
    baseline = dataclasses.replace(baseline, rows=(task.train[0], task.train[1]))
    assert task.pass_rates(baseline)[:3] == [0.5, 0.0, None]


def test_curriculum_keeps_the_middle_and_counts_others(task: gn.tasks.Task, run: Run) -> None:
    kept = task.curriculum(run)
    assert kept.train["question"] == [QUESTIONS[i] for i in (1, 5, 6, 7, 8, 9)]
    assert kept.dropped == {"with a pass rate below 0.1": 1, "with a pass rate above 0.9": 3}
    assert not kept.is_ordered
    assert kept.holdout["question"] == task.holdout["question"]


def test_curriculum_includes_both_bounds(task: gn.tasks.Task, run: Run) -> None:
    assert task.curriculum(run, 0.75, 1).dropped == {"with a pass rate below 0.75": 1}


class Greeting:
    """An environment that says something first."""

    def reset(self, **row: Any) -> str:
        return " Hello."

    def wave(self) -> str:
        """Wave."""
        return "hi"


def test_curriculum_of_a_baseline_knows_prompts_with_a_first_text(task: gn.tasks.Task) -> None:
    greeted = task.with_tools(environment=Greeting)
    baseline = make([[RIGHT, WRONG], [WRONG, WRONG]])
    baseline = dataclasses.replace(baseline, rows=(task.train[0], task.train[1]))
    assert greeted.curriculum(baseline).dropped == {"with a pass rate below 0.1": 1}


def test_curriculum_of_another_task_is_refused(run: Run) -> None:
    other = gn.load_task([{"question": question, "answer": "1"} for question in "abcd"])
    with pytest.raises(ValueError, match="no training question of this task has a score"):
        other.curriculum(run)


def test_curriculum_of_an_unknown_reward_is_refused(task: gn.tasks.Task, run: Run) -> None:
    with pytest.raises(ValueError, match="no reward 'exact_text' was measured"):
        task.curriculum(run, reward="exact_text")


def test_after_puts_least_sampled_questions_first(
    task: gn.tasks.Task, run: Run, later: Run
) -> None:
    order = [QUESTIONS.index(question) for question in task.after([run, later]).train["question"]]
    assert order[-1] == 0
    assert {*order[-3:-1]} == {1, 2}
    assert {*order[-6:-3]} == {3, 4, 7}
    assert order[:4] != sorted(order[:4])
    assert task.after([]) is task
    assert task.after([run]).is_ordered
    ordered = dataclasses.replace(task, is_ordered=True).after([run, later]).train["question"]
    assert list(ordered)[:4] == [QUESTIONS[i] for i in (5, 6, 8, 9)], (
        "a task with an order keeps it"
    )
