"""Read the folder of a run, which holds everything that is known about the run.

runs/<name>/
  run.json                what the run was started with and how it ended (`RunInfo`)
  metrics.jsonl           one JSON object per logged step, with the alerts that came with it
  completions/            per logged step (parquet): prompt, completion, turns (with tools), each
                          reward, total, advantage
  holdout.jsonl           the held-out questions, for comparisons and exports
  train_questions.txt     hashes of the training questions, to recognise them among held-out ones
  chat_template.jinja     the chat template, for evaluations and exports
  response_template.json  the template by which tool calls are parsed out of a completion; only
                          with tools
  checkpoints/            the newest two, or the last one of a finished run (`runs.checkpoints`)
  start/                  what the run started from: adapter, training rows, first completions
                          (`training.new_run`)
  adapter/                the trained LoRA, copied from the newest checkpoint, with the templates
  figures/                PNG of the curves
  comparison/             held-out results before and after: numbers, every answer
  README.md               the model card
"""

from __future__ import annotations

import datetime
import json
import os.path
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require_types
from grpo_nb.core.files import refuse_links, safe_path, sha256_of
from grpo_nb.core.locks import writer_status
from grpo_nb.core.tables import Part, ReprMixin, bold
from grpo_nb.core.words import displayable, short_repr, shorten
from grpo_nb.rewards.base import RewardFunction
from grpo_nb.runs.alert import Alert, alerts_of
from grpo_nb.runs.groups import REQUIRED_COLUMNS, StepGroups
from grpo_nb.runs.outcome import Outcome, Rise, decide_outcome, describe_run, reward_rise
from grpo_nb.runs.reading import read_json_lines, reporting_damage_in
from grpo_nb.runs.rows import MetricRow
from grpo_nb.runs.run_info import ROWS_SCHEMA, RunInfo, SavedComparison, read_run_info
from grpo_nb.tasks.read_rows import Row

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


#: The image of the curves, in the folder of a run and of an export.
FIGURE_FILE = "figures/training.png"
#: Digits of the step in the name of a file of completions. No run of GRPO has a million steps.
STEP_DIGITS = 6


class Run(ReprMixin):
    """A finished, crashed or running run. Every property reads the folder anew.

    `train` returns a `Run` that also holds the model, the tokenizer and the rewards. `open_run`
    returns one without them. The functions of `runs.writing` write the folder.

    `open_run` refuses a folder with symbolic links. Each method refuses a link that was added since
    (`safe_path`), so that no file elsewhere is read.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        model: Any = None,
        tokenizer: Any = None,
        rewards: Iterable[RewardFunction] = (),
    ) -> None:
        self.path = Path(path)
        self.model = model
        self.tokenizer = tokenizer
        self.rewards = list(rewards)
        # Absolute, because `Path(".")` has no name. The name of a folder can hold any character.
        self.name = displayable(os.path.basename(os.path.abspath(path)))
        self.adapter_path = self.path / "adapter"
        self.start_path = self.path / "start"

    # What the run started with, and its status

    @property
    def info(self) -> RunInfo:
        """Content of `run.json`, as a dict.

        Raises:
            ValueError: The file is damaged, lacks a field, or has a later `format_version`.
        """
        return read_run_info(safe_path(self.path, "run.json"))

    @property
    def started(self) -> datetime.datetime:
        """Time of the start, which orders the runs of a folder."""
        # Times of different time zones can be ordered by their offsets. `astimezone` adds the local
        # one where it is missing, because Python refuses to compare times with and without.
        text = self.info["started"]
        with reporting_damage_in(self.path / "run.json"):
            return datetime.datetime.fromisoformat(text).astimezone()

    @property
    def settings(self) -> Settings:
        """Settings that the run was started with.

        Raises:
            ValueError: `run.json` is damaged, or has settings that this version does not know.
        """
        values = self.info["settings"]
        with reporting_damage_in(self.path / "run.json"):
            return Settings.from_dict(values)

    @property
    def chat_template_kwargs(self) -> dict[str, Any]:
        """Arguments of the chat template, as in `Task.chat_template_kwargs`."""
        return self.settings.extra.get("chat_template_kwargs") or {}

    @property
    def reference(self) -> str:
        """Description of the model that the KL is measured against."""
        text = self.info.get("reference", "the reference model")
        # The file can hold any text.
        return shorten(displayable(text), 100)

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each reward by name."""
        return {reward["name"]: reward["weight"] for reward in self.info["rewards"]}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest unweighted score of each reward; unknown ranges are left out."""
        rewards = self.info["rewards"]
        return {reward["name"]: reward["range"] for reward in rewards if reward.get("range")}

    @property
    def status(self) -> str:
        """Status in one word; `status_sentence` has the details.

        - `finished`: all steps are done.
        - `interrupted`: ended early by the user.
        - `stopped`: ended early by an alert or an observer. Like an interrupted run, it can be
          resumed.
        - `failed`: ended by an error, which is in `info["error"]`.
        - `running`: a process is training it.
        - `crashed`: its process is gone, and did not record an end.
        - `unknown`: another machine was writing it, or its drive has no locks.
        """
        info = self.info
        if info["status"] != "running":
            return info["status"]
        return writer_status(self.path, info.get("host"))

    @property
    def status_sentence(self) -> str:
        """Status with the reason, if it is known."""
        info = self.info
        status = self.status
        reasons = {"failed": info.get("error"), "stopped": info.get("stopped_by")}
        reason = reasons.get(status)
        return f"{status}: {reason}" if reason else status

    # What the run logged

    @property
    def rows(self) -> list[MetricRow]:
        """One mapping per logged step, with the measured metrics under TRL's names.

        Raises:
            ValueError: A row or an alert is damaged.
        """
        file = safe_path(self.path, "metrics.jsonl")
        rows = read_json_lines(file, drop_partial_line=True)
        with reporting_damage_in(file):
            # Metrics can have any name, so only the step and the alerts can be checked.
            ROWS_SCHEMA.validate_python(rows)
            # This call raises an error if an alert is damaged.
            alerts_of(rows)
        return rows

    @property
    def metrics(self) -> pandas.DataFrame:
        """Table of `rows`, with NaN where a step did not measure a metric."""
        import pandas

        return pandas.DataFrame(self.rows).drop(columns="alerts", errors="ignore")

    @property
    def alerts(self) -> list[Alert]:
        """Health alerts of this run so far, in the order in which they came."""
        return alerts_of(self.rows)

    @property
    def steps(self) -> list[int]:
        """Steps with recorded completions, in order."""
        # Copies that a user made, such as "step_000002 (1).parquet", are left out.
        digits = "[0-9]" * STEP_DIGITS
        files = self.path.glob(f"completions/step_{digits}.parquet")
        return sorted(int(file.stem.removeprefix("step_")) for file in files)

    def completions(self, step: int | None = None) -> pandas.DataFrame:
        """Return the sampled completions of a step, with prompt, each reward, total and advantage.

        Args:
            step: One of `steps`; None returns the completions of all steps.

        Raises:
            FileNotFoundError: The step reused completions of an earlier step or was not logged, or
                the run has no completions at all.
            ValueError: A file is damaged, or a column is missing in it.
        """
        import pandas

        steps = [number for number in self.steps if step is None or number == step]
        if not steps:
            place = "" if step is None else f" of step {step}"
            raise FileNotFoundError(
                f"{self.name} has no completions{place}. run.steps lists its steps with "
                "completions."
            )
        # `turns` is not required, because only runs with tools have it.
        required = [*REQUIRED_COLUMNS, *self.weights]
        tables = []
        for number in steps:
            file = self.completions_file(number)
            with reporting_damage_in(file):
                table = pandas.read_parquet(file)
                table[required]  # raises a KeyError if a column is missing
            tables.append(table)
        return pandas.concat(tables, ignore_index=True)

    def step(self, number: int) -> StepGroups:
        """Return the groups of a step: completions with scores and totals, ordered by advantage.

        Raises:
            FileNotFoundError: The run has no completions of that step. `steps` lists its steps.
            ValueError: Their file is damaged.
        """
        title = f"Step {number} of {self.name}"
        return StepGroups.from_table(title, self.completions(number), self.weights)

    def completions_file(self, step: int) -> Path:
        """Return the path of the completions of a step."""
        return safe_path(self.path, f"completions/step_{step:0{STEP_DIGITS}d}.parquet")

    @property
    def sentence(self) -> str:
        """One sentence about the run so far: its reward, its KL, and its truncated completions."""
        return describe_run(self.rows, self.reference)

    def rise(self) -> Rise:
        """Test whether the reward rose over the steps by more than chance (Mann-Kendall test)."""
        return reward_rise(self.rows)

    def outcome(self, comparison: SavedComparison | None = None) -> Outcome:
        """Return the verdict on the run.

        `runs.outcome.decide_outcome` lists what "It worked" needs. The verdict names the conditions
        that are not met.

        Args:
            comparison: A comparison from `gn.compare`. Default: the one saved with this run, so
                that a finished run can be judged without its model.

        >>> run.outcome(gn.compare(run, task)).has_worked
        False
        """
        return decide_outcome(
            self.rise(),
            comparison or self.comparison,
            start_id=self.adapter_id("start"),
            adapter_id=self.adapter_id("adapter"),
        )

    def adapter_id(self, part: Literal["adapter", "start"]) -> str | None:
        """Return the id under which comparisons record an adapter (`SavedEvaluation.model_id`).

        The id is "adapter" or "start" and the first 16 digits of the hash of the weights, such as
        `adapter 1f3a5b7c9d2e4f60`; None if the run has no such adapter.

        Args:
            part: "adapter" for the trained adapter, "start" for the one that the run started from.
        """
        file = safe_path(self.path, f"{part}/adapter_model.safetensors")
        if not file.is_file():
            return None
        return f"{part} {sha256_of(file)[:16]}"

    def plot(self, panels: Literal["main", "all"] = "main") -> Figure:
        """Draw the training curves, as they are shown live.

        Args:
            panels: "main" draws the usual three panels; "all" adds the other metrics that were
                measured (`figure.OTHER_PANELS`).
        """
        # Imported here, so that reading the numbers of a run loads no matplotlib.
        from grpo_nb.runs.figure import figure_of_run

        return figure_of_run(self, panels)

    # Held-out questions and results

    @property
    def holdout(self) -> list[Row]:
        """Held-out rows that the run was started with, with all of their columns."""
        return read_json_lines(safe_path(self.path, "holdout.jsonl"))

    @property
    def train_question_hashes(self) -> list[str] | None:
        """Hashes of the training questions; None if the run did not keep them.

        Raises:
            ValueError: The file is empty or damaged. An empty file would hide that held-out
                questions were trained on.
        """
        file = safe_path(self.path, "train_questions.txt")
        if not file.is_file():
            return None
        with reporting_damage_in(file):
            hashes = file.read_text("utf-8").split()
            # `question_hashes` writes 16 digits of each hash.
            if {len(text) for text in hashes} != {16}:
                raise ValueError("it is empty, or a line is truncated")
            return hashes

    @property
    def comparison(self) -> SavedComparison | None:
        """Numbers of the last held-out comparison; None if there is none.

        `before` and `after` have the fields of an `Evaluation` except its rows: shares between 0
        and 1, lengths in tokens. `comparison/transcripts.parquet` has every answer.
        """
        file = safe_path(self.path, "comparison/comparison.json")
        if not file.is_file():
            return None
        with reporting_damage_in(file):
            return SavedComparison.model_validate(json.loads(file.read_text("utf-8")))

    # Display

    def _shown_parts(self) -> Iterator[Part]:
        yield bold(f"Run {self.name}: {self.status_sentence}.")
        yield self.sentence
        # A run that is finished or is being trained needs no advice.
        if self.status not in ("finished", "running"):
            # A run of unknown status may still be training on another machine.
            yield (
                "If nothing trains it any more, resume it: "
                f"gn.train(..., resume={str(self.path)!r})"
            )
        comparison = self.comparison
        if comparison is not None:
            yield f"Held-out: {comparison.sentence}"
        yield f"Folder: {self.path}"


def open_run(run: str | Path | Run) -> Run:
    """Open a run from its folder, without loading a model.

    The run may be finished, crashed or running.

    Args:
        run: The folder. A `Run` is returned as it is, so that functions that take a run also take
            its folder.

    Raises:
        FileNotFoundError: The path is not the folder of a run.
        ValueError: The folder contains a symbolic link, through which files outside of the folder
            could be read or written.

    >>> gn.open_run(run.path).status
    'finished'
    """
    require_types('gn.open_run("runs/name")', run=run)
    if isinstance(run, Run):
        return run
    path = Path(run).expanduser()
    if not (path / "run.json").is_file():
        raise FileNotFoundError(
            f"{short_repr(str(path), 200)} is not a run, because it has no run.json. "
            "gn.runs.list(folder) shows the runs in a folder; the default folder is 'runs'."
        )
    # Somebody else may have made the folder.
    refuse_links(path)
    return Run(path)
