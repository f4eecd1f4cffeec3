"""Runs side by side: a table of all those in a folder, and of some of them one figure and what differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.files import shown_path
from grpo_nb.core.tables import Part, Shown, Table, bold
from grpo_nb.runs.rows import mean, series
from grpo_nb.runs.run_folder import Run, open_run
from grpo_nb.settings.settings import Settings

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_LAST = 10


@dataclass(frozen=True, repr=False)
class RunList(Shown, Sequence):
    """The runs of a folder, the newest last. Shows itself as a table; `[i]` and iteration give the runs."""

    root: Path
    runs: tuple[Run, ...]
    unreadable: Mapping[str, str]
    """Name -> why it cannot be read."""

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, index: int) -> Run:
        return self.runs[index]

    @property
    def table(self) -> pandas.DataFrame:
        """One row a run: name, status, steps, mean reward of the last 10 steps, held-out before and after, what differs."""
        import pandas

        rows, named = [], _by_name(self.runs)
        differing = differences(named)
        for name, run in named.items():
            step, *ended = _ended(run)
            differs = ", ".join(f"{key}={values[name]}" for key, values in differing.items())
            rows.append((name, run.status, f"{step} of {run.settings.max_steps}", *ended, differs))
        return pandas.DataFrame(rows, columns=["name", "status", "steps", "reward", "held-out", "what differs"])

    def _parts(self) -> Iterable[Part]:
        yield bold(f"{len(self.runs)} run{'s' * (len(self.runs) != 1)} in {self.root}")
        if self.runs:
            table = self.table.round(2)
            yield Table(table.values.tolist(), list(table.columns), right=(3,), narrow=(0, 2, 4), wide=(5,))
        yield from (f"{name} cannot be read: {why}" for name, why in self.unreadable.items())


@dataclass(frozen=True, repr=False)
class RunsCompared(Shown):
    """Some runs in one figure, and what differs between them."""

    named: Mapping[str, Run]
    differences: Mapping[str, Mapping[str, Any]]
    """Setting, reward, task or package -> run -> its value, of those that are not the same in all."""

    def plot(self) -> Figure:
        """Reward, KL, held-out accuracy and length of all of them, one colour a run."""
        from grpo_nb.runs.figure import overlay

        return overlay({name: run.rows for name, run in self.named.items()})

    def _parts(self) -> Iterable[Part]:
        from grpo_nb.runs.figure import drawn

        yield bold("Runs " + ", ".join(self.named))
        yield drawn(self.plot(), "plot() draws their curves.")
        for name, run in self.named.items():
            yield "{0} ended with reward {2:.2f} at step {1}, held-out {3}".format(name, *_ended(run))
        for key, values in self.differences.items():
            yield f"{key}: {', '.join(f'{value} ({name})' for name, value in values.items())}"
        if not self.differences:
            yield "Settings, rewards, task, model and versions are the same in all of them: what differs is luck."
        if "task" in self.differences:
            yield "Their tasks differ, so held-out scores of one say nothing about the other's."


def list_runs(root: str | Path | None = None) -> RunList:
    """List the runs of a folder, whether finished, crashed or running; one that cannot be read is named with the reason.

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
            runs.append((run.started, run))
        except (OSError, ValueError) as error:
            unreadable[file.parent.name] = str(error)
    return RunList(root, tuple(run for _, run in sorted(runs, key=lambda pair: pair[0])), unreadable)


def compare_runs(*runs: Run | str | Path) -> RunsCompared:
    """Put runs side by side: one figure, and a table of the settings, rewards, data and versions that differ.

    Args:
        *runs: They, their paths or names.

    Raises:
        FileNotFoundError: There is no run at a path.

    >>> list(gn.runs.compare(run).named)
    ['tiny']
    """
    named = _by_name([open_run(run) for run in runs])
    return RunsCompared(named, differences(named))


def differences(named: Mapping[str, Run]) -> dict[str, dict[str, Any]]:
    """What is not the same in all of these runs -> run -> its value there."""
    facts = {name: _facts(run.info) for name, run in named.items()}
    keys = dict.fromkeys(key for known in facts.values() for key in known)
    found = {key: {name: known.get(key, "") for name, known in facts.items()} for key in keys}
    return {key: values for key, values in found.items() if len({str(value) for value in values.values()}) > 1}


def _by_name(runs: Sequence[Run]) -> dict[str, Run]:
    """Runs by name; by path those whose name another has too, such as a run and what was trained again elsewhere."""
    names = [run.name for run in runs]
    return {run.name if names.count(run.name) == 1 else str(shown_path(run.path)): run for run in runs}


def _facts(info: Mapping[str, Any]) -> dict[str, Any]:
    task = info.get("task", {})
    return {
        **{key: value for key, value in info["settings"].items() if key != "run_root"},
        "rewards": ", ".join(f"{r['name']} x{r['weight']:g}" for r in info.get("rewards", ())),
        "task": f"{task.get('name')} ({task.get('train')} rows, {task.get('fingerprint')})",
        "number type": info.get("number_type"),
        **{f"{package} version": version for package, version in info.get("versions", {}).items()},
    }


def _ended(run: Run) -> tuple[int, float, str]:
    """Its last step, the mean reward of its last steps, and its held-out accuracy before and after."""
    rows, compared = run.rows, run.comparison
    held_out = f"{compared.before.accuracy:.0%} to {compared.after.accuracy:.0%}" if compared else "not compared"
    return int(rows[-1]["step"]) if rows else 0, mean(series(rows[-_LAST:], "reward")), held_out
