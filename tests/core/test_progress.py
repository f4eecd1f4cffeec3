"""A bar in a notebook is one output that ends with its last state."""

import pytest

from grpo_nb.core import progress


class FakeHandle:
    def __init__(self, shown: list[str]) -> None:
        self.shown = shown

    def update(self, content: dict[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(content["text/plain"])


def test_in_a_notebook_it_is_text_in_place_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def display(content: dict[str, str], raw: bool, display_id: bool) -> FakeHandle:
        assert raw and display_id
        shown.append(content["text/plain"])
        return FakeHandle(shown)

    monkeypatch.setattr(progress, "is_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", display)
    with progress.progress_bar(3, desc="answers", mininterval=0) as bar:
        for _ in range(3):
            bar.update()
    assert any("3/3" in line for line in shown) and shown[0].startswith("answers")
    assert shown[-1] == "", "a saved notebook would show a bar for ever"


def test_in_a_terminal_it_is_tqdms(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bar(2, desc="answers", mininterval=0) as bar:
        bar.update(2)
    assert "answers" in capsys.readouterr().err
