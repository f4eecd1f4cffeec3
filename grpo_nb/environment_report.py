"""The rows of the preflight table, and the table. Knows nothing about machines."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass


class EnvironmentProblem(RuntimeError):
    """This machine or its installation is in the way: what, why, and what to type next."""


@dataclass(frozen=True)
class Check:
    """One row of the preflight table."""

    what: str
    status: str
    """`ok`, `warning` or `problem`."""
    found: str
    fix: str = ""


_MARKS = {"ok": "&#10003; ok", "warning": "! warning", "problem": "&#10007; problem"}
_CELL = "text-align:left;vertical-align:top;padding:0.3em 0.7em"
# Long lists of versions break where the page ends, and the first two columns never do.
_NARROW, _WIDE = f"{_CELL};white-space:nowrap", f"{_CELL};white-space:normal;overflow-wrap:anywhere;min-width:16em"


class EnvironmentReport:
    """The preflight table. Shows itself in a notebook; `raise_problems` turns problems into an error."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self.checks = tuple(checks)

    @property
    def is_ready(self) -> bool:
        """Whether no check found a problem."""
        return not any(check.status == "problem" for check in self.checks)

    @property
    def verdict(self) -> str:
        """The table in one sentence: `Ready.`, also with warnings, or what has to be mended."""
        counts = {status: sum(check.status == status for check in self.checks) for status in ("problem", "warning")}
        said = [f"{n} {status}{'s' if n > 1 else ''}" for status, n in counts.items() if n]
        if not self.is_ready:
            return f"Not ready: {' and '.join(said)}. Mend the problems first."
        return f"Ready, with {said[0]} to read." if said else "Ready."

    def raise_problems(self) -> None:
        """Raise `EnvironmentProblem` naming each problem and its fix, if there is any."""
        problems = [check for check in self.checks if check.status == "problem"]
        if problems:
            raise EnvironmentProblem("\n".join(f"{c.what}: {c.found}. {c.fix}" for c in problems))

    def __repr__(self) -> str:
        width = max((len(check.what) for check in self.checks), default=0)
        rows = [f"{c.status:<8} {c.what:<{width}} {c.found}" + (f"  ->  {c.fix}" if c.fix else "") for c in self.checks]
        return "\n".join([*rows, self.verdict])

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='{_CELL}'>{title}</th>" for title in ("", "what", "found", "what to do"))
        rows = "".join(
            f"<tr><td style='{_NARROW}'>{_bold(_MARKS[c.status], c.status)}</td><td style='{_NARROW}'>"
            f"{html.escape(c.what)}</td><td style='{_WIDE}'>{html.escape(c.found)}</td>"
            f"<td style='{_WIDE}'>{html.escape(c.fix)}</td></tr>"
            for c in self.checks
        )
        verdict = html.escape(self.verdict)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><p>{_bold(verdict, 'problem')}</p>"


def _bold(text: str, status: str) -> str:
    return text if status == "ok" else f"<b>{text}</b>"
