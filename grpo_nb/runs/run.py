"""What a run knows, on disk the moment it is known: the run directory, its rows, and what they say in words. No plotting.

runs/<name>/
  run.json            settings, seeds, versions, machine, data fingerprint, rewards with source text and hash, status
  metrics.jsonl       one JSON object per logged step, appended and flushed, with the alerts that came with it
  holdout.jsonl       the held-out questions, for comparisons and exports
  train_questions.txt hashes of the training questions, so that held-out ones are never among them unseen
  chat_template.jinja what prompts were rendered with, for evaluations and exports
  completions/        per logged step: prompt, completion, each reward, total, advantage (parquet)
  checkpoints/        the newest two (grpo_nb.runs.checkpoints), of a finished run the last
  reference/          the adapter that KL is measured to, where training did not start from the base model
  start/              what the run began with: adapter, training rows, first completions (grpo_nb.training.beginning)
  adapter/            the LoRA after the last step, or the best one (settings.keep) with the last in adapter-last/
  figures/            PNG of the curves
  comparison/         held-out results before and after: numbers, table, figure, every answer
  README.md           the model card
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import operator
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.files import free_path, inside, liveness, shown_path, staged_file, write_bytes, write_json, write_text
from grpo_nb.core.tables import Html, Part, Shown, bold, escaped
from grpo_nb.core.words import in_line
from grpo_nb.runs.alert import Alert, alerts_of
from grpo_nb.runs.best import BestStep, best_step
from grpo_nb.runs.checkpoints import checkpoint_folders
from grpo_nb.runs.records import RecordedComparison, RecordedExport
from grpo_nb.runs.rise import Rise, describe, reward_rise
from grpo_nb.runs.rows import read_rows, reading
from grpo_nb.settings.settings import Settings
from grpo_nb.tasks.questions import TrainedQuestions, write_hashes

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from grpo_nb.runs.groups import StepGroups

_QUESTIONS = "train_questions.txt"


def new_run_folder(root: str | Path, name: str | None) -> Path:
    """Create and return the folder of a new run.

    Args:
        root: Folder of all runs.
        name: Its name; by default the time of day it starts.

    Raises:
        FileExistsError: A run of that name exists. Nothing is overwritten.
    """
    if name is not None:
        check_run_name(name)
    root = Path(root)
    folder = root / (name or datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S"))
    if name is None:
        folder = free_path(folder, "_")
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise FileExistsError(
            f"the run {str(folder)!r} exists already, and runs are never overwritten. Choose another name, "
            f"leave name out, or look at the old one: gn.open_run({str(folder)!r})."
        ) from error
    return folder


def check_run_name(name: Any) -> None:
    """Raise `ValueError` for what cannot be the name of a run's folder."""
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name)):
        raise ValueError(f"run name {in_line(name)} may hold up to 100 letters, digits, '.', '_' and '-' only.")


class Run(Shown):
    """A finished, crashed or still running run, read from its folder whenever it is asked.

    `train` returns one that also holds model, tokenizer and rewards; `open_run` gives the same without them.
    """

    def __init__(
        self, path: str | Path, *, model: Any = None, tokenizer: Any = None, rewards: Iterable[Callable[..., Any]] = ()
    ) -> None:
        self.path = Path(path)
        self.model = model
        self.tokenizer = tokenizer
        self.rewards = list(rewards)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.name

    @property
    def info(self) -> dict[str, Any]:
        """What `run.json` says.

        Raises:
            ValueError: It is damaged.
        """
        with self._reading():
            info = json.loads((self.path / "run.json").read_text("utf-8"))
            writer = ("pid", "host") if info["status"] == "running" else ()
            _ = info["settings"]["beta"], [info[key] for key in writer]  # what is read of every run
            _ = [(reward["name"], reward["weight"]) for reward in info.get("rewards") or ()]
            return info

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        return reading(self.path / "run.json")

    @property
    def started(self) -> datetime.datetime:
        """When it was started, with the offset of the clock there, so that runs of several machines can be put in order."""
        with self._reading():
            return datetime.datetime.fromisoformat(self.info["started"]).astimezone()

    @property
    def settings(self) -> Settings:
        """The settings it was started with."""
        with self._reading():
            return Settings.from_dict(self.info["settings"])

    @property
    def chat_template_kwargs(self) -> dict[str, Any]:
        """What the chat template was given beside the messages: `Task.chat_template_kwargs`."""
        with self._reading():
            return dict(self.info["settings"].get("extra", {}).get("chat_template_kwargs") or {})

    @property
    def status(self) -> str:
        """How it stands, in one word; `status_sentence` says more.

        `finished`: all its steps are done. `interrupted`: by the stop button. `stopped`: by an alert or another observer.
        `failed`: by an error, which `info["error"]` has. `running`: its process is there. `crashed`: its process is gone
        without a word. `unknown`: it is, or was, written by another machine, which cannot be asked. `damaged`: run.json cannot
        be read.
        """
        try:
            info = self.info
        except (OSError, ValueError):
            return "damaged"
        return liveness(info, self.path) if info["status"] == "running" else info["status"]

    @property
    def status_sentence(self) -> str:
        """How it stands, with what is known about it."""
        status = self.status
        if status == "damaged":
            return "damaged: run.json cannot be read"
        info = self.info
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
        return max((step for step, _ in checkpoint_folders(self.path / "checkpoints")), default=None)

    @property
    def rows(self) -> list[dict[str, float]]:
        """One mapping per logged step, in order, with TRL's metric names. What was not measured has no key."""
        return read_rows(self.path / "metrics.jsonl", needed="step", kind=(int, float))

    @property
    def metrics(self) -> pandas.DataFrame:
        """`rows` as a table; NaN where a step did not measure something."""
        import pandas

        return pandas.DataFrame(self.rows).drop(columns="alerts", errors="ignore")

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each reward."""
        return {reward["name"]: reward["weight"] for reward in self.info.get("rewards") or ()}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The least and the most that each reward pays, unweighted, of those of which it is known."""
        known = [reward for reward in self.info.get("rewards") or () if reward.get("range")]
        return {reward["name"]: tuple(reward["range"]) for reward in known}

    @property
    def adapter_path(self) -> Path:
        """Folder of the LoRA that the run leaves."""
        return self.path / "adapter"

    @property
    def start_path(self) -> Path:
        """Folder of what the run began with."""
        return self.path / "start"

    @property
    def alerts(self) -> list[Alert]:
        """The health alerts of this run so far, in the order in which they came."""
        rows = self.rows
        with reading(self.path / "metrics.jsonl"):
            return alerts_of(rows)

    @property
    def holdout(self) -> list[dict[str, Any]]:
        """The held-out rows this run was started with: `prompt`, `question`, `answer`."""
        rows = read_rows(file := self.path / "holdout.jsonl", needed="prompt")
        with reading(file):
            if file.is_file() and len(rows) < (count := self.info.get("task", {}).get("holdout", 0)):
                raise ValueError(f"it has {len(rows)} of the run's {count} questions")
            return rows

    @property
    def trained_questions(self) -> TrainedQuestions | None:
        """What it was trained on, as hashes, so that held-out questions are never among them unseen; None if it kept none."""
        file = self.path / _QUESTIONS
        if not file.is_file():
            return None
        with reading(file):
            known = TrainedQuestions.read(file, f"the training questions of the run {self.name}")
            if {*map(len, known.hashes)} != {16}:
                raise ValueError("it is empty, or a line is cut")
            return known

    @property
    def comparison(self) -> RecordedComparison | None:
        """The numbers of its last held-out comparison, if any; `gn.evaluation.open_comparison` has every answer."""
        return RecordedComparison.read(self.path)

    @property
    def exports(self) -> list[RecordedExport]:
        """The verified exports of this run, oldest first."""
        return RecordedExport.read(self.path)

    def record_export(self, path: str, kind: str, sentence: str) -> None:
        """Append an export to those of this run; what was at the same path before is there no more."""
        export = RecordedExport(path=path, kind=kind, sentence=sentence)
        others = [other for other in self.exports if other.path != path]
        write_json(self.path / "exports.json", [vars(kept) for kept in (*others, export)])

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Write `run.json`; it is what makes a folder a run, so it comes first."""
        write_json(self.path / "run.json", dict(info))

    def write_step(self, row: Mapping[str, Any], table: pandas.DataFrame | None) -> None:
        """Add the completions of a step, if it made any, and then its row, which is thus never without them.

        Raises:
            TypeError: A value of the row is no number.
        """
        line = json.dumps(row, default=float) + "\n"
        if table is not None:
            (self.path / "completions").mkdir(exist_ok=True)
            with staged_file(self.path / "completions" / f"step_{row['step']:06d}.parquet") as staged:
                table.to_parquet(staged, index=False)
        # Opened anew each time: a network drive sends a file away when it is closed.
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)

    def keep_questions(self, trained: Iterable[Any], held_out: Iterable[Mapping[str, Any]]) -> None:
        """Keep the held-out rows, for comparisons and exports, and hashes of the questions that it is trained on."""
        kept = [{name: row[name] for name in ("prompt", "question", "answer")} for row in held_out]
        write_text(self.path / "holdout.jsonl", "".join(json.dumps(row, default=str) + "\n" for row in kept))
        write_hashes(self.path / _QUESTIONS, trained)

    def save_figure(self) -> None:
        """Write the curves as an image; a run without a row has none."""
        from grpo_nb.runs.live import png

        if self.rows:
            (self.path / "figures").mkdir(exist_ok=True)
            write_bytes(self.path / "figures" / "training.png", png(self.plot(), dpi=150))

    @property
    def steps(self) -> list[int]:
        """The steps of which it has completions, in order."""
        names = (re.fullmatch(r"step_(\d+)\.parquet", file.name) for file in (self.path / "completions").glob("*"))
        return sorted(int(name[1]) for name in names if name)

    def _read_step(self, step: int, *needed: str) -> pandas.DataFrame:
        """The file of a step, which has to have some columns."""
        import pandas

        file = self.path / "completions" / f"step_{step:06d}.parquet"
        with reading(file):
            table = pandas.read_parquet(file)
            return table if set(needed) <= set(table) else table[list(needed)]  # which says what it lacks

    def completions(self, step: int | None = None) -> pandas.DataFrame:
        """The sampled completions of a step (of all, if None): prompt, completion, each reward, total, advantage.

        Raises:
            ValueError: The run has no completions of that step; says which it has.
        """
        import pandas

        steps = self.steps
        wanted = steps if step is None else [step] if step in steps else []
        if not wanted:
            span = f"{steps[0]} to {steps[-1]}" if steps else "none yet"
            raise ValueError(f"{self.name} has no completions of step {step}; it has those of: {span}.")
        return pandas.concat([self._read_step(one, "step", "group", "completion") for one in wanted], ignore_index=True)

    def step(self, number: int) -> StepGroups:
        """The groups of a step: its completions with scores, totals and advantages, in the order of the advantages."""
        from grpo_nb.runs.groups import groups_of

        table = self.completions(number)
        with reading(self.path / "completions" / f"step_{number:06d}.parquet"):
            return groups_of(self.name, number, table, self.weights)

    def rise(self, metric: str = "reward") -> Rise:
        """Whether a metric rose over the steps by more than luck: a test over all of them, with its p-value and a sentence."""
        return reward_rise(self.rows, metric)

    @property
    def best(self) -> BestStep | None:
        """Its best held-out step so far, with its interval and how it stands to the last; None without `holdout_every`."""
        return best_step(self.rows)

    def plot(self) -> Figure:
        """The training curves as a figure, the same as shown live."""
        # Here, so that looking at a run's numbers loads no matplotlib.
        from grpo_nb.runs.live import training_figure

        return training_figure(self.rows, self.weights, self.info["settings"]["beta"], alerts=self.alerts)

    def _parts(self) -> Iterator[Part]:
        try:
            lines = [*self._course(), *self._sequel()]
        except (OSError, ValueError) as error:  # a damaged file is named
            lines = [str(error)]
        files = {"Curves": self.path / "figures/training.png", "Report": self.path / "README.md"}
        lines += [f"{what}: {shown_path(file)}" for what, file in files.items() if file.is_file()]
        yield bold(f"Run {self.name}: {self.status_sentence}.")
        yield Html("\n".join(lines), "<br>".join(map(escaped, lines)))

    def _course(self) -> Iterator[str]:
        rows = self.rows
        yield describe(rows) if rows or self.status != "finished" else "metrics.jsonl holds no row any more."
        if resumed := self.info.get("resumed"):
            said = Counter(map(_said_of_resuming, resumed))
            yield "Resumed at step " + ", ".join(s + f", {n} times" * (n > 1) for s, n in said.items()) + "."
        if (best := self.best) is not None:
            kept = self.info.get("adapter_step")
            yield best.sentence + (f" The adapter is that of step {kept}." if kept else "")
        step = self.checkpoint_step
        if self.status in ("crashed", "failed", "interrupted", "stopped", "unknown") and step is not None:
            yield f"To go on from step {step}: gn.train(..., resume={self.name!r})"

    def _sequel(self) -> Iterator[str]:
        if self.comparison:
            yield f"Held-out: {self.comparison.sentence}"
        for export in self.exports:
            what = "Merged model" if export.kind.startswith("merged") else f"Exported {export.kind}"
            yield f"{what}: {export.path} ({export.sentence})"


def open_run(path: str | Path | Run) -> Run:
    """Open a run from its folder, or by its name in `runs`, whether finished, crashed or running, without loading a model.

    What takes a run asks here, and so takes its folder too: a run is returned as it is.

    Raises:
        FileNotFoundError: There is no run at that path; names those in it or beside it.
        ValueError: Something in it is a link to elsewhere, where work on the run would then write.

    >>> gn.open_run(run.path).status
    'finished'
    """
    if isinstance(path, Run):
        return path
    path = Path(path).expanduser()
    for folder in (path, Path(Settings().run_root) / path):
        with contextlib.suppress(OSError):  # a name too long for a disk
            if (folder / "run.json").is_file():
                for held in folder.iterdir():
                    inside(folder, held.name)
                return Run(folder)
    place = path if (there := _runs_in(path)) else path.parent
    raise FileNotFoundError(
        f"{str(path)!r:.200} is no run: it has no run.json. Runs in {str(place)!r}: "
        f"{', '.join(there or _runs_in(place)) or 'none'}."
    )


def _runs_in(place: Path) -> list[str]:
    with contextlib.suppress(OSError):  # a name too long for a disk
        return sorted(file.parent.name for file in place.glob("*/run.json"))
    return []


def seconds_since_written(path: Path) -> float:
    """Seconds since anything of a run was written."""
    written = 0.0
    for file in (path, *path.glob("*"), *path.glob("checkpoints/*")):
        with contextlib.suppress(FileNotFoundError):  # its writer renames and removes
            written = max(written, file.stat().st_mtime)
    return max(0.0, time.time() - written)


def write_trained_questions(run: Run, questions: Iterable[Any]) -> None:
    """Keep the hashes of a run's training questions in its folder, so that it can be asked later on any other data."""
    write_hashes(run.path / _QUESTIONS, questions)


def trained_questions(train: Any, runs: Iterable[Run]) -> TrainedQuestions | None:
    """Return what is known to have been trained on, from the training part of a task (None: no such part) and from runs."""
    known = [trained for run in runs if (trained := run.trained_questions) is not None]
    if train is not None and len(train):
        known.append(TrainedQuestions.of(train["question"], "the training part of the task"))
    return functools.reduce(operator.or_, known) if known else None


def _said_of_resuming(entry: Mapping[str, Any]) -> str:
    changed = "; ".join(entry.get("changed", ()))
    return f"{entry['step']} ({changed})" if changed else str(entry["step"])
