"""Pass rates of a trained run, and the order in which an ordered task is trained."""

import dataclasses
import json
from pathlib import Path

import grpo_nb as gn
from tests.support.own_rewards import hashed
from tests.support.tiny import load_tiny


def test_ordered_task_is_trained_in_its_order(tiny_folder: Path, tmp_path: Path) -> None:
    sizes = {
        "max_steps": 3,
        "max_completion_length": 4,
        "num_generations": 2,
        "per_device_train_batch_size": 4,
    }
    model, tokenizer, task, settings = load_tiny(
        tiny_folder, 12, 2, run_root=str(tmp_path), **sizes
    )
    asked = {}
    for is_ordered in (True, False):
        one = dataclasses.replace(task, is_ordered=is_ordered)
        run = gn.train(model, tokenizer, one, [hashed], settings, name=f"ordered-{is_ordered}")
        prompts = run.completions()["prompt"].iloc[::2]
        asked[is_ordered] = [json.loads(prompt)[-1]["content"] for prompt in prompts]
    in_order = list(task.train["question"])[:6]
    assert asked[True] == in_order
    assert asked[False] != in_order
