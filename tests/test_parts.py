"""`make test-all`: what it begins in the time that it is given, and what it says of the rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts import test_all


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[str]]]:
    """Run the parts; each takes twice as long as where its time was measured, on a clock of its own."""
    clock, parts = [0.0], []

    def run(part: str) -> int:
        parts.append(part)
        clock[0] += 2 * test_all.SECONDS[part]
        return int(part == "test-bfloat16")

    def main(*arguments: str, **seconds: int) -> tuple[int, list[str]]:
        known = {"bootstrap": 60, "test": 600, "test-slow": 900, "test-vllm": 60} | seconds
        monkeypatch.setattr(test_all, "SECONDS", known)
        parts.clear()
        return test_all.main(arguments), parts

    monkeypatch.setattr(test_all, "run", run)
    monkeypatch.setattr(test_all.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(test_all, "lacks_for_vllm", lambda: "This processor\nlacks it.")
    return main


# `test` takes twice its time, which is more than on the slowest machine known: so will 1 + 10 + 15 minutes. A fast machine
# begins no more than the slowest would end.
@pytest.mark.parametrize(("slowest", "enough"), [(1.85, 52), (4.0, 104)])
def test_a_part_that_would_not_end_in_time_is_left_out_and_said(
    begun, slowest: float, enough: int, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(test_all, "SLOWEST", slowest)
    assert begun("--minutes", str(enough - 1)) == (0, ["bootstrap", "test"])
    said = capsys.readouterr().out
    assert f"test-slow      left out: about {enough} minutes with it, and {enough - 1} are given" in said
    assert "test           20.0 minutes" in said
    assert begun("--minutes", str(enough)) == (0, ["bootstrap", "test", "test-slow"])


def test_without_a_limit_all_is_begun_that_can_run_here(begun, capsys, monkeypatch) -> None:
    assert begun() == (0, ["bootstrap", "test", "test-slow"])
    assert "test-vllm      left out: This processor lacks it." in capsys.readouterr().out
    monkeypatch.setattr(test_all, "lacks_for_vllm", str)
    assert begun() == (0, ["bootstrap", "test", "test-slow", "test-vllm"])


def test_after_a_failure_nothing_more_is_begun(begun, capsys) -> None:
    status, parts = begun(**{"test-bfloat16": 60, "test-later": 60})
    said = capsys.readouterr().out
    assert status == 1 and parts[-1] == "test-bfloat16"
    assert "test-bfloat16  2.0 minutes, failed" in said and "test-later     not begun" in said


def test_each_part_is_a_target_of_the_makefile() -> None:
    makefile = (test_all.ROOT / "Makefile").read_text()
    assert all(f"\n{part}:" in makefile for part in test_all.SECONDS)
