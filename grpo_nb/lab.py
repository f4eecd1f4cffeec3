"""What the reward lab shows, without the showing: where a reward looked, the prompt, a sampled group, probes on one row.

Plain functions over the user's own rewards and rows, each the code behind one view of `grpo_nb.widgets.RewardLab`. Nothing here
needs torch but `sample_group`.
"""

from __future__ import annotations

import functools
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpo_nb import probes as make
from grpo_nb.checks import read_cases
from grpo_nb.contract import Caller
from grpo_nb.data import Task
from grpo_nb.formats import AnswerFormat, xml
from grpo_nb.probes import Probe
from grpo_nb.probing import TELLS, Results, Role, find_role, is_paid
from grpo_nb.reward_calls import RewardError, RewardFunction, displayable, make_batch, reward_name, shorten
from grpo_nb.rewards.base import Reward, weight_of
from grpo_nb.rewards.compose import _Adaptive, _Clipped, _Combined
from grpo_nb.rewards.format import _Exact, _Incremental, _JsonFormat, _Tags, _ThinkFormat
from grpo_nb.rewards.slot import SlotReward

WHOLE_TEXT = "whole text"
_TRACEBACK_LINES = 8


@dataclass(frozen=True)
class Span:
    """A part of a completion that a reward looked at."""

    start: int
    end: int
    what: str
    """`tag`, `answer slot` or `whole text`."""


def spans(reward: RewardFunction, text: str) -> tuple[Span, ...]:
    """Return the parts of a completion that decide what a reward gives it, in order; none where it found nothing to judge.

    Rewards for the answer look at the slot, those for the form at the tags they count. A function with an attribute `format`
    (an `AnswerFormat`) is taken to look at both. Of every other reward nobody knows, so it is the whole text.

    >>> from grpo_nb.rewards import correctness, minimum_length
    >>> spans(correctness(), "<answer>7</answer>"), spans(correctness(), "7")
    ((Span(start=8, end=9, what='answer slot'),), ())
    >>> spans(minimum_length(5), "so 7")
    (Span(start=0, end=4, what='whole text'),)
    """
    while isinstance(reward, functools.partial):
        reward = reward.func
    if isinstance(reward, (_Clipped, _Adaptive)):
        return spans(reward.inner, text)
    if isinstance(reward, _Combined):
        found = {span for part in reward.rewards for span in spans(part, text)}
        return tuple(sorted(found, key=lambda span: (span.start, span.end)))
    format = getattr(reward, "format", None)
    if isinstance(reward, SlotReward):
        return _slot(format, reward.given(text), text)
    if isinstance(reward, _JsonFormat) and reward.is_in_slot:
        return _slot(format, format.extract_last(text), text)
    if isinstance(reward, (_Tags, _Incremental, _Exact, _ThinkFormat)):
        tags = _tags(format, text)
        if isinstance(reward, _ThinkFormat):
            ours = (format.reasoning_open, format.reasoning_close)
            tags = tuple(tag for tag in tags if text[tag.start : tag.end] in ours)
        if isinstance(reward, _Incremental):
            tags = _in_order(tags)
        return tags
    if isinstance(format, AnswerFormat) and not isinstance(reward, Reward):
        both = (*_tags(format, text), *_slot(format, format.extract(text), text))
        return tuple(sorted(both, key=lambda span: span.start))
    return (Span(0, len(text), WHOLE_TEXT),)


def _slot(format: AnswerFormat, given: str | None, text: str) -> tuple[Span, ...]:
    if given is None:
        return ()
    start = text.find(given, text.find(format.answer_open) + len(format.answer_open))
    return (Span(start, start + len(given), "answer slot"),)


def _tags(format: AnswerFormat, text: str) -> tuple[Span, ...]:
    found = sorted(span for span in format.tag_spans(text) if span is not None)
    return tuple(Span(start, end, "tag") for start, end in found)


def _in_order(tags: Sequence[Span]) -> tuple[Span, ...]:
    kept: list[Span] = []
    for tag in tags:
        if not kept or tag.start >= kept[-1].end:
            kept.append(tag)
    return tuple(kept)


def where(reward: RewardFunction, text: str) -> str:
    """Say in words what `spans` found.

    >>> from grpo_nb.rewards import xml_tags
    >>> where(xml_tags(), "<answer>7</answer>"), where(xml_tags(), "7")
    ('2 tags', 'nothing found')
    """
    found = spans(reward, text)
    if not found:
        return "nothing found"
    count = sum(span.what == "tag" for span in found)
    parts = [f"{count} tag{'s' * (count > 1)}"] if count else []
    parts += [f"answer slot: {shorten(text[s.start : s.end], 60)}" for s in found if s.what == "answer slot"]
    return ", ".join(parts) or WHOLE_TEXT


def prompt_text(row: Mapping[str, Any], tokenizer: Any = None) -> str:
    """Return the prompt of a row as the model sees it; without a tokenizer its turns, one after another.

    >>> prompt_text({"prompt": [{"role": "user", "content": "What is 3 + 4?"}]})
    'user: What is 3 + 4?'
    """
    prompt = row.get("prompt", row.get("question", ""))
    if isinstance(prompt, str):
        return prompt
    if tokenizer is None:
        return "\n".join(f"{turn['role']}: {turn['content']}" for turn in prompt)
    return tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)


def gold_of(row: Mapping[str, Any], column: str = "answer") -> str:
    """Return the gold answer of a row as one line; of several accepted ones the first.

    Raises:
        ValueError: The row has no such column, or nothing in it.
    """
    value = row.get(column)
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    if value is None or not str(value).strip():
        raise ValueError(
            f"the row has no gold answer in the column {column!r}; it has {sorted(row)}. "
            'Name the column: RewardLab(rewards, task, answer="...").'
        )
    return str(value).strip().split("\n", 1)[0]


def example_completions(
    row: Mapping[str, Any], format: AnswerFormat | None = None, answer: str = "answer"
) -> list[str]:
    """Return a right and a wrong completion of a row, in the same words and in the format: something to begin with.

    >>> example_completions({"answer": "7"})[0].count("7")
    1
    """
    gold, format = gold_of(row, answer), format or xml()
    return [make.completion(format, make.PLAIN, given) for given in (gold, make.wrong_answers(gold, [gold], 1)[0])]


def sample_group(
    model: Any,
    tokenizer: Any,
    row: Mapping[str, Any],
    *,
    num_generations: int = 8,
    temperature: float = 1.0,
    max_completion_length: int = 48,
) -> list[str]:
    """Sample a group of completions of one row's prompt, as a training step would.

    Args:
        model: As it is, with its adapter on or off.
        tokenizer: Its tokenizer.
        row: With chat messages in `prompt`.
        num_generations: Size of the group.
        temperature: Above 0; at 0 all completions are the same.
        max_completion_length: In tokens; what is longer is cut.
    """
    from grpo_nb.rollout import generate

    prompt = row.get("prompt")
    if not isinstance(prompt, (list, tuple)):
        raise ValueError("the row has no chat messages in its column 'prompt'; load_task(rows) makes them.")
    group = generate(
        model, tokenizer, [prompt] * num_generations, temperature=temperature, max_completion_length=max_completion_length
    )  # fmt: skip
    return [completion.text for completion in group]


def last_lines(error: BaseException, limit: int = _TRACEBACK_LINES) -> str:
    """Return the end of an error's traceback: of a reward's failure that of the reward itself."""
    if isinstance(error, RewardError) and error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    # The kit's own calls around a reward tell its author nothing, unless there is nothing else.
    theirs = [frame for frame in frames if not Path(frame.filename).is_relative_to(Path(__file__).parent)]
    lines = "".join([*traceback.format_list(theirs or frames), *traceback.format_exception_only(error)]).splitlines()
    # Python's underlines would take half of the few lines that are shown.
    lines = [line for line in lines if set(line) - set(" ^~")]
    return displayable("\n".join(lines[-limit:]))


Expectation = Literal["pay", "refuse"]


@dataclass(frozen=True, kw_only=True)
class ProbeLine:
    """One probe on the row: what it tries, what every reward gave, and the verdict."""

    probe: Probe
    expected: Expectation
    """Whether a reward for the answer has to pay it like the right answer, or must not."""
    scores: Mapping[str, float]
    """By reward, unweighted; NaN where it gave none."""
    total: float
    verdict: str
    """`pass`, `fail: ...`, `note: ...`, or `not judged`."""


@dataclass(frozen=True, kw_only=True)
class ProbeTable:
    """All probes on one row, failures first."""

    lines: tuple[ProbeLine, ...]
    weights: Mapping[str, float]
    telling: tuple[str, ...]
    """The rewards that give the right answer more than a wrong one in the same words and format."""
    stopped: tuple[str, ...] = ()
    """Rewards with two calls over the time limit, on which the other probes were not tried."""

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        if not self.telling:
            return "No reward here tells the right answer from a wrong one on this row, so there is nothing to cheat."
        failed = sum(line.verdict.startswith("fail") for line in self.lines)
        cheats = sum(line.expected == "refuse" for line in self.lines)
        said = f"{len(self.lines) - cheats} forms of the right answer and {cheats} ways to cheat"
        slow = f" Stopped for taking too long: {', '.join(self.stopped)}." if self.stopped else ""
        return (f"FAIL: {failed} of {said} went wrong." if failed else f"PASS: {said}, none went wrong.") + slow

    def __repr__(self) -> str:
        lines = [f"{line.verdict:30} {line.total:8.4g}  {line.probe.kind}" for line in self.lines]
        return "\n".join([self.summary, *lines])


def probe_row(
    rewards: Sequence[RewardFunction],
    row: Mapping[str, Any],
    *,
    format: AnswerFormat | None = None,
    answer: str = "answer",
    weights: Mapping[str, float] | None = None,
    tokenizer: Any = None,
    seconds_per_call: float = 2.0,
) -> ProbeTable:
    """Try the rewards on one row with right answers in harmless forms and with the known ways to cheat.

    What `check_rewards` does on several rows, one completion a line, so that one can look at it. Hostile texts are left to
    `check_rewards`.

    Raises:
        ValueError: The row has no gold answer.

    >>> from grpo_nb.rewards import correctness
    >>> probe_row([correctness()], {"question": "What is 20 + 3?", "answer": "23"}).summary
    'PASS: 10 forms of the right answer and 26 ways to cheat, none went wrong.'
    """
    format, gold = format or xml(), gold_of(row, answer)
    wrong = make.wrong_answers(gold, [gold])
    question = str(row.get("question") or "")
    controls = make.controls(0, format, gold, wrong)
    pays = [p for p in controls if p.kind == "right"] + make.harmless(0, format, gold, wrong)
    cheats = [p for p in controls if p.kind == "wrong"][:1]
    cheats += make.cheats(0, format, gold, wrong, [gold], prompt_text(row), question)
    probes = list(dict.fromkeys([*controls, *pays, *cheats]))
    batch = make_batch(
        [p.text for p in probes], row, tokenizer=tokenizer, prompts=[row.get("prompt", question)] * len(probes)
    )
    seen: dict[str, tuple[Results, Role]] = {}
    stopped = []
    for reward in rewards:
        caller = Caller(reward, seconds_per_call)
        results = Results([(probes[i], outcome) for i, outcome in caller.each(batch)])
        seen[caller.name] = (results, find_role(results, [0]))
        stopped += [caller.name] if caller.is_given_up else []
    by_weight = {reward_name(reward): weight_of(reward) for reward in rewards} | dict(weights or {})
    telling = {name: role for name, (_, role) in seen.items() if role.kind == TELLS}
    lines = []
    for expected, group in (("pay", pays), ("refuse", cheats)):
        for probe in dict.fromkeys(group):
            outcomes = {name: dict(results.outcomes).get(probe) for name, (results, _) in seen.items()}
            scores = {name: o.scores[0] if o and o.scores else math.nan for name, o in outcomes.items()}
            errors = {name: o.error for name, o in outcomes.items() if o and o.error}
            known = [by_weight[name] * score for name, score in scores.items() if not math.isnan(score)]
            total = sum(known) if known and not errors else math.nan
            verdict = _verdict(expected, probe, scores, errors, telling)
            lines.append(ProbeLine(probe=probe, expected=expected, scores=scores, total=total, verdict=verdict))
    order = {"fail": 0, "note": 1}
    lines.sort(key=lambda line: order.get(line.verdict[:4], 2))
    return ProbeTable(lines=tuple(lines), weights=by_weight, telling=tuple(telling), stopped=tuple(stopped))


def _verdict(
    expected: str,
    probe: Probe,
    scores: Mapping[str, float],
    errors: Mapping[str, Exception],
    telling: Mapping[str, Role],
) -> str:
    if errors:
        name, error = next(iter(errors.items()))
        return f"fail: {name} raised {type(error).__name__}: {shorten(str(error), 120)}"
    judged = {name: is_paid(role, probe, scores[name]) for name, role in telling.items()}
    if not judged:
        return "not judged"
    wrong = [name for name, paid in judged.items() if paid != (expected == "pay")]
    if not wrong:
        return "pass"
    # A reward may be strict about how a number is written, as check_rewards grants it too.
    grade = "note" if probe.kind == "number form" else "fail"
    return f"{grade}: {'refused' if expected == 'pay' else 'paid like the right answer'} by {', '.join(wrong)}"


def case_lines(path: Any) -> list[dict[str, Any]]:
    """Return the cases kept in a file, none where it is not there yet."""
    try:
        return read_cases(path)
    except FileNotFoundError:
        return []


def rows_of(task: Task | Sequence[Mapping[str, Any]]) -> Any:
    """Return the training rows of a task, or the rows given.

    Raises:
        ValueError: There are none.
    """
    rows = task.train if isinstance(task, Task) else task
    if not len(rows):
        raise ValueError("the task has no rows: the lab scores completions of a row, so it needs at least one.")
    return rows
