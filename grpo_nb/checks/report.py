"""Define the kinds of findings of `check_rewards`, and show them in a report.

To add a kind, add an entry to `KINDS`. Users see its key. Probes, and the functions that find
faults, refer to the kind by the same key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from grpo_nb.core.tables import Part, ReprMixin, Table, bold, verbatim
from grpo_nb.core.words import shorten

Severity = Literal["critical", "warning"]
WORST_FIRST: tuple[Severity, ...] = ("critical", "warning")
WHOLE_SET = "all rewards together"
"""Name used in place of a reward's name in findings about the weighted total."""


class Kind(NamedTuple):
    """Properties that all findings of a kind share."""

    severity: Severity
    effect: str
    """Consequence for training."""
    fix: str


_LEARNS_LOOPHOLE = "once the model samples such a completion, it learns this instead of the task"
_READ_SLOT = "read the answer from its slot only, and refuse a completion with more than one slot"

KINDS: dict[str, Kind] = {
    # The call
    "breaks the contract": Kind(
        "critical",
        effect="the training stops at its first step",
        fix="write def reward(completions, answer, **columns), and return a list with one finite "
        "float or None per completion",
    ),
    "raises": Kind(
        "critical",
        effect="one such completion stops the training",
        fix="read the text with gn.rewards.completion_text(completion), catch by name the "
        "exceptions that parsing can raise, and return 0.0",
    ),
    "hangs": Kind(
        "critical",
        effect="one such completion stops the training, or delays every step that has one",
        fix="limit nested repeats such as (a+)+ in patterns, and limit the time of computations as "
        "gn.rewards.maths does",
    ),
    "runs the answer as code": Kind(
        "critical",
        effect="code that the model writes runs with your rights: it can delete your files",
        fix="use ast.literal_eval or json.loads instead of eval; gn.rewards.code_tests runs code "
        "in the sandbox",
    ),
    "changes its inputs": Kind(
        "critical",
        effect="the next reward and the log see the changed text",
        fix="work on a copy, such as text = completion[0]['content'], and never assign into "
        "completions or columns",
    ),
    "inconsistent": Kind(
        "critical",
        effect="the score of a completion depends on its place, on its neighbours or on chance",
        fix="score each completion with its own row, zip(completions, answer, strict=True), "
        "without globals or randomness",
    ),
    "depends on its group": Kind(
        "warning",
        effect="the score of a completion depends on the others in the call, so a call with "
        "several groups, or part of one, changes it",
        fix="if the reward ranks the completions of a group, say so with "
        "gn.rewards.relative(reward), and the check leaves it out; if not, score each completion "
        "for itself",
    ),
    # The scores
    "constant": Kind(
        "warning",
        effect="the reward has no influence on any advantage; perhaps it looks for something that "
        "your data never has",
        fix="check which columns it reads, try it on one completion that it must reward, and print "
        "gn.rewards.completion_text(completion)",
    ),
    "another format": Kind(
        "critical",
        effect="right answers get no reward in the format that the prompt asks for",
        fix="give the task and the reward the same format, and match white space between tags with "
        "\\s*",
    ),
    "right answer unknown": Kind(
        "warning",
        effect="if no answer is rewarded in training either, the model learns nothing from it",
        fix="if right is defined by a function, as in Countdown, give a right answer per row and "
        "check again: gn.check_rewards(rewards, task, answer=right_answer), with "
        "def right_answer(row): return ...",
    ),
    "right answer refused": Kind(
        "critical",
        effect="the model is punished for right answers that follow the prompt",
        fix="use re.DOTALL and \\s* in patterns, strip the answer, and read nothing but the slot",
    ),
    "not on every row": Kind(
        "warning",
        effect="the model learns no answers on these rows",
        fix="check how the reward reads these gold answers",
    ),
    # Loopholes
    "missing answer is rewarded": Kind(
        "critical", effect=_LEARNS_LOOPHOLE, fix="return 0.0 if no answer is found"
    ),
    "every candidate": Kind(
        "critical",
        effect=_LEARNS_LOOPHOLE,
        fix="compare the whole slot with the gold answer; do not search the gold answer in it",
    ),
    "answer outside the slot": Kind("critical", effect=_LEARNS_LOOPHOLE, fix=_READ_SLOT),
    "a phrase is rewarded": Kind(
        "critical",
        effect=_LEARNS_LOOPHOLE,
        fix="reward phrases only together with the right answer, or in a reward of small weight",
    ),
    "length is rewarded": Kind(
        "critical",
        effect=_LEARNS_LOOPHOLE,
        fix="limit what length can add to well below what the right answer adds",
    ),
    "several answers": Kind(
        "warning", effect="naming two answers scores as high as choosing one", fix=_READ_SLOT
    ),
    "near miss": Kind(
        "warning",
        effect="the model learns that almost right is right",
        fix="compare the whole answer with ==, numbers as numbers, or declare the tolerance",
    ),
    "repetition is rewarded": Kind(
        "warning",
        effect="the model repeats it up to max_completion_length",
        fix="count up to a maximum: min(1.0, ...)",
    ),
    # Judges
    "not fit as a reward": Kind(
        "critical",
        effect="the model learns what pleases the judge, and not what you call good",
        fix="write a clearer rubric, ask another model, or use plain checks; then measure again: "
        "gn.checks.agreement(judge, hand_scores)",
    ),
    "never measured": Kind(
        "warning",
        effect="the model learns whatever the judge scores high, whether you would call it good or "
        "not",
        fix="score at least 20 answers yourself, in gn.RewardLab or a .csv, then call "
        "gn.checks.agreement(judge, hand_scores)",
    ),
    "too few hand scores to tell": Kind(
        "warning",
        effect="nobody knows yet whether the judge prefers the answers that you prefer",
        fix="score more answers yourself, then call gn.checks.agreement(judge, hand_scores) again",
    ),
    # The weighted total
    "nothing tells right from wrong": Kind(
        "critical",
        effect="the model learns the format at best; accuracy improves only by luck",
        fix="fix the findings above, or add a reward for the answer such as "
        "gn.rewards.correctness(). If right is defined by a function, pass one that returns a "
        "right answer: gn.check_rewards(rewards, task, answer=lambda row: ...)",
    ),
    "format outweighs the answer": Kind(
        "warning",
        effect="a wrong answer in perfect format may beat a right answer in its slot alone",
        fix="give the answer more weight than all format rewards together",
    ),
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Finding(ReprMixin):
    """One fault of a reward, with the shortest completion that shows the fault."""

    severity: Severity
    """`critical`: the training fails or learns the wrong thing. `warning`: it learns less well."""
    reward: str
    """Name of the reward, or `WHOLE_SET`."""
    kind: str
    """Key of `KINDS`. Code should read this, not the prose."""
    observation: str
    """The fault in words, with its numbers."""
    example: str | None
    """Shortest completion that shows the fault; "" if it is empty, None if there is none."""
    effect: str
    fix: str

    def _shown_parts(self) -> Iterable[Part]:
        yield bold(f"{self.severity}: {self.reward}: {self.kind}")
        details = [("    found", self.observation)]
        if self.example is not None:
            example = verbatim(self.example) if self.example else "an empty completion"
            details.append(("    example", example))
        details += [("    in training", self.effect), ("    fix", self.fix)]
        yield Table(details, narrow=(0,))


def make_finding(kind: str, reward: str, observation: str, texts: Collection[str] = ()) -> Finding:
    """Return a finding.

    Args:
        kind: Key of `KINDS`.
        reward: Name of the reward, or `WHOLE_SET`.
        observation: The fault in words, with its numbers.
        texts: Completions that show the fault. The shortest becomes the example.
    """
    return Finding(
        reward=reward,
        kind=kind,
        observation=observation,
        example=shorten(min(texts, key=len), 160) if len(texts) > 0 else None,
        **KINDS[kind]._asdict(),
    )


# ---- The report ----


class RewardProblem(ValueError):
    """Rewards that should not be trained on. The message lists the critical findings."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RewardReport(ReprMixin):
    """Result of `check_rewards`.

    Displayed as the verdict, the role of each reward, and the findings.
    """

    findings: tuple[Finding, ...]
    roles: Mapping[str, str]
    """Role of each reward: whether it follows right answers, the format or neither, calls a judge,
    or is unknown."""
    checked: str
    """Extent of the check, in one sentence with counts."""
    not_checked: tuple[str, ...] = ()
    """Parts of the check that were not possible, with the reason."""

    @property
    def ok(self) -> bool:
        """True if nothing was found.

        `not_checked` names the parts that were not checked, for example because a reward is slow.
        """
        return not self.findings

    def raise_if_critical(self) -> RewardReport:
        """Return the report, or stop a script before it spends hours on a broken reward.

        Raises:
            RewardProblem: A finding is critical.
        """
        critical = [repr(finding) for finding in self.findings if finding.severity == "critical"]
        if critical:
            findings = "\n".join(critical)
            raise RewardProblem(f"{len(critical)} critical finding(s) in the rewards:\n{findings}")
        return self

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        counts = Counter(finding.severity for finding in self.findings)
        phrases = []
        for severity in WORST_FIRST:
            if count := counts[severity]:
                # "critical" is an adjective and has no plural.
                plural = "s" if count > 1 and severity != "critical" else ""
                phrases.append(f"{count} {severity}{plural}")
        verdict = "Nothing found." if self.checked else "Nothing was checked."
        if phrases:
            verdict = f"Found: {', '.join(phrases)}."
        return f"{verdict} {self.checked}".rstrip()

    def _shown_parts(self) -> Iterable[Part]:
        yield bold(self.sentence)
        for name, role in self.roles.items():
            yield f"  {name}: {role}"
        for finding in self.findings:
            yield from finding._shown_parts()
        for part in self.not_checked:
            yield f"not checked: {part}"
