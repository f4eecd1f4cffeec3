"""What a run knows, on disk the moment it is known: the run directory, its rows, and what they say in words. No plotting.

runs/<name>/
  run.json            settings, seeds, versions, machine, data fingerprint, rewards with source text and hash, status
  metrics.jsonl       one JSON object per logged step, appended and flushed
  alerts.jsonl        each health alert once: step, rule, severity, evidence, advice
  holdout.jsonl       the held-out questions, for comparisons and exports
  train_questions.txt hashes of the training questions, so that held-out ones are never among them unseen
  chat_template.jinja what prompts were rendered with, for evaluations and exports
  completions/        per logged step: prompt, completion, each reward, total, advantage (parquet)
  checkpoints/        the newest two (grpo_nb.checkpoints), of a finished run the last
  reference/          the adapter that KL is measured to, where training did not start from the base model
  adapter/            the final LoRA
  figures/            PNG of the curves
  comparison/         held-out results before and after: numbers, table, figure, every answer
  README.md           the model card
"""

from __future__ import annotations

import datetime
import html
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.config import Settings
from grpo_nb.liveness import liveness, seconds_since_written

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from grpo_nb.health_alerts import Alert
    from grpo_nb.viewer import StepGroups

Row = Mapping[str, float]
_FIRST, _LAST = 3, 10


def write_json(path: Path, value: Any) -> None:
    """Write JSON to a temporary file and rename it, so that a reader or a crash never sees half of it."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        staged.write_text(json.dumps(value, indent=2, default=str) + "\n")
        staged.replace(path)
    except OSError:  # a full disk, where a leftover would be in the way
        staged.unlink(missing_ok=True)
        raise


def shown_path(path: Path) -> Path:
    """The path as one would type it here: relative if it lies below the working directory."""
    return path.relative_to(Path.cwd()) if path.is_absolute() and path.is_relative_to(Path.cwd()) else path


def new_run_folder(root: str | Path, name: str | None) -> Path:
    """Create and return the folder of a new run.

    Args:
        root: Folder of all runs.
        name: Its name; by default the time of day it starts.

    Raises:
        FileExistsError: A run of that name exists. Nothing is overwritten.
    """
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"run name {name!r} may hold letters, digits, '.', '_' and '-' only.")
    root = Path(root)
    folder = root / (name or datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
    if name is None:
        first, count = folder, 1
        while folder.exists():
            count += 1
            folder = first.with_name(f"{first.name}_{count}")
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise FileExistsError(
            f"the run {str(folder)!r} exists already, and runs are never overwritten. Choose another name, "
            f"leave name out, or look at the old one: gn.open_run({str(folder)!r})."
        ) from error
    return folder


class Run:
    """A finished, crashed or still running run, read from its folder whenever it is asked.

    `train` returns one that also holds the model and tokenizer; `open_run` gives the same without them.
    """

    def __init__(self, path: str | Path, *, model: Any = None, tokenizer: Any = None) -> None:
        self.path = Path(path)
        self.model = model
        self.tokenizer = tokenizer

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.name

    @property
    def info(self) -> dict[str, Any]:
        """What `run.json` says."""
        return json.loads((self.path / "run.json").read_text())

    @property
    def settings(self) -> Settings:
        """The settings it was started with."""
        return Settings.from_dict(self.info["settings"])

    @property
    def status(self) -> str:
        """How it stands, in one word; `status_sentence` says more.

        `finished`: all its steps are done. `interrupted`: by the stop button. `stopped`: by an alert or another observer.
        `failed`: by an error, which `info["error"]` has. `running`: its process is there. `crashed`: its process is gone
        without a word. `unknown`: it is, or was, written by another machine, which cannot be asked.
        """
        info = self.info
        return liveness(info, self.path) if info["status"] == "running" else info["status"]

    @property
    def status_sentence(self) -> str:
        """How it stands, with what is known about it."""
        info, status = self.info, self.status
        if status == "unknown":
            minutes = seconds_since_written(self.path) / 60
            return f"unknown: the machine {info['host']!r} wrote to it last, {minutes:.0f} minutes ago"
        if status == "failed":
            return f"failed: {info.get('error', 'the error is not known')}"
        if status == "stopped":
            return f"stopped by {info.get('stopped_by', 'an observer')}"
        return status

    @property
    def checkpoint_step(self) -> int | None:
        """Step of its newest checkpoint by name, or None if there is none. Whether it is complete is seen when resuming."""
        steps = [int(p.name.rpartition("-")[2]) for p in (self.path / "checkpoints").glob("checkpoint-[0-9]*")]
        return max(steps, default=None)

    @property
    def rows(self) -> list[dict[str, float]]:
        """One mapping per logged step, in order, with TRL's metric names. What was not measured has no key."""
        return read_rows(self.path / "metrics.jsonl")

    @property
    def metrics(self) -> pandas.DataFrame:
        """`rows` as a table; NaN where a step did not measure something."""
        import pandas

        return pandas.DataFrame(self.rows)

    @property
    def adapter_path(self) -> Path:
        """Folder of the final LoRA."""
        return self.path / "adapter"

    def completions(self, step: int | None = None) -> pandas.DataFrame:
        """The sampled completions of a step (of all, if None): prompt, completion, each reward, total, advantage."""
        import pandas

        folder = self.path / "completions"
        files = sorted(folder.glob("step_*.parquet")) if step is None else [folder / f"step_{step:06d}.parquet"]
        if not files or not files[0].is_file():
            have = [int(f.stem.split("_")[1]) for f in sorted(folder.glob("step_*.parquet"))]
            span = f"{have[0]} to {have[-1]}" if have else "none yet"
            raise ValueError(f"{self.name} has no completions of step {step}; it has those of: {span}.")
        return pandas.concat([pandas.read_parquet(file) for file in files], ignore_index=True)

    def alerts(self) -> list[Alert]:
        """The health alerts of this run so far, in the order in which they came."""
        return read_alerts(self.path / "alerts.jsonl")

    def plot(self) -> Figure:
        """The training curves as a figure, the same as shown live."""
        # The one look downwards in the package: a run that cannot show itself is of no use in a notebook.
        from grpo_nb import plots

        return plots.run_figure(self)

    def step(self, number: int) -> StepGroups:
        """The groups of a step: its completions with scores, totals and advantages, in the order of the advantages."""
        # Downwards for the same reason: `run.step(12)` is what one types.
        from grpo_nb.viewer import read_step

        return read_step(self, number)

    def holdout(self) -> list[dict[str, Any]]:
        """The held-out rows this run was started with: `prompt`, `question`, `answer`."""
        return [json.loads(line) for line in (self.path / "holdout.jsonl").read_text().splitlines()]

    def comparison(self) -> dict[str, Any] | None:
        """The last held-out comparison of this run, or None if there was none."""
        file = self.path / "comparison" / "comparison.json"
        return json.loads(file.read_text()) if file.is_file() else None

    def exports(self) -> list[dict[str, Any]]:
        """The verified exports of this run, oldest first."""
        file = self.path / "exports.json"
        return json.loads(file.read_text()) if file.is_file() else []

    def record_export(self, entry: Mapping[str, Any]) -> None:
        """Append an export to those of this run; what was at the same path before is there no more."""
        others = [other for other in self.exports() if other["path"] != entry["path"]]
        write_json(self.path / "exports.json", [*others, dict(entry)])

    def summary(self) -> str:
        """A few lines for a terminal: what was learnt, and where everything is."""
        lines = [f"Run {self.name}: {self.status_sentence}.", describe(self.rows)]
        resumed = self.info.get("resumed", ())
        if resumed:
            lines.append("Resumed at step " + ", ".join(_said_of_resuming(entry) for entry in resumed) + ".")
        if (
            self.status in ("crashed", "failed", "interrupted", "stopped", "unknown")
            and self.checkpoint_step is not None
        ):
            lines.append(f"To go on from step {self.checkpoint_step}: gn.train(..., resume={self.name!r})")
        comparison = self.comparison()
        if comparison is not None:
            lines.append(f"Held-out: {comparison['sentence']}")
        for export in self.exports():
            what = "Merged model" if export["kind"].startswith("merged") else f"Exported {export['kind']}"
            lines.append(f"{what}: {export['path']} ({export['sentence']})")
        files = {"Curves": "figures/training.png", "Report": "README.md"}
        here = shown_path(self.path)
        lines += [f"{what}: {here / file}" for what, file in files.items() if (self.path / file).is_file()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        lines = "".join(f"<br>{html.escape(line)}" for line in self.summary().splitlines()[1:])
        return f"<b>{html.escape(self.summary().splitlines()[0])}</b>{lines}"


def open_run(path: str | Path) -> Run:
    """Open a run from its folder, whether finished, crashed or running, without loading a model.

    Raises:
        FileNotFoundError: There is no run at that path; names those beside it.
    """
    path = Path(path)
    if not (path / "run.json").is_file():
        beside = sorted(p.parent.name for p in path.parent.glob("*/run.json")) if path.parent.is_dir() else []
        raise FileNotFoundError(
            f"{str(path)!r} is no run: it has no run.json. Runs in {str(path.parent)!r}: {', '.join(beside) or 'none'}."
        )
    return Run(path)


def read_alerts(file: Path) -> list[Alert]:
    """Read alerts.jsonl; no file means no alerts."""
    from grpo_nb.health_alerts import Alert

    return [Alert.from_dict(values) for values in read_rows(file)]


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl. A last line cut short, as a crash in mid-write leaves it, is left out."""
    if not file.is_file():
        return []
    lines = file.read_text().splitlines()
    rows = []
    for number, line in enumerate(lines):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines) - 1:
                raise
    return rows


def tidy_row(logs: Mapping[str, Any], step: int, max_steps: int, beta: float) -> dict[str, float]:
    """Turn one of the trainer's log entries into a row: numbers only, and nothing that was not measured."""
    row: dict[str, float] = {"step": step, "max_steps": max_steps}
    for key, value in logs.items():
        # With beta = 0 Unsloth logs a KL of exact zeros, which was never computed.
        if isinstance(value, (int, float)) and not (key == "kl" and beta == 0):
            row[key] = value
    return row


def series(rows: Sequence[Row], key: str) -> list[float]:
    """The values of a metric, one per row; NaN where it was not measured."""
    return [float(row.get(key, math.nan)) for row in rows]


def reward_names(rows: Sequence[Row]) -> list[str]:
    """The names of the rewards in the rows, in order, under either generation of TRL's metric names."""
    names: dict[str, None] = {}
    for row in rows[:1] + rows[-1:]:
        for key in row:
            if key.startswith("rewards/") and not key.endswith("/std"):
                names.setdefault(key.removeprefix("rewards/").removesuffix("/mean"))
    return list(names)


def reward_series(rows: Sequence[Row], name: str) -> list[float]:
    """The mean score of one reward, unweighted, per row."""
    new = series(rows, f"rewards/{name}/mean")
    return new if not all(map(math.isnan, new)) else series(rows, f"rewards/{name}")


def mean(values: Sequence[float]) -> float:
    """Mean of what was measured; NaN if nothing was."""
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


def describe(rows: Sequence[Row]) -> str:
    """One sentence about a run so far: reward then and now, KL, and what is cut at the length limit."""
    rows = [row for row in rows if "reward" in row]
    if not rows:
        return "No step has been logged yet."
    rewards = series(rows, "reward")
    if len(rows) < _FIRST + _LAST:
        text = f"Step {rows[-1]['step']:.0f}: reward {rewards[-1]:.2f}"
        if len(rows) > 1:
            text += f", {rewards[0]:.2f} at the start"
    else:
        before, now = mean(rewards[:_FIRST]), mean(rewards[-_LAST:])
        verb = "rose" if now > before else "fell" if now < before else "stayed"
        text = f"Reward {verb} from {before:.2f} (first {_FIRST} steps) to {now:.2f} (last {_LAST})"
    kl = mean(series(rows[-_LAST:], "kl"))
    text += f"; KL to the starting model {kl:.3f}" if not math.isnan(kl) else "; KL not measured"
    clipped = mean(series(rows[-_LAST:], "completions/clipped_ratio"))
    if not math.isnan(clipped):
        text += f"; {clipped:.0%} of completions cut at the length limit"
    return text + "."


def _said_of_resuming(entry: Mapping[str, Any]) -> str:
    changed = "; ".join(entry.get("changed", ()))
    return f"{entry['step']} ({changed})" if changed else str(entry["step"])
