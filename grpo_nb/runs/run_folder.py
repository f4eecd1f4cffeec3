"""A run's folder: what is known is in it at once, and this is the one place that reads it back and writes a step into it.

runs/<name>/
  run.json            settings, seeds, versions, machine, data fingerprint, rewards with source text and hash, status
  metrics.jsonl       one JSON object per logged step, appended and flushed, with the alerts that came with it
  holdout.jsonl       the held-out questions, for comparisons and exports
  train_questions.txt hashes of the training questions, so that held-out ones are never among them unseen
  chat_template.jinja what prompts were rendered with, for evaluations and exports; response_template.json how calls were read
  completions/        per logged step: prompt, completion, turns (with tools), each reward, total, advantage (parquet)
  checkpoints/        the newest two (grpo_nb.runs.checkpoints), of a finished run the last
  reference/          the adapter that KL is measured to, where training did not start from the base model
  start/              what the run began with: adapter, training rows, first completions (grpo_nb.training.beginning)
  adapter/            the LoRA of the newest checkpoint, or with settings.keep_adapter="best" that of best/
  figures/            PNG of the curves
  comparison/         held-out results before and after: numbers, table, figure, every answer
  README.md           the model card
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import json
import operator
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require
from grpo_nb.core.files import (
    free_path,
    inside,
    refuse_links,
    require_writable,
    shown_path,
    staged_file,
    write_bytes,
    write_json,
    write_text,
)  # fmt: skip
from grpo_nb.core.tables import Part, Shown, bold
from grpo_nb.core.words import in_line
from grpo_nb.core.writers import liveness
from grpo_nb.runs.alert import Alert, alerts_of
from grpo_nb.runs.checkpoints import checkpoint_folders
from grpo_nb.runs.groups import StepGroups
from grpo_nb.runs.outcome import (
    MajorityBaseline,
    Outcome,
    baseline_of_task,
    judge_outcome,
)
from grpo_nb.runs.rise import Rise, describe, reward_rise
from grpo_nb.runs.rows import ACCURACY, Row, best_row, parse_json, read_rows, reading
from grpo_nb.runs.run_info import (
    EXPORT_FIELDS,
    RunInfo,
    check_comparison,
    check_fields,
    check_row,
    read_run_info,
)
from grpo_nb.tasks.cleaning import ACCEPTED
from grpo_nb.tasks.contamination import Contamination, TrainedQuestions, write_hashes

# A run that somebody sends can have any number. What `run_info` takes for a whole number ends here.
_LAST_SEQUENCE = 2**53 - 1

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_LATER_MEASURES = {
    "format_share": None,
    "interval": None,
    "format_interval": None,
    "anywhere_share": None,
    "anywhere_interval": None,
    "anywhere_note": "",
    "compares_gold": True,
    "model_id": None,
}
"""What a comparison of an earlier version has not measured."""


def new_run_folder(root: str | Path, name: str | None) -> Path:
    """Create and return the folder of a new run.

    Args:
        root: Folder of all runs.
        name: Its name; by default the time of day it starts.

    Raises:
        FileExistsError: A run of that name exists. Nothing is overwritten.
        EnvironmentProblem: The root is read-only, or no folder.
        ValueError: It cannot be the name of a folder.
    """
    folder = free_path(Path(root) / datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S"), "_")
    require_writable(Path(root))
    if name is not None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            raise ValueError(
                f"run name {in_line(name)} may hold up to 100 letters, digits, '.', '_' and '-' only."
            )
        folder = Path(root) / name
    folder.mkdir(parents=True)
    return folder


class Run(Shown):
    """A finished, crashed or still running run, read from its folder whenever it is asked.

    `train` returns one that also holds model, tokenizer and rewards; `open_run` gives the same without them.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        model: Any = None,
        tokenizer: Any = None,
        rewards: Iterable[Callable[..., Any]] = (),
    ) -> None:
        self.path, self.model, self.tokenizer, self.rewards = (
            Path(path),
            model,
            tokenizer,
            list(rewards),
        )
        self.name, self.adapter_path, self.start_path = (
            self.path.name,
            self.path / "adapter",
            self.path / "start",
        )

    def _file(self, name: str) -> Path:
        """Return the path of a file of this run, which may have been sent: it is no link to elsewhere."""
        return inside(self.path, name)

    # What it was begun with, and how it stands.

    @property
    def info(self) -> dict[str, Any]:
        """The content of `run.json`, with the fields of `RunInfo`; one that was not recorded is not there.

        Raises:
            ValueError: It is damaged, a field is missing or of another type, or a later version wrote it.
        """
        return read_run_info(self._file("run.json")).to_dict()

    @property
    def started(self) -> datetime.datetime:
        """When it was started, with the offset of the clock there."""
        return self.order[1]

    @property
    def order(self) -> tuple[int, datetime.datetime]:
        """The place of this run among those of its folder: by its number there, then by the clock.

        A clock can be set back, and differs between machines. Runs of earlier versions have no number and come first.
        """
        info = self.info
        return info.get("sequence", 0), datetime.datetime.fromisoformat(
            info["started"]
        ).astimezone()

    @property
    def settings(self) -> Settings:
        """The settings it was started with.

        Raises:
            ValueError: `run.json` is damaged, or holds settings that this version of the kit does not take.
        """
        values = self.info["settings"]
        with reading(self.path / "run.json"):
            return Settings.from_dict(values)

    @property
    def chat_template_kwargs(self) -> dict[str, Any]:
        """What the chat template was given beside the messages: `Task.chat_template_kwargs`."""
        return dict(self.info["settings"].get("extra", {}).get("chat_template_kwargs") or {})

    @property
    def reference(self) -> str:
        """What its KL is measured to, in words."""
        return self.info.get("reference", "the reference model")

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
        status, info = self.status, self.info
        why = {"failed": f": {info.get('error')}", "stopped": f" by {info.get('stopped_by')}"}
        return status + why.get(status, "")

    @property
    def checkpoint_step(self) -> int | None:
        """Step of its newest checkpoint by name, or None if there is none. Whether it is complete is seen when resuming."""
        return max(
            (step for step, _ in checkpoint_folders(self.path / "checkpoints")), default=None
        )

    # What it logged.

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One mapping per logged step, in order, with TRL's metric names. What was not measured has no key."""
        rows = read_rows(file := self._file("metrics.jsonl"))
        for row in rows:
            with reading(file, f", step {in_line(row.get('step'))},"):
                check_row(row)
        return rows

    @property
    def metrics(self) -> pandas.DataFrame:
        """`rows` as a table; NaN where a step did not measure something."""
        import pandas

        return pandas.DataFrame(self.rows).drop(columns="alerts", errors="ignore")

    @property
    def alerts(self) -> list[Alert]:
        """The health alerts of this run so far, in the order in which they came."""
        return alerts_of(self.rows)

    @property
    def steps(self) -> list[int]:
        """The steps of which it has completions, in order."""
        found = (completions_step(file) for file in self.path.glob("completions/step_*.parquet"))
        return sorted(step for step in found if step is not None)

    def completions(self, step: int | None = None) -> pandas.DataFrame:
        """The sampled completions of a step (of all, if None): prompt, completion, each reward, total, advantage.

        Raises:
            ValueError: The run has no completions of that step; says which it has.
        """
        import pandas

        steps, tables = self.steps, []
        if not steps or step not in (None, *steps):
            span = f"{steps[0]} to {steps[-1]}" if steps else "none yet"
            raise ValueError(
                f"{self.name} has no completions of step {step}; it has those of: {span}."
            )
        for one in steps if step is None else [step]:
            with reading(file := self._file(f"completions/step_{one:06d}.parquet")):
                tables.append(pandas.read_parquet(file))
        return pandas.concat(tables, ignore_index=True)

    def step(self, number: int) -> StepGroups:
        """The groups of a step: its completions with scores, totals and advantages, in the order of the advantages."""
        return StepGroups.of(
            f"Step {number} of {self.name}", self.completions(number), self.weights
        )

    @property
    def best(self) -> Row | None:
        """The row of its best held-out score so far, of several partly the luckiest; None without `holdout_every`."""
        return best_row(self.rows)

    @property
    def sentence(self) -> str:
        """One sentence about it so far: its reward, its KL, and what is cut at the limit."""
        return describe(self.rows, self.reference)

    def rise(self, metric: str = "reward") -> Rise:
        """Whether a metric rose over the steps by more than luck: a test over all of them, with its p-value and a sentence."""
        return reward_rise(self.rows, metric)

    def outcome(self, comparison: Any = None) -> Outcome:
        """Return the verdict for the end of a notebook: "It worked" only where three measurements agree.

        The held-out comparison must be better, the model must clear the majority-class baseline where
        there is one, and the reward must have risen. The comparison must be of this run, from its start
        to its adapter of today, on questions that were not trained on, and the answers themselves must
        not have got worse. Otherwise the sentence says what happened instead.

        Args:
            comparison: From `gn.compare`; the one saved with this run if not given.

        Raises:
            TypeError: It is no comparison.

        >>> print(run.outcome(gn.compare(run, task)).sentence[:17])
        No gain is shown:
        """
        comparison = self.comparison if comparison is None else comparison
        if comparison is not None and not hasattr(comparison, "verdict"):
            raise TypeError(
                f"{comparison!r:.80} is no comparison: write run.outcome(gn.compare(run, task))."
            )
        return judge_outcome(
            self.rise(),
            comparison,
            getattr(comparison, "majority", None),
            obstacles=self._obstacles(comparison),
            notes=self._outcome_notes(comparison),
        )

    def _obstacles(self, comparison: Any) -> list[str]:
        """Return why a comparison cannot show that this run worked, such as other models."""
        if comparison is None:
            return []
        obstacles = []
        # A comparison of an earlier version does not say which models it is of.
        before, after = (
            getattr(side, "model_id", None) for side in (comparison.before, comparison.after)
        )
        if after is not None and after != self.model_id("adapter"):
            obstacles.append("the comparison is not of the adapter that this run has now")
        elif before is not None and before != self.model_id("start"):
            obstacles.append(
                "the comparison does not begin with the model that this run started from"
            )
        known = comparison.contamination
        if known is not None and known.count:
            obstacles.append(f"{known.count} of the held-out questions were trained on")
        return obstacles

    def _outcome_notes(self, comparison: Any) -> list[str]:
        notes = []
        if comparison is None and self.info["task"]["holdout"]:
            notes.append("gn.compare(run, task) compares the held-out answers.")
        elif comparison is None:
            notes.append("The run has no held-out questions: gn.load_task(..., holdout=0.2).")
        if self.status != "finished":
            rows = self.rows
            steps = f"{rows[-1]['step'] if rows else 0} of {self.settings.max_steps}"
            notes.append(f"The run is {self.status_sentence}, after {steps} steps.")
        return notes

    def model_id(self, part: str) -> str:
        """Return what tells apart the models of all runs: a hash of an adapter file.

        Args:
            part: `adapter` for what the run left, `start` for what it started from.
        """
        folders = [self.adapter_path]
        if part == "start":
            # Runs of earlier versions kept it only as the reference of their KL.
            folders = [self.start_path, self.path / "reference"]
        for folder in folders:
            file = folder / "adapter_model.safetensors"
            if file.is_file():
                with file.open("rb") as stream:
                    return f"{part} {hashlib.file_digest(stream, 'sha256').hexdigest()[:16]}"
        return f"{part} of {self.name}"

    def plot(self) -> Figure:
        """The training curves as a figure, the same as shown live."""
        # Here, so that looking at a run's numbers loads no matplotlib.
        from grpo_nb.runs.figure import training_figure

        return training_figure(
            self.rows, self.weights, self.settings.beta, self.reference, alerts=self.alerts
        )

    # What it is asked about, and what came after its training.

    @property
    def holdout(self) -> list[dict[str, Any]]:
        """The held-out rows this run was started with: `prompt`, `question`, `answer`."""
        return read_rows(self._file("holdout.jsonl"))

    @property
    def trained_questions(self) -> TrainedQuestions | None:
        """What it was trained on, as hashes, so that held-out questions are never among them unseen; None if it kept none."""
        file = self._file("train_questions.txt")
        if not file.is_file():
            return None
        with reading(file):
            known = TrainedQuestions.read(file, f"the training questions of the run {self.name}")
            if {*map(len, known.hashes)} != {
                16
            }:  # then held-out questions would seem to be new ones
                raise ValueError("it is empty, or a line is cut")
            return known

    @property
    def comparison(self) -> SimpleNamespace | None:
        """The numbers of its last held-out comparison, if any; `gn.evaluation.open_comparison` has every answer.

        `before` and `after` have the fields of an `Evaluation` but its rows: shares are from 0 to 1, lengths in tokens.
        `base` too, where the run started from a trained adapter; else it is None. A comparison of an earlier version has
        None for each measure that it did not take.
        """
        file = self._file("comparison/comparison.json")
        if not file.is_file():
            return None
        with reading(file):
            saved = parse_json(file.read_text("utf-8"))
            check_comparison(saved)
            sides = {}
            for name in ("before", "after", "base"):
                stored = saved.get(name)
                sides[name] = (
                    None if stored is None else SimpleNamespace(**(_LATER_MEASURES | stored))
                )
            majority = saved.get("majority")
            if majority is not None:
                majority = MajorityBaseline(**majority)
            elif "majority" not in saved:  # of an earlier version
                majority = baseline_of_task(self.info, sides["after"])
            sides["majority"] = majority
            anywhere = saved.get("tests", {}).get("anywhere")
            sides["answers_verdict"] = None if anywhere is None else anywhere["verdict"]
            contamination = saved.get("contamination")
            sides["contamination"] = contamination and Contamination(**contamination)
            return SimpleNamespace(**(saved | sides))

    @property
    def exports(self) -> list[SimpleNamespace]:
        """The verified exports of this run, oldest first: `path`, `kind` (`merged bfloat16`), `sentence`."""
        with reading(file := self._file("exports.json")):
            entries = parse_json(file.read_text("utf-8")) if file.is_file() else []
            for entry in entries:
                check_fields("an export", entry, EXPORT_FIELDS)
            return [SimpleNamespace(**entry) for entry in entries]

    # What is written.

    def write_info(self, info: RunInfo) -> None:
        """Write `run.json`; it is what makes a folder a run, so it comes first."""
        info.write(self.path / "run.json")

    def write_step(self, row: Mapping[str, Any], table: pandas.DataFrame | None) -> None:
        """Add the completions of a step, if it made any, and then its row, which is thus never without them.

        Raises:
            TypeError: A value of the row is no number.
        """
        line = json.dumps(row, default=float) + "\n"
        if table is not None:
            (self.path / "completions").mkdir(exist_ok=True)
            with staged_file(
                self.path / "completions" / f"step_{row['step']:06d}.parquet"
            ) as staged:
                table.to_parquet(staged, index=False)
        # Opened anew each time: a network drive sends a file away when it is closed.
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)

    def keep_questions(self, trained: Iterable[Any], held_out: Iterable[Mapping[str, Any]]) -> None:
        """Keep the held-out rows, for comparisons and exports, and hashes of the questions that it is trained on."""
        names = ("prompt", "question", "answer", ACCEPTED)
        kept = [{name: row[name] for name in names if name in row} for row in held_out]
        write_text(
            self.path / "holdout.jsonl",
            "".join(json.dumps(row, default=str) + "\n" for row in kept),
        )
        write_hashes(self.path / "train_questions.txt", trained)

    def save_figure(self) -> None:
        """Write the curves as an image; a run without a row has none."""
        from grpo_nb.runs.figure import png

        if self.rows:
            (self.path / "figures").mkdir(exist_ok=True)
            write_bytes(self.path / "figures" / "training.png", png(self.plot(), dpi=150))

    def record_export(self, path: str, kind: str, sentence: str) -> None:
        """Append an export to those of this run; what was at the same path before is there no more."""
        others = [vars(other) for other in self.exports if other.path != path]
        write_json(
            self.path / "exports.json",
            [*others, {"path": path, "kind": kind, "sentence": sentence}],
        )

    # What it says of itself.

    def _parts(self) -> Iterator[Part]:
        yield bold(f"Run {self.name}: {self.status_sentence}.")
        yield self.sentence
        for entry in self.info.get("resumed", ()):
            yield f"Resumed at step {entry['step']}. {'; '.join(entry.get('changed', ()))}".strip()
        if (best := self.best) is not None:
            kept = (
                f" The adapter is that of step {self.info['adapter_step']}."
                if "adapter_step" in self.info
                else ""
            )
            yield f"Best held-out score: {_heldout_in_words(best)} at step {best['step']}.{kept}"
            if "heldout_judge" in self.info:
                yield f"Correct is {self.info['heldout_judge']}."
        if self.status not in ("finished", "running") and self.checkpoint_step is not None:
            yield f"To go on from step {self.checkpoint_step}: gn.train(..., resume={self.name!r})"
        if (comparison := self.comparison) is not None:
            yield f"Held-out: {comparison.sentence}"
        yield from (
            f"Exported {export.kind}: {export.path} ({export.sentence})" for export in self.exports
        )
        yield f"Folder: {shown_path(self.path)}"


def _heldout_in_words(row: Row) -> str:
    """Return the held-out measures of a row; the format may rise where the answers do not."""
    parts = [f"{row[ACCURACY]:.1%} correct"]
    for name, label in (("in_format", "in the format"), ("anywhere", "correct anywhere")):
        share = row.get(f"holdout/{name}")
        if isinstance(share, (int, float)):
            parts.append(f"{share:.1%} {label}")
    return ", ".join(parts)


def open_run(path: str | Path | Run) -> Run:
    """Open a run from its folder, or by its name in `runs`, whether finished, crashed or running, without loading a model.

    What takes a run asks here, and so takes its folder too: a run is returned as it is.

    Raises:
        FileNotFoundError: There is no run at that path; names those in it or beside it.
        ValueError: Something in it is a symbolic link: work on the run would read or write elsewhere.

    >>> gn.open_run(run.path).status
    'finished'
    """
    require('gn.open_run("runs/name")', roles={"path": "run"}, path=path)
    if isinstance(path, Run):
        return path
    path = Path(path).expanduser()
    for folder in (path, Path(Settings().run_root) / path):
        if (folder / "run.json").is_file():
            refuse_links(folder)
            return Run(folder)
    place = path if path.is_dir() else path.parent
    there = ", ".join(sorted(file.parent.name for file in place.glob("*/run.json"))) or "none"
    raise FileNotFoundError(
        f"{str(path)!r:.200} is no run: it has no run.json. Runs in {str(place)!r}: {there}."
    )


def completions_step(file: Path) -> int | None:
    """Return the step whose completions a file holds; None for a file of another name."""
    match = re.fullmatch(r"step_(\d{6,15})", file.stem)
    return int(match[1]) if match else None


def next_sequence(root: Path) -> int:
    """Return the number of a new run: one more than the highest of the runs that can be read in a folder."""
    numbers = [0]
    for file in root.glob("*/run.json"):
        with contextlib.suppress(OSError, ValueError):
            numbers.append(Run(file.parent).info.get("sequence", 0))
    return min(max(numbers) + 1, _LAST_SEQUENCE)


def seconds_since_written(path: Path) -> float:
    """Seconds since anything of a run was written."""
    # Not what is hidden, which its writer renames and removes.
    return time.time() - max(file.stat().st_mtime for file in (path, *path.glob("[!.]*")))


def trained_questions(train: Any, runs: Iterable[Run]) -> TrainedQuestions | None:
    """Return what is known to have been trained on, from the training part of a task (None: no such part) and from runs."""
    known = [trained for run in runs if (trained := run.trained_questions) is not None]
    if train is not None and len(train):
        known.append(TrainedQuestions.of(train["question"], "the training part of the task"))
    return functools.reduce(operator.or_, known) if known else None
