"""What `check_rewards` found: the report that shows it, with what each reward gave for every completion tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grpo_nb.checks.findings import KINDS, WHOLE_SET, Finding
from grpo_nb.checks.verdicts import Seen
from grpo_nb.core.tables import Html, Shown, Table, as_written, bold
from grpo_nb.core.words import displayable

if TYPE_CHECKING:
    import pandas

_HEAD = ("reward", "severity", "finding", "shortest example", "in training", "fix")
_SEVERITIES = ("critical", "warning", "note")


class RewardProblem(ValueError):
    """Rewards that should not be trained on. The message lists the critical findings."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RewardReport(Shown):
    """The result of `check_rewards`. Shows itself as a table: the rewards one by one, then all together, notes last."""

    findings: tuple[Finding, ...]
    roles: Mapping[str, str]
    """What each reward was seen to do on the controls: tell right from wrong, or pay for form alone."""
    checked: str
    """What was checked, in one sentence with counts."""
    limits: tuple[str, ...] = ()
    """What could not be checked, and why."""
    weights: Mapping[str, float] = field(default_factory=dict)
    seen: tuple[Seen, ...] = field(default=(), compare=False)
    """What each reward gave for every probe."""

    @property
    def ok(self) -> bool:
        """Nothing critical and no warning; notes are allowed."""
        return all(finding.severity == "note" for finding in self.findings)

    def of(self, reward: str) -> tuple[Finding, ...]:
        """Return the findings of one reward, by its name."""
        return tuple(finding for finding in self.findings if finding.reward == reward)

    def raise_if_critical(self) -> RewardReport:
        """Return the report, so that a script stops before it spends hours on a broken reward.

        Raises:
            RewardProblem: A finding is critical.
        """
        critical = [repr(finding) for finding in self.findings if finding.severity == "critical"]
        if critical:
            raise RewardProblem(f"{len(critical)} critical finding(s) in the rewards:\n" + "\n".join(critical))
        return self

    @property
    def probes(self) -> pandas.DataFrame:
        """Every completion tried: reward, row, kind, how, expected (`pay`, `refuse`, `survive` or `control`), score, text.

        `report.probes.query("row == 0 and expected == 'refuse'").sort_values("score")` looks at the ways to cheat on a row.
        """
        import pandas

        lines = [
            (seen.name, probe.row, probe.kind, probe.how, probe.expect, score, displayable(probe.text))
            for seen in self.seen
            for probe, score in seen.scores.items()
        ]
        return pandas.DataFrame(lines, columns=["reward", "row", "kind", "how", "expected", "score", "text"])

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        counts = [(sum(f.severity == severity for f in self.findings), severity) for severity in _SEVERITIES]
        said = ", ".join(f"{n} {severity}" for n, severity in counts if n)
        return f"Found: {said}. {self.checked}" if said else f"Nothing found. {self.checked}"

    def _parts(self) -> Iterable[Any]:
        rows = [(name, "ok", role, "", "", "") for name, role in self.roles.items() if not self.of(name)]
        for f in self.findings:
            rows.append((f.reward, bold(f.severity), f"{f.kind}: {f.what}", as_written(f.example), f.effect, f.fix))
        lines = [f"  {name}: {role}" for name, role in self.roles.items()]
        yield bold(self.summary)
        yield Html("\n".join([*lines, *map(repr, self.findings)]), Table(rows, head=_HEAD, wide=(2, 3)).html())
        yield from (f"not checked: {limit}" for limit in self.limits)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings: of the rewards one by one, then of all together, which follows from those, and notes last."""

    def place(finding: Finding) -> tuple[bool, bool, int, int]:
        severity = _SEVERITIES.index(finding.severity)
        return finding.severity == "note", finding.reward == WHOLE_SET, severity, list(KINDS).index(finding.kind)

    return tuple(sorted(findings, key=place))
