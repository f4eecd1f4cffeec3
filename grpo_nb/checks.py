"""Try reward functions on the user's own rows before any training: the contract with TRL, and what a model could cheat.

`check_rewards` needs no model and takes seconds. It calls the functions for real, some hundred times, with completions from
`grpo_nb.probes`. Not covered: reward models that only a real completion would upset, and code that is to be run.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_nb import probes as make
from grpo_nb.config import Settings
from grpo_nb.contract import TRL_ARGUMENTS, Caller, check_arguments, check_contract
from grpo_nb.data import Task
from grpo_nb.findings import SEVERITIES, WHOLE_SET, Finding, RewardReport
from grpo_nb.formats import AnswerFormat, xml
from grpo_nb.probes import Probe
from grpo_nb.probing import TELLS, Results, Role, check_time, find_role, is_paid, judge, shortest
from grpo_nb.reward_calls import Batch, RewardFunction, excerpt, make_batch, reward_name
from grpo_nb.rewards.base import weight_of

_GRID = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
_TRIED_ROWS = 4
_GOLDS_FROM_ROWS = 200


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
    sample = _Sample.of(task, format, answer, tokenizer)
    size = num_generations or (settings.num_generations if settings is not None else 8)
    findings = [*_check_names(rewards), *_check_columns(sample)]
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
    findings += _check_set(seen, sample, weights or {}, len(rewards))
    findings += _check_cases(rewards, cases, sample)
    rates = _GRID if pass_rate is None else (pass_rate,)
    signal = [(rate, rate**size + (1 - rate) ** size) for rate in rates]
    findings += _check_signal(pass_rate, size)
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


class _Sample:
    """The rows that are tried, with their gold and wrong answers, and how a batch of probes is made from them."""

    def __init__(
        self, rows: list[dict[str, Any]], golds: list[str], every_gold: list[str], format: AnswerFormat, tokenizer: Any
    ) -> None:
        self.rows, self.golds, self.format, self.tokenizer = rows, golds, format, tokenizer
        self.every_gold = every_gold
        self._ids: dict[str, list[int]] = {}
        self.wrong = []
        for gold in golds:
            wrong = make.wrong_answers(gold, every_gold)
            alike = [answer for answer in wrong if len(answer) == len(gold)]
            self.wrong.append(alike if len(alike) >= 2 else wrong)

    @classmethod
    def of(
        cls,
        task: Task | Iterable[Mapping[str, Any]],
        format: AnswerFormat | None,
        answer: str | Callable[[Mapping[str, Any]], str],
        tokenizer: Any,
    ) -> _Sample:
        if isinstance(task, Task):
            source: Iterable[Mapping[str, Any]] = task.train
            format = format or task.format
        else:
            source = task
        rows = [dict(row) for row in itertools.islice(source, _GOLDS_FROM_ROWS)]
        if not rows:
            raise ValueError("the task has no rows: rewards are checked on your own rows, at least one.")
        if not callable(answer) and answer not in rows[0]:
            raise ValueError(
                f'the rows have no column {answer!r} but {sorted(rows[0])}. Write answer="<the one with the gold answer>", '
                "or a function of the row."
            )
        format = format or xml()
        golds = [_gold_text(answer(row) if callable(answer) else row[answer], format) for row in rows]
        # Rows with different answers, spread over those that were read.
        distinct = list({gold: i for i, gold in reversed(list(enumerate(golds)))}.values())[::-1]
        step = max(1, len(distinct) // _TRIED_ROWS)
        chosen = distinct[::step][:_TRIED_ROWS]
        return cls([rows[i] for i in chosen], [golds[i] for i in chosen], golds, format, tokenizer)

    def batch(self, probes: Sequence[Probe]) -> Batch:
        """Return the call of a reward on these probes, each with the columns of its row."""
        rows = [self.rows[probe.row] for probe in probes]
        texts = [probe.text for probe in probes]
        prompts = [row.get("prompt", row.get("question", "")) for row in rows]
        ids = None
        if self.tokenizer is None:
            ids = [self._stand_in_ids(text) for text in texts]
        return make_batch(texts, rows, prompts=prompts, completion_ids=ids, tokenizer=self.tokenizer)

    def _stand_in_ids(self, text: str) -> list[int]:
        if text not in self._ids:
            # As many as there are words and marks; the values only have to be ids of any tokenizer.
            self._ids[text] = [len(word) % 1000 for word in re.findall(r"\w+|\W", text)]
        return self._ids[text]

    def prompt_text(self, row: int) -> str:
        prompt = self.rows[row].get("prompt", "")
        if isinstance(prompt, str):
            return prompt
        return "\n".join(str(turn.get("content", "")) for turn in prompt)

    def question(self, row: int) -> str:
        prompt = self.rows[row].get("prompt")
        asked = prompt[-1].get("content", "") if isinstance(prompt, list) and prompt else prompt
        return str(self.rows[row].get("question") or asked or "")

    def controls(self) -> list[Probe]:
        return [p for i, g in enumerate(self.golds) for p in make.controls(i, self.format, g, self.wrong[i])]

    def ordinary(self) -> list[Probe]:
        made = []
        for i, gold in enumerate(self.golds):
            made += make.harmless(i, self.format, gold, self.wrong[i])
            made += make.cheats(
                i, self.format, gold, self.wrong[i], self.every_gold, self.prompt_text(i), self.question(i)
            )
        made += make.form_probes(0, self.format, self.golds[0])
        return made + make.lengths(0, self.format, self.golds[0], self.wrong[0][0])

    def elsewhere(self) -> list[Probe]:
        return [p for i, g in enumerate(self.golds) for p in make.other_containers(i, g, self.wrong[i])]


def _gold_text(gold: Any, format: AnswerFormat) -> str:
    """A list of accepted answers is represented by its first; a slot that ends with its line holds no more than a line."""
    if isinstance(gold, (list, tuple)) and gold:
        gold = gold[0]
    text = str(gold).strip()
    return text if format.answer_close else text.split("\n", 1)[0]


def _check_one(caller: Caller, sample: _Sample) -> tuple[list[Finding], Results | None, Role]:
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
    findings += judge(caller, results, role, rows, sample.golds)
    findings += check_time(caller, results, sample.batch)
    return findings, results, role


def _runs_code(name: str, sample: _Sample) -> Finding:
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


def _check_names(rewards: Sequence[RewardFunction]) -> list[Finding]:
    names = [reward_name(reward) for reward in rewards]
    return [
        Finding(
            severity="critical",
            reward=WHOLE_SET,
            kind="same name twice",
            what=f"{names.count(name)} rewards are named {name!r}",
            effect="TRL logs the mean of both under one name: no curve shows either",
            fix=f"set __name__ of one: reward.__name__ = '{name}_2'",
        )
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]


def _check_columns(sample: _Sample) -> list[Finding]:
    clash = [column for column in sample.rows[0] if column in TRL_ARGUMENTS and column != "completion_ids"]
    return (
        [
            Finding(
                severity="critical",
                reward=WHOLE_SET,
                kind="column name taken",
                what=f"the data has columns {clash}, TRL's own argument names",
                effect="every reward call fails: an argument is given twice",
                fix="rename the columns",
            )
        ]
        if clash
        else []
    )


def _check_set(
    seen: Mapping[str, tuple[RewardFunction, Results, Role]], sample: _Sample, weights: Mapping[str, float], count: int
) -> list[Finding]:
    """What the weighted total pays: GRPO learns from nothing else."""
    if len(seen) < count or not seen:
        return []
    weight = {name: float(weights.get(name, weight_of(reward))) for name, (reward, _, _) in seen.items()}
    telling = [name for name, (_, _, role) in seen.items() if role.kind == TELLS and weight[name]]
    if not telling:
        return [
            Finding(
                severity="critical",
                reward=WHOLE_SET,
                kind="nothing tells right from wrong",
                what="no reward gives the gold answer more than a wrong one in the same words and format",
                effect="the model learns form at best; accuracy does not move but by luck",
                fix="add a reward for the answer, such as gn.rewards.correctness()",
            )
        ]
    totals = _totals(seen, weight)
    rows = [r for r in range(len(sample.rows)) if any(r in seen[name][2].rows for name in telling)]

    def best(kind: str, row: int) -> float:
        return max((t for p, t in totals if p.kind == kind and p.row == row), default=math.nan)

    gaps = {}
    for row in rows:
        pairs = [
            (best(f"right{layout}", row), best(f"wrong{layout}", row)) for layout in ("", ", one line", ", newline")
        ]
        right, wrong = max(pairs, key=lambda pair: -math.inf if math.isnan(pair[0] - pair[1]) else pair[0] - pair[1])
        gaps[row] = (right, wrong)
    findings = []
    upside_down = [row for row, (right, wrong) in gaps.items() if not right > wrong]
    if upside_down:
        right, wrong = gaps[upside_down[0]]
        return [
            Finding(
                severity="critical",
                reward=WHOLE_SET,
                kind="wrong pays as much as right",
                what=f"with these weights a right answer has a total of {right:.3g}, a wrong one {wrong:.3g}",
                effect="the model is not drawn to right answers",
                fix="look at the weights and their signs",
            )
        ]
    findings += _check_weights(seen, weight, telling, rows)
    known = {
        p.kind
        for name in telling
        for p, o in seen[name][1].outcomes
        if o.scores and is_paid(seen[name][2], p, o.scores[0])
    }
    beaten = [
        (probe, total, gaps[probe.row])
        for probe, total in totals
        if probe.row in gaps
        and probe.kind in _UNPAID - known
        and total >= gaps[probe.row][0] - 0.05 * (gaps[probe.row][0] - gaps[probe.row][1])
    ]
    if beaten:
        beaters = ", ".join(sorted({probe.kind for probe, _, _ in beaten}))
        _, total, (right, _) = min(beaten, key=lambda entry: len(entry[0].text))
        findings.append(
            Finding(
                severity="critical",
                reward=WHOLE_SET,
                kind="beats the right answer",
                what=f"a total of {total:.3g} for {beaters}, the right answer has {right:.3g}",
                example=shortest([p for p, _, _ in beaten]),
                effect="the model learns this instead of the task",
                fix="lower the weight of what pays here, or bound it",
            )
        )
    return findings


_UNPAID = {
    "every candidate",
    "hedge",
    "not gold",
    "empty slot",
    "contains gold",
    "gold in reasoning only",
    "every candidate in prose",
    "judge",
    "empty",
    "blank",
    "tags only",
    "tags in prose",
    "wrong, repeated",
    "echo",
    "wrong, length",
}


def _totals(
    seen: Mapping[str, tuple[RewardFunction, Results, Role]], weight: Mapping[str, float]
) -> list[tuple[Probe, float]]:
    """The weighted total of every probe that all rewards were tried on and none failed on."""
    parts: dict[Probe, list[float]] = {}
    for name, (_, results, _) in seen.items():
        for probe, outcome in dict(results.outcomes).items():
            if outcome.scores:
                parts.setdefault(probe, []).append(weight[name] * outcome.scores[0])
    return [
        (probe, sum(v for v in values if not math.isnan(v)))
        for probe, values in parts.items()
        if len(values) == len(seen) and not all(math.isnan(v) for v in values)
    ]


def _check_weights(
    seen: Mapping[str, tuple[RewardFunction, Results, Role]],
    weight: Mapping[str, float],
    telling: Sequence[str],
    rows: Sequence[int],
) -> list[Finding]:
    answer = sum(abs(weight[name]) * seen[name][2].gap for name in telling)
    findings, form, formal = [], 0.0, []
    for name, (_, results, role) in seen.items():
        if role.kind == TELLS:
            continue
        gains = [results.best(f"right{role.layout}", row) - results.best("right, slot only", row) for row in rows]
        gain = weight[name] * max((g for g in gains if not math.isnan(g)), default=0.0)
        if role.kind != TELLS and gain > 0:
            form += gain
            formal.append(name)
        spread = abs(weight[name]) * results.spread()
        if spread > 10 * answer:
            findings.append(
                Finding(
                    severity="warning",
                    reward=name,
                    kind="dwarfs the answer",
                    what=f"times its weight it spreads over {spread:.3g}, while being right adds {answer:.3g}",
                    effect="advantages are scaled by the spread of the group: right and wrong look alike beside it",
                    fix="bound it (gn.rewards.clipped), or lower its weight",
                )
            )
    if form >= answer:
        findings.append(
            Finding(
                severity="warning",
                reward=WHOLE_SET,
                kind="form outweighs being right",
                what=f"perfect form adds {form:.3g} ({', '.join(formal)}), the right answer {answer:.3g}",
                effect="a wrong answer in perfect form beats a right one that is only in its slot",
                fix="give the answer more weight than all rewards for form together",
            )
        )
    return findings


def _check_signal(pass_rate: float | None, size: int) -> list[Finding]:
    if pass_rate is None:
        return []
    share = pass_rate**size + (1 - pass_rate) ** size
    if share <= 0.5:
        return []
    harder = "easier prompts or an example turn" if pass_rate < 0.5 else "harder prompts"
    return [
        Finding(
            severity="warning",
            reward=WHOLE_SET,
            kind="little signal",
            what=f"at a pass rate of {pass_rate:.0%}, {share:.0%} of groups of {size} are all right or all wrong",
            effect="they cost time and teach nothing",
            fix=f"{harder}, or a larger num_generations",
        )
    ]


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
    rewards: Sequence[RewardFunction], cases: str | Path | Iterable[Mapping[str, Any]], sample: _Sample
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
