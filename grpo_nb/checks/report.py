"""Show the findings of `check_rewards`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grpo_nb.checks.findings import KINDS, SEVERITIES, WHOLE_SET, Finding
from grpo_nb.core.tables import Html, Part, Shown, Table, as_written, bold, escaped

_TABLE_HEAD = ("reward", "severity", "finding", "shortest example")


class RewardProblem(ValueError):
    """Rewards that should not be trained on. The message lists the critical findings."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RewardReport(Shown):
    """Result of `check_rewards`.

    Shows itself as a table: each reward, then all together, notes last.
    """

    findings: tuple[Finding, ...]
    roles: Mapping[str, str]
    """Role of each reward: whether it follows right answers, the format, or neither."""
    checked: str
    """Extent of the check, in one or two sentences with counts."""
    limits: tuple[str, ...] = ()
    """Parts of the check that were not possible, with the reason."""

    @property
    def ok(self) -> bool:
        """True if no finding is critical or a warning. Notes are allowed.

        `limits` names the parts that were not checked, for example because a reward is slow.
        """
        return all(finding.severity == "note" for finding in self.findings)

    def of(self, reward: str) -> tuple[Finding, ...]:
        """Return the findings of one reward, by its name."""
        return tuple(finding for finding in self.findings if finding.reward == reward)

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
    def summary(self) -> str:
        """The verdict in one sentence."""
        counts = []
        for severity in SEVERITIES:
            count = sum(finding.severity == severity for finding in self.findings)
            if count:
                counts.append(_counted(count, severity))
        verdict = f"Found: {', '.join(counts)}." if counts else "Nothing found."
        return f"{verdict} {self.checked}"

    def _parts(self) -> Iterable[Part]:
        yield bold(self.summary)
        role_lines = [f"  {name}: {role}" for name, role in self.roles.items()]
        finding_lines = [repr(finding) for finding in self.findings]
        text = "\n".join([*role_lines, *finding_lines])
        yield Html(text, self._table().html())
        for limit in self.limits:
            yield f"not checked: {limit}"

    def _table(self) -> Table:
        rows = [(name, "ok", role) for name, role in self.roles.items() if not self.of(name)]
        if not self.findings:
            return Table(rows, head=_TABLE_HEAD[:3], narrow=(0, 1))
        rows = [(*row, "") for row in rows]
        for finding in self.findings:
            example = as_written(finding.example)
            severity = bold(finding.severity)
            rows.append((finding.reward, severity, _explained(finding), example))
        return Table(rows, head=_TABLE_HEAD, narrow=(0, 1), wide=(2, 3))


def _counted(count: int, severity: str) -> str:
    """Return a count in words; "critical" is an adjective and has no plural."""
    plural = "" if count == 1 or severity == "critical" else "s"
    return f"{count} {severity}{plural}"


def _explained(finding: Finding) -> Html:
    """Return a finding with its effect and its fix, one below the other."""
    lines = [
        f"<b>{escaped(finding.kind)}</b>: {escaped(finding.what)}",
        f"In training: {escaped(finding.effect)}.",
        f"Fix: {escaped(finding.fix)}.",
    ]
    return Html(repr(finding), "<br>".join(lines))


def sort_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort findings: each reward, then all together, then notes; causes before effects."""
    kinds = list(KINDS)
    rewards = list(dict.fromkeys(finding.reward for finding in findings))

    def sort_key(finding: Finding) -> tuple[bool, bool, int, int]:
        is_note = finding.severity == "note"
        is_total = finding.reward == WHOLE_SET
        return is_note, is_total, rewards.index(finding.reward), kinds.index(finding.kind)

    return tuple(sorted(findings, key=sort_key))
