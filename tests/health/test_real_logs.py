"""The ten public logs: the alerts say what plain counting says, and runs that learn are left alone.

The truth is computed from the raw columns with numpy and scipy, not by the rules.
"""

import functools
import itertools
from collections import Counter

import numpy
import pytest
from scipy.stats import kendalltau

from grpo_nb.health.monitor import HealthReport, check_health
from tests.support.health_logs import Rows, of, real_logs, with_zero_std

LOGS = real_logs()


def column(rows: Rows, key: str) -> numpy.ndarray:
    return numpy.array([row.get(key, numpy.nan) for row in rows], dtype=float)


def share_with_zero_variance(rows: Rows) -> float:
    return float((column(rows, "reward_std") == 0).mean())


def share_clipped(rows: Rows) -> float:
    """Return the share of truncated completions, NaN if it was not logged."""
    return float(column(rows, "completions/clipped_ratio").mean())


def constant_rewards(rows: Rows) -> set[str]:
    names = set()
    for key in rows[0]:
        is_mean = key.startswith("rewards/") and not key.endswith("/std")
        if is_mean and numpy.ptp(column(rows, key)) == 0:
            names.add(key.removeprefix("rewards/").removesuffix("/mean"))
    return names


def plainly_learns(rows: Rows) -> bool:
    test = kendalltau(numpy.arange(len(rows)), column(rows, "reward"))
    return test.statistic > 0 and test.pvalue < 1e-3


def is_loud(report: HealthReport, rule: str) -> bool:
    return any(alert.severity in ("warning", "critical") for alert in of(report, rule))


LEARNING = sorted(name for name, rows in LOGS.items() if plainly_learns(rows))

REPORTS = list(itertools.product(LOGS, [False, True]))


@functools.cache
def report_of(name: str, has_share: bool) -> HealthReport:
    """Return the report of a log, as printed or with the share of groups without variance."""
    return check_health(with_zero_std(LOGS[name]) if has_share else LOGS[name])


def test_logs_are_those_that_the_tests_were_written_for() -> None:
    assert len(LOGS) == 10
    assert sum(map(len, LOGS.values())) == 2112
    assert len(LEARNING) == 4
    assert sum(share_with_zero_variance(rows) >= 0.5 for rows in LOGS.values()) == 4
    assert sum(share_clipped(rows) >= 0.25 for rows in LOGS.values()) == 3
    assert sum(len(constant_rewards(rows)) for rows in LOGS.values()) == 2


@pytest.mark.parametrize(("name", "has_share"), REPORTS)
def test_zero_variance_agrees_with_counting(name: str, has_share: bool) -> None:
    report = report_of(name, has_share)
    share = share_with_zero_variance(LOGS[name])
    assert is_loud(report, "zero_variance") or share < 0.5
    assert not of(report, "zero_variance") or share >= 0.25


@pytest.mark.parametrize(("name", "has_share"), REPORTS)
def test_truncation_agrees_with_counting(name: str, has_share: bool) -> None:
    report = report_of(name, has_share)
    share = share_clipped(LOGS[name])
    assert is_loud(report, "truncation") or not share >= 0.25
    assert not of(report, "truncation") or share >= 0.01


@pytest.mark.parametrize(("name", "has_share"), REPORTS)
def test_constant_rewards_are_named(name: str, has_share: bool) -> None:
    report = report_of(name, has_share)
    for reward in constant_rewards(LOGS[name]):
        assert is_loud(report, "constant_reward")
        assert f"{reward} is " in of(report, "constant_reward")[0].message


@pytest.mark.parametrize("name", LEARNING)
@pytest.mark.parametrize("has_share", [False, True])
def test_run_that_learns_has_at_most_one_warning(name: str, has_share: bool) -> None:
    severities = Counter(alert.severity for alert in report_of(name, has_share).alerts)
    assert severities["critical"] == 0
    assert severities["warning"] <= 1


@pytest.mark.parametrize(
    "name", ["AMD_Qwen3_8B_FP8_GRPO_ec4b5c", "AMD_Qwen3_VL_8B_Vision_GRPO_e4bb5b"]
)
def test_run_that_cannot_learn_is_critical_by_step_20(name: str) -> None:
    alerts = report_of(name, False).alerts
    steps = [alert.step for alert in alerts if alert.severity == "critical"]
    assert min(steps) <= 20
