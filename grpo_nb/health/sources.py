"""Rows of a log from wherever it is: a list, a run, a run's folder, a checkpoint, a trainer_state.json or a metrics.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_nb.runs.checkpoints import checkpoint_folders
from grpo_nb.runs.rows import read_rows, reading
from grpo_nb.runs.run import Run, open_run

_CHECKPOINT_STATE = "trainer_state.json"
Rows = Sequence[Mapping[str, Any]]


def read_log(source: Run | str | Path | Iterable[Mapping[str, Any]]) -> tuple[Rows, Run | None]:
    """Read the rows of a log from any of the places where they lie; return also the run, which knows more, if it is one.

    Raises:
        ValueError: What is there is no log.
        FileNotFoundError: There is nothing at that path.
    """
    if isinstance(source, (str, Path)) and (Path(source) / "run.json").is_file():
        source = open_run(source)
    if isinstance(source, Run):
        return source.rows, source
    if not isinstance(source, (str, Path)):
        if not isinstance(source, Iterable):
            raise TypeError(
                f"rows = {source!r:.60} is no log: write check_health(run), or give a path, or a list of rows such as "
                "trainer.state.log_history."
            )
        return _rows_in(source if isinstance(source, Mapping) else list(source), "rows"), None
    path = _state_in(Path(source)) if Path(source).is_dir() else Path(source)
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no log at {str(source)!r}: give a run's folder, a checkpoint, or a JSON file."
        )
    if path.suffix == ".jsonl":
        return read_rows(path), None
    with reading(path):
        held = json.loads(path.read_text("utf-8"))
    return _rows_in(held, str(path)), None


def _state_in(folder: Path) -> Path:
    """The log of a folder: its metrics.jsonl, its trainer_state.json, or that of its latest checkpoint, which has all steps."""
    newest_first = (checkpoint / _CHECKPOINT_STATE for _, checkpoint in reversed(checkpoint_folders(folder)))
    for file in (folder / "metrics.jsonl", folder / _CHECKPOINT_STATE, *newest_first):
        if file.is_file():
            return file
    raise FileNotFoundError(
        f"{str(folder)!r} holds no metrics.jsonl and no {_CHECKPOINT_STATE}, nor has it a checkpoint with one."
    )


def _rows_in(held: Any, where: str) -> Rows:
    if isinstance(held, Mapping):
        if "log_history" not in held:
            said = ", ".join(map(str, held))
            raise ValueError(f"{where!r} holds no log_history, which trainer_state.json has; it has: {said:.200}.")
        held = held["log_history"]
    if not isinstance(held, list):
        raise ValueError(f"{where} holds a {type(held).__name__}, not a list of rows.")
    for row in held:
        if not isinstance(row, Mapping):
            raise ValueError(
                f"{where} holds {row!r:.60}, a {type(row).__name__}: each row is a mapping of metric to number, as "
                "table.to_dict('records') gives them."
            )
    return held


def completions_of(run: Run, last: int | None = None) -> dict[int, list[list[str]]]:
    """The completions of a run by step and group; of its last steps only, if `last` is given."""
    found: dict[int, list[list[str]]] = {}
    for number in run.steps[-last:] if last else run.steps:
        try:
            table = run.completions(number)
        except (OSError, ValueError):  # cut off by a crash: only the rules for repeated texts miss it
            continue
        for (step, _), group in table.groupby(["step", "group"], sort=False):
            found.setdefault(int(step), []).append(group["completion"].tolist())
    return found
