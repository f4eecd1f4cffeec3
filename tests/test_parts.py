"""`make test-all`: what it begins in the time that it is given, and what it says of the rest."""

from __future__ import annotations

import pytest

from scripts import test_all


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that were begun; each takes twice as long as where its time was measured, on a clock of its own."""
    clock, parts = [0.0], []

    def run(part: str) -> int:
        parts.append(part)
        clock[0] += 2 * test_all.SECONDS[part]
        return int(part == "test-bfloat16")

    monkeypatch.setattr(test_all, "run", run)
    monkeypatch.setattr(test_all.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(test_all, "lacks_for_vllm", lambda: "This processor\nlacks it.")
    monkeypatch.setattr(test_all, "SECONDS", {"bootstrap": 60, "test": 600, "test-slow": 900, "test-vllm": 60})
    return parts


def test_a_part_that_would_not_end_in_time_is_left_out_and_said(begun: list[str], capsys) -> None:
    # `test` took twice its time, which is more than on the slowest machine known: so will 1 + 10 + 15 minutes.
    assert test_all.main(["--minutes", "51"]) == 0 and begun == ["bootstrap", "test"]
    said = capsys.readouterr().out
    assert "test-slow      left out: with it about 52 minutes on the slowest machine, and 51 are given" in said
    assert "test           20.0 minutes" in said and "together       22.0 minutes" in said
    begun.clear()
    assert test_all.main(["--minutes", "52"]) == 0 and begun == ["bootstrap", "test", "test-slow"]


def test_a_fast_machine_begins_no_more_than_the_slowest_would_end(begun: list[str], monkeypatch) -> None:
    monkeypatch.setattr(test_all, "SLOWEST", 4.0)
    assert test_all.main(["--minutes", "103"]) == 0 and begun == ["bootstrap", "test"]
    begun.clear()
    assert test_all.main(["--minutes", "104"]) == 0 and begun == ["bootstrap", "test", "test-slow"]


def test_without_a_limit_all_is_begun_that_can_run_here(begun: list[str], capsys, monkeypatch) -> None:
    assert test_all.main([]) == 0 and begun == ["bootstrap", "test", "test-slow"]
    assert "test-vllm      left out: This processor lacks it." in capsys.readouterr().out
    monkeypatch.setattr(test_all, "lacks_for_vllm", str)
    begun.clear()
    assert test_all.main([]) == 0 and begun[-1] == "test-vllm"


def test_after_a_failure_nothing_more_is_begun(begun: list[str], capsys, monkeypatch) -> None:
    monkeypatch.setitem(test_all.SECONDS, "test-bfloat16", 60)
    monkeypatch.setitem(test_all.SECONDS, "test-later", 60)
    assert test_all.main([]) == 1 and begun[-1] == "test-bfloat16"
    said = capsys.readouterr().out
    assert "test-bfloat16  2.0 minutes, failed" in said and "test-later     not begun" in said


def test_each_part_is_a_target_of_the_makefile() -> None:
    makefile = (test_all.ROOT / "Makefile").read_text()
    assert all(f"\n{part}:" in makefile for part in test_all.SECONDS)
