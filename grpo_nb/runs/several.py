"""Runs side by side: a table of all those in a folder, or of some of them with their curves in one figure."""

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
from grpo_nb.runs.rows import mean, series
from grpo_nb.runs.run_folder import Run, open_run

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

# Characters of each value in the column "what differs": a list of rewards fits, a text of somebody's does not fill the page.
_MOST_SHOWN = 300


@dataclass(frozen=True, repr=False)
class SideBySide(Shown, Sequence):
    """Some runs. Shows itself as a table, and as curves where they were chosen; `[i]` and iteration give the runs."""

    title: str
    runs: tuple[Run, ...]
    is_drawn: bool = True
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Name -> why it cannot be read."""

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, index: int) -> Run:
        return self.runs[index]

    @property
    def named(self) -> dict[str, Run]:
        """They by name; by path those whose name another has too, such as a run and what was trained again elsewhere."""
        names = [run.name for run in self.runs]
        return {
            run.name if names.count(run.name) == 1 else str(shown_path(run.path)): run
            for run in self.runs
        }

    @property
    def differences(self) -> dict[str, dict[str, Any]]:
        """Setting, reward, task or package -> run -> its value, of those that are not the same in all."""
        facts = {name: _facts(run.info) for name, run in self.named.items()}
        keys = dict.fromkeys(key for known in facts.values() for key in known)
        found = {key: {name: known.get(key, "") for name, known in facts.items()} for key in keys}
        return {
            key: values
            for key, values in found.items()
            if len({str(value) for value in values.values()}) > 1
        }

    @property
    def table(self) -> pandas.DataFrame:
        """Name, status, steps, mean reward of the last 10 steps, held-out measures, and differences."""
        import pandas

        lines, differences = [], self.differences
        for name, run in self.named.items():
            rows, compared = run.rows, run.comparison
            steps = f"{rows[-1]['step'] if rows else 0} of {run.settings.max_steps}"
            held_out = "not compared" if compared is None else _held_out(compared)
            shown = {
                key: shorten(str(values[name]), _MOST_SHOWN) for key, values in differences.items()
            }
            differs = ", ".join(f"{key}={value}" for key, value in shown.items())
            # Half a character, which JSON and names of folders can hold, is no text for pandas.
            texts = displayable(name), displayable(differs)
            lines.append(
                (
                    texts[0],
                    run.status,
                    steps,
                    mean(series(rows[-10:], "reward")),
                    held_out,
                    texts[1],
                )
            )
        return pandas.DataFrame(
            lines, columns=["name", "status", "steps", "reward", "held-out", "what differs"]
        )

    def plot(self) -> Figure:
        """Reward, KL, held-out accuracy and length of all of them, one colour a run."""
        from grpo_nb.runs.figure import overlay

        return overlay({name: run.rows for name, run in self.named.items()})

    def _parts(self) -> Iterable[Part]:
        from grpo_nb.runs.figure import drawn

        yield bold(self.title)
        if self.is_drawn:
            yield drawn(self.plot(), "plot() draws their curves.")
        table = self.table.round(2)
        yield Table(
            table.values.tolist(), list(table.columns), right=(3,), narrow=(0, 2), wide=(5,)
        )
        yield from (f"{name} cannot be read: {why}" for name, why in self.unreadable.items())


def list_runs(root: str | Path | None = None) -> SideBySide:
    """List the runs of a folder, in the order in which they were started, whether finished, crashed or running.

    A run that cannot be read is named below the table with the reason, and hides no other.

    Args:
        root: `settings.run_root`; its default, `runs`, if not given.

    >>> "tiny" in [run.name for run in gn.runs.list(run.path.parent)]
    True
    """
    root = Path(root or Settings().run_root).expanduser()
    runs, unreadable = [], {}
    for file in sorted(root.glob("*/run.json")):
        try:
            run = open_run(file.parent)
            run.settings, run.rows, run.comparison  # noqa: B018  each may be damaged
            runs.append((run.order, run))
        except (OSError, ValueError) as error:
            # The name of a folder can hold line breaks.
            unreadable[" ".join(file.parent.name.split())] = str(error)
    ordered = tuple(run for _, run in sorted(runs, key=lambda pair: pair[0]))
    return SideBySide(
        f"{len(runs)} run{'s' * (len(runs) != 1)} in {root}", ordered, False, unreadable
    )


def side_by_side(*runs: Run | str | Path) -> SideBySide:
    """Put runs side by side: one figure, and a table of the settings, rewards, data and versions that differ.

    Args:
        *runs: They, their paths or names.

    Raises:
        FileNotFoundError: There is no run at a path.

    >>> list(gn.runs.side_by_side(run).named)
    ['tiny']
    """
    opened = tuple(open_run(run) for run in runs)
    return SideBySide("Runs " + ", ".join(run.name for run in opened), opened)


def _held_out(compared: SimpleNamespace) -> str:
    """Return each measure before and after: the format alone may be what improved."""
    measures = {
        "correct": "accuracy",
        "in the format": "format_share",
        "correct anywhere": "anywhere_share",
    }
    parts = []
    for label, name in measures.items():
        before, after = getattr(compared.before, name, None), getattr(compared.after, name, None)
        if before is not None and after is not None:
            parts.append(f"{label} {before:.0%} to {after:.0%}")
    return ", ".join(parts)


def _facts(info: Mapping[str, Any]) -> dict[str, Any]:
    task = info.get("task", {})
    return {
        **{key: value for key, value in info["settings"].items() if key != "run_root"},
        "rewards": ", ".join(f"{r['name']} x{r['weight']:g}" for r in info.get("rewards", ())),
        "task": f"{task.get('name')} ({task.get('train')} rows, {task.get('fingerprint')})",
        "number type": info.get("number_type"),
        **{f"{package} version": version for package, version in info.get("versions", {}).items()},
    }
