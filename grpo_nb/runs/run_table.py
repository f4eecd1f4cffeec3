"""Show several runs: a table of all runs in a folder, or chosen runs with their curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.tables import Part, Shown, Table, bold
from grpo_nb.runs.outcome import LAST_ROWS
from grpo_nb.runs.rows import holdout_in_words, mean, metric_values
from grpo_nb.runs.run_folder import Run, open_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class RunTable(Shown, Sequence):
    """Several runs, shown as a table and, if they were chosen one by one, as curves.

    Indexing and iteration give the runs.

    Attributes:
        title: Title of the table.
        runs: The runs.
        shows_curves: True if the curves are shown above the table.
        unreadable: Reason why a run cannot be read, by the name of its folder.
    """

    title: str
    runs: tuple[Run, ...]
    shows_curves: bool = True
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, index: int) -> Run:
        return self.runs[index]

    @property
    def names(self) -> list[str]:
        """Name of each run, or the paths if two runs share a name."""
        names = [run.name for run in self.runs]
        if len(set(names)) < len(names):
            return [str(run.path) for run in self.runs]
        return names

    @property
    def differences(self) -> dict[str, list[Any]]:
        """Settings, rewards, tasks and versions that differ: for each, its value in each run."""
        facts_of_runs = [_facts_of(run.info) for run in self.runs]
        differences = {}
        for name in itertools.chain(*facts_of_runs):
            values = [facts.get(name, "") for facts in facts_of_runs]
            # As texts, because a setting can be a list, which no set accepts.
            if len(set(map(str, values))) > 1:
                differences[name] = values
        return differences

    def plot(self) -> Figure:
        """Draw reward, held-out accuracy and KL, one colour for each run."""
        from grpo_nb.runs.figure import overlay

        rows_of_runs = [run.rows for run in self.runs]
        return overlay(dict(zip(self.names, rows_of_runs, strict=True)))

    def _parts(self) -> Iterable[Part]:
        from grpo_nb.runs.figure import figure_html

        yield bold(self.title)
        if self.shows_curves:
            yield figure_html(self.plot(), "The curves of these runs: .plot() draws them.")
        differences = self.differences
        lines = []
        names = self.names
        for number, run in enumerate(self.runs):
            rows = run.rows
            done = rows[-1]["step"] if rows else 0
            planned = run.settings.max_steps
            reward = mean(metric_values(rows[-LAST_ROWS:], "reward"))
            own_values = [f"{fact}={values[number]}" for fact, values in differences.items()]
            line = (
                names[number],
                run.status,
                f"{done} of {planned}",
                "not measured" if math.isnan(reward) else f"{reward:.2f}",
                _comparison_in_words(run),
                ", ".join(own_values),
            )
            lines.append(line)
        head = ("name", "status", "steps", "reward", "held-out", "what differs")
        yield Table(lines, head, right=(3,), narrow=(0, 2), wide=(5,))
        for name, reason in self.unreadable.items():
            # A folder's name can hold line breaks.
            yield f"{' '.join(name.split())} cannot be read: {reason}"


def list_runs(root: str | Path | None = None) -> RunTable:
    """List the runs of a folder in the order in which they were started.

    A run that cannot be read is named below the table with the reason.

    Args:
        root: The folder. Default: the default of `settings.run_root`, which is `runs`.

    >>> "tiny" in [run.name for run in gn.runs.list(run.path.parent)]
    True
    """
    root = Path(root or Settings().run_root).expanduser()
    readable = []
    unreadable = {}
    for file in sorted(root.glob("*/run.json")):
        try:
            run = open_run(file.parent)
            _read_shown_parts(run)
            readable.append(run)
        except (OSError, ValueError) as error:
            unreadable[file.parent.name] = str(error)
    # By their start, because a network drive or a copy changes the times of files.
    runs = sorted(readable, key=lambda run: run.started)
    title = f"Runs in {root}: {len(runs)}"
    return RunTable(title, tuple(runs), shows_curves=False, unreadable=unreadable)


def _read_shown_parts(run: Run) -> None:
    """Read everything that the table shows.

    Raises:
        ValueError: A part is damaged.
    """
    _ = run.started
    _ = run.settings
    _ = run.rows
    _ = run.comparison


def side_by_side(*runs: Run | str | Path) -> RunTable:
    """Show runs side by side: one figure, and a table of the settings and versions that differ.

    Args:
        *runs: Runs, or their paths or names.

    Raises:
        FileNotFoundError: There is no run at a path.

    >>> gn.runs.side_by_side(run).names
    ['tiny']
    """
    opened = tuple(open_run(run) for run in runs)
    names = ", ".join(run.name for run in opened)
    return RunTable(f"Runs {names}", opened)


def _comparison_in_words(run: Run) -> str:
    """Return each held-out measure before and after, because the format alone may have improved."""
    comparison = run.comparison
    if comparison is None:
        return "not compared"
    before = holdout_in_words(vars(comparison.before))
    after = holdout_in_words(vars(comparison.after))
    return f"before: {before}; after: {after}"


def _facts_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, versions of packages, rewards and task of a run, as values by name."""
    task = info["task"]
    rewards = [f"{reward['name']} x{reward['weight']:g}" for reward in info["rewards"]]
    facts = {
        **info["settings"],
        **info["versions"],
        "rewards": ", ".join(rewards),
        "task": f"{task['name']} ({task['train']} rows, {task['fingerprint']})",
    }
    # The place of a folder changes nothing in the run.
    facts.pop("run_root", None)
    return facts
