"""Try reward functions on the user's own rows before any training: the contract with TRL, and what a model could cheat.

`check_rewards` needs no model and takes seconds. It calls the functions for real, some hundred times, with completions from
`grpo_nb.checks.probes`. Not covered: reward models that only a real completion would upset, and code that is to be run.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.checks.catalogue import SEVERITIES, Finding, found
from grpo_nb.checks.contract import UNSTEADY, Caller, check_arguments, check_contract
from grpo_nb.checks.failures import find_failures
from grpo_nb.checks.judge import check_scores, check_time, judge
from grpo_nb.checks.probes import BARE, EvalTrap, Probe, known_texts
from grpo_nb.checks.report import RewardReport
from grpo_nb.checks.roles import FORM, OTHER, TELLS, UNSCORED, Results, Role, find_role, seen_closer
from grpo_nb.checks.sample import Sample
from grpo_nb.checks.together import check_names, check_set
from grpo_nb.core.words import require_number
from grpo_nb.rewards.base import RewardFunction, check_weight, reward_list, reward_name
from grpo_nb.rewards.scores import changed_weights
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.task import Task


def check_rewards(
    rewards: RewardFunction | Sequence[RewardFunction],
    task: Task | Iterable[Mapping[str, Any]],
    *,
    format: AnswerFormat | None = None,
    answer: str | Callable[[Mapping[str, Any]], str] = "answer",
    weights: Mapping[str, float] | None = None,
    tokenizer: Any = None,
    seconds_per_call: float = 2.0,
) -> RewardReport:
    """Check reward functions on rows of a task and say in words what is wrong, what it would do to training, and the fix.

    A hung call is stopped after `seconds_per_call` on the main thread, unless it is inside one long call of C
    code. Off it the call is left behind in a daemon thread, and one that never releases Python's lock, such as a regular
    expression without end, cannot be stopped there at all.

    Args:
        rewards: One or more functions with TRL's signature, sync or async.
        task: A `Task`, or rows (a list of dicts, a `datasets.Dataset`) with `prompt` or `question`, and an answer.
        format: Where rows are given: the format of the answer; `xml()` if not given.
        answer: Where rows are given: the column with the gold answer, or a function of the row.
        weights: By name; those the rewards carry where not given.
        tokenizer: For rewards that count tokens. Without it, words and marks are counted.
        seconds_per_call: Time limit of one call.

    Raises:
        ValueError, TypeError: No rewards, no rows, something that is no function, rows without the columns named, or an
            argument that cannot be; nothing has been called then.

    >>> from grpo_nb.rewards import correctness, xml_format
    >>> rows = [{"question": f"What is {a} + 3?", "answer": str(a + 3)} for a in range(20, 26)]
    >>> check_rewards([correctness(), xml_format()], rows).ok
    True
    """
    rewards = reward_list(rewards)
    require_number("seconds_per_call", seconds_per_call, 0.01, is_whole=False)
    sample = Sample(task, format, answer, tokenizer)
    callers = {key: Caller(reward, seconds_per_call) for key, reward in _by_name(rewards).items()}
    own_weights = {key: check_weight(getattr(one.reward, "weight", 1.0), key) for key, one in callers.items()}
    by_weight = changed_weights(own_weights, {} if weights is None else weights)
    checked = {key: _check_one(caller, sample) for key, caller in callers.items()}
    if first := _unseen_rows(checked.values()):
        sample = Sample(task, format, answer, tokenizer, first)
        checked = {key: _check_one(caller, sample) for key, caller in callers.items()}
    seen = {key: one.judged for key, one in checked.items() if one.judged is not None}
    findings = [*check_names(rewards, list(sample.rows[0]))]
    findings += [finding for one in checked.values() for finding in one.findings]
    limits = [f"{key}: {one.said}" for key, one in checked.items() if one.judged is None]
    if limits:
        limits.append("the weighted total: each reward has to be mended first")
    else:
        broken = {f.reward for f in findings if f.severity == "critical" or f.kind == "constant"}
        is_form = len(rewards) == 1 and not broken and not _asks_for(rewards[0], sample)
        # Said of a reward that would tell right from wrong but for what is said of it.
        is_said = any(f.kind in ("another format", "answer not listed") and f.severity == "critical" for f in findings)
        of_set = check_set(seen, by_weight, sample.tried, broken, is_form)
        findings += [f for f in of_set if not (is_said and f.kind == "nothing tells right from wrong")]
    lenient = {finding.reward for finding in findings if finding.kind == "lenient"}
    if any(
        (role.kind, role.said) == (FORM, "") and callers[key].name not in lenient for key, (_, role) in seen.items()
    ):
        findings = [finding for finding in findings if finding.kind != "lenient"]  # another one asks for more
    if tokenizer is None and any(map(_counts_tokens, rewards)):
        limits.append(
            "token counts: no tokenizer was given, so rewards that look at completion_ids saw words and marks"
        )
    completions, calls = (sum(getattr(c, name) for c in callers.values()) for name in ("completions", "calls"))
    tried, left = len(sample.tried), len(sample.rows) - len(sample.tried)
    more = f", and the right and a wrong answer on {left} more" if left else ""
    summary = (
        f"Checked {len(rewards)} reward(s) on {tried} rows{more}, "
        f"with {completions:,} completions in {calls:,} calls: "
        "arguments, types, side effects, repeatability, time, the gold answer in harmless forms, "
        "cheats, damaged formats, lengths and hostile text."
    )
    return RewardReport(
        findings=tuple(sorted(findings, key=_gravity)),
        roles={key: _role_said(*one.judged) if one.judged else one.said for key, one in checked.items()},
        checked=summary,
        limits=tuple(limits),
        weights=by_weight,
        seen=seen,
    )


def _gravity(finding: Finding) -> tuple[int, bool]:
    """The worst first, and before the rest of it what explains most."""
    return SEVERITIES.index(finding.severity), finding.kind != "another format"


@dataclass(frozen=True)
class _Checked:
    """What came of one reward on its own."""

    findings: list[Finding]
    judged: tuple[Results, Role] | None = None
    said: str = "not tried any further: what is critical of it comes first"
    """Why it could not be judged."""


def _check_one(caller: Caller, sample: Sample) -> _Checked:
    columns = [key for key in sample.rows[0] if key not in ("prompt", "completion", "completion_ids")]
    findings = list(check_arguments(caller.reward, columns))
    if any(finding.severity == "critical" for finding in findings):
        return _Checked(findings)
    results, rows = Results(), sample.tried
    taken = [name for name in _columns_of(caller.reward, sample) if name not in ("prompt", "question", "answer")]

    def run(probes: Sequence[Probe]) -> bool:
        """Try these; whether all of them could be tried."""
        for i, outcome in caller.each(sample.batch(probes)) if probes else ():
            results.outcomes[probes[i]] = outcome
        return all(probe in results.outcomes for probe in probes)

    def failed() -> list[Finding]:
        return [*find_failures(caller, results, sample.batch), *check_time(caller, results, sample.batch)]

    # Two completions a row are enough to compare ways of calling.
    pairs = [[p for p in sample.controls if p.kind in ("right", "wrong") and p.row == row][:2] for row in rows]
    few = [probe for pair in pairs for probe in pair]
    first = caller.call(batch := sample.batch(few))
    if first.is_late:
        what = f"a call with {len(few)} completions had not ended after {caller.seconds:g} s"
        findings.append(found("too slow to check", caller.name, what))
        return _Checked(findings, said="too slow, so no probe was tried")
    if first.scores is not None:
        findings += check_contract(caller, batch, first)
    elif not run(few) or any(outcome.error for outcome in results.outcomes.values()):
        return _Checked(findings + failed())
    is_steady = not UNSTEADY & {finding.kind for finding in findings}
    is_whole = run(sample.controls)
    role = find_role(results, rows) if is_whole else Role(OTHER)
    if is_steady and is_whole:
        is_whole = run(sample.ordinary()) and (not role.layout or run(sample.ordinary(role.layout)))
        is_whole = is_whole and run([*sample.known(known_texts(caller.reward)), *sample.of_columns(taken)])
        is_whole = is_whole and run([p for p in sample.elsewhere if role.kind != TELLS or p.detail == BARE])
    sprung = EvalTrap.count
    for probe in sample.hostile:
        # One very long text too many says enough about the others.
        if caller.is_given_up or any(p.is_long and outcome.is_late for p, outcome in results.outcomes.items()):
            break
        results.outcomes[probe] = caller.call(sample.batch([probe]))
    if EvalTrap.count > sprung:
        what = "an expression in the answer slot was evaluated in this process"
        tried = [probe.text for probe in sample.hostile if probe.kind == "code"]
        findings.append(found("runs the answer as code", caller.name, what, tried))
    if caller.is_given_up and not all(probe in results.outcomes for probe in sample.hostile if not probe.is_long):
        findings.append(_not_to_the_end(caller, results))
    more = sample.more(role.layout)
    # One that is slow has said on the first rows what it says.
    if is_whole and not caller.is_given_up and len(more) * caller.per_completion < 0.5 * caller.seconds:
        run(more)
    findings += failed()
    if not is_whole:
        return _Checked(findings, said="too slow to be judged")
    if not is_steady:
        return _Checked(findings, said="what it pays was not judged, for the same completion gets other scores")
    role = seen_closer(role, results)
    findings += check_scores(caller, results, rows, sample.batch)
    findings += judge(caller, results, role, sample, taken)
    return _Checked(findings, (results, role))


def _unseen_rows(checked: Iterable[_Checked]) -> list[int]:
    """For each reward that scores none of the rows that were tried in every form, a row that it scores, if there is one."""
    judged = [one.judged for one in checked if one.judged is not None]
    scored = [
        [row for row, is_scored in results.rows_scored().items() if is_scored]
        for results, role in judged
        if role.kind == UNSCORED
    ]
    shared = collections.Counter(itertools.chain(*scored))
    return list(dict.fromkeys(max(rows, key=shared.__getitem__) for rows in scored if rows))


def _role_said(results: Results, role: Role) -> str:
    """The role, and how many rows the reward scores where that is not all of them."""
    scored = [*results.rows_scored().values()]
    said = role.said or role.kind
    return said if all(scored) or not any(scored) else f"{said} (scores {sum(scored)} of {len(scored)} rows)"


def _not_to_the_end(caller: Caller, results: Results) -> Finding:
    took = f"{caller.late} calls longer than {caller.seconds:g} s" if caller.late else f"{caller.spent:.0f} s together"
    what = f"it was left after {len(results.outcomes)} completions, which took {took}"
    longer = max(2 * caller.seconds, 100 * caller.per_completion)
    fix = f"check_rewards(..., seconds_per_call={longer:.2g}), or a quick stand-in for what is slow in it"
    return found("not checked to the end", caller.name, what, fix=fix)


def _asks_for(reward: RewardFunction, sample: Sample) -> bool:
    """Whether a reward reads a column that holds the gold answer."""
    return any(str(sample.rows[0][key]).strip() == sample.golds[0] for key in _columns_of(reward, sample))


def _columns_of(reward: RewardFunction, sample: Sample) -> list[str]:
    """The columns that a reward takes as arguments, or names somewhere in its code."""
    named = _named_in(reward)
    return [column for column in sample.rows[0] if column in named]


def _named_in(reward: RewardFunction) -> set[str]:
    named = set(known_texts(reward, has_words=False, limit=1000))
    with contextlib.suppress(TypeError, ValueError):  # a builtin without a signature
        named |= set(inspect.signature(reward).parameters)
    return named


def _counts_tokens(reward: RewardFunction) -> bool:
    """Whether a reward or a class that it is made from names the token ids."""
    made_of = [method for kind in type(reward).__mro__ for method in vars(kind).values() if inspect.isfunction(method)]
    return any("completion_ids" in _named_in(part) for part in (reward, *made_of))


def _by_name(rewards: Sequence[RewardFunction]) -> dict[str, RewardFunction]:
    """The rewards by name, numbered where two have the same."""
    named: dict[str, RewardFunction] = {}
    for reward in rewards:
        name, number = reward_name(reward), 2
        while name in named:
            name, number = f"{reward_name(reward)} ({number})", number + 1
        named[name] = reward
    return named
