"""A finished run's folder, written by hand, with names and sources that attack what shows them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpo_nb as gn
from tests.support.run_folders import write_run_folder

HOSTILE_NAME = "a|b *c* <script>alert(1)</script>"
HOSTILE_SOURCE = """def reward(completions, **columns):
    '''
````
| not | a table |
# not a heading
</details>'''
    return [0.0]
"""
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)


def side_of(label: str, accuracy: float, interval: list[float], format_share: float) -> dict:
    """Return the numbers of one model in comparison.json."""
    return {
        "label": label,
        "accuracy": accuracy,
        "accuracy_interval": interval,
        "in_format": format_share,
        "in_format_interval": None,
        "anywhere": None,
        "anywhere_interval": None,
        "anywhere_rule": "not measured",
        "is_graded_by_slot": True,
        "model_id": None,
    }


COMPARISON = {
    "before": side_of("before", 0.25, [0.1, 0.47], 0.5),
    "after": side_of("after", 0.75, [0.53, 0.89], 1.0),
    "difference": 0.5,
    "interval": [0.25, 0.75],
    "p_value": 0.002,
    "verdict": "better",
    "sentence": (
        "better: accuracy 25.0% before, 75.0% after on 20 questions (difference +50.0 points, 95 % "
        "interval +25.0 to +75.0, p = 0.002)."
    ),
    "tests": {"anywhere": None},
    "majority": None,
    "contamination": None,
}


class FakeModel:
    """A model as `new_run_info` sees it."""

    config = None


def write_run(
    folder: Path,
    *,
    task: gn.tasks.Task | None = None,
    rewards: list[Any] | None = None,
    **changes: Any,
) -> gn.runs.Run:
    """Write a run that looks as `train` leaves it, with weights of a few bytes."""
    from grpo_nb.generation.choice import EngineChoice
    from grpo_nb.training.new_run import new_run_info

    settings = gn.preset("cpu", run_root="/home/somebody/private/runs", **changes)
    task = task or gn.load_task("arithmetic", settings, train_size=6, holdout=4)
    rewards = (
        rewards
        if rewards is not None
        else [gn.rewards.correctness(weight=1.5), gn.rewards.partial_format()]
    )
    weights = gn.rewards.weights_by_name(rewards)
    prepared = SimpleNamespace(
        settings=settings,
        task=task,
        rewards=rewards,
        weights=weights,
        engine_choice=EngineChoice("the kit's CPU engine", "vLLM needs a GPU", None),
        dtype="float32",
        model=FakeModel(),
    )
    info = new_run_info(prepared).to_dict() | {"status": "finished", "base_weights_hash": None}
    rows = [
        {"step": i, "max_steps": 20, "reward": i / 10, "kl": 0.01, "completions/clipped_ratio": 0.0}
        for i in range(1, 21)
    ]
    run = write_run_folder(folder, info, rows)
    (folder / "holdout.jsonl").write_text("".join(json.dumps(row) + "\n" for row in task.holdout))
    (folder / "figures").mkdir()
    (folder / "figures" / "training.png").write_bytes(PNG)
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    return run


PRIVATE = ("somebody", "s3cret", "hf_" + "x" * 34)


def write_private_run(folder: Path) -> gn.runs.Run:
    """Write a run whose record is full of private things; nothing of `PRIVATE` may be published."""
    run = write_run(folder, rewards=[gn.rewards.correctness(name="/home/somebody/acme/clf")])
    info = run.info
    info["task"]["name"] = "/data/acme/train.csv"
    info["settings"]["model"] = "/home/somebody/my-model"
    info["settings"]["extra"] = {
        "vllm_server_base_url": "http://somebody:s3cret@host:8000/v1?api_key=s3cret",
        "lr_scheduler_kwargs": {"file": "~/acme/zero.json", "token": "hf_" + "x" * 34},
        "generation_kwargs": {
            "files": ["C:\\Users\\somebody\\words.txt", "/content/drive/acme/words.txt"]
        },
    }
    info["rewards"][0]["call"] += ", read from '/home/somebody/a/acme/clf' and \\x1b[2J"
    (folder / "run.json").write_text(json.dumps(info))
    return run


def compare_by_hand(run: gn.runs.Run, **changes: Any) -> None:
    """Write a held-out comparison into a run."""
    (run.path / "comparison").mkdir(exist_ok=True)
    (run.path / "comparison" / "comparison.json").write_text(json.dumps(COMPARISON | changes))
