"""A progress bar in a notebook is one output, which ends with its last state."""

import pytest

from grpo_nb.core import progress


def run_bar() -> None:
    with progress.progress_bar(3, desc="answers", mininterval=0) as bar:
        for _ in range(3):
            bar.update()


@pytest.fixture
def shown_lines(displayed: list, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The states of a bar that has run to its end in a notebook."""
    monkeypatch.setattr(progress, "is_notebook", lambda: True)
    run_bar()
    return [bundle["text/plain"] for _, bundle, _ in displayed]


def test_bar_in_notebook_is_text_with_the_count(shown_lines: list[str]) -> None:
    assert shown_lines[0].startswith("answers")
    assert any("3/3" in line for line in shown_lines)


def test_bar_in_notebook_disappears_at_its_end(shown_lines: list[str]) -> None:
    assert shown_lines[-1] == "", "a saved notebook would show a bar for ever"


def test_bar_in_terminal_is_tqdms(displayed: list, monkeypatch, capsys) -> None:
    monkeypatch.setattr(progress, "is_notebook", lambda: False)
    run_bar()
    assert "answers" in capsys.readouterr().err
    assert displayed == []
