"""Moved to `rows`."""

from grpo_nb.runs.rows import ACCURACY as ACCURACY
from grpo_nb.runs.rows import HIGH as HIGH
from grpo_nb.runs.rows import LOW as LOW
from grpo_nb.runs.rows import best_step as best_step

BEHIND = "holdout/behind_best"
