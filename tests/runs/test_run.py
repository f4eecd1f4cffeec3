"""Runs read back from disk in every state, rows of either generation of names, and what is said about them in words."""

import math
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.core.files import writing_here
from grpo_nb.runs import live, rise, run
from grpo_nb.runs import rows as run_rows
from tests.runs.test_figure import made_rows
from tests.support.run_folders import info_of, write_run_folder
from tests.support.written_run import COMPARISON, compare_by_hand


def make_run(folder: Path, status: str = "finished", pid: int | None = None, tail: str = "") -> gn.runs.Run:
    run = write_run_folder(folder, info_of({"right": 2.0}, status, pid), made_rows(5))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(tail)
    return run


def test_open_run_gives_the_same(tiny_run: gn.runs.Run) -> None:
    opened = gn.open_run(tiny_run.path)
    assert opened.model is None
    assert opened.rows == tiny_run.rows and opened.settings == tiny_run.settings and repr(opened) == repr(tiny_run)
    assert live.png(opened.plot()) == live.png(tiny_run.plot())
    assert len(opened.metrics) == 14 and opened.metrics["reward"].notna().all()


def test_a_process_that_is_gone_has_crashed(tmp_path: Path) -> None:
    gone = 2**22 + 1  # above any pid that Linux gives out
    own = make_run(tmp_path / "a", "running")
    assert own.status == "crashed", "the kernel is there, but trains it no more"
    with writing_here(own.path):
        assert own.status == "running"
    assert make_run(tmp_path / "b", "running", gone).status == "crashed"
    assert make_run(tmp_path / "c", "finished", gone).status == "finished"


def test_a_path_without_a_run_names_its_neighbours(tmp_path: Path) -> None:
    make_run(tmp_path / "mine")
    with pytest.raises(FileNotFoundError, match=r"Runs in .*: mine"):
        gn.open_run(tmp_path / "yours")


def test_new_names_do_not_collide(tmp_path: Path) -> None:
    folders = {run.new_run_folder(tmp_path, None) for _ in range(5)}
    assert len(folders) == 5


def test_what_was_not_measured_has_no_key() -> None:
    row = run_rows.tidy_row({"kl": 0.0, "reward": 1.0, "entropy": None, "note": "x"}, 3, 9, beta=0.0)
    assert row == {"step": 3, "max_steps": 9, "reward": 1.0}
    assert run_rows.tidy_row({"kl": 0.0}, 3, 9, beta=0.1)["kl"] == 0.0


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "No step has been logged yet"),
        (made_rows(1), "The reward of the only step is 1.00; KL"),
        (made_rows(2), "The reward went from 1.00 (first of 2 steps) to 2.00 (last); KL"),
        ([{"step": i, "reward": 3 - i / 10} for i in range(20)], "The reward fell from 2.75 (first 6 of 20 steps)"),
        (
            [{"step": i, "reward": 1.0 + i % 4} for i in range(400)],
            "The reward did not rise clearly: it went from 2.49",
        ),
        (
            made_rows(20),
            "The reward rose from 1.25 (first 6 of 20 steps) to 2.65 (last 6); KL to the starting model 0.0",
        ),
        (made_rows(20), "25% of completions cut at the length limit (last 6)."),
        (made_rows(20, kl=math.nan), "KL not measured; 25%"),
        (made_rows(20, reward=1.0), "rise clearly: it went from 1.00 (first 6 of 20 steps) to 1.00 (last 6); KL"),
        ([{"step": 1, "loss": 0.0}] * 3, "None of the 3 steps logged has a reward: each was NaN, None or infinite"),
        (made_rows(20, reward=math.inf), "None of the 20 steps logged has a reward"),
        ([*made_rows(6), {"step": 7, "reward": math.nan}], "to 2.50 (last 2); NaN or infinite in 1 more; KL"),
    ],
)
def test_the_sentence(rows: list[dict], said: str) -> None:
    assert said in rise.describe(rows)


def test_what_came_after_training_are_objects(tmp_path: Path) -> None:
    made = make_run(tmp_path / "run")
    assert made.comparison is None and made.exports == [] and made.alerts == [] and made.weights == {"right": 2.0}
    compare_by_hand(made)
    compared = made.comparison
    assert (compared.verdict, compared.after.accuracy, compared.interval) == ("better", 0.75, (0.25, 0.75))
    assert "75.0% (53.0% to 89.0%)" in repr(compared) and COMPARISON["sentence"] in compared._repr_html_()
    for kind in ("merged bfloat16", "gguf q8_0"):
        made.record_export("exports/a", kind, "verified")
    (export,) = made.exports
    assert export.kind == "gguf q8_0", "what was at the same path before is there no more"
    said = repr(made)
    assert f"Held-out: {COMPARISON['sentence']}" in said and "Exported gguf q8_0: exports/a (verified)" in said
    assert made._repr_html_().count("<b>Run run: finished.</b></div>") == 1
