"""Write the files that `Run` reads, in a training here or from one in a `scaleout` project."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from grpo_nb.core.files import safe_path, staged_file, write_json, write_text
from grpo_nb.runs.rows import MetricRow, write_json_lines
from grpo_nb.runs.run_folder import FIGURE_FILE, Run
from grpo_nb.runs.run_info import FORMAT_VERSION, RunInfo
from grpo_nb.tasks.contamination import question_hashes
from grpo_nb.tasks.read_rows import Row

if TYPE_CHECKING:
    import pandas


def write_run_info(run: Run, info: RunInfo) -> None:
    """Write `run.json`. A folder without it is no run, so write it before all other files."""
    write_json(safe_path(run.path, "run.json"), {"format_version": FORMAT_VERSION, **info})


def write_step(run: Run, row: MetricRow, table: pandas.DataFrame | None) -> None:
    """Write the completions of a step, if there are any, and then its row.

    In this order, a crash in between leaves completions without a row, never a row without
    completions.

    Raises:
        TypeError: A value of the row cannot be written as JSON.
    """
    line = json.dumps(row) + "\n"
    if table is not None:
        (run.path / "completions").mkdir(exist_ok=True)
        with staged_file(run.completions_file(row["step"])) as staged:
            table.to_parquet(staged, index=False)
    # Open the file for each row, because a network drive uploads a file when it is closed.
    with safe_path(run.path, "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(line)


def write_questions(run: Run, train_questions: Iterable[Any], holdout: Iterable[Row]) -> None:
    """Write the held-out rows, and hashes of the training questions."""
    # All columns are kept, because rewards may read them.
    write_json_lines(safe_path(run.path, "holdout.jsonl"), holdout)
    hashes = question_hashes(train_questions)
    write_text(safe_path(run.path, "train_questions.txt"), "\n".join(hashes))


def write_figure(run: Run) -> None:
    """Write the curves as an image, if the run has a row."""
    # Imported here, so that writing the numbers of a run loads no matplotlib.
    from grpo_nb.runs.figure import IMAGE_DPI

    if run.rows:
        file = safe_path(run.path, FIGURE_FILE)
        file.parent.mkdir(exist_ok=True)
        with staged_file(file) as staged:
            run.plot().savefig(staged, format="png", dpi=IMAGE_DPI)
