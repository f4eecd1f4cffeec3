"""Rows of a log from wherever it is: a list, a run, a run's folder, a checkpoint, a trainer_state.json or a metrics.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.runs import Run, open_run, read_rows
from grpo_nb.settings import Settings

_CHECKPOINT_STATE = "trainer_state.json"


@dataclass(frozen=True, kw_only=True)
class Log:
    """The rows of a log, with what its folder knows besides."""

    rows: Sequence[Mapping[str, Any]]
    weights: Mapping[str, float] | None = None
    settings: Settings | None = None
    run: Run | None = None


def read_log(source: Run | str | Path | Iterable[Mapping[str, Any]]) -> Log:
    """Read the rows of a log from any of the places where they lie.

    Raises:
        ValueError: What is there is no log.
        FileNotFoundError: There is nothing at that path.
    """
    if isinstance(source, Run):
        return _of_run(source)
    if not isinstance(source, (str, Path)):
        return Log(rows=_checked(list(source), "rows"))
    path = Path(source)
    if (path / "run.json").is_file():
        return _of_run(open_run(path))
    if path.is_dir():
        path = _state_in(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no log at {str(source)!r}: give a run's folder, a checkpoint, or a JSON file."
        )
    if path.suffix == ".jsonl":
        return Log(rows=_checked(read_rows(path), str(path)))
    held = json.loads(path.read_text())
    if isinstance(held, Mapping):
        if "log_history" not in held:
            raise ValueError(
                f"{str(path)!r} holds no log_history, which trainer_state.json has; it has: {', '.join(held)}."
            )
        held = held["log_history"]
    return Log(rows=_checked(held, str(path)))


def _state_in(folder: Path) -> Path:
    """The log of a folder: its metrics.jsonl, its trainer_state.json, or that of its latest checkpoint, which has all steps."""
    for name in ("metrics.jsonl", _CHECKPOINT_STATE):
        if (folder / name).is_file():
            return folder / name
    found = {
        state.parent.name.removeprefix("checkpoint-"): state
        for state in folder.glob(f"checkpoint-*/{_CHECKPOINT_STATE}")
    }
    steps = [number for number in found if number.isdigit()]
    if not steps:
        raise FileNotFoundError(
            f"{str(folder)!r} holds no metrics.jsonl and no {_CHECKPOINT_STATE}, nor has it a checkpoint with one."
        )
    return found[max(steps, key=int)]


def _of_run(run: Run) -> Log:
    info = run.info
    rewards = info.get("rewards") or []
    return Log(rows=run.rows, weights={r["name"]: r["weight"] for r in rewards}, settings=run.settings, run=run)


def _checked(rows: Any, where: str) -> Sequence[Mapping[str, Any]]:
    if not isinstance(rows, list):
        raise ValueError(f"{where} holds a {type(rows).__name__}, not a list of rows.")
    for row in rows:
        if not isinstance(row, Mapping):
            raise ValueError(
                f"{where} holds {row!r}, a {type(row).__name__}: each row is a mapping of metric to number."
            )
    return rows


def completions_of(run: Run, last: int | None = None) -> dict[int, list[list[str]]]:
    """The completions of a run by step and group; of its last steps only, if `last` is given."""
    files = sorted((run.path / "completions").glob("step_*.parquet"))
    found: dict[int, list[list[str]]] = {}
    for file in files[-last:] if last else files:
        try:
            table = run.completions(int(file.stem.removeprefix("step_")))
        except (OSError, ValueError):  # cut off by a crash: only the rules for repeated texts miss it
            continue
        for (step, _), group in table.groupby(["step", "group"], sort=False):
            found.setdefault(int(step), []).append(group["completion"].tolist())
    return found
