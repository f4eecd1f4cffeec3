"""Try reward functions on the user's own rows before any training: the contract with TRL, and what a model could cheat.

`check_rewards` needs no model. It calls the functions for real, with hundreds of completions of `grpo_nb.checks.probes`. First
it finds the layout that a reward reads, then it tries everything in that one. Not covered: reward models that only a real
completion would upset, and code that is to be run.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from grpo_nb.checks import probes as make
from grpo_nb.checks.calls import Caller, Outcome, check_arguments, check_steadiness
from grpo_nb.checks.judge import ANSWER, FORM, Seen, judge, judge_set, take_role
from grpo_nb.checks.kinds import found
from grpo_nb.checks.layouts import PLAIN, Layout, layouts_of
from grpo_nb.checks.phrases import phrases_of, texts_in
from grpo_nb.checks.probes import EvalTrap, Probe
from grpo_nb.checks.report import RewardReport, in_order
from grpo_nb.checks.rows import Rows
from grpo_nb.core.words import excerpt, require_number
from grpo_nb.rewards.base import (
    RewardFunction,
    changed_weights,
    completion_text,
    reward_list,
    reward_name,
    weights_by_name,
)
from grpo_nb.tasks.formats import AnswerFormat, xml
from grpo_nb.tasks.task import Task

_FEW = 4
"""Rows that every reward is tried on, however slow, and those for cheats, harmless forms and layouts of other prompts."""


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
    rewards = reward_list(rewards)
    by_weight = changed_weights(weights_by_name(rewards), {} if weights is None else weights)
    require_number("seconds_per_call", seconds_per_call, 0.01, is_whole=False)
    layouts = layouts_of(format or (task.format if isinstance(task, Task) else xml()))
    rows = Rows.take(task, answer, tokenizer)
    checks = [_Check(Caller(reward, reward_name(reward), seconds_per_call), rows, layouts) for reward in rewards]
    for check in checks:
        check.find_layout()
    every = [check.seen for check in checks]
    of_set = next((one.layout for one in every if one.role == ANSWER and one.layout.is_own), layouts[0])
    for check in checks:
        check.try_everything(of_set)
    findings, limits = ([one for check in checks for one in getattr(check, what)] for what in ("findings", "limits"))
    if all(one.is_judged for one in every):
        gold_columns = {name for name, held in rows.rows[0].items() if str(held).strip() == rows.golds[0]}
        asks = len(rewards) > 1 or bool(gold_columns & {*texts_in(rewards[0])})
        findings += judge_set(every, by_weight, of_set, asks=asks)
    else:
        limits.append("the weighted total: each reward has to be mended first")
    if tokenizer is None and any("completion_ids" in texts_in(reward) for reward in rewards):
        limits.append("token counts: without tokenizer=, rewards that look at completion_ids saw words and marks")
    completions = sum(check.caller.completions for check in checks)
    return RewardReport(
        findings=in_order(findings),
        roles={one.name: one.role if one.is_judged else "not judged" for one in every},
        checked=f"Checked {len(rewards)} reward(s) on {len(rows.rows)} rows, {completions:,} completions.",
        limits=tuple(limits),
        weights=by_weight,
        seen=tuple(every),
    )


class _Check:
    """One reward on its way through the check."""

    def __init__(self, caller: Caller, rows: Rows, layouts: Sequence[Layout]) -> None:
        self.caller, self.rows, self.layouts = caller, rows, layouts
        self.seen, self.findings, self.limits = Seen(caller.name), [], []
        self.failed: dict[Probe, Outcome] = {}

    def find_layout(self) -> None:
        """Try right and wrong answers in every layout, and see which one the reward reads."""
        columns = [name for name in self.rows.rows[0] if name not in ("prompt", "completion", "completion_ids")]
        self.findings += check_arguments(self.caller, columns)
        if self.findings:
            self._leave("it cannot be called")
            return
        numbers = range(len(self.rows.rows))
        own, others = ([one for one in self.layouts if one.is_own is is_own] for is_own in (True, False))
        self._run(probe for row in numbers[:_FEW] for probe in self._controls(row, own))
        more = [probe for row in numbers[_FEW:] for probe in self._controls(row, own)]
        # One that is slow says on the first rows what it says.
        if len(more) * self.caller.per_completion < 0.5 * self.caller.seconds:
            self._run(more)
        scored = [row for row in numbers if not math.isnan(self.seen.best("right", row))] or numbers
        self._run(probe for row in scored[:_FEW] for probe in self._controls(row, others))
        take_role(self.seen, self.layouts)

    def try_everything(self, of_set: Layout) -> None:
        """Try the rest in the layout that the reward reads, and judge it; what the set needs, in that of the set too."""
        seen = self.seen
        if not seen.is_judged:
            return
        seen.layout = seen.layout or of_set
        rows = list(dict.fromkeys([*seen.pairs, *range(len(self.rows.rows))]))[:_FEW]
        pairs = self._pairs(rows)
        self.findings += check_steadiness(self.caller, self.rows.batch(pairs)) if pairs else []
        if self.findings or len(self.failed) == len(seen.scores):
            self._leave("what it pays, for it fails on every completion, or scores the same one differently")
        else:
            for layout in dict.fromkeys((seen.layout, of_set)):
                self._run(probe for row in rows for probe in self._of_row(row, layout, is_first=row == rows[0]))
            self._try_hostile(rows[0])
            self.findings += judge(seen, self.layouts)
        self._say_failures()

    def _pairs(self, rows: Iterable[int]) -> list[Probe]:
        """A right completion and a wrong one of each row."""
        scored = [p for p in self.seen.scores if p.layout == self.seen.layout.name and p not in self.failed]
        first = {(p.row, p.kind): p for p in reversed(scored)}
        return [first[row, kind] for row in rows for kind in ("right", "wrong") if (row, kind) in first]

    def _controls(self, row: int, layouts: Sequence[Layout]) -> Iterator[Probe]:
        yield Probe("prose", PLAIN, row, "control")
        for layout in layouts:
            yield from make.controls(row, layout, self.rows.golds[row], self.rows.wrong(row))

    def _of_row(self, row: int, layout: Layout, *, is_first: bool) -> Iterator[Probe]:
        rows, gold, bad = self.rows, self.rows.golds[row], self.rows.wrong(row)[0]
        yield from make.harmless(
            row, layout, gold, bad, "format refused" if self.seen.role == FORM else "right answer refused"
        )
        right = {layout.write(PLAIN, answer) for answer in rows.accepted[row]}
        cheats = make.cheats(row, layout, gold, bad, rows.every_gold, rows.question(row))
        yield from (probe for probe in cheats if probe.text not in right)
        if is_first:
            yield from make.growing(row, layout, gold, bad, phrases_of(self.caller.reward))

    def _run(self, probes: Iterable[Probe]) -> None:
        """Try probes that have not been tried, until the reward is given up."""
        probes = [probe for probe in dict.fromkeys(probes) if probe not in self.seen.scores]
        for i, outcome in self.caller.each(self.rows.batch(probes)) if probes else ():
            self.seen.scores[probes[i]] = outcome.scores[0] if outcome.scores else math.nan
            if outcome.scores is None:
                self.failed[probes[i]] = outcome

    def _try_hostile(self, row: int) -> None:
        """Each alone; a reward is left after two that took too long."""
        sprung = EvalTrap.count
        for probe in make.hostile(row, self.seen.layout, self.rows.golds[row]):
            self._run([probe])
            if EvalTrap.count > sprung:
                sprung = math.inf
                self._find("runs the answer as code", "an expression in the answer was evaluated here", probe.text)

    def _say_failures(self) -> None:
        """What was changed, what hangs, what is raised: each with its shortest completion."""
        caller, failed = self.caller, sorted(self.failed.items(), key=lambda item: len(item[0].text))
        if caller.changed:
            self._find("changes its inputs", "after a call its completions or columns are different", caller.changed)
        if caller.late_on is not None:
            # A parser with a limit of its own is slow; what hangs does not end in four times the time either.
            batch = caller.late_on.select([0])
            again, text = caller.call(batch, 4 * caller.seconds), completion_text(batch.completions[0])
            if again.is_late:
                what = f"a completion of {len(text):,} characters had not ended after {4 * caller.seconds:g} s"
                self._find("hangs", what, text)
            elif len(caller.late_on) == 1:
                self.limits.append(f"{caller.name}: all hostile text; {again.seconds:.1f} s took {excerpt(text, 80)}")
        if caller.is_given_up:
            self.limits.append(f"{caller.name}: what follows {caller.completions} completions, for it is slow")
        for kind, is_unreadable in (("breaks the contract", True), ("raises", False)):
            raised = [(p, o.error) for p, o in failed if not o.is_late and o.is_unreadable is is_unreadable]
            for probe, error in raised[:1]:
                what = f"{type(error).__name__}: {error!s:.200}"
                self._find(kind, f"on {len(raised)} of {len(self.seen.scores)} completions {what}", probe.text)

    def _find(self, kind: str, what: str, text: str) -> None:
        self.findings.append(found(kind, self.caller.name, what, [text]))

    def _leave(self, why: str) -> None:
        self.seen.is_judged = False
        self.limits.append(f"{self.caller.name}: {why}")
