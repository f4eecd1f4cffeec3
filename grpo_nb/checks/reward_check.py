"""Try reward functions before training, and report what fails and what a model could exploit.

The flow in five steps:

1. `rows.py` chooses rows of the task; `probes.py` writes completions to try for them.
2. `calls.py` calls the reward with these as TRL does, and checks that the calls work.
3. `roles.py` finds what the reward follows: right answers, the format, or neither.
4. `faults.py` finds unexpected scores, and a weighted total that does not teach right answers.
5. `report.py` shows the findings. Their kinds are in `finding_kinds.toml`.

No model is needed. Not covered: faults that appear only in completions written by a model. A reward
that runs code is tried too, but no probe is a program that solves its task.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.checks import calls, faults, probes, roles
from grpo_nb.checks.calls import ProbeRunner
from grpo_nb.checks.faults import TriedReward
from grpo_nb.checks.judge_agreement import find_unfit_judges
from grpo_nb.checks.probes import Layout, Probe, list_layouts
from grpo_nb.checks.report import WORST_FIRST, Finding, RewardReport
from grpo_nb.checks.reward_code import judges_in, phrases_in, texts_in
from grpo_nb.checks.rows import RowSample, choose_rows
from grpo_nb.core.words import require_number
from grpo_nb.rewards import base
from grpo_nb.scoring.scores import restoring_reward_states
from grpo_nb.tasks.formats import AnswerFormat, xml
from grpo_nb.tasks.task import Task

CALLS_JUDGE = "calls a judge"
"""Role of a reward that calls a judge. The check does not call such a reward."""

UNKNOWN = "unknown"
"""Role of a reward without scores that show what it follows."""


@dataclass(frozen=True)
class RewardResult:
    """Result of trying one reward."""

    name: str
    role: str
    findings: Sequence[Finding]
    not_checked: str
    """Part of the check that was not possible, with the reason. Empty if nothing was left out."""
    completion_count: int = 0
    """Number of completions with which the reward was called."""
    tried: TriedReward | None = None
    """The reward with its scores, or None if they do not show what it adds to the total."""


def check_rewards(
    rewards: base.RewardFunction | Sequence[base.RewardFunction],
    task: Task | Iterable[Mapping[str, Any]],
    *,
    format: AnswerFormat | None = None,
    answer: str | Callable[[Mapping[str, Any]], str] = "answer",
    tokenizer: Any = None,
    seconds_per_call: float = 2.0,
) -> RewardReport:
    """Report what is wrong with reward functions, what it does to training, and the fix.

    Each reward is called with about a thousand completions. A judge, or a reward that calls a
    judge, is not called, because each call may cost money. A call is stopped on the main thread
    only, and not inside one long call of C code.

    Args:
        rewards: One or more functions with TRL's signature.
        task: A `Task`, or rows (a list of dicts, a `datasets.Dataset`) with `prompt` or `question`,
            and an answer.
        format: Format of the answer. Default: that of the `Task`, or `xml()` for rows.
        answer: Column with the gold answer of rows or of a `Task`. Or a function from a row to a
            right answer, for tasks with many right answers, such as Countdown.
        tokenizer: For rewards that count tokens. Without it, words are counted.
        seconds_per_call: Usual time of a call. A call is stopped after four times this long, and
            the reward is left after ten times this long in total.

    Raises:
        ValueError, TypeError: An argument is invalid: no rewards, two rewards of one name, no rows,
            rows without gold answers, or a value out of range. No reward has been called then.
        Exception: Any error of a reward's `state_dict` or `load_state_dict`.

    >>> from grpo_nb.rewards import correctness, exact_format
    >>> rows = [{"question": f"What is {a} + 3?", "answer": str(a + 3)} for a in range(20, 26)]
    >>> check_rewards([correctness(), exact_format()], rows).ok
    True
    """
    rewards = base.reward_list(rewards)
    weights = base.weights_by_name(rewards)
    require_number("seconds_per_call", seconds_per_call, 0.01)
    layouts = list_layouts(format or (task.format if isinstance(task, Task) else xml()))

    # Judges are not called, so they need no gold answers.
    needs_rows = not all(map(judges_in, rewards))
    row_sample = choose_rows(task, answer, tokenizer) if needs_rows else None
    # A reward that remembers completions must not remember the probes.
    with restoring_reward_states(rewards):
        results = [_try_reward(reward, row_sample, layouts, seconds_per_call) for reward in rewards]
    findings = []
    for result in results:
        findings += sorted(result.findings, key=lambda one: WORST_FIRST.index(one.severity))
    not_checked = [
        f"{result.name}: {result.not_checked}" for result in results if result.not_checked
    ]

    # The weighted total is what the model learns from.
    tried_rewards = [result.tried for result in results]
    findings_of_total = None
    if None not in tried_rewards:
        findings_of_total = faults.find_faults_of_total(tried_rewards, weights)
    if findings_of_total is None:
        not_checked.append("the weighted total, because the scores of a reward are not known")
    else:
        findings += findings_of_total

    checked = ""
    counts = [result.completion_count for result in results if result.completion_count]
    if counts:
        checked = (
            f"Checked {len(counts)} reward(s) on {len(row_sample.rows)} rows, {sum(counts):,} "
            "completions."
        )
    return RewardReport(
        findings=tuple(findings),
        roles={result.name: result.role for result in results},
        checked=checked,
        not_checked=tuple(not_checked),
    )


def _try_reward(
    reward: base.RewardFunction,
    row_sample: RowSample | None,
    layouts: Sequence[Layout],
    seconds_per_call: float,
) -> RewardResult:
    """Try one reward: call it with a few probes, and with all others if the calls work."""
    name = base.reward_name(reward)
    if judges := judges_in(reward):
        reason = (
            "this would call a judge about 1,000 times, which may cost money. Measure the judge "
            "with gn.checks.agreement"
        )
        return RewardResult(name, CALLS_JUDGE, find_unfit_judges(judges, name), reason)

    # Can the reward be called?
    runner = ProbeRunner(reward, row_sample, seconds_per_call)
    findings = calls.find_signature_fault(runner)
    if base.is_relative(reward):
        reason = "it ranks the completions of a group, so single completions show nothing"
        return RewardResult(name, UNKNOWN, findings, reason)
    layout = layouts[0]
    if not findings:
        layout = _try_controls(runner, layouts)
        in_layout = [probe for probe in runner.scores if probe.layout == layout.name]
        # Two right answers, because a reward may allow only one in a group.
        right_probes = [probe for probe in in_layout if probe.category == "right"]
        wrong_probes = [probe for probe in in_layout if probe.category == "wrong"]
        findings = calls.find_inconsistency(runner, [*right_probes[:2], *wrong_probes[-1:]])

    # Do its scores show what it follows?
    code_texts = set(texts_in(reward))
    has_scores = {"right", "wrong"} <= {probe.category for probe in runner.scores}
    reason = ""
    if "environments" in code_texts:
        reason = "it scores episodes. Run one by hand with gn.lab.ManualEpisode(task, row_number)"
    elif findings or not has_scores:
        reason = "its scores, because it breaks the contract, fails or is inconsistent"
    if reason:
        findings += calls.find_failures(runner)
        return RewardResult(name, UNKNOWN, findings, reason, runner.completion_count)
    return _try_all_probes(runner, layouts, layout, code_texts)


def _try_controls(runner: ProbeRunner, layouts: Sequence[Layout]) -> Layout:
    """Try right and wrong answers of a few rows, and return the layout that the reward reads."""
    # If the reward reads no answers in the first layout, it may read those of another layout.
    for tried_layouts in (layouts[:1], layouts):
        runner.run(probes.write_controls(runner.row_sample.first_rows, tried_layouts))
        role = roles.find_role(runner.table(), layouts)
        if role.name == roles.FOLLOWS_ANSWER:
            break
    return role.layout


def _try_all_probes(
    runner: ProbeRunner, layouts: Sequence[Layout], layout: Layout, code_texts: set[str]
) -> RewardResult:
    """Try all other probes on a reward whose calls work, and find its faults.

    Args:
        runner: The runner that has called the reward with the controls of a few rows.
        layouts: All layouts, the task's own first.
        layout: Layout that the reward reads.
        code_texts: Texts in the code of the reward.
    """
    row_sample = runner.row_sample
    runner.run(_write_other_probes(runner, layout))
    # The other rows come last, so that a slow reward is tried with loopholes first.
    runner.run(probes.write_controls(row_sample.rows, layouts))
    table = runner.table()
    role = roles.find_role(table, [layout])
    parameters = inspect.signature(runner.reward).parameters
    tried = TriedReward(
        name=runner.name,
        role=role,
        scored_probes=faults.with_relative_scores(table, role),
        has_gold_parameter=callable(row_sample.answer) or row_sample.answer in parameters,
    )
    findings = [
        # Scores are compared again, because state may show only after hundreds of calls.
        *calls.find_inconsistency(runner, [*runner.scores][:2]),
        *calls.find_failures(runner),
        *faults.find_constant(tried),
        *faults.find_lost_rows(tried),
        *faults.find_other_layout(tried, prompt_layout=layouts[0]),
        *faults.find_unexpected_scores(tried),
        *faults.find_endless_growth(tried),
    ]

    # Report what could not be tried.
    not_checked = ""
    if runner.is_too_slow_or_hung:
        not_checked = (
            "some probes, because it is slow or hung; tried with "
            f"{runner.completion_count} completions"
        )
    elif "completion_ids" in code_texts and row_sample.tokenizer is None:
        not_checked = "token counts: without tokenizer=, it saw words"
    # If a slow reward follows nothing so far, other probes might still show what it follows.
    is_role_uncertain = runner.is_too_slow_or_hung and role.name == roles.FOLLOWS_NEITHER
    return RewardResult(
        name=runner.name,
        role=role.name,
        findings=findings,
        not_checked=not_checked,
        completion_count=runner.completion_count,
        tried=None if is_role_uncertain else tried,
    )


def _write_other_probes(runner: ProbeRunner, layout: Layout) -> list[Probe]:
    """Write harmless changes and loopholes for a few rows, and other probes for the first row."""
    row_sample = runner.row_sample
    other_probes = []
    for row in row_sample.first_rows:
        other_probes += probes.write_harmless(row, layout)
        loopholes = probes.write_loopholes(row, layout, row_sample.all_golds)
        # A row may have right answers that the function does not return. Without a slot, the whole
        # text is the answer, so only an empty text is surely wrong.
        if callable(row_sample.answer) and not layout.has_slot:
            loopholes = [probe for probe in loopholes if not probe.text.strip()]
        other_probes += loopholes
    first_row = row_sample.rows[0]
    phrases = phrases_in(runner.reward)
    other_probes += probes.write_growth(first_row, layout, phrases)
    other_probes += probes.write_wordy_loopholes(first_row, layout, phrases)
    other_probes += probes.write_hostile(first_row, layout)
    return other_probes
