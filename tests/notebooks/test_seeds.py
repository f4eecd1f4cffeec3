"""Runs over several seeds: means, intervals and paired differences, without claims from chance."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy
import pytest

import grpo_nb as gn
from tests.conftest import ROOT
from tests.support.run_folders import info_of, write_run_folder

sys.path.append(str(ROOT / "benchmarks"))
from seeds import SeedScores, by_seed

SEEDS = range(10)


def test_pairing_shows_what_the_spread_of_seeds_hides() -> None:
    luck = numpy.random.default_rng(1).normal(0.5, 0.2, 10)
    scores = {
        "a": dict(enumerate(luck)),
        "b": {seed: luck[seed] + 0.02 + 0.001 * seed for seed in SEEDS},
    }
    found = SeedScores(scores)
    one = found.differences["b"]
    assert one.verdict == "higher"
    assert one.value == pytest.approx(0.0245, abs=0.005)
    assert one.seeds == 10
    assert one.p_value == 2 / 2**10, (
        "all ten seeds agree: of all flips of signs only two are as extreme"
    )
    shuffled = SeedScores(
        {"a": scores["a"], "b": {(seed + 3) % 10: value for seed, value in scores["b"].items()}}
    )
    assert shuffled.differences["b"].verdict == "no difference shown", (
        "the same numbers, but of other seeds"
    )
    assert shuffled.differences["b"].smallest > 3 * one.smallest


def test_table_has_the_same_digits_in_every_row() -> None:
    a = dict(enumerate([0.4, 0.41, 0.42, 0.4]))
    b = dict(enumerate([1, 1.13, 1.2, 1]))
    shown = repr(SeedScores({"a": a, "b": b}))
    assert "0.405 (0.400 to 0.420)" in shown
    assert "1.065 (1.000 to 1.200)  +0.660 (+0.600 to +0.780)  0.1250  0.161" in shown


def test_difference_of_equal_groups_is_rarely_claimed() -> None:
    draw = numpy.random.default_rng(0)
    pairs = (
        SeedScores({name: dict(enumerate(draw.normal(size=10))) for name in "ab"})
        for _ in range(100)
    )
    assert sum(found.differences["b"].verdict != "no difference shown" for found in pairs) <= 10


def run_of(folder: Path, seed: int, reward: float, **settings: object) -> gn.runs.Run:
    rows = [{"step": step, "reward": reward + 0.01 * step} for step in range(1, 15)]
    return write_run_folder(folder, info_of({"brevity": 1.0}, seed=seed, **settings), rows)


def test_runs_are_grouped_by_a_setting_and_paired_by_seed(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path / f"a{seed}", seed, 0.5 + 0.02 * seed, loss_type="bnpo")
        for seed in range(6)
    ]
    runs += [
        run_of(tmp_path / f"b{seed}", seed, 0.6 + 0.021 * seed, loss_type="dr_grpo")
        for seed in range(6)
    ]
    found = by_seed(runs, by="loss_type")
    assert list(found.scores) == ["bnpo", "dr_grpo"]
    assert found.scores["bnpo"][2] == pytest.approx(0.5 + 0.04 + 0.01 * numpy.mean(range(5, 15)))
    assert found.sentence == "Mean reward of the last 10 steps; higher than bnpo: dr_grpo."
    turned = by_seed(runs, by=lambda run: run.name[0], first="b")
    assert turned.differences["a"].verdict == "lower"
    with pytest.raises(ValueError, match="'again' is a second run with seed 1 in the group 'bnpo'"):
        by_seed([*runs, run_of(tmp_path / "again", 1, 0.5, loss_type="bnpo")], by="loss_type")
    with pytest.raises(ValueError, match="by = 'los_type' is not a setting of any of these runs"):
        by_seed(runs, by="los_type")
