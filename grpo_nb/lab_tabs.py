"""The two tabs of the reward lab: probes on the row, and cases to keep. Each is a form over functions that work without it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import ipywidgets as widgets

from grpo_nb import lab_html as views
from grpo_nb.checks import add_case, check_rewards
from grpo_nb.findings import RewardReport
from grpo_nb.formats import AnswerFormat
from grpo_nb.lab import ProbeTable, case_lines, gold_of, probe_row
from grpo_nb.lab_code import CodeLines
from grpo_nb.lab_controls import above, button, in_panel, line, view
from grpo_nb.reward_calls import RewardFunction
from grpo_nb.scoring import Scores

_RUN_PROBES = "Run the probes on this row"


class Bench(Protocol):
    """What the tabs use of the lab around them."""

    scores: Scores | None
    tokenizer: Any
    answer: str
    format: AnswerFormat

    @property
    def rewards(self) -> list[RewardFunction]: ...
    @property
    def row(self) -> dict[str, Any]: ...
    @property
    def completions(self) -> list[str]: ...
    @property
    def weights(self) -> dict[str, float]: ...
    @property
    def moved_weights(self) -> dict[str, float]: ...
    def code_lines(self) -> CodeLines: ...
    def showing_errors(self) -> AbstractContextManager[None]: ...


class CasesTab(widgets.VBox):
    """Keep a completion with the score it must get in a file, and run all cases of the file.

    Args:
        lab: The lab around it.
        path: The file to begin with.
    """

    def __init__(self, lab: Bench, path: str) -> None:
        self._lab, self.showing_errors = lab, lab.showing_errors
        self.reward = above(widgets.Dropdown(options=["-"], description="Reward"), "180px")
        self.completion = above(widgets.Dropdown(options=[("Completion 1", 0)], description="Completion"), "150px")
        self.expected = above(widgets.FloatText(0.0, step=0.1, description="It must score"), "110px")
        no_opinion = "must have no opinion (None)"
        self.none = widgets.Checkbox(False, description=no_opinion, indent=False, layout={"width": "230px"})
        self.label = above(widgets.Text("", description="What the case shows"), "260px")
        self.file = above(widgets.Text(path, description="File"), "220px")
        self.keep_button, self.run_button = button("Keep the case", "primary"), button("Run all cases")
        self.result, self.table, self.code = view(), view(), view()
        what = line([self.reward, self.completion, self.expected, self.none])
        how = line([self.label, self.file, self.keep_button, self.run_button])
        super().__init__([what, how, self.result, self.table, self.code])
        self.keep_button.on_click(self.keep)
        self.run_button.on_click(self.run)
        self.reward.observe(self.suggest, "value")
        self.completion.observe(self.suggest, "value")
        self.none.observe(lambda change: setattr(self.expected, "disabled", change["new"]), "value")
        self.file.observe(self.show, "value")

    @property
    def path(self) -> str:
        """The file of the cases where there is one with cases in it, for `check_rewards`; else empty."""
        return self.file.value if case_lines(self.file.value) else ""

    def suggest(self, _: Any = None) -> None:
        """Offer the present score of the chosen completion as the one that it must get."""
        scores = self._lab.scores
        if scores is None or self.reward.value not in scores.values or not self.completion.value < len(scores):
            return
        now = scores.values[self.reward.value][self.completion.value]
        if now == now:
            self.expected.value = now
        said = f"It scores {views.number(now)} now. Correct the number if that is not what it must score."
        self.result.value = f'<span class="gn-soft">{said}</span>'

    @in_panel
    def keep(self) -> None:
        """Add the case to the file and run all."""
        path, number, name, label = self.file.value, self.completion.value, self.reward.value, self.label.value
        expected = None if self.none.value else self.expected.value
        add_case(path, name, self._lab.completions[number], expected, columns=self._lab.row, label=label)
        self.show()
        self.run()
        lines = self._lab.code_lines()
        self.code.value = views.code(
            lines.keep(path, name, self._lab.completions, number, expected, label)
        ) + views.code(f"gn.check_rewards({lines.rewards}, {lines.task}, cases={path!r})", "run them with")

    @in_panel
    def run(self) -> None:
        """Say which cases of the file the rewards meet."""
        path = self.path
        if not path:
            self.result.value = '<p class="gn-soft">There is no case to run yet.</p>'
            return
        lab = self._lab
        options = {"format": lab.format, "answer": lab.answer, "tokenizer": lab.tokenizer}
        report = check_rewards(lab.rewards, [lab.row], cases=path, **options)
        self.result.value = views.case_results_view(report, len(case_lines(path)))

    @in_panel
    def show(self) -> None:
        """List what the file holds."""
        self.table.value = views.cases_view(self.file.value, case_lines(self.file.value))


class ProbesTab(widgets.VBox):
    """Run the probes and the whole check on the lab's row.

    Args:
        lab: The lab around it.
        cases: The other tab: its file is run by the check too.
    """

    def __init__(self, lab: Bench, cases: CasesTab) -> None:
        self._lab, self._cases, self.showing_errors = lab, cases, lab.showing_errors
        self.found: ProbeTable | None = None
        self.report: RewardReport | None = None
        self.run_button = button(_RUN_PROBES, "primary")
        self.table, self.report_view, self.code = view(), view(), view()
        super().__init__([line([self.run_button]), self.table, self.report_view, self.code])
        self.run_button.on_click(self.run)

    @in_panel
    def run(self) -> None:
        """Run both and show what they found."""
        lab = self._lab
        gold_of(lab.row, lab.answer)
        self.run_button.disabled, self.run_button.description = True, "Running..."
        try:
            options: Mapping[str, Any] = {
                "format": lab.format, "answer": lab.answer, "weights": lab.weights, "tokenizer": lab.tokenizer,
            }  # fmt: skip
            self.found = probe_row(lab.rewards, lab.row, **options)
            self.table.value = views.probes_view(self.found)
            cases = self._cases.path
            self.report = check_rewards(lab.rewards, [lab.row], cases=cases or (), **options)
            self.report_view.value = views.report_view(self.report)
        finally:
            self.run_button.disabled, self.run_button.description = False, _RUN_PROBES
        lines, moved = lab.code_lines(), lab.moved_weights
        self.code.value = views.code(lines.probe(moved), "the probes in code") + views.code(
            lines.check(cases, moved), "the check in code"
        )

    def forget(self) -> None:
        """Take away what was found on another row or with other rewards: it must not stand beside this one."""
        self.found = self.report = None
        self.table.value = self.report_view.value = self.code.value = ""
