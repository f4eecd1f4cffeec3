"""Trackers that a training reports to beside the run directory: `extra={"report_to": "tensorboard"}`, or wandb, trackio.

They are transformers' own and get the same numbers as `metrics.jsonl`. Checked here is only
what would stop a training after its folder was made: an unknown name, and a package that is not installed. Accounts, projects
and offline modes are the trackers' own.
"""

from __future__ import annotations

import importlib.util

from grpo_nb.core.errors import EnvironmentProblem
from grpo_nb.settings.arguments import check_choice
from grpo_nb.settings.settings import Settings, require_settings

# Tracker -> the packages of which one must be there. Others that transformers knows are left to it.
_PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "trackio": ("trackio",)}


def check_reporting(settings: Settings) -> None:
    """Refuse trackers that cannot work here.

    Raises:
        ValueError: A name that the installed transformers does not know, with the nearest.
        EnvironmentProblem: Its package is not installed.

    >>> check_reporting(Settings())
    """
    require_settings(settings)
    named = settings.extra.get("report_to") or "none"
    if named == "none":  # the usual case, in which nothing is imported
        return
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for tracker in [named] if isinstance(named, str) else named:
        check_choice("report_to", tracker, (*INTEGRATION_TO_CALLBACK, "all", "none"))
        packages = _PACKAGES.get(tracker, ())
        if packages and not any(importlib.util.find_spec(package) for package in packages):
            raise EnvironmentProblem(
                f"report_to = {tracker!r} needs the package {packages[0]}, which is not installed. Run `pip install "
                f"{packages[0]}`, or leave report_to out: every number is in the run directory too."
            )
