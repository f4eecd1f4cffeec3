"""Show several runs: a table of all runs in a folder, or chosen runs with their curves."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from grpo_nb.config.settings import Settings
from grpo_nb.core.tables import Part, ReprMixin, Table, bold
from grpo_nb.runs.measures import HOLDOUT_MEASURES
from grpo_nb.runs.outcome import reward_rise
from grpo_nb.runs.run_folder import Run, open_run
from grpo_nb.runs.run_info import SavedComparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RunSummary(NamedTuple):
    """A run with what the table shows of it."""

    run: Run
    cells: tuple[str, ...]
    """Name, status, steps, reward and held-out answers."""
    traits: list[str]
    """Settings, versions of packages, rewards and task, as `name=value`."""


@dataclass(frozen=True, repr=False)
class RunTable(ReprMixin, Sequence):
    """Several runs as a table. Those of `side_by_side` also show their curves.

    Indexing and iteration return the runs, a slice a list of them. The table shows them as they
    were when it was made; the curves are read anew.
    """

    title: str
    summaries: Sequence[RunSummary]
    shows_curves: bool
    """True if the curves are shown above the table."""
    unreadable: Mapping[str, str]
    """Reason why a run cannot be read, by the name of its folder."""

    def __len__(self) -> int:
        return len(self.summaries)

    def __getitem__(self, index: int | slice) -> Run | list[Run]:
        return [summary.run for summary in self.summaries][index]

    def plot(self) -> Figure:
        """Draw reward, held-out accuracy and KL, one colour for each run."""
        # Imported here, so that a table without curves loads no matplotlib.
        from grpo_nb.runs.figure import figure_of_runs

        return figure_of_runs(self)

    def _shown_parts(self) -> Iterable[Part]:
        yield bold(self.title)
        if self.shows_curves:
            from grpo_nb.runs.figure import figure_html

            yield figure_html(self.plot(), "The curves of these runs: .plot() draws them.")
        # A value that all runs have is no difference, so it is left out.
        counts = Counter(itertools.chain(*(summary.traits for summary in self.summaries)))
        rows = []
        for summary in self.summaries:
            differing = [text for text in summary.traits if counts[text] < len(self)]
            rows.append((*summary.cells, ", ".join(differing)))
        yield Table(
            rows,
            head=("name", "status", "steps", "reward", "held-out", "what differs"),
            wide=(5,),
        )
        for name, reason in self.unreadable.items():
            yield f"{name} cannot be read: {reason}"


def list_runs(root: str | Path | None = None) -> RunTable:
    """List the runs of a folder in the order in which they were started.

    A run that cannot be read is named below the table with the reason.

    Args:
        root: The folder. Default: `runs`, as in `Settings.run_root`.

    >>> "tiny" in [run.name for run in gn.runs.list(run.path.parent)]
    True
    """
    root = Path(root or Settings().run_root).expanduser()
    dated_summaries = []
    unreadable = {}
    for file in sorted(root.glob("*/run.json")):
        try:
            run = open_run(file.parent)
            dated_summaries.append((run.started, run.name, _summary_of(run)))
        except (OSError, ValueError) as error:
            unreadable[file.parent.name] = str(error)
    # Sorted by the recorded start, because a network drive or a copy changes the times of files.
    summaries = [summary for _, _, summary in sorted(dated_summaries)]
    title = f"Runs in {root}: {len(summaries) if root.is_dir() else 'no such folder'}"
    return RunTable(title, summaries, shows_curves=False, unreadable=unreadable)


def side_by_side(*runs: Run | str | Path) -> RunTable:
    """Show runs side by side: one figure, and a table of the settings and versions that differ.

    Args:
        *runs: Runs or their folders.

    Raises:
        FileNotFoundError: There is no run at a path.
        ValueError: A file of a run is damaged.

    >>> len(gn.runs.side_by_side(run))
    1
    """
    summaries = [_summary_of(open_run(run)) for run in runs]
    return RunTable("Runs side by side", summaries, shows_curves=True, unreadable={})


def _summary_of(run: Run) -> RunSummary:
    """Read what the table shows of a run.

    Raises:
        ValueError: A file is damaged.
    """
    rows = run.rows
    # Resuming removes the rows after the checkpoint, so the last row has the highest step.
    last_step = rows[-1]["step"] if rows else 0
    rise = reward_rise(rows)
    info = run.info
    cells = (
        run.name,
        run.status,
        f"{last_step} of {run.settings.max_steps}",
        f"{rise.last_mean:.2f}" if rise.step_count else "not measured",
        _holdout_in_words(run.comparison),
    )
    values = {
        **info["settings"],
        **info["versions"],
        "task": info["task"]["name"],
        "task fingerprint": info["task"]["fingerprint"],
    }
    for reward in info["rewards"]:
        # The two hashes show a change of its code, its parameters or the values that it holds.
        identity = reward["hash"][:8] + reward.get("state", "")[:8]
        values[f"reward {reward['name']}"] = f"x{reward['weight']:g} ({identity})"
    traits = [f"{name}={value}" for name, value in values.items()]
    return RunSummary(run, cells, traits)


def _holdout_in_words(comparison: SavedComparison | None) -> str:
    """Return each held-out measure before and after, because the format alone may have improved."""
    if comparison is None:
        return "not compared"
    parts = []
    for measure in HOLDOUT_MEASURES:
        before = getattr(comparison.before, measure.name)
        after = getattr(comparison.after, measure.name)
        # `anywhere` is None if the grader does not tell where it reads the answer.
        if None not in (before, after):
            parts.append(f"{before:.0%} to {after:.0%} {measure.label}")
    return ", ".join(parts)
