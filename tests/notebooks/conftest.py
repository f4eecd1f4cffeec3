"""The executed notebooks, one fixture for each. The quickstart is in tests/run_fixtures.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import grpo_nb as gn
from tests.conftest import ROOT
from tests.support.notebooks import execute_notebook


@pytest.fixture(scope="session")
def your_data(size: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Execute `notebooks/03_your_data`.

    The small form trains the tiny model and ends by saying that two steps show no rise.
    """
    changes = {
        "model": str(tiny_folder),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "max_completion_length": 12,
    }
    less = {"CHANGES": changes} if size == "small" else {}
    return execute_notebook("03_your_data", tmp_path_factory.mktemp("your_data"), size, **less)


@pytest.fixture(scope="session")
def grpo_by_hand(size: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`notebooks/01_grpo_by_hand`, executed; small, with two steps at the end."""
    less = {"STEPS": 2} if size == "small" else {}
    return execute_notebook("01_grpo_by_hand", tmp_path_factory.mktemp("by_hand"), size, **less)


@pytest.fixture(scope="session")
def reward_lab(size: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Execute `notebooks/02_rewards`.

    The small form has the tiny model, fewer and smaller groups, and six held-out questions.
    """
    changes = {
        "model": str(tiny_folder),
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "max_completion_length": 24,
    }
    smaller = {"PROMPTS": 4, "STEPS": 2, "TASK": {"holdout": 6}, "CHANGES": changes}
    less = smaller if size == "small" else {}
    return execute_notebook("02_rewards", tmp_path_factory.mktemp("reward_lab"), size, **less)


@pytest.fixture(scope="session")
def train(size: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Execute `notebooks/04_train`.

    The small form uses the tiny model. Like the real one it writes no tag before training.
    """
    changes = {
        "model": str(tiny_folder),
        "per_device_train_batch_size": 8,
        "max_completion_length": 12,
        "save_steps": 2,
    }
    less = {"CHANGES": changes, "STEPS": 4} if size == "small" else {}
    return execute_notebook("04_train", tmp_path_factory.mktemp("train"), size, **less)


@pytest.fixture(scope="session")
def evaluate(
    size: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, gn.runs.Run]:
    """Execute `notebooks/05_evaluate`; return the executed notebook and its run.

    The small form works on a copy of the tiny model's run.
    """
    folder = tmp_path_factory.mktemp("evaluate")
    less = {}
    if size == "small":
        shutil.copytree(request.getfixturevalue("tiny_run").path, folder / "runs" / "tiny")
        less = {"RUN": "runs/tiny", "SAMPLES": 2, "QUESTIONS": 6}
    executed = execute_notebook("05_evaluate", folder, size, **less)
    (run,) = (folder / "runs").glob("*/run.json")
    return executed, gn.open_run(run.parent)


@pytest.fixture(scope="session")
def export(
    size: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Execute `notebooks/06_export`.

    The small form exports a run of the tiny model, in a tenth of the time.
    """
    folder = tmp_path_factory.mktemp("export")
    less = {}
    if size == "small":
        shutil.copytree(request.getfixturevalue("tiny_run").path, folder / "runs" / "tiny")
        less = {"RUN": "runs/tiny"}
    return execute_notebook("06_export", folder, size, **less)


@pytest.fixture(scope="session")
def code(size: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`notebooks/09_code`, executed; small, with the tiny model, two steps and six questions."""
    changes = {
        "model": str(tiny_folder),
        "per_device_train_batch_size": 8,
        "max_completion_length": 16,
    }
    less = {"STEPS": 2, "HELD_OUT": 6, "CHANGES": changes} if size == "small" else {}
    return execute_notebook("09_code", tmp_path_factory.mktemp("code"), size, **less)


@pytest.fixture(scope="session")
def scale_out(size: str, plain_trl: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`notebooks/a2_scale_out`, executed as published: it starts eight processes."""
    return execute_notebook("a2_scale_out", tmp_path_factory.mktemp("scale_out"), size)


@pytest.fixture(scope="session")
def algorithms(size: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`notebooks/a1_algorithms`, executed as published."""
    return execute_notebook("a1_algorithms", tmp_path_factory.mktemp("algorithms"), size)


@pytest.fixture(scope="session")
def gsm8k(size: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`notebooks/a3_gsm8k_gpu`, executed on rows of the form of GSM8K: sums in words, few steps."""
    folder = tmp_path_factory.mktemp("gsm8k")
    for name, first in (("train", 2), ("test", 3)):
        rows = [(a, b) for a in range(first, 18, 2) for b in range(1, 7)]
        lines = [
            {
                "question": f"Ann has {a} pears and buys {b} more. How many pears has she?",
                "answer": f"{a} + {b} = <<{a}+{b}={a + b}>>{a + b}\n#### {a + b}",
            }
            for a, b in rows
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    changes = {
        "max_steps": 3,
        "per_device_train_batch_size": 8,
        "learning_rate": 5e-4,
        "warmup_steps": 0,
    }
    if size == "small":
        changes |= {"model": str(tiny_folder), "max_completion_length": 16}
    return execute_notebook(
        "a3_gsm8k_gpu",
        folder,
        size,
        CHANGES=changes,
        DATA="train.jsonl",
        TEST="test.jsonl",
        QUESTIONS=12,
        EXPORT_TO="merged",
    )


@pytest.fixture(scope="session")
def tools(size: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Execute `notebooks/07_tools`.

    The small form trains the tiny model for two steps, with few episodes before and after.
    """
    changes = {
        "model": str(tiny_folder),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "holdout_every": 0,
        "max_completion_length": 32,
    }
    less = {"CHANGES": changes, "HELD_OUT": 8, "LONGER": 4} if size == "small" else {}
    return execute_notebook("07_tools", tmp_path_factory.mktemp("tools"), size, **less)


@pytest.fixture(scope="session")
def judge(size: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Execute `notebooks/08_judge`.

    The small form trains the tiny model for two steps; the judge's replies come from a cache.
    """
    folder = tmp_path_factory.mktemp("judge")
    changes = {"model": str(tiny_folder), "per_device_train_batch_size": 8}
    if size != "small":
        return execute_notebook("08_judge", folder, size)
    # Replies to the forty labels, to what was tried to fool the judge, and to the tiny model.
    shutil.copy(ROOT / "tests/data/judge_replies.jsonl", folder)
    return execute_notebook("08_judge", folder, size, STEPS=2, CHANGES=changes)
