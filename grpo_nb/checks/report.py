"""Make the findings of `check_rewards` from their kinds, and show them in a report.

To add a kind, add an entry to finding_kinds.toml. Users see its key, and the code refers to it.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grpo_nb.core.tables import Part, ReprMixin, Table, bold, verbatim
from grpo_nb.core.words import shorten

Severity = Literal["critical", "warning"]
WORST_FIRST = ("critical", "warning")
WHOLE_SET = "all rewards together"
"""Name used in place of a reward's name in findings about the weighted total."""

KINDS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_name("finding_kinds.toml").read_text("utf-8")
)
"""Fields that all findings of a kind share: severity, effect on the training, and fix."""


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
    """Return a finding with the fields of its kind. The shortest text becomes the example."""
    return Finding(
        reward=reward,
        kind=kind,
        observation=observation,
        example=shorten(min(texts, key=len), 160) if len(texts) > 0 else None,
        **KINDS[kind],
    )


class RewardProblem(ValueError):
    """Rewards that should not be trained on. The message lists the critical findings."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RewardReport(ReprMixin):
    """Result of `check_rewards`. Shows the verdict, the role of each reward, and the findings."""

    findings: tuple[Finding, ...]
    roles: Mapping[str, str]
    """Role of each reward, such as "tells right from wrong"."""
    checked: str
    """Extent of the check, in one sentence with counts."""
    not_checked: tuple[str, ...] = ()
    """Parts of the check that were not possible, with the reason."""

    @property
    def ok(self) -> bool:
        """True if nothing was found. A reward may be unchecked or partly checked: `not_checked`."""
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
        verdict = "Nothing found." if self.checked else "Nothing was checked."
        if self.findings:
            counts = Counter(finding.severity for finding in self.findings)
            phrases = [
                f"{counts[severity]} {severity}" for severity in WORST_FIRST if severity in counts
            ]
            # "critical" is an adjective and has no plural.
            plural = "s" if counts["warning"] > 1 else ""
            verdict = f"Found: {', '.join(phrases)}{plural}."
        return f"{verdict} {self.checked}".rstrip()

    def _shown_parts(self) -> Iterable[Part]:
        yield bold(self.sentence)
        for name, role in self.roles.items():
            yield f"  {name}: {role}"
        for finding in self.findings:
            yield from finding._shown_parts()
        for part in self.not_checked:
            yield f"not checked: {part}"
