"""All that `check_rewards` can find: how bad each kind is, what it does to a training, and what mends it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from grpo_nb.core.words import displayable, excerpt

Severity = Literal["critical", "warning", "note"]
WHOLE_SET = "all rewards together"


class Kind(NamedTuple):
    """What is always said of a kind of finding."""

    severity: Severity
    effect: str
    fix: str


_LEARNT = "the model learns this instead of the task"
_IN_SLOT = "take the answer from its slot alone, and refuse a text with more than one slot"

# The causes first: what stands further down may follow from what stands above it.
KINDS: dict[str, Kind] = {
    "breaks the contract": Kind("critical", "the training stops at its first step",
        "def reward(completions, answer, **columns): return a list with one float (or None) for each completion"),
    "raises": Kind("critical", "one such completion stops the training",
        "gn.rewards.completion_text(completion) is the text; catch what parsing can raise, by name, and return 0.0"),
    "hangs": Kind("critical", "one such completion stops the training, or makes every step that has one as slow",
        "bound nested repeats such as (a+)+ in a pattern; limit the time of what computes, as gn.rewards.maths does"),
    "runs the answer as code": Kind("critical", "what the model writes runs with your rights: it can delete your files",
        "ast.literal_eval or json.loads in place of eval; gn.rewards.code_tests runs code in the sandbox"),
    "changes its inputs": Kind("critical", "the next reward and the log see the changed text",
        "text = completion[0]['content'] is a copy; never assign into completions or columns"),
    "unsteady": Kind("critical", "a completion is paid for its place, for its neighbours or by chance",
        "score each for itself beside its own row, zip(completions, answer, strict=True); no globals, no draws"),
    "no score": Kind("critical", "on these rows it never counts", "mostly a column that it cannot read: it returns None"),
    "constant": Kind("warning", "no influence on any advantage: dead weight, or it looks for what your data never has",
        "try it on one completion that it must pay, gn.rewards.completion_text(completion) being its text"),
    "another format": Kind("critical", "being right is not paid in the format that the prompt asks for",
        "give task and reward the same format, and take white space between tags as \\s*"),
    "right answer refused": Kind("critical", "the model is punished for being right",
        "re.DOTALL and \\s* in its patterns; strip the answer; look at nothing but the slot"),
    "format refused": Kind("critical", "it stays unpaid where the prompt is obeyed", "re.DOTALL and \\s* in its patterns"),
    "not on every row": Kind("warning", "on these rows no answer is learnt", "look at how it reads these gold answers"),
    "number form refused": Kind("note", "a strict reward, if you mean it", "compare as numbers, unless they are names"),
    "paid for nothing": Kind("critical", _LEARNT, "no answer found must be 0.0"),
    "every candidate": Kind("critical", _LEARNT, "pay the whole slot for being the gold answer, not for what it holds of it"),
    "contains the answer": Kind("critical", _LEARNT, "compare for equality, as numbers where they are numbers; not with `in`"),
    "answer outside the slot": Kind("critical", _LEARNT, _IN_SLOT),
    "phrase pays": Kind("critical", _LEARNT, "pay words only beside the right answer, or in a reward of small weight"),
    "length pays": Kind("critical", _LEARNT, "bound what length can add, well below what being right adds"),
    "several answers": Kind("warning", "naming two pays as much as choosing one", _IN_SLOT),
    "near miss": Kind("warning", "what is nearly right is learnt as right", "compare the whole answer, or state the tolerance"),
    "no slot needed": Kind("warning", "the slot need not be learnt, and a mention in passing is paid", _IN_SLOT),
    "part credit": Kind("warning", "the sure part is learnt before the rest: to name every candidate",
        "pay parts for what leads to the answer, never for naming it elsewhere or among others"),
    "more pays": Kind("warning", "the model repeats it up to max_completion_length", "count up to a maximum: min(1.0, ...)"),
    "refused by its measure": Kind("critical", "the model learns what pleases the judge, and not what you call good",
        "a clearer rubric, another model, or plain checks; then measure it again, gn.checks.agreement(judge, labelled)"),
    "never measured": Kind("warning", "what the judge pays for is learnt, whether you would call it good or not",
        "score 20 answers or more yourself, in gn.RewardLab or a .csv, and gn.checks.agreement(judge, labelled)"),
    "nothing tells right from wrong": Kind("critical", "the model learns form at best; accuracy does not move but by luck",
        "mend what is said above, or add a reward for the answer such as gn.rewards.correctness()"),
    "form outweighs being right": Kind("warning", "a wrong answer in perfect form beats a right one in its slot alone",
        "give the answer more weight than all rewards for form together"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong or worth knowing, with the shortest completion that shows it."""

    severity: Severity
    """`critical`: the training fails or learns the wrong thing. `warning`: it learns less well. `note`: good to know."""
    reward: str
    kind: str
    """A key of `KINDS`; for code, which should not read prose."""
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


def found(kind: str, reward: str, what: str, tried: Sequence[str] = ()) -> Finding:
    """Return a finding of a kind.

    Args:
        kind: A key of `KINDS`.
        reward: Its name, or `WHOLE_SET`.
        what: What was seen, with its numbers.
        tried: Completions that show it; the shortest is the example.
    """
    example = excerpt(min(tried, key=len)) if tried else ""
    return Finding(kind=kind, reward=reward, what=what, example=example, **KINDS[kind]._asdict())
