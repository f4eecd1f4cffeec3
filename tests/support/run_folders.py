"""Run folders written by hand: only what a test looks at is in them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpo_nb as gn


def append_rows(folder: Path, rows: Iterable[dict[str, Any]], name: str = "metrics.jsonl") -> None:
    """Append rows to a file of a run, as a training does."""
    with (folder / name).open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_run_folder(folder: Path, info: dict[str, Any], rows: Iterable[dict[str, Any]] | None = None) -> gn.runs.Run:
    """Write a folder with what `run.json` says and, if there are rows, with `metrics.jsonl`; an existing one is an error."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(info, default=str))
    if rows is not None:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return gn.open_run(folder)
