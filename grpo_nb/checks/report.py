"""What `check_rewards` found: the report that shows it, and what each reward gave for every completion tried."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grpo_nb.checks.catalogue import SEVERITIES, Finding
from grpo_nb.checks.probes import MORE, REFUSED, Probe
from grpo_nb.checks.roles import Results, Role
from grpo_nb.core.tables import Html, Shown, Table, bold, escaped
from grpo_nb.core.words import displayable

if TYPE_CHECKING:
    import pandas

_EXAMPLE_STYLE = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;min-width:15em"
_FINDING_HEAD = ("reward", "severity", "finding", "shortest example", "in training", "fix")


class RewardProblem(ValueError):
    """Rewards that should not be trained on. The message lists the critical findings."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RewardReport(Shown):
    """The result of `check_rewards`. Shows itself as a table, the worst first."""

    findings: tuple[Finding, ...]
    roles: Mapping[str, str]
    """What each reward was seen to do on the controls: tell right from wrong, or pay for form alone."""
    checked: str
    """What was checked, in one sentence with counts."""
    limits: tuple[str, ...] = ()
    """What could not be checked, and why."""
    weights: Mapping[str, float] = field(default_factory=dict)
    seen: Mapping[str, tuple[Results, Role]] = field(default_factory=dict, compare=False)
    """By reward that can be called: what it gave for every probe, and what it does on the controls."""

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
        """Every completion tried: reward, row, kind, how, whether it has to be paid like the right answer, its score, the text.

        `report.probes.query("row == 0 and expected == 'refuse'").sort_values("score")` looks at the ways to cheat on a row.
        """
        import pandas

        lines = [
            (
                name,
                probe.row,
                probe.family or probe.kind,
                probe.kind + probe.layout,
                _expected(probe),
                *(o.scores or [math.nan]),
                displayable(probe.text),
            )
            for name, (results, _) in self.seen.items()
            for probe, o in results.outcomes.items()
        ]
        return pandas.DataFrame(lines, columns=["reward", "row", "kind", "how", "expected", "score", "text"])

    @property
    def table(self) -> pandas.DataFrame:
        """The findings as a table."""
        import pandas

        columns = [f.name for f in dataclasses.fields(Finding)]
        return pandas.DataFrame([dataclasses.astuple(finding) for finding in self.findings], columns=columns)

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        counts = [(sum(f.severity == severity for f in self.findings), severity) for severity in SEVERITIES]
        found = ", ".join(f"{n} {severity}" for n, severity in counts if n)
        return f"Found: {found}. {self.checked}" if found else f"Nothing found. {self.checked}"

    def _parts(self) -> Iterable[Any]:
        rows = [(name, "ok", role, "", "", "") for name, role in self.roles.items() if not self.of(name)]
        rows += [_finding_row(finding) for finding in self.findings]
        lines = [f"  {name}: {role}" for name, role in self.roles.items()]
        lines += map(repr, self.findings)
        yield bold(self.summary)
        yield Html("\n".join(lines), Table(rows, head=_FINDING_HEAD).html())
        yield from (f"not checked: {limit}" for limit in self.limits)


def _expected(probe: Probe) -> str:
    """Whether a reward for the answer has to `pay` it like the right one or to `refuse` it; empty where either is right."""
    if probe.kind in ("right", MORE[0]) or probe.family == REFUSED:
        return "pay"
    return "refuse" if probe.kind in ("wrong", MORE[1]) or probe.family else ""


def _finding_row(finding: Finding) -> tuple[Any, ...]:
    said = f"<b>{escaped(finding.kind)}</b>: {escaped(finding.what)}"
    # Without a least width, the browser gives all the room to the example, and the words stand one below the other.
    what = Html(f"{finding.kind}: {finding.what}", f"<div style='min-width:16em'>{said}</div>")
    example = Html(finding.example, f"<div style='{_EXAMPLE_STYLE}'>{escaped(finding.example)}</div>")
    return (finding.reward, bold(finding.severity), what, example, finding.effect, finding.fix)
