"""What a run began with, kept in its folder.

So that its first steps can be made again elsewhere (`grpo_nb.scaleout`).

runs/<name>/start/
  adapter_*         the LoRA before the first step
  train.jsonl, holdout.jsonl   the rows in their order, up to 100 MB of them
  generations.json  of the first three generations: the row of each group, and the token ids of each completion
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_nb.core.files import write_json, write_text
from grpo_nb.models.adapter import save_adapter
from grpo_nb.runs.run_folder import Run
from grpo_nb.tasks.task import Task

_MOST_BYTES = 100_000_000


def keep_beginning(run: Run, model: Any, task: Task) -> None:
    """Write adapter and rows of a run that begins."""
    folder = run.start_path
    save_adapter(model, folder)
    if task.train.data.nbytes + task.holdout.data.nbytes <= _MOST_BYTES:
        write_task(folder, task)


def write_task(folder: Path, task: Task) -> None:
    """Write the rows of a task as JSON lines, what JSON does not know as its text."""
    for name, rows in (("train", task.train), ("holdout", task.holdout)):
        write_text(
            folder / f"{name}.jsonl", "".join(json.dumps(row, default=str) + "\n" for row in rows)
        )


def keep_generation(
    run: Run,
    at: int,
    step: int,
    rows: Sequence[Mapping[str, Any]],
    completion_ids: Sequence[Sequence[int]],
    size: int,
) -> None:
    """Write what was generated, which the trainer tells of the first generations: text alone would not give the tokens back.

    Args:
        run: Whose folder is written to.
        at: Forward passes of the training before it.
        step: Optimizer steps before it.
        rows: The data row of each completion, those of a group one after another.
        completion_ids: Its tokens.
        size: Of a group.
    """
    file = run.start_path / "generations.json"
    kept = json.loads(file.read_text("utf-8")) if file.is_file() else []
    made = {
        "at": at,
        "step": step,
        "rows": list(rows[::size]),
        "completion_ids": list(map(list, completion_ids)),
    }
    write_json(
        file, [*(entry for entry in kept if entry["at"] < at), made]
    )  # a resumed run makes some again
