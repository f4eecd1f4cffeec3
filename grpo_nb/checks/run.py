"""Try reward functions on the user's own rows before any training: the contract with TRL, and what a model could cheat.

`check_rewards` needs no model and takes seconds. It calls the functions for real, some hundred times, with completions from
`grpo_nb.checks.probes`. Not covered: reward models that only a real completion would upset, and code that is to be run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_nb.checks import probes as make
from grpo_nb.checks.catalogue import SEVERITIES, WHOLE_SET, Finding, found
from grpo_nb.checks.contract import Caller, check_arguments, check_contract, failure
from grpo_nb.checks.judge import check_time, judge
from grpo_nb.checks.probes import Probe
from grpo_nb.checks.report import RewardReport
from grpo_nb.checks.roles import TELLS, Results, Role, find_role
from grpo_nb.checks.sample import Sample
from grpo_nb.checks.together import check_names, check_set, check_signal, silent_share
from grpo_nb.rewards import RewardError, RewardFunction, reward_list, reward_name, score, weight_of
from grpo_nb.settings import Settings
from grpo_nb.tasks import AnswerFormat, Task

_GRID = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)


def check_rewards(
    rewards: RewardFunction | Sequence[RewardFunction],
    task: Task | Iterable[Mapping[str, Any]],
    settings: Settings | None = None,
    *,
    format: AnswerFormat | None = None,
    answer: str | Callable[[Mapping[str, Any]], str] = "answer",
    weights: Mapping[str, float] | None = None,
    num_generations: int | None = None,
    pass_rate: float | None = None,
    tokenizer: Any = None,
    cases: str | Path | Iterable[Mapping[str, Any]] = (),
    seconds_per_call: float = 2.0,
) -> RewardReport:
    """Check reward functions on rows of a task and say in words what is wrong, what it would do to training, and the fix.

    A hung call is stopped after `seconds_per_call` on the main thread, unless it is inside one long call of C
    code. Off it the call is left behind in a daemon thread, and one that never releases Python's lock, such as a regular
    expression without end, cannot be stopped there at all.

    Args:
        rewards: One or more functions with TRL's signature, sync or async.
        task: A `Task`, or rows (a list of dicts, a `datasets.Dataset`) with `prompt` or `question`, and an answer.
        settings: For `num_generations`.
        format: Where rows are given: the format of the answer; `xml()` if not given.
        answer: Where rows are given: the column with the gold answer, or a function of the row.
        weights: By name; those the rewards carry where not given.
        num_generations: Group size for the table of groups without spread; that of `settings`, or 8.
        pass_rate: Share of right completions you expect, for that table; a grid if not given.
        tokenizer: For rewards that count tokens. Without it, words and marks are counted.
        cases: A file or list of completions with the score each must get, as `add_case` writes it.
        seconds_per_call: Time limit of one call.

    Raises:
        ValueError: No rewards, no rows, something that is no function, or rows without the columns named.

    >>> from grpo_nb.rewards import correctness, xml_format
    >>> rows = [{"question": f"What is {a} + 3?", "answer": str(a + 3)} for a in range(20, 26)]
    >>> check_rewards([correctness(), xml_format()], rows).ok
    True
    """
    rewards = reward_list(rewards)
    if pass_rate is not None and not 0 <= pass_rate <= 1:
        raise ValueError(f"pass_rate = {pass_rate!r} must be between 0 and 1.")
    sample = Sample(task, format, answer, tokenizer)
    size = num_generations or (settings.num_generations if settings is not None else 8)
    findings = list(check_names(rewards, list(sample.rows[0])))
    callers = {key: Caller(reward, seconds_per_call) for key, reward in _by_name(rewards).items()}
    seen: dict[str, tuple[Results, Role]] = {}
    for key, caller in callers.items():
        found_alone, seen_alone = _check_one(caller, sample)
        findings += found_alone
        if seen_alone is not None:
            seen[key] = seen_alone
    by_weight = {key: float((weights or {}).get(key, weight_of(caller.reward))) for key, caller in callers.items()}
    if len(seen) == len(callers):
        findings += check_set(seen, by_weight, range(len(sample.rows)))
    findings += _check_cases(rewards, cases, sample)
    findings += check_signal(pass_rate, size)
    stopped = tuple(key for key, caller in callers.items() if caller.is_given_up)
    limits = [f"{key}: after two calls that had to be stopped, the probes that were left" for key in stopped]
    if tokenizer is None:
        limits.append(
            "token counts: no tokenizer was given, so rewards that look at completion_ids saw words and marks"
        )
    completions, calls = (sum(getattr(c, name) for c in callers.values()) for name in ("completions", "calls"))
    checked = (
        f"Checked {len(rewards)} reward(s) on {len(sample.rows)} rows with {completions:,} completions in {calls:,} calls: "
        "arguments, types, side effects, repeatability, threads, time, the gold answer in harmless forms, "
        "cheats, damaged formats, lengths and hostile text."
    )
    return RewardReport(
        findings=tuple(sorted(dict.fromkeys(findings), key=lambda finding: SEVERITIES.index(finding.severity))),
        roles={key: seen[key][1].kind if key in seen else "cannot be called, so no probe was tried" for key in callers},
        checked=checked,
        signal=[(rate, silent_share(rate, size)) for rate in (_GRID if pass_rate is None else (pass_rate,))],
        num_generations=size,
        limits=tuple(limits),
        weights=by_weight,
        seen=seen,
        stopped=stopped,
    )


def _check_one(caller: Caller, sample: Sample) -> tuple[list[Finding], tuple[Results, Role] | None]:
    columns = [key for key in sample.rows[0] if key not in ("prompt", "completion", "completion_ids")]
    findings = list(check_arguments(caller.reward, columns))
    if any(finding.severity == "critical" for finding in findings):
        return findings, None
    # Two completions a row are enough to compare ways of calling.
    rows = range(len(sample.rows))
    pairs = [[p for p in sample.controls if p.kind in ("right", "wrong") and p.row == row][:2] for row in rows]
    batch = sample.batch([probe for pair in pairs for probe in pair])
    first = caller.call(batch)
    if first.scores is None:
        return [*findings, failure(caller, batch, first)], None
    findings += check_contract(caller, batch, first)
    results = Results()

    def run(probes: Sequence[Probe]) -> None:
        for i, outcome in caller.each(sample.batch(probes)) if probes else ():
            results.outcomes[probes[i]] = outcome

    run([*sample.controls, *sample.ordinary])
    role = find_role(results, rows)
    if role.kind != TELLS:
        run(sample.elsewhere)
        known = make.known_texts(caller.reward)
        run([Probe("known text", make.completion(sample.format, text, sample.golds[0]), 0) for text in known])
    sprung = make.EvalTrap.count
    for probe in sample.hostile:
        # One very long text too many says enough about the others.
        if caller.is_given_up or any(p.is_long and outcome.is_late for p, outcome in results.outcomes.items()):
            break
        results.outcomes[probe] = caller.call(sample.batch([probe]))
    if make.EvalTrap.count > sprung:
        what = "an expression in the answer slot was evaluated in this process"
        tried = [probe.text for probe in sample.hostile if probe.kind == "code"]
        findings.append(found("runs the answer as code", caller.name, what, tried))
    findings += judge(caller, results, role, sample.golds)
    findings += check_time(caller, results, sample.batch)
    return findings, (results, role)


def _by_name(rewards: Sequence[RewardFunction]) -> dict[str, RewardFunction]:
    """The rewards by name, numbered where two have the same."""
    named: dict[str, RewardFunction] = {}
    for reward in rewards:
        name, number = reward_name(reward), 2
        while name in named:
            name, number = f"{reward_name(reward)} ({number})", number + 1
        named[name] = reward
    return named


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


def _check_cases(
    rewards: Sequence[RewardFunction], cases: str | Path | Iterable[Mapping[str, Any]], sample: Sample
) -> Iterator[Finding]:
    known = {reward_name(reward): reward for reward in rewards}
    for case in read_cases(cases) if isinstance(cases, (str, Path)) else cases:
        name, expected, text = case["reward"], case["expected"], case["completion"]
        label = f"the case {case['label']!r}" if case.get("label") else "a case"
        if name not in known:
            what = f"{label} is for a reward {name!r} that is not among {list(known)}"
            yield found("case (no such reward)", WHOLE_SET, what)
            continue
        ids = sample.batch([Probe("case", text, 0)]).completion_ids
        try:
            row = {**sample.rows[0], **case["columns"]}
            value = score(known[name], [text], row, completion_ids=ids).values[name][0]
            is_met = (
                math.isnan(value) if expected is None else math.isclose(value, expected, rel_tol=1e-6, abs_tol=1e-6)
            )
            said = f"{value:.4g}"
        except RewardError as error:
            is_met, said = False, str(error)
        if not is_met:
            yield found("case", name, f"{label} must score {expected}, is {said}", [text])
