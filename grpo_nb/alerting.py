"""Health alerts while a run is trained: kept in its folder, shown where it is watched, and obeyed if asked to."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.config import Settings
from grpo_nb.health import HealthLog, append_alert, explain_out_of_memory
from grpo_nb.health_alerts import Alert, HealthReport
from grpo_nb.metrics import read_alerts

if TYPE_CHECKING:
    import pandas


class HealthAlerts:
    """An observer (`grpo_nb.recorder`) that runs the health rules on each row; what they say is in alerts.jsonl at once.

    Args:
        folder: The run's. What it holds already is taken up, so that a resumed run neither repeats nor forgets an alert.
        weights: Weight by reward name.
        settings: The run's; with `stop_on_alert` the training ends after the first critical alert.
        show: Called with new alerts.
    """

    def __init__(
        self,
        folder: Path,
        weights: Mapping[str, float],
        settings: Settings,
        show: Callable[[Sequence[Alert]], None] | None = None,
    ) -> None:
        self._log = HealthLog(folder, weights=weights, settings=settings, stop_on=settings.stop_on_alert)
        self._show = show

    def on_row(self, row: dict[str, float], completions: pandas.DataFrame | None) -> bool:
        """Look at the step, and say whether to stop."""
        texts = (
            None if completions is None else [list(group) for _, group in completions.groupby("group")["completion"]]
        )
        fresh = self._log.record(row, texts)
        if fresh and self._show is not None:
            try:
                self._show(fresh)
            except Exception as error:  # what cannot be shown is on disk, and is no reason to end a training
                self._show = None
                warnings.warn(
                    f"Alerts of this run are not shown any more ({type(error).__name__}: {error}); run.alerts() has them.",
                    stacklevel=2,
                )
        return self._log.should_stop

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the rows and alerts in the folder say everything."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to take up."""


class AlertDisplay:
    """Shows alerts as they come: in a notebook one table that grows below the figure, in a terminal lines above the bar.

    Args:
        folder: The run's, whose alerts are all shown.
        write: For a terminal: prints text without tearing the progress bar. None in a notebook.
    """

    def __init__(self, folder: Path, write: Callable[[str], None] | None) -> None:
        self._file, self._write = folder / "alerts.jsonl", write
        self._handle: Any = None

    def __call__(self, fresh: Sequence[Alert]) -> None:
        if self._write is not None:
            for alert in fresh:
                self._write(repr(alert))
            return
        from IPython.display import display

        told = tuple(read_alerts(self._file))
        report = HealthReport(alerts=told, checked=f"Up to step {fresh[-1].step}.")
        bundle = {"text/html": report._repr_html_(), "text/plain": repr(report)}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def note_out_of_memory(error: BaseException, folder: Path, settings: Settings, step: int) -> Alert | None:
    """Keep in the run's folder which setting to lower after an out-of-memory error; None for any other error."""
    alert = explain_out_of_memory(error, settings, step=step)
    if alert is not None:
        with contextlib.suppress(OSError, ValueError):  # what is raised afterwards says the same
            append_alert(folder, alert)
    return alert
