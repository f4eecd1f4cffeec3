"""The ten real logs as seen by the kit's health rules, rldoctor, rlprobe and rlwatch, side by side.

    pip install --no-deps --target PEERS rldoctor==0.2.0 rlprobe==0.1.0 rlwatch==0.5.1
    PYTHONPATH=PEERS python studies/health_peers.py > studies/results/health_peers.md

In the environment of the tests nothing else is needed. Each tool is used as its own TRL integration uses it, with its defaults:
rldoctor `run_from_records` and `diagnose`; rlprobe `Recorder` with the metric names of its callback, and `diagnose`; rlwatch
`DetectorSuite` with the names of its callback. What a log deserves is counted here from its columns, not by any of the tools.
Logs are shown as they are, and with the column `frac_reward_zero_std` that today's TRL writes, which the peers read.
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

from grpo_nb.health.monitor import check_health
from grpo_nb.runs.alert import worst_first
from tests.support.health_logs import Rows, real_logs, with_zero_std

Found = list[tuple[str, str]]
"""(severity, rule) of each finding."""

# What each tool calls the thing that a log deserves.
_NAMES = {
    "no spread": {
        "no_spread",
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
    return [(alert.kind, alert.rule) for alert in worst_first(check_health(rows).alerts)]


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
        for alert in suite.check_step(
            row["step"], **{new: row[old] for old, new in names.items() if old in row}
        ):
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
        said.add("no spread")
    if (
        "completions/clipped_ratio" in rows[0]
        and statistics.fmean(r["completions/clipped_ratio"] for r in rows) >= 0.25
    ):
        said.add("clipped")
    names = [key for key in rows[0] if key.startswith("rewards/") and not key.endswith("/std")]
    if any(len({row[name] for row in rows}) == 1 for name in names):
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
    print(_totals(logs, found))
    print(_by_log(logs, found))


def _totals(logs: dict[str, Rows], found: dict[tuple[str, str, bool], Found]) -> str:
    tools = [f"{tool}{words}" for tool in TOOLS for words in ("", ", with the share")]
    head = ["what a log deserves, and how many of those logs get it", *tools]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " --- |" * (len(head) - 1)]
    for thing, names in _NAMES.items():
        deserving = [name for name, rows in logs.items() if thing in deserved(rows)]
        cells = [
            f"{sum(any(rule in names for _, rule in found[name, tool, share]) for name in deserving)} of {len(deserving)}"
            for tool in TOOLS
            for share in (False, True)
        ]
        lines.append(f"| {thing} | " + " | ".join(cells) + " |")
    learning = [name for name, rows in logs.items() if learns(rows)]
    for words, test in (
        ("learns, and has a critical alert (fewer is better)", lambda s: s.count("critical") > 0),
        (
            "learns, and has more than one warning (fewer is better)",
            lambda s: s.count("warning") > 1,
        ),
    ):
        cells = [
            f"{sum(test([severity for severity, _ in found[name, tool, share]]) for name in learning)} of {len(learning)}"
            for tool in TOOLS
            for share in (False, True)
        ]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _by_log(logs: dict[str, Rows], found: dict[tuple[str, str, bool], Found]) -> str:
    lines = [
        "",
        "| log | steps | deserves | " + " | ".join(TOOLS) + " |",
        "| --- | --- | --- |" + " --- |" * len(TOOLS),
    ]
    for name, rows in logs.items():
        due = ", ".join(sorted(deserved(rows))) + (" (learns)" if learns(rows) else "")
        cells = [
            ", ".join(f"{rule} ({severity})" for severity, rule in found[name, tool, True])
            or "nothing"
            for tool in TOOLS
        ]
        lines.append(
            f"| {name.rsplit('_', 1)[0]} | {len(rows)} | {due} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
