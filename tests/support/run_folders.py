"""Run folders written by hand: only what a test looks at is in them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpo_nb as gn
from grpo_nb.runs.checkpoints import checkpoint_folders


def info_of(
    weights: dict[str, float], status: str = "finished", pid: int | None = None, **settings: Any
) -> dict[str, Any]:
    """Return `run.json` of a run of this process, with the preset `cpu` and these settings."""
    return {
        "status": status,
        "pid": pid or os.getpid(),
        "host": os.uname().nodename,
        "started": "2026-11-22T10:00:00+0000",
        "settings": gn.preset("cpu").to_dict() | settings,
        "rewards": [
            {"name": name, "weight": weight, "call": name, "source": "", "hash": ""}
            for name, weight in weights.items()
        ],
        "task": {
            "name": "sums",
            "format": {"name": "xml"},
            "train": 4,
            "holdout": 2,
            "fingerprint": "f",
        },
        "machine": {"gpu": None, "cores": 2},
        "versions": {},
        "dtype": "float32",
        "engine": "the kit's CPU engine",
    }


def write_run_folder(
    folder: Path, info: dict[str, Any], rows: Iterable[dict[str, Any]] | None = None
) -> gn.runs.Run:
    """Write a run folder with this `run.json` and, if there are rows, `metrics.jsonl`.

    An existing folder is an error.
    """
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(info, default=str))
    if rows is not None:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return gn.open_run(folder)


def untimed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a run without the time that a step took, which no two runs have in common."""
    return [{key: value for key, value in row.items() if key != "step_time"} for row in rows]


def checkpoint_step(run: gn.runs.Run) -> int:
    """Return the highest step in the names of the checkpoint folders, 0 without a checkpoint."""
    return max((step for step, _ in checkpoint_folders(run.path / "checkpoints")), default=0)
