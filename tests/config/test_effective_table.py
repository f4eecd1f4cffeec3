"""The table of effective settings, from configurations without TRL and Unsloth."""

from dataclasses import dataclass, field

import pytest

import grpo_nb as gn
from grpo_nb.config.effective_table import EffectiveSettings, compare_configurations


@dataclass
class TrlConfig:
    beta: float = 0.0
    top_p: float = 1.0
    report_to: list[str] = field(default_factory=list)  # its form of "none"


@pytest.fixture
def table() -> EffectiveSettings:
    settings = gn.Settings()
    requested = {"beta": settings.beta, "top_p": settings.top_p}
    return compare_configurations(settings, requested, TrlConfig(0.5), TrlConfig(settings.beta))


def test_requested_argument_is_recorded(table: EffectiveSettings) -> None:
    assert table.arguments["top_p"] == 1.0


def test_argument_that_runs_as_asked_has_no_row(table: EffectiveSettings) -> None:
    assert list(table.changed) == ["beta"]


def test_requested_setting_that_unsloth_changed_says_so(table: EffectiveSettings) -> None:
    assert table.changed["beta"].reason == "Changed by Unsloth."


def test_requested_argument_that_trl_alone_changes_names_trl() -> None:
    extra = {"report_to": "none"}
    table = compare_configurations(gn.Settings(extra=extra), extra, TrlConfig(), TrlConfig())
    assert table.changed["report_to"].reason == "Changed by TRL or transformers."


def test_list_of_what_was_asked_has_no_row() -> None:
    extra = {"report_to": "wandb"}
    built = TrlConfig(0.04, report_to=["wandb"])
    table = compare_configurations(gn.Settings(extra=extra), extra, built, built)
    assert "report_to" not in table.changed
