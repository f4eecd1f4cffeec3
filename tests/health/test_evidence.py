"""Evidence of alerts: answer lengths, gradients next to rewards, and held-out columns."""

import pytest

from grpo_nb.health.monitor import check_health
from tests.support.health_logs import (
    NAN,
    RANGES,
    WEIGHTS,
    Rows,
    changed,
    critical_rows,
    flat,
    healthy_log,
    of,
    severest,
)


def answered(tokens: float | None) -> Rows:
    """Return a flat run whose answers have this length, and are all alike within a group."""
    return flat(
        80,
        completions__mean_length=lambda i, r: tokens,
        completions__duplicates=lambda i, r: 1.0,
    )


@pytest.mark.parametrize(("tokens", "count"), [(16.0, 0), (17.0, 1), (None, 0)])
def test_collapse_in_groups_needs_more_than_16_tokens(tokens: float | None, count: int) -> None:
    assert len(of(check_health(answered(tokens)), "collapse")) == count


def test_collapse_of_answers_that_became_right_is_silent() -> None:
    """JSON answers of 40 tokens: once all are right, all completions of a group are alike."""
    rows = healthy_log(200, 1, right=lambda at: min(1.0, 0.2 + 3 * at), form=lambda at: 1.0)
    for row in rows:
        row["completions/mean_length"] = 40.0
        row["completions/duplicates"] = row["rewards/right/mean"]
        row["entropy"] = 1.05 - row["rewards/right/mean"]
    assert check_health(rows, weights=WEIGHTS, ranges=RANGES).ok


def test_gradient_zero_without_share_or_std_is_silent() -> None:
    rows = flat(
        60,
        grad_norm=lambda i, r: 0.0,
        frac_reward_zero_std=lambda i, r: None,
        reward_std=lambda i, r: None,
    )
    assert not of(check_health(rows), "gradient")


def test_not_finite_single_skipped_steps_do_not_stop() -> None:
    rows = changed(200, grad_norm=lambda i, r: NAN if i % 30 == 9 else 1.0)
    assert not critical_rows(rows)


FALL = (0.6, 1.0, 1.5, 2.0, 2.2, 2.1, 1.6, 1.0, 0.8, 0.7)


def evaluated(column: str, scores: tuple[float, ...], **more: float) -> Rows:
    rows = []
    for i, row in enumerate(healthy_log(20 * len(scores), 6)):
        rows.append(row)
        if i % 20 == 19:
            rows.append({"step": row["step"], column: scores[i // 20], **more})
    return rows


def test_holdout_total_that_falls_is_a_warning() -> None:
    (alert,) = of(check_health(evaluated("eval_reward", FALL)), "holdout")
    assert alert.severity == "warning"


def test_holdout_low_first_score_alone_is_no_gain() -> None:
    scores = (0.4, 0.6, 0.5, 0.52, 0.5, 0.51, 0.5, 0.51)
    assert severest(check_health(evaluated("eval_reward", scores)), "holdout") == "warning"
