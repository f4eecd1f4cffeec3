"""A bar in a notebook is one output that ends with its last state."""

from grpo_nb.core import progress


def test_it_is_text_in_place_and_goes_away_and_in_a_terminal_it_is_tqdms(
    displayed: list, monkeypatch, capsys
) -> None:
    for is_notebook in (False, True):
        monkeypatch.setattr(progress, "is_notebook", lambda told=is_notebook: told)
        with progress.progress_bar(3, desc="answers", mininterval=0) as bar:
            for _ in range(3):
                bar.update()
    assert "answers" in capsys.readouterr().err
    shown = [content["text/plain"] for _, content, _ in displayed]
    assert any("3/3" in line for line in shown) and shown[0].startswith("answers")
    assert shown[-1] == "", "a saved notebook would show a bar for ever"
