"""A bar in a notebook is one output that ends with its last state."""

import pytest

from grpo_nb.core import progress


def test_in_a_notebook_it_is_text_in_place_and_goes_away(monkeypatch: pytest.MonkeyPatch, displayed: list) -> None:
    monkeypatch.setattr(progress, "is_notebook", lambda: True)
    with progress.progress_bar(3, desc="answers", mininterval=0) as bar:
        for _ in range(3):
            bar.update()
    shown = [content["text/plain"] for _, content, _ in displayed]
    assert any("3/3" in line for line in shown) and shown[0].startswith("answers")
    assert shown[-1] == "", "a saved notebook would show a bar for ever"


def test_in_a_terminal_it_is_tqdms(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bar(2, desc="answers", mininterval=0) as bar:
        bar.update(2)
    assert "answers" in capsys.readouterr().err
