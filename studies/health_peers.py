"""Compare what the kit's health rules, rldoctor, rlprobe and rlwatch say about ten real logs.

    pip install --no-deps --target PEERS rldoctor==0.2.0 rlprobe==0.1.0 rlwatch==0.5.1
    PYTHONPATH=PEERS python studies/health_peers.py > studies/results/health_peers.md

Each tool is used as its own TRL integration uses it, with its defaults: rldoctor
`run_from_records` and `diagnose`; rlprobe `Recorder` with the metric names of its callback, and
`diagnose`; rlwatch `DetectorSuite` with the names of its callback. This script counts from the
columns of a log which alerts it deserves. Each log is given as it is, and once more with the
column `frac_reward_zero_std`, which current TRL writes and the other tools read.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import print_header, print_row
from grpo_nb.health.monitor import check_health
from grpo_nb.runs.alert import STATES_WORST_FIRST
from tests.support.health_logs import Rows, real_logs, with_zero_std

Found = list[tuple[str, str]]
"""(severity, rule) of each finding."""

# The names that the tools give to each alert.
_NAMES = {
    "zero variance": {
        "zero_variance",
        "advantage_collapse",
        "DEGENERATE_GROUPS",
        "ADVANTAGE_COLLAPSE",
        "REWARD_STD_DEATH",
    },
    "clipped": {"truncation", "length_pathology", "TRUNCATION_STARVE"},
    "constant reward": {"constant_reward", "reward_composition", "FORMAT_GAMING"},
    "KL spike": {"kl_drift", "kl_step", "KL_BLOWUP", "kl_explosion"},
}


def ask_kit(rows: Rows) -> Found:
    found = [(alert.state, alert.rule) for alert in check_health(rows).alerts]
    return sorted(found, key=lambda one: STATES_WORST_FIRST.index(one[0]))


def ask_rldoctor(rows: Rows) -> Found:
    from rl_doctor.diagnosis import diagnose
    from rl_doctor.ingest.base import run_from_records

    return [
        (f.severity.name.lower(), f.detector)
        for f in diagnose(run_from_records(rows, name="log", source="live")).problems
    ]


def ask_rlprobe(rows: Rows) -> Found:
    from rlprobe.doctor.engine import diagnose
    from rlprobe.integrations.trl import _map_logs
    from rlprobe.recorder import Recorder

    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder) / "run")
        for row in rows:
            recorder.log_step(
                row["step"],
                **_map_logs({key: value for key, value in row.items() if key != "step"}),
            )
        recorder.close()
        findings = diagnose(Path(folder) / "run")
    return [
        ("warning" if f.severity == "warn" else str(f.severity), f.signature_id) for f in findings
    ]


def ask_rlwatch(rows: Rows) -> Found:
    from rlwatch.config import RLWatchConfig
    from rlwatch.detectors import DetectorSuite

    names = {
        "kl": "kl_divergence",
        "reward": "reward_mean",
        "reward_std": "reward_std",
        "entropy": "entropy",
        "loss": "loss",
    }
    suite = DetectorSuite(RLWatchConfig())
    found = []
    for row in rows:
        metrics = {new: row[old] for old, new in names.items() if old in row}
        for alert in suite.check_step(row["step"], **metrics):
            if (alert.severity, alert.detector) not in found:
                found.append((alert.severity, alert.detector))
    return found


TOOLS: dict[str, Callable[[Rows], Found]] = {
    "kit": ask_kit,
    "rldoctor 0.2.0": ask_rldoctor,
    "rlprobe 0.1.0": ask_rlprobe,
    "rlwatch 0.5.1": ask_rlwatch,
}


def deserved(rows: Rows) -> set[str]:
    """Return what a log deserves, counted from its columns."""
    said = set()
    if sum(row["reward_std"] == 0 for row in rows) >= len(rows) / 2:
        said.add("zero variance")
    if (
        "completions/clipped_ratio" in rows[0]
        and statistics.fmean(r["completions/clipped_ratio"] for r in rows) >= 0.25
    ):
        said.add("clipped")
    names = [key for key in rows[0] if key.startswith("rewards/") and not key.endswith("/std")]
    for name in names:
        scores = {row[name] for row in rows}
        if len(scores) == 1:
            said.add("constant reward")
    kl = [row["kl"] for row in rows]
    if max(kl) >= 0.1 and max(kl) >= 5 * statistics.median(kl):
        said.add("KL spike")
    return said


def learns(rows: Rows) -> bool:
    from scipy.stats import kendalltau

    result = kendalltau(range(len(rows)), [row["reward"] for row in rows])
    return result.statistic > 0 and result.pvalue < 0.001


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    logging.disable(logging.CRITICAL)
    logs = real_logs()
    found: dict[tuple[str, str, bool], Found] = {}
    for name, rows in logs.items():
        for has_share in (False, True):
            given = with_zero_std(rows) if has_share else rows
            for tool, ask in TOOLS.items():
                with contextlib.redirect_stdout(io.StringIO()):
                    found[name, tool, has_share] = ask(given)
    print_totals(logs, found)
    print()
    print_each_log(logs, found)


def print_totals(logs: dict[str, Rows], found: dict[tuple[str, str, bool], Found]) -> None:
    """Print how many logs get the alerts that they deserve from each tool, and how many not."""
    asked = [(tool, share) for tool in TOOLS for share in (False, True)]
    head = ["what a log deserves, and how many of those logs get it"]
    head += [f"{tool}, with the share" if share else tool for tool, share in asked]
    print_header(*head)
    for deserved_alert, rules in _NAMES.items():
        deserving = [name for name, rows in logs.items() if deserved_alert in deserved(rows)]
        cells = []
        for tool, share in asked:
            told = [rules_of(found[name, tool, share]) for name in deserving]
            right = sum(not told_rules.isdisjoint(rules) for told_rules in told)
            cells.append(f"{right} of {len(deserving)}")
        print_row(deserved_alert, *cells)
    learning = [name for name, rows in logs.items() if learns(rows)]
    for words, severity, most in (
        ("learns, and has a critical alert (fewer is better)", "critical", 0),
        ("learns, and has more than one warning (fewer is better)", "warning", 1),
    ):
        cells = []
        for tool, share in asked:
            counts = [severities_of(found[name, tool, share]).count(severity) for name in learning]
            accused = sum(count > most for count in counts)
            cells.append(f"{accused} of {len(learning)}")
        print_row(words, *cells)


def rules_of(alerts: Found) -> set[str]:
    """Return the rules of a log's alerts."""
    return {rule for _, rule in alerts}


def severities_of(alerts: Found) -> list[str]:
    """Return the severities of a log's alerts."""
    return [severity for severity, _ in alerts]


def print_each_log(logs: dict[str, Rows], found: dict[tuple[str, str, bool], Found]) -> None:
    """Print for each log what it deserves, and what each tool says."""
    print_header("log", "steps", "deserves", *TOOLS)
    for name, rows in logs.items():
        due = ", ".join(sorted(deserved(rows)))
        if learns(rows):
            due += " (learns)"
        cells = []
        for tool in TOOLS:
            alerts = [f"{rule} ({severity})" for severity, rule in found[name, tool, True]]
            cells.append(", ".join(alerts) or "nothing")
        print_row(name.rsplit("_", 1)[0], len(rows), due, *cells)


if __name__ == "__main__":
    main()
