"""The export panel without a browser, driven as a front end drives it; what exports do is stood in for.

Runs without torch too, and is: `lab/test_old_widgets.py` runs this file with the ipywidgets and IPython that Colab has.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

import grpo_nb as gn
from grpo_nb.export import panel as export_panel
from grpo_nb.export.plan import ExportPlan, PlannedExport
from grpo_nb.export.result import Export
from tests.support.run_folders import write_run_folder
from tests.support.written_run import compare_by_hand

SENTENCE = "better: accuracy <b>25%</b> before, 75% after on 20 questions."


def write_run(folder: Path, **more: Any) -> gn.runs.Run:
    info = {"status": "finished", "settings": gn.Settings().to_dict(), "rewards": [], "task": {}, **more}
    write_run_folder(folder, info, [{"step": 20, "reward": 1.0}])
    (folder / "holdout.jsonl").write_text('{"prompt": [{"role": "user", "content": "2 + 2?"}]}\n')
    return gn.open_run(folder)


class Machine:
    """Stands in for plans and exports: what is planned, what goes wrong, and what was asked."""

    def __init__(self) -> None:
        self.problems: dict[str, tuple[str, ...]] = {}
        self.errors: dict[str, BaseException] = {}
        self.asked: list[tuple[str, str, bool]] = []
        self.seen: list[str] = []
        self.panel: gn.export.ExportPanel | None = None

    def plan(self, run: gn.runs.Run, targets: dict[str, Path], *, dtype: str, overwrite: bool) -> ExportPlan:
        size = (4 if dtype == "float32" else 2) * 10**8
        rows = (PlannedExport(n, p, size, 3 * 10**8, 2 * 10**9, self.problems.get(n, ())) for n, p in targets.items())
        return ExportPlan(tuple(rows), 5 * 10**10, 8 * 10**9)

    def make(
        self, run: gn.runs.Run, name: str, path: Path, *, merged: Any, dtype: str, overwrite: bool, report: Any
    ) -> Export:
        self.asked.append((name, str(path), merged is not None))
        report(f"verifying {name} <i>")
        if self.panel is not None:
            self.seen.append(self.panel._stages_view.value)
            assert self.panel._export_button.disabled
        if name in self.errors:
            raise self.errors[name]
        checks = {"greedy text <equal>": True, "tensors finite": True}
        verification = {
            "passed": True, "checks": checks, "measured": {"greedy text <equal>": "12 of 12"}, "tensors": 4, "base": "b/<c>",
            "file": "m.gguf", "quantization": "q8_0", "bytes": 10**8, "prompts": 12, "equal_greedy_text": 1.0,
            "equal_greedy_text_near_ties_aside": 1.0, "mean_logp_difference_to_merged": 0.01, "correct": 7,
            "correct_of_merged": 7, "dtype": "bfloat16", "retained_change": 0.99, "mean_logp_difference_to_adapter": 0.01,
            "mean_logp_difference_of_base_to_adapter": 0.5, "correct_of_adapter": 7,
        }  # fmt: skip
        kind = name if name in ("merged", "adapter") else "gguf"
        return Export(path, verification, kind, run)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(export_panel, "plan_targets", made.plan)
    monkeypatch.setattr(export_panel, "export_format", made.make)
    return made


@pytest.fixture
def panel(machine: Machine, tmp_path: Path) -> gn.export.ExportPanel:
    write_run(tmp_path / "runs" / "first")
    write_run(tmp_path / "runs" / "stages" / "second")
    machine.panel = gn.export.ExportPanel(run_root=tmp_path / "runs")
    return machine.panel


def read(view: Any) -> str:
    """A view as a reader sees it."""
    return html.unescape(re.sub(r"<[^>]+>", " ", view.value))


def test_it_offers_every_run_and_says_what_is_known_of_it(panel: gn.export.ExportPanel, tmp_path: Path) -> None:
    labels = [text for text, _ in panel._runs.options]
    assert sorted(labels) == ["first: finished, 20 steps", "second: finished, 20 steps"]
    run = next(run for text, run in panel._runs.options if text.startswith("first"))
    compare_by_hand(run, sentence=SENTENCE)
    panel._runs.value = run
    assert "<b>25%</b>" not in panel._run_view.value and "better: accuracy <b>25%</b>" in read(panel._run_view)
    assert panel._folder.value == "exports/first" and panel.run is run
    panel._runs.value = next(run for text, run in panel._runs.options if text.startswith("second"))
    assert "not measured" in read(panel._run_view) and panel._folder.value == "exports/second"
    write_run(tmp_path / "runs" / "third")
    panel._refresh_button.click()
    assert len(panel._runs.options) == 3 and panel.run.name == "second", "the run that was picked stays"


def test_size_and_checks_stand_there_before(panel: gn.export.ExportPanel, machine: Machine) -> None:
    assert panel.formats == ("merged",) and not panel._export_button.disabled
    assert "0.20 GB" in read(panel._plan_view) and "ready" in read(panel._plan_view)
    assert "0.30 GB of 50.00 GB" in read(panel._plan_view) and "2.00 GB of 8.00 GB" in read(panel._plan_view)
    panel._dtype.value = "float32"
    assert "0.40 GB" in read(panel._plan_view)
    machine.problems["q8_0"] = ("'exports/<x>' exists. Choose another folder, or say overwrite=True.",)
    panel.formats = ("merged", "q8_0")
    assert "<x>" not in panel._plan_view.value
    assert "'exports/<x>' exists. Choose another folder, or tick \"Replace what is there\"" in read(panel._plan_view)
    assert panel._export_button.disabled, "what cannot work is not offered"
    panel._boxes["q8_0"].value = False
    assert not panel._export_button.disabled
    panel.formats = ()
    assert panel._export_button.disabled and "Choose at least one format" in read(panel._plan_view)
    with pytest.raises(ValueError, match="formats names 'onnx'"):
        panel.formats = ("onnx",)


def test_the_lines_under_it_do_the_same(panel: gn.export.ExportPanel) -> None:
    panel._folder.value = "~/it's"
    assert panel._target == Path.home() / "it's"
    panel._folder.value = "out/it's"
    panel._replace.value = True
    panel.formats = ("merged", "adapter", "q8_0")
    (shown,) = re.findall(r"<pre>(.*?)</pre>", panel._code_view.value, re.DOTALL)
    lines = html.unescape(shown).splitlines()
    assert lines[0].startswith("run = gn.open_run(")
    assert lines[1:] == [
        """merged = gn.export_merged(run, "out/it's/merged", overwrite=True)""",
        """gn.export.export_adapter(run, "out/it's/adapter", overwrite=True)""",
        """gn.export_gguf(merged, "out/it's/q8_0", quantization='q8_0', overwrite=True)""",
    ]
    for line in lines:
        compile(line, "line", "exec")
    panel.formats = ("f16",)
    assert "export_gguf(run, " in html.unescape(panel._code_view.value)


def test_stages_and_verified_results(panel: gn.export.ExportPanel, machine: Machine) -> None:
    panel.formats = ("merged", "q8_0")
    panel._export_button.click()
    assert machine.asked == [("merged", f"{panel._target}/merged", False), ("q8_0", f"{panel._target}/q8_0", True)]
    assert "now" in machine.seen[0] and "verifying merged &lt;i&gt;" in machine.seen[0], "told while it goes on"
    shown = read(panel._results)
    assert shown.count("verified: 2 of 2 checks passed") == 2 and "greedy text <equal>" in shown and "12 of 12" in shown
    assert "transformers serve" in shown and "ollama create" in shown and "<equal>" not in panel._results.value
    assert "now" not in read(panel._stages_view) and not panel._export_button.disabled
    assert set(panel.exports) == {"merged", "q8_0"} and panel._progress.layout.visibility == "hidden"
    assert repr(panel).endswith("merged verified, q8_0 verified")
    machine.problems = {"merged": ("it exists",), "adapter": ("it exists",)}
    panel.formats = ("merged", "adapter")
    assert "made just now" in read(panel._plan_view) and read(panel._plan_view).count("it exists") == 1
    panel._runs.value = next(run for _, run in panel._runs.options if run is not panel.run)
    assert panel.outcomes == {} and "Nothing has been exported" in read(panel._results)


def test_errors_are_words_and_the_others_go_on(panel: gn.export.ExportPanel, machine: Machine) -> None:
    machine.errors["merged"] = RuntimeError("the merged model is not the trained one,\n so it was <b>not kept</b>.")
    panel.formats = ("merged", "adapter")
    panel._export_button.click()
    shown = read(panel._results)
    assert "not exported" in shown and "is not the trained one, so it was <b>not kept</b>." in shown
    assert "<b>not kept" not in panel._results.value and "Traceback" not in shown
    assert list(panel.exports) == ["adapter"] and "failed" in read(panel._stages_view)
    machine.errors["merged"] = KeyboardInterrupt()
    machine.asked.clear()
    panel._export_button.click()
    assert [name for name, *_ in machine.asked] == ["merged"] and "stopped by hand" in read(panel._results)
    assert not panel._export_button.disabled and not panel._runs.disabled


def test_a_plan_that_fails_is_said(
    panel: gn.export.ExportPanel, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("the base model <x> is not there")

    monkeypatch.setattr(export_panel, "plan_targets", broken)
    panel._dtype.value = "float16"
    assert "the base model <x> is not there" in read(panel._errors) and panel._export_button.disabled
    monkeypatch.setattr(export_panel, "plan_targets", machine.plan)
    panel._refresh_button.click()
    assert panel._errors.value == "" and not panel._export_button.disabled


def test_without_runs_and_with_damaged_ones(machine: Machine, tmp_path: Path) -> None:
    empty = gn.export.ExportPanel(run_root=tmp_path / "none")
    assert empty.run is None and empty._export_button.disabled and "There is no run in" in read(empty._run_view)
    empty._export_button.click()
    assert machine.asked == [] and "no run in" in repr(empty)
    write_run(tmp_path / "runs" / "good")
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "run.json").write_text('{"status": ')
    (tmp_path / "runs" / "odd").mkdir()
    (tmp_path / "runs" / "odd" / "run.json").write_text("[]")
    panel = gn.export.ExportPanel(run_root=tmp_path / "runs")
    assert "odd: damaged, no step yet" in [text for text, _ in panel._runs.options]
    assert "bad: damaged, no step yet" in [text for text, _ in panel._runs.options]
    panel._runs.value = next(run for text, run in panel._runs.options if text.startswith("bad"))
    assert "gn-errors" in panel._errors.value
    assert panel._export_button.disabled and panel.plan is None
    assert panel._plan_view.value == panel._code_view.value == panel._run_view.value == "", (
        "not those of the run before"
    )
    panel._runs.value = next(run for text, run in panel._runs.options if text.startswith("good"))
    assert panel._errors.value == "" and "ready" in read(panel._plan_view)
    with pytest.raises(FileNotFoundError, match="is no run"):
        gn.export.ExportPanel(tmp_path / "nothing")


def test_one_given_run_and_a_page_without_a_kernel(machine: Machine, tmp_path: Path) -> None:
    run = write_run(tmp_path / "elsewhere" / "mine")
    panel = gn.export.ExportPanel(run, path=tmp_path / "out")
    assert panel.run is run and panel._runs.disabled and panel._folder.value == str(tmp_path / "out")
    bundle = panel._repr_mimebundle_()
    assert "ready" in bundle["text/html"] and "ExportPanel of mine" in bundle["text/plain"]
    assert "Reward lab" not in bundle["text/html"] and ">Export</div>" in bundle["text/html"]


def test_a_second_click_does_not_export_again(
    panel: gn.export.ExportPanel, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A click that comes while an export runs is handed to the kernel when it is done."""
    panel._replace.value = True
    make = machine.make

    def made(run: gn.runs.Run, name: str, path: Path, **how: Any) -> Export:
        panel._export_button.click()  # as by another thread: nothing may start
        export = make(run, name, path, **how)
        machine.problems[name] = ("it exists",)
        return export

    monkeypatch.setattr(export_panel, "export_format", made)
    panel._export_button.click()
    assert not panel._replace.value, "replacing was said of what was there before"
    assert panel._export_button.disabled and "made just now" in read(panel._plan_view)
    panel._export_button.click()
    assert len(machine.asked) == 1 and list(panel.exports) == ["merged"] and "verified" in read(panel._results)
    # What failed replaced nothing, so that the consent stays.
    machine.errors["adapter"] = RuntimeError("no")
    panel.formats = ("adapter",)
    panel._replace.value = True
    panel._export_button.click()
    assert panel._replace.value and not panel._export_button.disabled
