"""Each rule on a log made for it and on a healthy one; state, sources, and rows that hold anything."""

import itertools
import json
import pickle
import random
import time
from pathlib import Path

import pytest

from grpo_nb.health.facts import duplicate_shares, rank_shift
from grpo_nb.health.monitor import HealthMonitor, check_health, explain_out_of_memory
from grpo_nb.runs.alert import Alert
from grpo_nb.settings.settings import Settings
from tests.support.health_logs import (
    DESERVED,
    INFINITE,
    NAN,
    RANGES,
    WEIGHTS,
    Rows,
    changed,
    flat,
    healthy_log,
    jitter,
    make_run,
    severest,
    told,
    with_old_names,
)
from tests.support.run_folders import append_rows


@pytest.mark.parametrize("case", DESERVED)
def test_a_rule_speaks_where_it_should(case: str) -> None:
    rule, severity, rows = DESERVED[case]
    report = check_health(rows, weights=WEIGHTS, ranges=RANGES)
    assert severest(report, rule) == severity, repr(report)
    assert len({(a.rule, a.subject) for a in report.alerts}) == len(report.alerts), "one for each rule and subject"
    # Said again only if it is more severe, or was withdrawn in between.
    for before, after in itertools.pairwise(sorted(report.told, key=lambda a: (a.rule, a.subject))):
        if (before.rule, before.subject) == (after.rule, after.subject):
            assert before.standing != after.standing


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("steps", [24, 100, 400])
def test_nothing_warns_on_a_healthy_run(steps: int, groups: int) -> None:
    for seed in range(3):
        report = check_health(healthy_log(steps, 100 + seed, groups=groups), weights=WEIGHTS)
        assert all(alert.severity == "info" for alert in report.told), repr(report)


def test_a_run_too_short_to_judge_says_so() -> None:
    report = check_health(DESERVED["too hard"][2][:9])
    assert not report.alerts and "speak from 10 on" in repr(report)


def test_nan_needs_no_ten_rows() -> None:
    (alert,) = HealthMonitor().update({"step": 1, "loss": NAN, "reward": 1.0})
    assert (alert.rule, alert.severity, alert.subject) == ("not_finite", "critical", "loss")


def test_nan_in_several_metrics_is_told_once_for_each() -> None:
    monitor = HealthMonitor()
    rows = [{"reward": 1.0, "loss": NAN}, {"reward": 1.0, "loss": NAN, "kl": NAN}, {"reward": 1.0, "kl": NAN}]
    assert [alert.subject for row in rows for alert in monitor.update(row)] == ["loss", "kl"]


def test_no_spread_knows_its_kinds() -> None:
    def kind(rows: Rows) -> str:
        return check_health(rows, weights=WEIGHTS, ranges=RANGES).of("no_spread")[-1].evidence["kind"]

    assert kind(DESERVED["too hard"][2]) == "too hard"
    assert kind(DESERVED["too easy"][2]) == "too easy"
    # Full pay for form, none for the answer: the task is too hard, however high the total is.
    form_only = [
        {**row, "reward": 1.0, "rewards/form/mean": 1.0, "rewards/right/mean": 0.0} for row in DESERVED["too hard"][2]
    ]
    assert kind(form_only) == "too hard"
    middle = [
        {**row, "rewards/right/mean": 0.5 if i > 2 else float(i % 2)} for i, row in enumerate(DESERVED["too hard"][2])
    ]
    assert kind(middle) == "all alike"


def test_spread_is_inferred_where_it_is_not_logged() -> None:
    rows = DESERVED["too hard"][2]
    for missing in (["frac_reward_zero_std"], ["frac_reward_zero_std", "reward_std"]):
        bare = [{k: v for k, v in row.items() if k not in missing} for row in rows]
        assert severest(check_health(bare), "no_spread") == "critical"
    silent = [{k: v for k, v in row.items() if not k.endswith(("std",))} for row in rows]
    report = check_health(silent)
    assert not report.of("no_spread") and "spread within groups" in report.not_measured


def test_the_share_that_trl_logs_comes_before_the_spread_of_the_batch() -> None:
    # Since January 2026 reward_std is that of the batch: above zero though every group is without spread.
    rows = flat(40, frac_reward_zero_std=lambda i, r: 1.0, reward_std=lambda i, r: 0.7)
    assert severest(check_health(rows), "no_spread") in ("warning", "critical")


def test_old_names_are_read() -> None:
    longer = flat(completions__mean_length=lambda i, r: (100 + 2 * i) * jitter(i))
    for rows, rule in ((DESERVED["never paid"][2], "constant_reward"), (longer, "length_growth")):
        assert severest(check_health(with_old_names(rows)), rule) == "warning"


def test_a_kl_of_zeros_is_not_measured() -> None:
    rows = flat(60, kl=lambda i, r: 0.0)
    assert any("KL" in words for words in check_health(rows).not_measured)
    drifting = DESERVED["KL drift"][2]
    assert not check_health(drifting, settings=Settings(beta=0.0)).of("kl_drift")
    assert check_health(drifting, settings=Settings(beta=0.1)).of("kl_drift")


def test_a_gradient_of_zero_is_explained_by_missing_spread() -> None:
    rows = [{**row, "grad_norm": 0.0} for row in DESERVED["too hard"][2]]
    report = check_health(rows)
    assert report.of("no_spread") and not report.of("gradient")


def test_a_reward_given_for_some_rows_only_is_no_constant() -> None:
    rows = changed(rewards__code__mean=lambda i, r: NAN if i % 2 else 0.1 * (i % 7))
    report = check_health(rows)
    assert not report.of("constant_reward")
    assert [a.severity for a in told(report, "not_finite")] == ["info", "warning"]  # at its first and its tenth time


def texts(i: int, repeat: bool, one: bool) -> list[list[str]]:
    if one:
        return [["The answer is 4."] * 8] * 4
    return [[f"prompt {g} step {i} " + ("same" if repeat else f"words {k}") for k in range(8)] for g in range(4)]


def test_collapse_is_seen_in_the_texts() -> None:
    rows = flat(30)
    healthy = check_health(rows, completions=[texts(i, False, False) for i in range(30)])
    assert not healthy.of("collapse")
    within = check_health(rows, completions=[texts(i, True, False) for i in range(30)])
    assert [(a.severity, a.subject) for a in within.of("collapse")] == [("warning", "within groups")]
    one = check_health(rows, completions={i + 1: texts(i, True, True) for i in range(30)})
    assert [(a.severity, a.subject) for a in one.of("collapse")] == [("critical", "one answer")]


def test_duplicates_are_counted_by_group() -> None:
    chat = [[{"role": "assistant", "content": text}] for text in ("a", " a", "b", "c")]
    assert duplicate_shares(chat, 2) == (0.5, 0.5)
    assert duplicate_shares(["a", "b", "a", "b"], 2) == (0.0, 0.5)
    assert duplicate_shares(["a", "b", "a"], 2) == (0.5, None)  # not divisible: one group
    assert duplicate_shares([], 2) == (None, None)


def test_rank_shift_agrees_with_scipy() -> None:
    from scipy.stats import mannwhitneyu, norm

    choose = random.Random(5)
    for _ in range(20):
        before = [choose.randrange(6) for _ in range(15)]
        after = [choose.randrange(8) for _ in range(20)]
        p = mannwhitneyu(after, before, alternative="greater", method="asymptotic", use_continuity=False).pvalue
        assert norm.sf(rank_shift(before, after)) == pytest.approx(p, rel=1e-6)


def test_advice_names_the_value_to_write() -> None:
    settings = Settings(max_completion_length=64, num_generations=4)
    cut = check_health(DESERVED["most cut"][2], settings=settings).of("truncation")[0]
    assert "settings.replace(max_completion_length=128)" in cut.advice and "max_completion_length" in cut.advice
    without = check_health(DESERVED["most cut"][2]).of("truncation")[0]
    assert "max_completion_length" in without.advice and "replace(" not in without.advice


# State


@pytest.mark.parametrize(
    "case", ["too hard", "loses what it gained", "never paid", "held-out flat", "gradient NaN often"]
)
@pytest.mark.parametrize("cut", [5, 13, 33])
def test_a_resumed_monitor_neither_repeats_nor_forgets(tmp_path: Path, case: str, cut: int) -> None:
    rows = DESERVED[case][2]
    whole = check_health(rows, weights=WEIGHTS)
    run = make_run(tmp_path / "run", [])
    told = []
    for part in (rows[:cut], rows[cut:]):
        monitor = HealthMonitor(weights=WEIGHTS, folder=run.path)
        for row in part:
            append_rows(run.path, [row])
            told += monitor.update(row)
    assert tuple(told) == whole.told and whole.told
    # On disk each as it stands, at news and every tenth row.
    assert [(a.rule, a.standing, a.step) for a in run.alerts] == [(a.rule, a.standing, a.step) for a in whole.alerts]


def test_the_memory_of_a_monitor_does_not_grow() -> None:
    rows = healthy_log(2000, 8)
    monitor, sizes = HealthMonitor(), {}
    for i, row in enumerate(rows, 1):
        monitor.update({**row, "holdout/accuracy": 0.5})
        if i in (200, 2000):
            sizes[i] = len(pickle.dumps(monitor))
    assert sizes[2000] < 1.1 * sizes[200]


def test_a_step_costs_the_same_late_as_early() -> None:
    rows = healthy_log(2000, 9)
    monitor = HealthMonitor()
    spent = []
    for start in range(0, 2000, 100):
        begun = time.process_time()
        for row in rows[start : start + 100]:
            monitor.update(row)
        spent.append(time.process_time() - begun)
    # O(window): a monitor that looks at all rows again costs ten times as much at the end as after 200.
    assert min(spent[-5:]) < 3 * min(spent[1:4])


# Rows that hold anything


def any_value(choose: random.Random) -> object:
    return choose.choice(
        [
            None, "", "nan", "0.5", True, [], {}, [1.0], b"x", NAN, INFINITE, -INFINITE, 0, 0.0, -0.0,
            1e308, -1e308, 1e-320, 1e25,
            10**400, choose.gauss(0, 1), choose.random(), choose.randrange(-9, 9), 1 + 2j, object(),
        ]
    )  # fmt: skip


KEYS = [
    "step", "reward", "reward_std", "frac_reward_zero_std", "kl", "grad_norm", "loss", "completions/mean_length",
    "completion_length", "completions/clipped_ratio", "step_time", "entropy", "clip_ratio/region_mean", "holdout/accuracy",
    "eval_reward", "max_steps", "rewards/a/mean", "rewards/a/std", "rewards/b", "rewards/", "rewards/correct/mean",
    "learning_rate", "", 3, None,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_no_row_makes_it_raise(seed: int) -> None:
    choose = random.Random(seed)
    healthy = healthy_log(60, seed)
    monitor = HealthMonitor(weights=choose.choice([None, {}, WEIGHTS, {"a": 0.0, "correct": -1.0}]))
    for i in range(60):
        row = dict(healthy[i]) if choose.random() < 0.7 else {}
        for key in choose.sample(KEYS, choose.randrange(len(KEYS))):
            row[key] = any_value(choose) if choose.random() < 0.5 else choose.gauss(0, 1)
        completions = choose.choice([None, [], [""], ["a"] * 8, [None, 3], [["x", "x"], []], [[{"role": "assistant"}]]])
        for alert in monitor.update(row, completions):
            assert repr(alert) and alert._repr_html_()
            json.dumps(alert.to_dict(), allow_nan=False)


def test_numbers_of_numpy_count_as_numbers() -> None:
    import numpy

    rows = [{k: numpy.float32(v) for k, v in row.items()} for row in DESERVED["too hard"][2]]
    assert severest(check_health(rows), "no_spread") == "critical"


# Where logs lie


def test_a_log_is_read_from_wherever_it_is(tmp_path: Path) -> None:
    rows = DESERVED["never paid"][2]
    expected = check_health(rows).alerts
    state = {"log_history": [*rows, {"train_runtime": 3.0, "step": 120}]}
    (tmp_path / "checkpoint-9").mkdir()
    (tmp_path / "checkpoint-9" / "trainer_state.json").write_text(json.dumps({"log_history": rows[:9]}))
    (tmp_path / "checkpoint-120").mkdir()
    (tmp_path / "checkpoint-120" / "trainer_state.json").write_text(json.dumps(state))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 121, "rew')
    assert check_health(tmp_path).alerts == expected
    (tmp_path / "metrics.jsonl").unlink()
    assert check_health(tmp_path).alerts == expected  # the latest checkpoint's
    assert check_health(str(tmp_path / "checkpoint-120" / "trainer_state.json")).alerts == expected


def test_what_is_no_log_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no log at"):
        check_health(tmp_path / "nowhere.json")
    with pytest.raises(FileNotFoundError, match=r"no metrics.jsonl and no trainer_state.json"):
        check_health(tmp_path)
    (tmp_path / "other.json").write_text('{"epoch": 1}')
    with pytest.raises(ValueError, match=r"no log_history.*epoch"):
        check_health(tmp_path / "other.json")
    with pytest.raises(ValueError, match="is a mapping"):
        check_health([{"step": 1}, 3])


def test_a_run_brings_its_weights_settings_and_texts(tmp_path: Path) -> None:
    import pandas

    run = make_run(tmp_path / "run", flat(30), max_completion_length=40)
    (run.path / "completions").mkdir()
    for step in range(1, 31):
        table = {"step": [step] * 16, "group": [i // 8 for i in range(16)], "completion": ["always this"] * 16}
        pandas.DataFrame(table).to_parquet(run.path / "completions" / f"step_{step:06d}.parquet")
    report = check_health(run)
    assert [a.subject for a in report.of("collapse")] == ["one answer"]
    assert check_health(run.path).alerts == report.alerts
    cut = make_run(tmp_path / "cut", DESERVED["most cut"][2], max_completion_length=40)
    assert "max_completion_length=80" in check_health(cut).of("truncation")[0].advice
    assert check_health(make_run(tmp_path / "loud", DESERVED["a loud reward"][2])).of("dominating_reward")


def test_looking_changes_nothing() -> None:
    rows = DESERVED["never paid"][2]
    before = json.dumps(rows)
    assert check_health(rows) == check_health(rows)
    assert json.dumps(rows) == before


# The hook


def test_alerts_are_on_disk_at_once_and_once(tmp_path: Path) -> None:
    rows = DESERVED["too hard"][2]
    run = make_run(tmp_path / "run", [])
    log = HealthMonitor(folder=run.path, weights=WEIGHTS, stop_on="critical")
    for row in rows[:10]:
        append_rows(run.path, [row])
        log.update(row)
    assert [a.severity for a in run.alerts if a.rule == "no_spread"] == ["warning"] and not log.should_stop
    resumed = HealthMonitor(folder=run.path, weights=WEIGHTS, stop_on="critical")
    for row in rows[10:30]:
        append_rows(run.path, [row])
        resumed.update(row)
    assert resumed.should_stop
    assert [a.severity for a in run.alerts if a.rule == "no_spread"] == ["critical"]
    assert tuple(run.alerts) == check_health(rows[:30], weights=WEIGHTS).alerts


@pytest.mark.parametrize(("is_mended", "stops"), [(False, True), (True, False)])
def test_a_resumed_run_stops_at_what_stopped_it_before_unless_that_is_mended(
    tmp_path: Path, is_mended: bool, stops: bool
) -> None:
    rows = DESERVED["too hard"][2]
    run = make_run(tmp_path / "run", rows[:25])
    resumed = HealthMonitor(folder=run.path, stop_on="critical")
    for i, row in enumerate([{**r, "step": 26 + i} for i, r in enumerate(healthy_log(12) if is_mended else rows[:12])]):
        assert not resumed.should_stop or i >= 10, "ten rows to show that it is another run"
        last = resumed.update(row)
        if resumed.should_stop:
            assert [a.severity for a in last if a.rule == "no_spread"] == ["critical"], "it says what for"
            break
    assert resumed.should_stop == stops


def test_an_alert_lost_in_a_crash_is_written_on_resume(tmp_path: Path) -> None:
    rows = DESERVED["too hard"][2][:12]
    run = make_run(tmp_path / "run", rows)
    whole = [json.dumps(alert.to_dict()) for alert in check_health(rows).alerts]
    assert whole
    (run.path / "alerts.jsonl").write_text(whole[0][: len(whole[0]) // 2])  # killed in mid-write
    HealthMonitor(folder=run.path)
    assert [json.dumps(alert.to_dict()) for alert in run.alerts] == whole


def test_training_goes_on_unless_asked_to_stop(tmp_path: Path) -> None:
    log = HealthMonitor(folder=make_run(tmp_path / "run", []).path)
    assert any(alert.severity == "critical" for row in DESERVED["too hard"][2] for alert in log.update(row))
    assert not log.should_stop
    with pytest.raises(ValueError, match="stop_on = 'warning'"):
        HealthMonitor(folder=tmp_path / "run", stop_on="warning")


# Memory


def chained() -> Exception:
    try:
        try:
            raise MemoryError
        except MemoryError as error:
            raise ValueError("generation failed") from error
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "settings", "change"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate"), {},
         {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}),
        (chained(), {"per_device_train_batch_size": 9, "num_generations": 3},
         {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3}),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"),
         {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}, {"num_generations": 4}),
        (RuntimeError("CUDA out of memory"),
         {"fast_inference": True, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
         {"gpu_memory_utilization": 0.5}),
        (MemoryError(), {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "load_in_4bit": True,
                         "max_completion_length": 128}, {"max_completion_length": 64}),
        (MemoryError(), {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "load_in_4bit": True},
         {"num_generations": 4}),
    ],
)  # fmt: skip
def test_out_of_memory_names_what_to_lower(
    error: Exception, settings: dict, change: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNSLOTH_VLLM_STANDBY", "0")  # in standby vLLM has given its cache back by then
    before = Settings(**settings)
    alert = explain_out_of_memory(error, before, step=7)
    assert alert.evidence["change"] == change and alert.step == 7 and alert.severity == "critical"
    after = before.replace(**change)  # what it says can be written
    if "per_device_train_batch_size" in change:
        assert after.batch_size == before.batch_size
    for name, value in change.items():
        assert f"{name}={value!r}" in alert.advice


def test_other_errors_are_not_explained_as_memory() -> None:
    assert explain_out_of_memory(ValueError("num_generations"), Settings()) is None
    least = Settings(per_device_train_batch_size=1, gradient_accumulation_steps=2, num_generations=2, load_in_4bit=True)
    assert "smaller model" in explain_out_of_memory(MemoryError(), least.replace(max_completion_length=64)).advice


# How they show themselves


def test_what_users_wrote_is_escaped() -> None:
    rows = [{**row, "rewards/<script>x\ud800/mean": 0.0} for row in healthy_log(40, 1)]
    report = check_health(rows)
    assert report.of("constant_reward")
    for shown in (report._repr_html_(), report.alerts[0]._repr_html_()):
        assert "<script>" not in shown and "&lt;script&gt;" in shown
        shown.encode("utf-8")
    repr(report).encode("utf-8")


def test_a_report_shows_the_worst_first_and_each_alert_once() -> None:
    report = check_health(DESERVED["too hard"][2], weights=WEIGHTS)
    assert [a.severity for a in told(report, "no_spread")] == ["warning", "critical"]
    lines = [line for line in repr(report).splitlines() if ": no_spread" in line]
    assert len(lines) == 1 and lines[0].startswith("critical")
    assert repr(report).splitlines()[1].startswith("critical")
    assert len(report.table) == len(report.alerts) and not report.ok
    assert "Nothing found" in repr(check_health(healthy_log(30)))


def test_an_unknown_severity_is_refused() -> None:
    with pytest.raises(ValueError, match="'severe' is none of"):
        Alert(rule="x", severity="severe", step=1, message="", why="", advice="")


def test_health_is_public_and_light() -> None:
    import subprocess
    import sys

    code = (
        "import sys, grpo_nb as gn; gn.health.check_health([{'step': 1, 'reward': 1.0}]);"
        "gn.health.HealthMonitor(); gn.runs.Alert;"
        "print(*{m.split('.')[0] for m in sys.modules} & {'torch', 'transformers', 'numpy', 'pandas', 'matplotlib'})"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


def test_a_plateau_is_no_failure_to_start() -> None:
    (alert,) = check_health(healthy_log(300, 2, speed=4.0), weights=WEIGHTS).of("reward_flat")
    assert (
        alert.subject == "plateau"
        and alert.is_open
        and not check_health(healthy_log(300, 2), weights=WEIGHTS).of("reward_flat")
    )
