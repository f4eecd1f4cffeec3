"""Show several runs: a table of all runs in a folder, or chosen runs with their curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.files import shown_path
from grpo_nb.core.tables import Part, Shown, Table, bold
from grpo_nb.core.words import displayable, shorten
from grpo_nb.runs.outcome import LAST_STEPS
from grpo_nb.runs.rows import HOLDOUT_MEASURES, mean, series
from grpo_nb.runs.run_folder import Run, open_run

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

#: Characters of a value in the column "what differs". A list of rewards fits; a long text does not
#: fill the page.
MAX_VALUE_CHARACTERS = 300


@dataclass(frozen=True, repr=False)
class SideBySide(Shown, Sequence):
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
    def named(self) -> dict[str, Run]:
        """Runs by name, or by path where two runs share a name."""
        names = [run.name for run in self.runs]
        named = {}
        for run in self.runs:
            is_unique = names.count(run.name) == 1
            name = run.name if is_unique else str(shown_path(run.path))
            named[name] = run
        return named

    @property
    def differences(self) -> dict[str, dict[str, Any]]:
        """Settings, rewards, tasks and versions that differ: for each, its value by run."""
        facts_of_runs = {}
        keys = {}
        for name, run in self.named.items():
            facts_of_runs[name] = _settings_and_versions(run.info)
            keys |= facts_of_runs[name]
        differences = {}
        for key in keys:
            values = {name: facts.get(key, "") for name, facts in facts_of_runs.items()}
            # As texts, because a setting can be a list, which no set accepts.
            if len(set(map(str, values.values()))) > 1:
                differences[key] = values
        return differences

    @property
    def table(self) -> pandas.DataFrame:
        """Table of names, status, steps, mean reward, held-out measures, and differences."""
        import pandas

        differences = self.differences
        lines = []
        for name, run in self.named.items():
            rows = run.rows
            comparison = run.comparison
            done = rows[-1]["step"] if rows else 0
            values = []
            for key, value_by_run in differences.items():
                value = shorten(str(value_by_run[name]), MAX_VALUE_CHARACTERS)
                values.append(f"{key}={value}")
            # JSON and names of folders can hold a lone surrogate, which pandas does not accept.
            line = {
                "name": displayable(name),
                "status": run.status,
                "steps": f"{done} of {run.settings.max_steps}",
                "reward": mean(series(rows[-LAST_STEPS:], "reward")),
                "held-out": "not compared" if comparison is None else _gain_in_words(comparison),
                "what differs": displayable(", ".join(values)),
            }
            lines.append(line)
        columns = ["name", "status", "steps", "reward", "held-out", "what differs"]
        return pandas.DataFrame(lines, columns=columns)

    def plot(self) -> Figure:
        """Draw reward, held-out accuracy and KL, one colour for each run."""
        from grpo_nb.runs.figure import overlay

        return overlay({name: run.rows for name, run in self.named.items()})

    def _parts(self) -> Iterable[Part]:
        from grpo_nb.runs.figure import figure_html

        yield bold(self.title)
        if self.shows_curves:
            yield figure_html(self.plot(), "The curves of these runs: .plot() draws them.")
        table = self.table.round(2)
        yield Table(
            table.values.tolist(),
            list(table.columns),
            right=(3,),
            narrow=(0, 2),
            wide=(5,),
        )
        for name, reason in self.unreadable.items():
            # A folder's name can hold line breaks.
            yield f"{' '.join(name.split())} cannot be read: {reason}"


def list_runs(root: str | Path | None = None) -> SideBySide:
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
            # Everything that the table shows is read once, to find out if it is damaged.
            _ = run.settings, run.rows, run.comparison
            readable.append((run.started, run))
        except (OSError, ValueError) as error:
            unreadable[file.parent.name] = str(error)
    # By their start, because a network drive or a copy changes the times of files.
    readable.sort(key=lambda pair: pair[0])
    runs = tuple(run for _, run in readable)
    plural = "" if len(runs) == 1 else "s"
    title = f"{len(runs)} run{plural} in {root}"
    return SideBySide(title, runs, shows_curves=False, unreadable=unreadable)


def side_by_side(*runs: Run | str | Path) -> SideBySide:
    """Show runs side by side: one figure, and a table of the settings and versions that differ.

    Args:
        *runs: Runs, or their paths or names.

    Raises:
        FileNotFoundError: There is no run at a path.

    >>> list(gn.runs.side_by_side(run).named)
    ['tiny']
    """
    opened = tuple(open_run(run) for run in runs)
    names = ", ".join(run.name for run in opened)
    return SideBySide(f"Runs {names}", opened)


def _gain_in_words(comparison: SimpleNamespace) -> str:
    """Return each held-out measure before and after, because the format alone may have improved."""
    parts = []
    for measure in HOLDOUT_MEASURES:
        before = getattr(comparison.before, measure.name)
        after = getattr(comparison.after, measure.name)
        if before is not None and after is not None:
            parts.append(f"{measure.label} {before:.0%} to {after:.0%}")
    return ", ".join(parts)


def _settings_and_versions(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run was made of, as values by name."""
    facts = dict(info["settings"])
    # The place of a folder changes nothing in the run.
    facts.pop("run_root", None)
    rewards = []
    for reward in info["rewards"]:
        rewards.append(f"{reward['name']} x{reward['weight']:g}")
    facts["rewards"] = ", ".join(rewards)
    task = info["task"]
    facts["task"] = f"{task['name']} ({task['train']} rows, {task['fingerprint']})"
    facts["dtype"] = info["number_type"]
    for package, version in info["versions"].items():
        facts[f"{package} version"] = version
    return facts
