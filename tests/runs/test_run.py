"""Runs are written and read back in every state, complete or damaged."""

import math
from pathlib import Path

import pandas
import pytest

import grpo_nb as gn
from grpo_nb.core.locks import holding_lock
from grpo_nb.runs.groups import StepGroups, completion_texts, completions_table
from grpo_nb.runs.rows import row_from_logs
from grpo_nb.runs.writing import write_figure, write_questions, write_step
from grpo_nb.scoring.advantages import group_advantages
from tests.runs.test_figure import made_rows
from tests.support.run_folders import info_of, write_run_folder
from tests.support.written_run import COMPARISON, compare_by_hand

GONE = 2**22 + 1  # above any pid that Linux gives out
HELD_OUT = {"prompt": "a", "question": "b", "answer": "c", "level": 3}


def make_run(
    folder: Path, status: str = "finished", pid: int | None = None, **info: object
) -> gn.runs.Run:
    """A run with a file of each kind, by its own methods."""
    made = write_run_folder(folder, info_of({"right": 2.0}, status, pid) | info)
    for row in made_rows(5):
        scored = {
            "step": row["step"],
            "group": [0, 0],
            "prompt": "p",
            "completion": ["x", "y"],
            "right": [1.0, 0.0],
        }
        table = pandas.DataFrame({**scored, "total": [2.0, 0.0], "advantage": [0.7, -0.7]})
        write_step(made, row, table if row["step"] in (2, 4) else None)
    write_questions(made, ["1 + 1", "2 + 2", "3 + 3"], [HELD_OUT] * 3)
    compare_by_hand(made)
    return made


def test_run_reads_back_its_files(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert run.rows == made_rows(5)
    assert run.steps == [2, 4]
    assert len(run.completions()) == 4
    assert list(run.completions(4)["right"]) == [1.0, 0.0]
    assert len(run.metrics) == 5
    assert run.weights == {"right": 2.0}
    assert run.holdout == [HELD_OUT] * 3
    assert len(run.train_question_hashes) == 3
    assert run.alerts == []
    with pytest.raises(FileNotFoundError, match=r"no completions of step 3\."):
        run.step(3)
    with pytest.raises(TypeError):
        write_step(run, {"step": 6, "reward": object()}, None)
    assert len(run.rows) == 5, "and nothing of it was written"
    write_figure(run)
    assert (run.path / "figures" / "training.png").read_bytes().startswith(b"\x89PNG")
    compared = run.comparison
    assert (compared.verdict, compared.after.accuracy, compared.interval) == (
        "better",
        0.75,
        [0.25, 0.75],
    )
    said = repr(run)
    assert f"Held-out: {COMPARISON['sentence']}" in said


@pytest.mark.parametrize(
    ("status", "pid", "host", "seen"),
    [
        ("running", None, None, "crashed"),
        ("running", GONE, None, "crashed"),
        ("finished", GONE, None, "finished"),
        ("running", GONE, "elsewhere", "unknown"),
        ("failed", GONE, None, "failed: ValueError: no"),
        ("stopped", GONE, None, "stopped: Watcher"),
    ],
)
def test_status_sentence_of_each_state(
    tmp_path: Path, status: str, pid: int | None, host: str | None, seen: str
) -> None:
    """A run has crashed if its process is gone, or lives but does not train any more."""
    told = {"error": "ValueError: no", "stopped_by": "Watcher"} | ({"host": host} if host else {})
    run = make_run(tmp_path / "run", status, pid, **told)
    assert run.status_sentence == seen
    if seen == "crashed" and pid is None:
        with holding_lock(run.path):
            assert run.status == "running"


def test_run_with_sampling_in_generation_kwargs_gives_its_settings(tmp_path: Path) -> None:
    # Training refuses this now; a run of before is no damaged run.
    extra = {"generation_kwargs": {"top_p": 0.9}}
    settings = gn.preset("cpu", beta=0.0).to_dict() | {"extra": extra}
    assert make_run(tmp_path / "run", settings=settings).settings.extra == extra


READERS = {
    "run.json": lambda run: (run.info, run.settings, run.weights),
    "metrics.jsonl": lambda run: run.rows,
    "holdout.jsonl": lambda run: run.holdout,
    "train_questions.txt": lambda run: run.train_question_hashes,
    "comparison/comparison.json": lambda run: run.comparison,
    "completions/step_000002.parquet": lambda run: run.step(2),
}
DAMAGES = {
    "zeroed": lambda data: data[:10] + b"\0" * 200 + data[210:],
    "a number": lambda data: b"7\n" * 3,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", READERS)
def test_damaged_file_of_a_run_is_named(tmp_path: Path, name: str, damage: str) -> None:
    run = make_run(tmp_path / "run")
    file = run.path / name
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    with pytest.raises(ValueError, match=f"{file.name}.* is damaged") as caught:
        READERS[name](run)
    assert "\n" not in str(caught.value)
    if file.name in ("run.json", "metrics.jsonl", "comparison.json"):
        assert f"run cannot be read: {run.path / name}" in repr(gn.runs.list(run.path.parent)), (
            "and hides no other"
        )


def test_damaged_row_is_named_except_a_truncated_last_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    file = run.path / "metrics.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines) + '\n{"step": 6, "rew')
    assert run.rows == made_rows(5)
    file.write_text("\n".join([lines[0], lines[1][:20], *lines[2:]]) + "\n")
    with pytest.raises(
        ValueError, match=r"metrics.jsonl \(line 2\) is damaged.*delete the damaged part"
    ):
        _ = run.rows


def test_tidy_row_keeps_its_step_against_a_metric_of_that_name() -> None:
    logs = {"step": 0.5, "alerts": 1, "reward": 2}
    assert row_from_logs(logs, step=3, max_steps=9, beta=0.1) == {
        "step": 3,
        "max_steps": 9,
        "reward": 2.0,
    }


def test_completions_of_an_empty_run_are_missing(tmp_path: Path) -> None:
    run = write_run_folder(tmp_path / "run", info_of({}))
    with pytest.raises(FileNotFoundError, match=r"run has no completions\. run\.steps"):
        run.completions()


def groups_of(totals: list[float], advantages: list[float] | None = None) -> StepGroups:
    table = pandas.DataFrame(
        {
            "group": 0,
            "prompt": '[{"role": "user", "content": "p"}]',
            "completion": ["x", "y"],
            "total": totals,
            "advantage": group_advantages(totals, 2) if advantages is None else advantages,
        }
    )
    return StepGroups.from_table("A step", table, {})


def test_group_without_any_score_is_not_called_equal() -> None:
    html = groups_of([math.nan, math.nan])._repr_html_()
    assert "do not differ" not in html
    assert "No completion has a score" in html


def test_group_without_any_score_has_no_learning_signal() -> None:
    assert groups_of([math.nan, math.nan]).signal_count == 0
    assert groups_of([math.nan, 1.0]).signal_count == 0
    assert groups_of([0.0, 1.0]).signal_count == 1
    assert groups_of([0.0, 1.0]).groups[0].has_signal is True
    assert type(groups_of([0.0, 1.0]).signal_count) is int


def test_signal_of_rewards_normalised_one_by_one_is_that_of_the_advantages() -> None:
    """With `normalize_then_sum`, neither equal nor different totals decide."""
    equal_totals = groups_of([1.0, 1.0], advantages=[0.4, -0.4])
    assert equal_totals.signal_count == 1
    assert "learned nothing" not in equal_totals._repr_html_()
    equal_advantages = groups_of([1.0, 2.0], advantages=[0.0, 0.0])
    assert equal_advantages.signal_count == 0
    assert ">The advantages do not differ: GRPO learned nothing" in equal_advantages._repr_html_()


BATCH = {
    "rewards": {"right": [1.0, 0.0]},
    "prompt": [[{"role": "user", "content": "1 + 1?"}]] * 2,
    "completion": ["2", "3"],
    "advantages": [0.7, -0.7],
}


def test_logged_text_with_a_lone_surrogate_is_stored(tmp_path: Path) -> None:
    run = write_run_folder(tmp_path / "run", info_of({"right": 1.0}))
    logs = {**BATCH, "extra": {"judge says": ["half \ud83d", "whole"]}}
    write_step(run, {"step": 1}, completions_table(logs, 1, 2, {"right": 1.0}))
    assert list(run.completions(1)["judge says"]) == ["half \\ud83d", "whole"]


def test_logged_text_of_a_reserved_name_is_left_out() -> None:
    """A column `turns` would make each completion an episode with tools."""
    logs = {**BATCH, "extra": {"turns": ["short", "long"]}}
    table = completions_table(logs, 1, 2, {"right": 1.0})
    assert list(completion_texts(table)) == ["2", "3"]


def test_logged_texts_of_some_completions_are_left_out() -> None:
    """Nobody knows which completion a single text belongs to."""
    logs = {**BATCH, "extra": {"note": ["of the second completion"]}}
    assert "note" not in completions_table(logs, 1, 2, {"right": 1.0})


def test_missing_logged_text_is_not_shown(tmp_path: Path) -> None:
    run = write_run_folder(tmp_path / "run", info_of({"right": 1.0}))
    logs = {**BATCH, "extra": {"reason": [None, "half right"]}}
    table = completions_table(logs, 1, 2, {"right": 1.0})
    write_step(run, {"step": 1}, table)
    for groups in (run.step(1), StepGroups.from_table("A dry run", table, {"right": 1.0})):
        html = groups._repr_html_()
        assert html.count("reason:") == 1
        assert "half right" in html
        assert ">None<" not in html
        assert ">nan<" not in html


@pytest.mark.parametrize("column", ["group", "advantage", "right"])
def test_completions_without_a_column_name_their_file(tmp_path: Path, column: str) -> None:
    run = write_run_folder(tmp_path / "run", info_of({"right": 1.0}))
    table = completions_table(BATCH, 1, 2, {"right": 1.0})
    write_step(run, {"step": 1}, table.drop(columns=column))
    with pytest.raises(ValueError, match=rf"step_000001\.parquet is damaged.*{column}'"):
        run.step(1)


def test_tool_call_with_a_lone_surrogate_has_a_transcript() -> None:
    call = {"function": {"name": "read", "arguments": {"place": "\ud83d"}}}
    turns = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    logs = {**BATCH, "completion": [turns, turns]}
    table = completions_table(logs, 1, 2, {"right": 1.0}, has_tools=True)
    assert list(completion_texts(table)) == ["read(place=\\ud83d)"] * 2


def test_run_opened_in_its_folder_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run_folder(tmp_path / "first", info_of({}))
    (run.path / "adapter").mkdir()
    for folder, path in ((run.path, "."), (run.path / "adapter", "..")):
        monkeypatch.chdir(folder)
        assert gn.open_run(path).name == "first"


def test_failed_run_without_recorded_error_names_none(tmp_path: Path) -> None:
    run = write_run_folder(tmp_path / "run", info_of({}, "failed"))
    assert run.status_sentence == "failed"


def test_failed_run_shows_how_to_resume_it(tmp_path: Path) -> None:
    run = write_run_folder(tmp_path / "run", info_of({}, "failed"))
    advice = f"If nothing trains it any more, resume it: gn.train(..., resume={str(run.path)!r})"
    assert advice in repr(run)


def test_group_with_a_reward_named_shown_shows_both() -> None:
    table = groups_of([0.25, 1.0]).groups[0].table.assign(shown=[0.125, 0.375])
    html = StepGroups.from_table("A step", table, {"shown": 1.0})._repr_html_()
    assert 'data-reward="shown">0.125<' in html
    assert '<div class="gn-box" align="left"><code>x</code></div>' in html
