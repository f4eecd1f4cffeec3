"""What `check_rewards` found: the report that shows it, and what each reward gave for the probes on one row."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from grpo_nb.checks.catalogue import SEVERITIES, Finding
from grpo_nb.checks.probes import REFUSED, Probe
from grpo_nb.checks.roles import TELLS, Results, Role, is_paid
from grpo_nb.core.tables import Cell, Drawn, Listing, Shown, Table, bold, code, escaped
from grpo_nb.core.text import as_score, excerpt, shorten

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
    signal: Sequence[tuple[float, float]] = ()
    """Pass rate, and the expected share of groups in which all completions get the same score."""
    num_generations: int = 8
    limits: tuple[str, ...] = ()
    """What could not be checked, and why."""
    weights: Mapping[str, float] = field(default_factory=dict)
    seen: Mapping[str, tuple[Results, Role]] = field(default_factory=dict, compare=False)
    """By reward that can be called: what it gave for every probe, and what it does on the controls."""
    stopped: tuple[str, ...] = ()
    """Rewards with two calls over the time limit, on which the other probes were not tried."""

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

    def on_row(self, row: int = 0) -> ProbeTable:
        """Return what each reward gave on one of the rows for the right answer in harmless forms, and for the ways to cheat."""
        probes = {}
        for probe in (p for results, _ in self.seen.values() for p in results.outcomes if p.row == row):
            if probe.layout:
                continue
            if probe.kind == "right" or probe.family == REFUSED:
                probes[probe] = "pay"
            elif probe.kind == "wrong" or probe.family not in ("", "length pays", "phrase pays"):
                probes[probe] = "refuse"
        telling = {name: role for name, (_, role) in self.seen.items() if role.kind == TELLS}
        lines = []
        for probe, expected in probes.items():
            given = {name: seen.outcomes[probe] for name, (seen, _) in self.seen.items() if probe in seen.outcomes}
            known = {name: o.scores[0] for name, o in given.items() if o.scores}
            scores = {**dict.fromkeys(self.weights, math.nan), **known}
            errors = [(name, o.error) for name, o in given.items() if o.error]
            parts = [self.weights[name] * score for name, score in known.items() if not math.isnan(score)]
            total = sum(parts) if parts and not errors else math.nan
            verdict = _verdict(expected, probe, scores, telling)
            if errors:
                name, error = errors[0]
                verdict = f"fail: {name} raised {type(error).__name__}: {shorten(str(error), 120)}"
            lines.append(ProbeLine(probe=probe, expected=expected, scores=scores, total=total, verdict=verdict))
        lines.sort(key=lambda line: {"fail": 0, "note": 1}.get(line.verdict[:4], 2))
        return ProbeTable(tuple(lines), self.weights, tuple(telling), self.stopped)

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
        yield Drawn(Table(rows, head=_FINDING_HEAD).html(), "\n".join(lines))
        yield Listing([f"not checked: {limit}" for limit in self.limits])
        if self.signal:
            yield (
                f"Groups of {self.num_generations} in which all completions get the same score teach nothing. Expected share, "
                "by pass rate, for a reward that is either right or wrong:"
            )
            rates, shares = zip(*((f"{rate:.0%}", f"{share:.0%}") for rate, share in self.signal), strict=True)
            yield Table([("pass rate", *rates), ("groups with no spread", *shares)])


def _finding_row(finding: Finding) -> tuple[Any, ...]:
    what = Cell(
        f"{finding.kind}: {finding.what}",
        f"<b>{escaped(finding.kind)}</b>: {escaped(finding.what)}",
        # Without a least width, the browser gives all the room to the example, and the words stand one below the other.
        style="min-width:16em",
    )
    example = Cell(finding.example, style=_EXAMPLE_STYLE)
    return (finding.reward, bold(finding.severity), what, example, finding.effect, finding.fix)


@dataclass(frozen=True, kw_only=True)
class ProbeLine:
    """One probe on a row: what it tries, what every reward gave, and the verdict."""

    probe: Probe
    expected: Literal["pay", "refuse"]
    """Whether a reward for the answer has to pay it like the right answer, or must not."""
    scores: Mapping[str, float]
    """By reward, unweighted; NaN where it gave none."""
    total: float
    verdict: str
    """`pass`, `fail: ...`, `note: ...`, or `not judged`."""


@dataclass(frozen=True, repr=False)
class ProbeTable(Shown):
    """All probes on one row, failures first."""

    lines: tuple[ProbeLine, ...]
    weights: Mapping[str, float]
    telling: tuple[str, ...]
    """The rewards that give the right answer more than a wrong one in the same words and format."""
    stopped: tuple[str, ...] = ()
    """Rewards that took too long, on which the other probes were not tried."""

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        if not self.telling:
            return "No reward here tells the right answer from a wrong one on this row, so there is nothing to cheat."
        counts = collections.Counter((line.expected, line.verdict.startswith("fail")) for line in self.lines)
        forms, cheats = (counts[kind, True] + counts[kind, False] for kind in ("pay", "refuse"))
        refused, paid = counts["pay", True], counts["refuse", True]
        slow = f" Stopped for taking too long: {', '.join(self.stopped)}." if self.stopped else ""
        if not refused + paid:
            return f"PASS: {forms} forms of the right answer and {cheats} ways to cheat, none went wrong.{slow}"
        return f"FAIL: {refused} of {forms} forms of the right answer and {paid} of {cheats} ways to cheat went wrong.{slow}"

    def _parts(self) -> Iterable[Any]:
        # Coloured where a panel's style sheet is there.
        def coloured(text: str, kind: str) -> Cell:
            return Cell(text, f"<span class='{kind}'>{escaped(text)}</span>", style="min-width:96px")

        kinds = {"fail": "gn-fail", "pass": "gn-pass"}
        yield coloured(self.summary, kinds.get(self.summary[:4].lower(), "gn-fail"))
        numbers = range(3, 4 + len(self.weights))
        rows = [
            (
                coloured(line.verdict, kinds.get(line.verdict[:4], "")),
                line.probe.kind,
                "paid" if line.expected == "pay" else "not paid",
                *(as_score(line.scores[name]) for name in self.weights),
                as_score(line.total),
                code(excerpt(line.probe.text, 90)),
            )
            for line in self.lines
        ]
        yield Table(rows, ("Verdict", "Probe", "Must be", *self.weights, "Total", "Completion"), right=numbers)


def _verdict(expected: str, probe: Probe, scores: Mapping[str, float], telling: Mapping[str, Role]) -> str:
    if not telling:
        return "not judged"
    wrong = [name for name, role in telling.items() if is_paid(role, probe, scores[name]) != (expected == "pay")]
    if not wrong:
        return "pass"
    # A reward may be strict about how a number is written, as its finding is a note.
    grade = "note" if probe.kind == "number form" else "fail"
    return f"{grade}: {'refused' if expected == 'pay' else 'paid like the right answer'} by {', '.join(wrong)}"
