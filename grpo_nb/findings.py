"""What `check_rewards` found: findings in words, and the report that shows them."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from grpo_nb.reward_calls import displayable, excerpt

if TYPE_CHECKING:
    import pandas

Severity = Literal["note", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "note")
WHOLE_SET = "all rewards together"
_EXAMPLE_STYLE = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;min-width:15em"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong or worth knowing, with the shortest completion that shows it."""

    severity: Severity
    """`critical`: the training fails or learns the wrong thing. `warning`: it learns less well. `note`: good to know."""
    reward: str
    kind: str
    """A short name for the kind of finding, such as `hedge` or `mutates inputs`; for code, which should not read prose."""
    what: str
    example: str = ""
    effect: str = ""
    fix: str = ""

    def __repr__(self) -> str:
        example = f"\n    example: {self.example}" if self.example else ""
        return (
            f"{self.severity}: {self.reward}: {self.kind}: {self.what}{example}"
            f"\n    in training: {self.effect}\n    fix: {self.fix}"
        )


def find_non_numbers(
    reward: str, scored: Sequence[tuple[float, Any]], texts: Sequence[str], where: str = ""
) -> list[Finding]:
    """Return a finding each for scores that are NaN and scores that are infinite.

    Args:
        reward: Its name.
        scored: Each score as TRL reads it, and as the reward gave it: a None is no opinion, and nothing to report.
        texts: The completion of each.
        where: Put behind the count.
    """
    found = []
    for kind, is_such, severity, effect in (
        ("NaN score", math.isnan, "warning", "TRL leaves the completion out of the sum, as if it had not been judged"),
        ("infinite score", math.isinf, "critical", "advantages of the whole group become 0 or NaN"),
    ):
        bad = [text for (value, raw), text in zip(scored, texts, strict=True) if raw is not None and is_such(value)]
        if bad:
            found.append(
                Finding(
                    severity=severity,
                    reward=reward,
                    kind=kind,
                    what=f"on {len(bad)} of {len(texts)} completions{where}",
                    example=excerpt(min(bad, key=len)),
                    effect=effect,
                    fix="return None where there is no opinion, 0.0 where the completion earned nothing",
                )
            )
    return found


class RewardProblem(ValueError):
    """Rewards that should not be trained on. The message lists the critical findings."""


@dataclass(frozen=True, kw_only=True)
class RewardReport:
    """The result of `check_rewards`. Shows itself as a table, the worst first."""

    findings: tuple[Finding, ...]
    roles: Mapping[str, str]
    """What each reward was seen to do on the controls: tell right from wrong, or pay for form alone."""
    checked: str
    """What was checked, in one sentence with counts."""
    signal: Sequence[tuple[float, float]] = ()
    """Pass rate, and the expected share of groups in which all completions get the same score."""
    num_generations: int = 8
    limits: tuple[str, ...] = ()
    """What could not be checked, and why."""
    seconds_per_completion: Mapping[str, float] = field(default_factory=dict)

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

    def _signal_lines(self) -> list[tuple[str, str]]:
        return [(f"{rate:.0%}", f"{share:.0%}") for rate, share in self.signal]

    def __repr__(self) -> str:
        lines = [self.summary]
        lines += [f"  {name}: {role}" for name, role in self.roles.items()]
        lines += [displayable(repr(finding)) for finding in self.findings]
        lines += [f"not checked: {limit}" for limit in self.limits]
        if self.signal:
            pairs = ", ".join(f"{rate}: {share}" for rate, share in self._signal_lines())
            lines.append(f"Groups of {self.num_generations} with no spread, which teach nothing, by pass rate: {pairs}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        left = "style='text-align:left;vertical-align:top'"

        def row(cells: Sequence[str], tag: str = "td") -> str:
            return "<tr>" + "".join(f"<{tag} {left}>{cell}</{tag}>" for cell in cells) + "</tr>"

        def said(text: str) -> str:
            return html.escape(displayable(text))

        rows = [row(["reward", "severity", "finding", "shortest example", "in training", "fix"], "th")]
        for name, role in self.roles.items():
            findings = self.of(name)
            if not findings:
                rows.append(row([said(name), "ok", said(role), "", "", ""]))
            rows += [self._finding_row(finding, row, said) for finding in findings]
        rows += [self._finding_row(finding, row, said) for finding in self.findings if finding.reward not in self.roles]
        limits = "".join(f"<li>{said(limit)}</li>" for limit in self.limits)
        limits = f"<p>Not checked:</p><ul>{limits}</ul>" if limits else ""
        signal = ""
        if self.signal:
            signal = (
                f"<p>Groups of {self.num_generations} in which all completions get the same score teach nothing. Expected "
                "share, by pass rate, for a reward that is either right or wrong:</p><table>"
                + row(["pass rate", *(rate for rate, _ in self._signal_lines())])
                + row(["groups with no spread", *(share for _, share in self._signal_lines())])
                + "</table>"
            )
        return f"<p><b>{said(self.summary)}</b></p><table>{''.join(rows)}</table>{limits}{signal}"

    @staticmethod
    def _finding_row(finding: Finding, row: object, said: object) -> str:
        cells = [
            said(finding.reward),
            f"<b>{finding.severity}</b>",
            # Without a least width, the browser gives all the room to the example, and the words stand one below the other.
            f"<div style='min-width:16em'><b>{said(finding.kind)}</b>: {said(finding.what)}</div>",
            f"<div style='{_EXAMPLE_STYLE}'>{said(finding.example)}</div>",
            said(finding.effect),
            said(finding.fix),
        ]
        return row(cells)
