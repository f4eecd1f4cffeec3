"""All that `check_rewards` can find: how bad each kind is, what it does to a training, and what mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from grpo_nb.core.words import displayable, excerpt

Severity = Literal["note", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "note")
WHOLE_SET = "all rewards together"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong or worth knowing, with the shortest completion that shows it."""

    severity: Severity
    """`critical`: the training fails or learns the wrong thing. `warning`: it learns less well. `note`: good to know."""
    reward: str
    kind: str
    """A short name for the kind of finding, such as `several answers` or `prints`; for code, which should not read prose."""
    what: str
    example: str = ""
    effect: str = ""
    fix: str = ""

    def __repr__(self) -> str:
        example = f"\n    example: {self.example}" if self.example else ""
        return displayable(
            f"{self.severity}: {self.reward}: {self.kind}: {self.what}{example}"
            f"\n    in training: {self.effect}\n    fix: {self.fix}"
        )


def found(key: str, reward: str, what: str, tried: Sequence[str] = (), **changed: Any) -> Finding:
    """Return a finding of the catalogue.

    Args:
        key: Its entry in the catalogue; the kind is what stands before the bracket.
        reward: The name of the reward, or `WHOLE_SET`.
        what: What was seen, with its numbers.
        tried: Completions that show it; the shortest is the example.
        changed: Fields that are other than in the catalogue.
    """
    known = CATALOGUE[key]
    example = excerpt(min(tried, key=len)) if tried else ""
    fields = {"kind": key.partition(" (")[0], **known._asdict(), **changed}
    return Finding(reward=reward, what=what, example=example, **fields)


class Kind(NamedTuple):
    """What is always said of a kind of finding; where a part depends on what was seen, it is empty here."""

    severity: Severity
    effect: str
    fix: str


_STOPS = "the training stops at its first step"
_NO_CALL = f"every call fails, {_STOPS}"
_LEARNT = "the model learns this instead of the task"
_PUNISHED = "the model is punished for being right"
_REPEATS = "nested repeats such as (a+)+ or (.*)* in a regular expression? Bound them, or limit the time of a parser"
COMPUTES = (
    "it computes or runs what is written: limit the time of that from outside, as gn.rewards.maths and code_tests do"
)
_SLOW = "one such completion stops the training, or makes every step that has one as slow"
_PARSING = "catch what your parsing can raise, by name, and return 0.0"
_OPINION = "return None where there is no opinion, 0.0 where the completion earned nothing"
_ONE_FORMAT = "give task and reward the same format"
_AT_END = "use \\s* at the end, or strip the completion"
_IN_SLOT = "take the answer from its slot alone"

# By kind, and in brackets its variant.
CATALOGUE: dict[str, Kind] = {
    # How it is called, and whether that changes anything.
    "argument nobody passes": Kind(
        "critical", _NO_CALL, "rename the argument, or add a column of that name to the data"
    ),
    "argument nobody passes (optional)": Kind(
        "warning", "the reward never sees what it waits for", "rename the argument"
    ),
    "arguments refused": Kind("critical", _NO_CALL, "end its signature with **kwargs"),
    "cannot be read": Kind("critical", _STOPS, "return a list of one float (or None) per completion"),
    "wrong shape": Kind(
        "critical",
        "it never sees the text that it looks for",
        "text = gn.rewards.completion_text(completion) is right for both",
    ),
    "fails on a batch": Kind(
        "critical",
        _STOPS,
        "a trainer hands it whole batches: score each completion for itself, also equal ones, as many as came in",
    ),
    "too slow to check": Kind("critical", _STOPS, "make it faster; a hung call stops the training for ever"),
    "not checked to the end": Kind("warning", "nobody knows what it pays and what stops it", ""),
    "changes its inputs": Kind(
        "critical",
        "the next reward and the log see the changed text, so scores depend on the order of the rewards",
        "work on a copy: text = completion[0]['content'], never assign into completions or columns",
    ),
    "prints": Kind(
        "note",
        "thousands of lines in the notebook, which then becomes slow",
        "use log_extra or look at the completions log",
    ),
    "not repeatable": Kind(
        "warning",
        "the difference is noise in every advantage, or a memory of earlier calls that nobody asked for",
        "no random numbers and no globals that calls change; seed from the text if a draw is needed",
    ),
    "depends on the order": Kind(
        "critical",
        "a completion is paid for its place in the batch, or for another one's answer",
        "pair each completion with its own row: zip(completions, answer, strict=True), never answer[0]",
    ),
    "depends on neighbours": Kind(
        "warning",
        "the score depends on what else is in the batch, which changes with batch size and processes",
        "score each completion for itself, unless comparing within a group is what you want",
    ),
    # What it returns.
    "NaN score": Kind("warning", "TRL leaves the completion out of the sum, as if it had not been judged", _OPINION),
    "infinite score": Kind("critical", "advantages of the whole group become 0 or NaN", _OPINION),
    "no score": Kind(
        "critical", "it never counts", "look at what makes it return None: mostly a column it cannot read"
    ),
    "constant": Kind(
        "warning",
        "no influence on any advantage: it is dead weight, or it looks for what your data never has",
        "try it on one completion that it must pay, in the exact form of your prompt",
    ),
    "constant (of a row)": Kind(
        "warning",
        "no influence on any advantage: a group is the completions of one row",
        "return a score that depends on the completion, beside the columns",
    ),
    "rows without score (answers)": Kind(
        "critical",
        "from these rows the model learns form at best",
        "take gn.rewards.rewards_for(task)",
    ),
    "rows without score": Kind("note", "these rows are not judged by it", "look at what it reads of these rows"),
    # Hostile text.
    "raises": Kind("critical", "one such completion stops the training", _PARSING),
    "raises (never in training)": Kind("note", "none in training: no model writes this", _PARSING),
    "hangs": Kind("critical", _SLOW, _REPEATS),
    "slow on hostile text (stopped)": Kind("warning", _SLOW, _REPEATS),
    "slow on hostile text": Kind("warning", "every step that has one is as slow", "limit its time"),
    "slow on hostile text (own limit)": Kind(
        "note",
        "every step with such code waits that long",
        "nothing, or less time: code_tests(limits=gn.sandbox.Limits(cpu_seconds=1))",
    ),
    "slow on very long text": Kind(
        "note", "none while completions are cut at max_completion_length", "nothing, or a length limit at its start"
    ),
    "runs the answer as code": Kind(
        "critical",
        "whatever the model writes is run with your rights: it can set its own score, or delete your files",
        "ast.literal_eval or json.loads in place of eval; gn.rewards for code runs it in the sandbox",
    ),
    # The right answer, by the form in which it is refused.
    "right answer refused": Kind(
        "critical", "these rows teach that being right does not pay", "look at how it reads these gold answers"
    ),
    "answer not listed": Kind("critical", _PUNISHED, ""),
    "right answer refused (right)": Kind(
        "critical", _PUNISHED, "take line breaks between the tags: \\s* and re.DOTALL"
    ),
    "right answer refused (right, newline wanted)": Kind("warning", "models stop after the last tag", _AT_END),
    "right answer refused (right, newline)": Kind("warning", _PUNISHED, _AT_END),
    "right answer refused (right, one line)": Kind("warning", _PUNISHED, "use \\s* where you ask for a line break"),
    "right answer refused (lines)": Kind("critical", _PUNISHED, "add re.DOTALL to its regular expressions"),
    "right answer refused (unicode)": Kind("critical", _PUNISHED, "do not restrict what the reasoning may hold"),
    "right answer refused (other number)": Kind("critical", _PUNISHED, _IN_SLOT),
    "right answer refused (gold in reasoning)": Kind("critical", _PUNISHED, _IN_SLOT),
    "right answer refused (white space)": Kind("warning", _PUNISHED, "strip the answer before comparing"),
    "right answer refused (number form)": Kind(
        "note",
        "a strict reward, if you mean it",
        "compare as numbers, unless they are names or the form is what you teach",
    ),
    # What is paid though it is not right.
    "wrong answer paid": Kind("critical", _LEARNT, "look at what it takes for right on these rows"),
    "several answers": Kind(
        "critical", _LEARNT, "pay the whole slot for being the gold answer, not for what it holds of it"
    ),
    "contains the answer": Kind(
        "critical", _LEARNT, "compare for equality, as numbers where they are numbers; not with `in`"
    ),
    "answer outside the slot": Kind("critical", _LEARNT, _IN_SLOT),
    "retracted": Kind("critical", _LEARNT, "refuse completions with more than one answer slot"),
    "paid for nothing": Kind("critical", _LEARNT, "no answer found must be 0.0"),
    "judge persuaded": Kind("critical", _LEARNT, "show a judge the answer slot alone, or compare with the gold answer"),
    "length pays": Kind("critical", _LEARNT, "bound what length can add, well below what being right adds"),
    "near miss": Kind("critical", _LEARNT, "compare the whole answer exactly, or state the tolerance"),
    "other numbers": Kind(
        "critical", _LEARNT, "check that the answer uses the numbers of its row, and each as often as given"
    ),
    "phrase pays": Kind("critical", _LEARNT, "pay words only beside the right answer, or in a reward of small weight"),
    "part credit": Kind(
        "warning",
        "the sure part is learnt before the rest: to name every candidate",
        "pay parts for what leads to the answer, never for naming it elsewhere or among others",
    ),
    "pays by likeness": Kind(
        "note",
        "near answers earn a part, and are learnt before right ones",
        "nothing, or a small weight beside an exact reward such as gn.rewards.exact_text()",
    ),
    "pays by likeness (hedges)": Kind("warning", "naming two answers earns more than choosing one", ""),
    "pays by likeness (floor)": Kind("warning", "any answer earns most of it: right and wrong differ by little", ""),
    "upside down": Kind(
        "critical", "the model learns to be wrong", "turn the comparison round, or the sign of its weight"
    ),
    # Form.
    "another format": Kind("critical", "being right is never paid in the format that the prompt asks for", _ONE_FORMAT),
    "another format (whole text)": Kind(
        "critical",
        "being right is paid little in the format that the prompt asks for, and the model learns to leave it",
        'text = task.format.extract_last(gn.rewards.completion_text(completion)) or ""; or another format for the task',
    ),
    "another format (form)": Kind(
        "warning",
        "the model is drawn to a format that the prompt does not ask for, or never sees this reward",
        _ONE_FORMAT,
    ),
    "lenient": Kind(
        "note",
        "none where another reward asks for more",
        "match the whole completion, each tag once, if you want it strict",
    ),
    "repetition pays": Kind(
        "warning",
        "the model repeats it up to max_completion_length",
        "count each once, or up to a maximum: min(1.0, ...)",
    ),
    "grows with length": Kind("note", "completions grow up to max_completion_length", "a target or a maximum instead"),
    # All rewards together.
    "same name twice": Kind("critical", "TRL logs the mean of both under one name: no curve shows either", ""),
    "column name taken": Kind("critical", "every reward call fails: an argument is given twice", "rename the columns"),
    "nothing tells right from wrong": Kind(
        "critical",
        "the model learns form at best; accuracy does not move but by luck",
        "add a reward for the answer: gn.rewards.correctness(), code_tests() or another",
    ),
    "wrong pays as much as right": Kind(
        "critical", "the model is not drawn to right answers", "look at the weights and their signs"
    ),
    "beats the right answer": Kind("critical", _LEARNT, "lower the weight of what pays here, or bound it"),
    "form outweighs being right": Kind(
        "warning",
        "a wrong answer in perfect form beats a right one that is only in its slot",
        "give the answer more weight than all rewards for form together",
    ),
    "form outweighs being right (of the answer)": Kind(
        "warning",
        "any answer of the right kind earns most of it, and is learnt first",
        "pay less for what a wrong answer of the right kind gets, and more for being right",
    ),
    "silence pays": Kind(
        "warning",
        "the model learns to write nothing before it learns to be right",
        "pay less for being short than for the format, or beside right answers only (docs/guide/rewards.md has one)",
    ),
}
