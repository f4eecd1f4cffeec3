"""Try reward functions on the user's own rows before any training: the contract with TRL, and what a model could cheat.

`check_rewards` needs no model. It calls the functions for real, with hundreds of completions of `grpo_nb.checks.probes`. First
it finds the layout that a reward reads, then it tries everything in that one. Not covered: reward models that only a real
completion would upset, and code that is to be run.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from grpo_nb.checks import probes as make
from grpo_nb.checks.agreement import measured
from grpo_nb.checks.calls import Caller, Outcome, check_arguments, check_steadiness
from grpo_nb.checks.findings import Finding, found
from grpo_nb.checks.layouts import Layout, layouts_of
from grpo_nb.checks.phrases import phrases_of, texts_in
from grpo_nb.checks.report import RewardReport, in_order
from grpo_nb.checks.rows import Rows
from grpo_nb.checks.verdicts import FORM, Seen, judge, judge_set, take_role
from grpo_nb.core.argument_types import require
from grpo_nb.core.words import require_number
from grpo_nb.rewards import base, judge_model
from grpo_nb.tasks.formats import AnswerFormat, xml
from grpo_nb.tasks.task import Task

_FEW = 4
"""Rows that every reward is tried on, however slow, and those for cheats, harmless forms and layouts of other prompts."""


def check_rewards(
    rewards: base.RewardFunction | Sequence[base.RewardFunction],
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
    code. In another thread nothing stops it.

    Args:
        rewards: One or more functions with TRL's signature, sync or async.
        task: A `Task`, or rows (a list of dicts, a `datasets.Dataset`) with `prompt` or `question`, and an answer.
        format: Where rows are given: the format of the answer; `xml()` if not given.
        answer: Where rows are given: the column with the gold answer, or a function of the row.
        weights: By name; those the rewards carry where not given.
        tokenizer: For rewards that count tokens. Without it, words and marks are counted.
        seconds_per_call: Time limit of one call.

    Raises:
        ValueError, TypeError: No rewards, two of one name, no rows, something that is no function, rows without the columns
            named, or an argument that cannot be; nothing has been called then.

    >>> from grpo_nb.rewards import correctness, xml_format
    >>> rows = [{"question": f"What is {a} + 3?", "answer": str(a + 3)} for a in range(20, 26)]
    >>> check_rewards([correctness(), xml_format()], rows).ok
    True
    """
    require("gn.check_rewards(rewards, task)", roles={"task": "rows"}, rewards=rewards, task=task)
    rewards = base.reward_list(rewards)
    by_weight = base.changed_weights(base.weights_by_name(rewards), weights or {})
    require_number("seconds_per_call", seconds_per_call, 0.01, is_whole=False)
    judges = {base.reward_name(one): one for one in rewards if isinstance(one, judge_model.judge)}
    rewards = [reward for reward in rewards if base.reward_name(reward) not in judges]
    layouts = layouts_of(format or (task.format if isinstance(task, Task) else xml()))
    rows = Rows.take(task, answer, tokenizer) if rewards else Rows([], [], [], [])
    checks = [_Check(Caller(reward, base.reward_name(reward), seconds_per_call), rows, layouts) for reward in rewards]
    findings = [finding for check in checks for finding in check.findings()]
    findings += [finding for one in judges.values() for finding in measured(one)]
    limits = [check.limit for check in checks if check.limit]
    every = [check.seen for check in checks]
    answering = [check.seen for check in checks if not check.is_played]
    if judges:
        limits.append("what judges pay, which would take a thousand calls: gn.checks.agreement measures that")
    elif answering and all(one.is_judged for one in answering):
        gold_columns = {name for name, held in rows.rows[0].items() if str(held).strip() == rows.golds[0]}
        asks = len(rewards) > 1 or bool(gold_columns & {*texts_in(rewards[0])})
        findings += judge_set(answering, by_weight, asks=asks)
    elif answering:
        limits.append("the weighted total: each reward has to be mended first")
    if tokenizer is None and any("completion_ids" in texts_in(reward) for reward in rewards):
        limits.append("token counts: without tokenizer=, rewards that look at completion_ids saw words and marks")
    completions = sum(check.caller.completions for check in checks)
    return RewardReport(
        findings=in_order(findings),
        roles={one.name: one.role if one.is_judged else "not judged" for one in every}
        | dict.fromkeys(judges, "judges"),
        checked=f"Checked {len(rewards)} reward(s) on {len(rows.rows)} rows, {completions:,} completions.",
        limits=tuple(limits),
        weights=by_weight,
        seen=tuple(every),
    )


class _Check:
    """One reward on its way through the check."""

    def __init__(self, caller: Caller, rows: Rows, layouts: Sequence[Layout]) -> None:
        self.caller, self.rows, self.layouts = caller, rows, layouts
        self.seen = Seen(caller.name, layouts[0])
        self.failed: dict[make.Probe, Outcome] = {}
        self.is_played = False

    def findings(self) -> Iterator[Finding]:
        """Find the layout that the reward reads, try everything in that one, and judge it."""
        seen, broken = self.seen, [*check_arguments(self.caller, self.rows.rows[0])]
        if not broken:
            self._try_layouts()
            rows = [*dict.fromkeys([*seen.pairs, *range(len(self.rows.rows))])][:_FEW]
            scored = [p for p in seen.scores if p.layout == seen.layout.name and p not in self.failed]
            pairs = {(p.row, p.kind): p for p in reversed(scored) if p.row in rows}
            broken += check_steadiness(self.caller, self.rows.batch([*pairs.values()])) if pairs else []
        self.is_played = "environments" in texts_in(self.caller.reward)
        seen.is_judged = not broken and not self.is_played and len(self.failed) < len(seen.scores)
        if seen.is_judged:
            self._run(probe for row in rows for probe in self._of_row(row, is_first=row == rows[0]))
            yield from self._try_hostile(rows[0])
            yield from judge(seen, self.layouts)
        yield from [*broken, *self._failures()]

    @property
    def limit(self) -> str:
        """What could not be checked; empty where all was."""
        if self.is_played:
            return f"{self.seen.name}: what it pays an episode, which nobody played here: gn.lab.ByHand(task, row) shows it"
        if not self.seen.is_judged:
            return f"{self.seen.name}: what it pays, for it fails on all completions, or scores one differently"
        if self.caller.is_given_up or any(outcome.is_late for outcome in self.failed.values()):
            return f"{self.seen.name}: some of {self.caller.completions} completions or what follows, as it is slow"
        return ""

    def _try_layouts(self) -> None:
        """Try right and wrong answers in every layout, and see which one the reward reads."""
        own, others = ([one for one in self.layouts if one.is_own is is_own] for is_own in (True, False))
        rows = range(len(self.rows.rows))
        self._try_controls(rows[:_FEW], own)
        # One that is slow says on the first rows what it says.
        if 500 * self.caller.per_completion < self.caller.seconds:
            self._try_controls(rows[_FEW:], own)
        self._try_controls(rows[:_FEW], others)
        take_role(self.seen, self.layouts)

    def _try_controls(self, rows: Iterable[int], layouts: Sequence[Layout]) -> None:
        golds, wrong = self.rows.golds, self.rows.wrong
        self._run(p for row in rows for layout in layouts for p in make.controls(row, layout, golds[row], wrong(row)))

    def _of_row(self, row: int, *, is_first: bool) -> Iterator[make.Probe]:
        rows, layout, gold, bad = self.rows, self.seen.layout, self.rows.golds[row], self.rows.wrong(row)[0]
        kind = "format refused" if self.seen.role == FORM else "right answer refused"
        yield from make.harmless(row, layout, gold, bad, kind)
        yield from make.cheats(row, layout, rows.accepted[row], bad, rows.every_gold, rows.question(row))
        if is_first:
            yield from make.growing(row, layout, gold, bad, phrases_of(self.caller.reward))

    def _run(self, probes: Iterable[make.Probe]) -> None:
        """Try probes that have not been tried, until the reward is given up."""
        probes = [probe for probe in dict.fromkeys(probes) if probe not in self.seen.scores]
        for i, outcome in self.caller.each(self.rows.batch(probes)) if probes else ():
            self.seen.scores[probes[i]] = outcome.scores[0] if outcome.scores else math.nan
            if outcome.scores is None:
                self.failed[probes[i]] = outcome

    def _try_hostile(self, row: int) -> Iterator[Finding]:
        """Each alone; a reward is left after two that took too long."""
        sprung = make.EvalTrap.count
        for probe in make.hostile(row, self.seen.layout, self.rows.golds[row]):
            self._run([probe])
            if make.EvalTrap.count > sprung:
                sprung = math.inf
                yield found("runs the answer as code", self.seen.name, "the answer was evaluated here", [probe.text])

    def _failures(self) -> Iterator[Finding]:
        """What was changed, what hangs, what is raised: each with its shortest completion."""
        caller, name = self.caller, self.seen.name
        if caller.changed:
            what = "after a call its completions or columns are different"
            yield found("changes its inputs", name, what, [caller.changed])
        if caller.late_on is not None:
            # A parser with a limit of its own is slow; what hangs does not end in four times the time either.
            batch = caller.late_on.select([0])
            text = base.completion_text(batch.completions[0])
            if caller.call(batch, 4 * caller.seconds).is_late:
                what = f"a completion of {len(text):,} characters had not ended after {4 * caller.seconds:g} s"
                yield found("hangs", name, what, [text])
        failed = sorted(self.failed.items(), key=lambda item: len(item[0].text))
        for kind, is_unreadable in (("breaks the contract", True), ("raises", False)):
            raised = [(p, o.error) for p, o in failed if not o.is_late and o.is_unreadable is is_unreadable]
            for probe, error in raised[:1]:
                what = f"on {len(raised)} of {len(self.seen.scores)} completions {type(error).__name__}: {error!s:.200}"
                yield found(kind, name, what, [probe.text])
