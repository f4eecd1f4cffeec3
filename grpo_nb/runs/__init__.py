"""What a run knows, on disk and shown: rows, completions, alerts, checkpoints, curves, the viewer and the card.

Nothing here trains or loads a model, and nothing judges: what is wrong with a run is said in `health`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_nb.core import open_door
from grpo_nb.runs.alert import KINDS, SEVERITIES, Alert, Severity, alert_table, read_alerts, worst_first
from grpo_nb.runs.best import ACCURACY, BEHIND, HIGH, LOW, BestStep, best_step
from grpo_nb.runs.card import public, published_name, shareable, write_export_card, write_model_card
from grpo_nb.runs.checkpoints import (
    NewestCheckpoint,
    checkpoint_folders,
    clear_away,
    find_damage,
    is_disk_full,
    keep_newest,
    newest_checkpoint,
    write_checkpoint,
)
from grpo_nb.runs.records import OTHER_QUESTIONS, RecordedExport
from grpo_nb.runs.rise import describe
from grpo_nb.runs.rows import read_rows, reading, tidy_row
from grpo_nb.runs.run import (
    Run,
    check_run_name,
    new_run_folder,
    open_run,
    seconds_since_written,
    trained_questions,
    write_trained_questions,
)
from grpo_nb.runs.seeds import SeedScores, by_seed
from grpo_nb.runs.side_by_side import compare_runs as compare
from grpo_nb.runs.side_by_side import list_runs as list

if TYPE_CHECKING:
    from grpo_nb.runs.live import LivePlot, figure_for_a_file, png, training_figure
    from grpo_nb.runs.viewer import RunViewer

__getattr__, __dir__, __all__ = open_door(
    globals(), {"live": ("LivePlot", "figure_for_a_file", "png", "training_figure"), "viewer": ("RunViewer",)}
)
