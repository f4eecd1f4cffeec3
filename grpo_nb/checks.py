"""Try reward functions on the user's own rows before any training: the contract with TRL, and what a model could cheat.

`check_rewards` needs no model and takes seconds. It calls the functions for real, some hundred times, with completions from
`grpo_nb.probes`. Not covered: reward models that only a real completion would upset, and code that is to be run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_nb import probes as make
from grpo_nb.checks_cases import add_case as add_case
from grpo_nb.checks_cases import check_cases
from grpo_nb.checks_cases import read_cases as read_cases
from grpo_nb.checks_sample import Sample
from grpo_nb.checks_set import check_columns, check_names, check_set, check_signal
from grpo_nb.config import Settings
from grpo_nb.contract import Caller, check_arguments, check_contract
from grpo_nb.data import Task
from grpo_nb.findings import SEVERITIES, Finding, RewardReport
from grpo_nb.formats import AnswerFormat
from grpo_nb.probes import Probe
from grpo_nb.probing import FORM, TELLS, Results, Role, find_role
from grpo_nb.probing_answers import find_inversion, find_payments, find_refusals
from grpo_nb.probing_faults import check_time, find_constants, find_failures
from grpo_nb.probing_form import find_other_format, judge_form, judge_length
from grpo_nb.reward_calls import RewardFunction, excerpt, reward_name

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
    rewards = [rewards] if callable(rewards) else list(rewards)
    if not rewards or not all(callable(reward) for reward in rewards):
        raise ValueError(f"rewards = {rewards!r:.200} must be one or more functions with TRL's signature.")
    if pass_rate is not None and not 0 <= pass_rate <= 1:
        raise ValueError(f"pass_rate = {pass_rate!r} must be between 0 and 1.")
    sample = Sample.of(task, format, answer, tokenizer)
    size = num_generations or (settings.num_generations if settings is not None else 8)
    findings = [*check_names(rewards), *check_columns(sample)]
    roles, limits, seen, spent = {}, [], {}, {}
    counts = [0, 0]
    for key, reward in zip(_unique_names(rewards), rewards, strict=True):
        caller = Caller(reward, seconds_per_call)
        found, results, role = _check_one(caller, sample)
        findings += found
        roles[key] = role.sentence if results is not None else "cannot be called, so no probe was tried"
        if results is not None:
            seen[key] = (reward, results, role)
            timed = [outcome.seconds for probe, outcome in results.outcomes if outcome.scores and not probe.is_long]
            spent[key] = sum(timed) / max(1, len(timed))
        if caller.is_given_up:
            limits.append(f"{key}: after two calls that had to be stopped, the probes that were left")
        counts[0] += caller.calls
        counts[1] += caller.completions
    findings += check_set(seen, sample, weights or {}, len(rewards))
    findings += check_cases(rewards, cases, sample)
    rates = _GRID if pass_rate is None else (pass_rate,)
    signal = [(rate, rate**size + (1 - rate) ** size) for rate in rates]
    findings += check_signal(pass_rate, size)
    if tokenizer is None:
        limits.append(
            "token counts: no tokenizer was given, so rewards that look at completion_ids saw words and marks"
        )
    checked = (
        f"Checked {len(rewards)} reward(s) on {len(sample.rows)} rows with {counts[1]:,} completions in {counts[0]:,} calls: "
        "arguments, types, side effects, repeatability, threads, time, the gold answer in harmless forms, "
        "cheats, damaged formats, lengths and hostile text."
    )
    order = {severity: rank for rank, severity in enumerate(SEVERITIES)}
    return RewardReport(
        findings=tuple(sorted(_unique(findings), key=lambda finding: order[finding.severity])),
        roles=roles,
        checked=checked,
        signal=signal,
        num_generations=size,
        limits=tuple(limits),
        seconds_per_completion=spent,
    )


def _check_one(caller: Caller, sample: Sample) -> tuple[list[Finding], Results | None, Role]:
    columns = [key for key in sample.rows[0] if key not in ("prompt", "completion", "completion_ids")]
    findings = check_arguments(caller.reward, columns)
    if any(finding.severity == "critical" for finding in findings):
        return findings, None, Role("")
    # Two completions a row are enough to compare ways of calling.
    few = [p for p in sample.controls() if p.kind in ("right", "wrong")]
    few = [p for i in range(len(sample.rows)) for p in [q for q in few if q.row == i][:2]]
    contract, is_callable = check_contract(caller, sample.batch(few))
    findings += contract
    if not is_callable:
        return findings, None, Role("")
    results = Results()

    def run(probes: Sequence[Probe]) -> None:
        for i, outcome in caller.each(sample.batch(probes)) if probes else ():
            results.outcomes.append((probes[i], outcome))

    run([*sample.controls(), *sample.ordinary()])
    rows = list(range(len(sample.rows)))
    role = find_role(results, rows)
    if role.kind != TELLS:
        run(sample.elsewhere())
        known = make.known_texts(caller.reward)
        run([Probe("known text", make.completion(sample.format, text, sample.golds[0]), 0) for text in known])
    sprung = make.EvalTrap.count
    for probe in make.hostile(0, sample.format, sample.golds[0]):
        # One very long text too many says enough about the others.
        if caller.is_given_up or any(p.is_long and outcome.is_late for p, outcome in results.outcomes):
            break
        results.outcomes.append((probe, caller.call(sample.batch([probe]))))
    if make.EvalTrap.count > sprung:
        findings.append(_runs_code(caller.name, sample))
    findings += _judge(caller, results, role, rows, sample.golds)
    findings += check_time(caller, results, sample.batch)
    return findings, results, role


def _judge(caller: Caller, results: Results, role: Role, rows: Sequence[int], golds: Sequence[str]) -> list[Finding]:
    """Return the findings of one reward on its own."""
    findings = [*find_failures(caller.name, results), *find_constants(caller, results, rows)]
    if role.kind == TELLS:
        findings += find_refusals(caller.name, results, role, rows, golds)
        findings += find_payments(caller.name, results, role, golds)
    else:
        findings += find_inversion(caller.name, results, rows)
        findings += find_other_format(caller.name, results, rows, role)
    if role.kind == FORM:
        findings += judge_form(caller.name, results, role, rows)
    findings += judge_length(caller.name, results, role)
    return findings


def _runs_code(name: str, sample: Sample) -> Finding:
    (probe,) = [p for p in make.hostile(0, sample.format, sample.golds[0]) if p.kind == "code"]
    return Finding(
        severity="critical",
        reward=name,
        kind="runs the answer as code",
        what="an expression in the answer slot was evaluated in this process",
        example=excerpt(probe.text),
        effect="whatever the model writes is run with your rights: it can set its own score, or delete your files",
        fix="ast.literal_eval or json.loads in place of eval; gn.rewards for code runs it in the sandbox",
    )


def _unique_names(rewards: Sequence[RewardFunction]) -> list[str]:
    names: list[str] = []
    for reward in rewards:
        name, number = reward_name(reward), 2
        while name in names:
            name, number = f"{reward_name(reward)} ({number})", number + 1
        names.append(name)
    return names


def _unique(findings: Iterable[Finding]) -> list[Finding]:
    """The contract check and the probes may meet the same failure: the first is kept."""
    kept: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        is_met_twice = finding.kind in ("NaN score", "infinite score", "raises")
        key = (finding.reward, finding.kind, "" if is_met_twice else finding.what)
        kept.setdefault(key, finding)
    return list(kept.values())
