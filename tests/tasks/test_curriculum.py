"""The questions of a stage are chosen by what earlier runs sampled."""

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
from tests.conftest import ROOT
from tests.support.run_folders import info_of, write_run_folder

QUESTIONS = [f"What is {n} + 1?" for n in range(10)]


@pytest.fixture
def task() -> gn.tasks.Task:
    """Ten questions in their order; the held-out ones are two more."""
    rows = [{"question": q, "answer": "1"} for q in [*QUESTIONS, "held out 0", "held out 1"]]
    asked = with_prompts(rows, gn.tasks.xml())
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


def test_recipe_keeps_questions_with_a_pass_rate_in_the_middle(
    task: gn.tasks.Task, run: Run
) -> None:
    guide = (ROOT / "docs/guide/train.md").read_text()
    recipe = guide.partition("## 4.")[2].partition("```python\n")[2].partition("next_run")[0]
    names: dict[str, Any] = {"dataclasses": dataclasses, "json": json, "run": run, "task": task}
    exec(recipe, names)
    kept = names["middle"].train["question"]
    assert list(kept) == [QUESTIONS[place] for place in (1, 5, 6, 7, 8, 9)]


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
