"""Completions kept in a file with the score that they must get, and whether they still get it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_nb.checks_sample import Sample
from grpo_nb.findings import WHOLE_SET, Finding
from grpo_nb.probes import Probe
from grpo_nb.reward_calls import RewardFunction, excerpt, reward_name


def add_case(
    path: str | Path,
    reward: str,
    completion: str,
    expected: float | None,
    *,
    columns: Mapping[str, Any],
    label: str = "",
) -> None:
    """Keep a completion with the score it must get, as one line of JSON, for `check_rewards(cases=path)` and your own tests.

    Args:
        path: A .jsonl file; made when it is not there.
        reward: The name of the reward.
        completion: The text.
        expected: The score, or None where the reward must have no opinion.
        columns: The data row, so that the case stands for itself.
        label: What the case shows.
    """
    line = {"reward": reward, "label": label, "completion": completion, "expected": expected, "columns": dict(columns)}
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_cases(path: str | Path) -> list[dict[str, Any]]:
    """Return the cases of a file that `add_case` wrote."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def check_cases(
    rewards: Sequence[RewardFunction], cases: str | Path | Iterable[Mapping[str, Any]], sample: Sample
) -> list[Finding]:
    from grpo_nb.scoring import RewardError, score

    listed = read_cases(cases) if isinstance(cases, (str, Path)) else list(cases)
    known = {reward_name(reward): reward for reward in rewards}
    findings = []
    for case in listed:
        name, expected = case["reward"], case["expected"]
        label = f"the case {case['label']!r}" if case.get("label") else "a case"
        if name not in known:
            found = f"{label} is for a reward {name!r} that is not among {list(known)}"
            findings.append(
                Finding(
                    severity="warning",
                    reward=WHOLE_SET,
                    kind="case",
                    what=found,
                    effect="it was not run",
                    fix="rename it",
                )
            )
            continue
        ids = sample.batch([Probe("case", case["completion"], 0)]).completion_ids
        try:
            row = {**sample.rows[0], **case["columns"]}
            value = score(known[name], [case["completion"]], row, completion_ids=ids).values[name][0]
            is_met = (
                math.isnan(value) if expected is None else math.isclose(value, expected, rel_tol=1e-6, abs_tol=1e-6)
            )
            said = f"{value:.4g}"
        except RewardError as error:
            is_met, said = False, str(error)
        if not is_met:
            findings.append(
                Finding(
                    severity="critical",
                    reward=name,
                    kind="case",
                    what=f"{label} must score {expected}, is {said}",
                    example=excerpt(case["completion"]),
                    effect="the reward no longer does what you kept the case for",
                    fix="mend the reward, or take the case out",
                )
            )
    return findings
