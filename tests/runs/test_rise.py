"""The test of a rise finds models that learn, and is rarely wrong about others."""

import math

import numpy
import pytest

from grpo_nb.runs.outcome import SIGNIFICANCE_LEVEL, describe_run, reward_rise


def rows(values: list[float]) -> list[dict[str, float]]:
    return [{"step": step, "reward": value} for step, value in enumerate(values, 1)]


def test_rise_of_noise_stays_at_the_level() -> None:
    """The share called a rise stays within three standard errors of `SIGNIFICANCE_LEVEL`."""
    draw = numpy.random.default_rng(7)
    most = SIGNIFICANCE_LEVEL + 3 * math.sqrt(SIGNIFICANCE_LEVEL * (1 - SIGNIFICANCE_LEVEL) / 2000)
    for steps in (6, 14, 60):
        for noise in (draw.normal, draw.standard_cauchy):
            called = sum(reward_rise(rows(list(noise(size=steps)))).is_clear for _ in range(2000))
            assert called / 2000 <= most, (steps, noise)


def test_rise_under_quickstart_noise_is_clear() -> None:
    draw = numpy.random.default_rng(8)
    course = numpy.linspace(0.8, 2.8, 14)
    assert all(
        reward_rise(rows(list(course + draw.normal(0, 0.35, 14)))).is_clear for _ in range(200)
    )


def test_rise_of_falling_or_constant_rewards_is_not_clear() -> None:
    assert not reward_rise(rows([3.0, 2.5, 2.0, 1.5, 1.0, 0.5])).is_clear
    assert reward_rise(rows([0.0] * 20)).p_value == 1.0


def test_rise_p_value_is_a_share_of_orders() -> None:
    rise = reward_rise(rows([1, 2, 3, 4, 5]))
    assert rise.p_value == pytest.approx(1 / math.factorial(5))
    assert "less than once in 100 runs" in rise.sentence


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0, 4.0]])
def test_rise_of_too_few_steps_is_not_clear(values: list[float]) -> None:
    rise = reward_rise(rows(values))
    assert not rise.is_clear
    assert "too few to show a rise" in rise.sentence
    assert rise.step_count == len(values)


def test_rise_leaves_out_unmeasured_steps() -> None:
    measured = rows([1, 2, 3, 4, 5, 6])
    gaps = [*measured, {"step": 7}, {"step": 8, "reward": math.nan}, {"step": 9, "reward": None}]
    assert reward_rise(gaps) == reward_rise(measured)
    assert reward_rise([{"step": 1}]).step_count == 0


def test_rise_sentences_agree_with_the_verdict() -> None:
    """Figure, card and last cell of a notebook use the same test."""
    draw = numpy.random.default_rng(9)
    verbs = set()
    for slope in numpy.linspace(-0.03, 0.03, 100):
        made = rows(list(slope * numpy.arange(40) + draw.normal(0, 0.35, 40)))
        rise = reward_rise(made)
        described = describe_run(made, "the base model")
        assert described.startswith(f"{rise.finding};")
        assert rise.sentence.startswith(rise.finding)
        assert ("rose" in described) == rise.is_clear
        verbs.add(rise.finding.split()[2])
    assert verbs == {"rose", "did"}


def test_rise_after_a_high_outlier_is_not_clear() -> None:
    """Eleven rising steps follow the outlier, so p is about 0.002, but the mean fell."""
    rise = reward_rise(rows([100.0, *range(1, 12)]))
    assert rise.p_value < SIGNIFICANCE_LEVEL
    assert not rise.is_clear


def test_describe_without_a_reward_says_so() -> None:
    assert (
        describe_run([{"step": 1, "kl": 0.1}], "the base model")
        == "No logged step has a finite reward."
    )


def test_sentence_of_an_unmeasured_reward_asks_for_no_steps() -> None:
    sentence = reward_rise([{"step": 1, "kl": 0.1}]).sentence
    assert sentence.startswith("No logged step has a finite reward.")
    assert "More steps" not in sentence
    assert "gn.check_rewards(rewards, task)" in sentence


def test_rise_of_rows_of_several_steps_calls_them_logged_steps() -> None:
    logged = [{"step": 5 * number, "reward": float(number)} for number in range(1, 13)]
    assert "(first 4 of 12 logged steps)" in reward_rise(logged).finding
    truncated = [row | {"completions/clipped_ratio": 0.5} for row in logged]
    described = describe_run(truncated, "the base model")
    assert "in the last third of the steps, 50% of the completions were truncated" in described
    assert "fewer than 5 logged steps" in reward_rise(logged[:2]).sentence


def test_describe_takes_the_last_third_of_all_steps() -> None:
    """Steps without a finite reward are steps too."""
    logged = rows([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, *[math.nan] * 6])
    truncated = [row | {"completions/clipped_ratio": float(row["step"] > 10)} for row in logged]
    described = describe_run(truncated, "the base model")
    assert "in the last third of the steps, 50% of the completions were truncated" in described


def test_describe_infinite_kl_of_both_signs_is_not_a_number() -> None:
    rows = [{"step": step, "reward": 1.0, "kl": math.inf} for step in range(1, 13)]
    rows[-1]["kl"] = -math.inf
    assert "KL to the base model nan" in describe_run(rows, "the base model")
