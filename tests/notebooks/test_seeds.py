"""Many runs by seed: means and intervals, differences in pairs, and no claim that chance would make as often."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

import grpo_nb as gn
from tests.conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))
from seeds import SeedScores, by_seed

SEEDS = range(10)


def test_the_mean_is_that_of_the_middle_half() -> None:
    values = {seed: float(seed) for seed in range(8)} | {8: -1000.0, 9: 1000.0}
    mean, (low, high) = SeedScores({"a": values}).means["a"]
    # The two lowest and the two highest of ten are left out.
    assert mean == pytest.approx(numpy.mean([1, 2, 3, 4, 5, 6]))
    assert low < mean < high and low > -1000


def test_pairs_show_what_the_spread_between_seeds_hides() -> None:
    luck = numpy.random.default_rng(1).normal(0.5, 0.2, 10)
    scores = {"a": dict(enumerate(luck)), "b": {seed: luck[seed] + 0.02 + 0.001 * seed for seed in SEEDS}}
    found = SeedScores(scores)
    one = found.differences["b"]
    assert one.verdict == "higher" and one.value == pytest.approx(0.0245, abs=0.005) and one.seeds == 10
    assert one.p_value == 2 / 2**10, "all ten seeds agree: of all flips of signs only two are as extreme"
    shuffled = SeedScores({"a": scores["a"], "b": {(seed + 3) % 10: value for seed, value in scores["b"].items()}})
    assert shuffled.differences["b"].verdict == "not told apart", "the same numbers, but of other seeds"
    assert shuffled.differences["b"].smallest > 3 * one.smallest


def test_of_two_groups_that_are_alike_a_difference_is_rarely_claimed() -> None:
    draw = numpy.random.default_rng(0)
    pairs = (SeedScores({name: dict(enumerate(draw.normal(size=10))) for name in "ab"}) for _ in range(100))
    assert sum(found.differences["b"].verdict != "not told apart" for found in pairs) <= 10


def test_many_comparisons_are_corrected() -> None:
    draw = numpy.random.default_rng(0)
    luck = draw.normal(size=10)
    shifts = numpy.array([0.1, 0.2, 0.3, 0.2, 0.1, 0.3, 0.2, -0.05, 0.1, -0.06])
    two = {"a": dict(enumerate(luck)), "b": dict(enumerate(luck + shifts))}
    others = {f"c{i}": dict(enumerate(luck + draw.normal(size=10))) for i in range(9)}
    alone, among = (SeedScores(scores).differences["b"] for scores in (two, two | others))
    assert alone.verdict == "higher" and among.verdict == "not told apart"
    assert among.p_value == pytest.approx(10 * alone.p_value) and among.interval == alone.interval


def test_only_seeds_that_both_have_are_pairs() -> None:
    found = SeedScores({"a": dict.fromkeys(range(6), 0.0), "b": {seed: 1.0 + seed for seed in range(3, 9)}})
    assert found.differences["b"].seeds == 3 and found.differences["b"].verdict == "not told apart"
    with pytest.raises(ValueError, match="'a' and 'b' share 1 seeds"):
        SeedScores({"a": {0: 1.0, 1: 2.0}, "b": {1: 2.0, 2: 3.0}}).differences  # noqa: B018
    with pytest.raises(ValueError, match=r"two seeds or more of each group, and there are fewer of 'b'.*seed=1"):
        SeedScores({"a": {0: 1.0, 1: 2.0}, "b": {1: 2.0}})


def test_seeds_are_drawn_within_their_task() -> None:
    """Of two tasks of different height, each drawing holds as many of both; else the interval would span the tasks."""
    values = {(task, seed): height + 0.001 * seed for task, height in (("easy", 0.9), ("hard", 0.1)) for seed in SEEDS}
    mean, (low, high) = SeedScores({"a": values}).means["a"]
    _, (pooled_low, pooled_high) = SeedScores({"a": dict(enumerate(values.values()))}).means["a"]
    assert high - low < 0.1 * (pooled_high - pooled_low) and low < mean < high


@pytest.fixture
def make_run(tiny_run: gn.runs.Run, tmp_path: Path) -> Callable[..., gn.runs.Run]:
    def make(name: str, reward: float, **changes: object) -> gn.runs.Run:
        folder = shutil.copytree(tiny_run.path, tmp_path / "runs" / name, ignore=shutil.ignore_patterns("comparison"))
        info = json.loads((folder / "run.json").read_text())
        info["settings"] |= changes
        (folder / "run.json").write_text(json.dumps(info))
        rows = [{**row, "reward": reward + 0.01 * row["step"]} for row in tiny_run.rows]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return gn.open_run(folder)

    return make


def test_runs_are_grouped_by_a_setting_and_paired_by_seed(make_run: Callable[..., gn.runs.Run]) -> None:
    runs = [make_run(f"a{seed}", 0.5 + 0.02 * seed, seed=seed) for seed in range(6)]
    runs += [make_run(f"b{seed}", 0.6 + 0.021 * seed, seed=seed, loss_type="dr_grpo") for seed in range(6)]
    found = by_seed(runs, by="loss_type")
    assert list(found.scores) == ["bnpo", "dr_grpo"] and found.measure == "mean reward of the last 10 steps"
    assert found.scores["bnpo"][2] == pytest.approx(0.5 + 0.04 + 0.01 * numpy.mean(range(5, 15)))
    assert found.sentence == "Mean reward of the last 10 steps; higher than bnpo: dr_grpo."
    rows = found.table.to_dict("records")
    assert rows[1]["group"] == "dr_grpo" and rows[1]["verdict"] == "higher" and rows[1]["seeds"] == 6
    turned = by_seed(runs, by=lambda run: run.name[0], first="b")
    assert turned.differences["a"].verdict == "lower"


def test_what_cannot_be_grouped_is_said(make_run: Callable[..., gn.runs.Run]) -> None:
    first, second = make_run("a", 0.5, seed=1), make_run("b", 0.5, seed=1)
    with pytest.raises(ValueError, match="'b' is a second run with seed 1 of 'bnpo'"):
        by_seed([first, second], by="loss_type")
    with pytest.raises(ValueError, match="by = 'los_type' is no setting that any of these runs has"):
        by_seed([first, second], by="los_type")
    runs = [first, make_run("c", 0.5, seed=2), make_run("d", 0.5, seed=1, extra={"epsilon": 0.1})]
    runs.append(make_run("e", 0.5, seed=2, extra={"epsilon": 0.1}))
    assert list(by_seed(runs, by="epsilon").scores) == ["default", "0.1"]
    with pytest.raises(ValueError, match=r"first = 'x' is none of the groups: default, 0\.1"):
        by_seed(runs, by="epsilon", first="x")
