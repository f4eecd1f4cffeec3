"""The reward lab in JupyterLab, clicked through in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import nbformat
import pandas
import pytest
from nbconvert import HTMLExporter

import grpo_nb as gn
from grpo_nb.scoring.scores import Scores
from tests.support.lab_page import ROOT, Jupyter, LabPage, needs_browser, write_notebook

pytestmark = [pytest.mark.begins(70), needs_browser]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    with closing(
        Jupyter(tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("jupyter"))
    ) as server:
        yield server


@pytest.fixture
def page(tmp_path: Path) -> Iterator[LabPage]:
    with closing(LabPage(tmp_path / "profile")) as page:
        yield page


def on_page(scores: Scores) -> list[dict[str, str]]:
    """Return the values that the page should show for these scores."""
    words = {1: "pushed up", 0: "no push", -1: "pushed down"}
    return [
        {name: f"{value:.4g}" for name, value in zip(scores.values, values, strict=True)}
        | {
            "total": f"{total:.4g}",
            "advantage": f"{a:+.3f}",
            "push": words[(a > 1e-9) - (a < -1e-9)],
        }
        for *values, total, a in zip(
            *scores.values.values(), scores.totals, scores.advantages(), strict=True
        )
    ]


def row_on(page: LabPage) -> dict[str, str]:
    return {"question": page.text(".gn-question"), "answer": page.text(".gn-gold")}


def wait_for_scores(page: LabPage, scores: Scores) -> None:
    expected = on_page(scores)
    page.wait(lambda: page.scores() == expected, f"the scores {expected}")


def run_lab(server: Jupyter, page: LabPage, name: str, cell: str) -> None:
    write_notebook(server.folder / name, cell)
    page.open(server, name)
    page.run_all()
    page.wait(page.scores, "the table of scores")


ADVANTAGES_OF_THE_LAB = """\
scores = gn.score(rewards, lab.completions, lab.row)
print([round(advantage, 2) for advantage in scores.advantages()])"""


def test_the_notebook_is_run_and_its_lab_used(server: Jupyter, page: LabPage) -> None:
    """Open the published notebook with the real model, up to the lab and a cell that uses it."""
    published = nbformat.read(ROOT / "notebooks/02_rewards.ipynb", as_version=4)
    (at,) = [
        i for i, cell in enumerate(published.cells) if cell.source.startswith("lab = gn.RewardLab(")
    ]
    next_cell = nbformat.v4.new_code_cell(ADVANTAGES_OF_THE_LAB)
    published.cells = [*published.cells[: at + 1], next_cell]
    nbformat.write(published, server.folder / "lab.ipynb")
    rewards = [
        gn.rewards.correctness(weight=2.0),
        gn.rewards.exact_format(weight=1.0),
        gn.rewards.partial_format(weight=0.5),
    ]
    page.open(server, "lab.ipynb")
    page.run_all()
    page.wait(page.scores, "the table of scores", 300)
    texts = [page.value(f"Completion {number}") for number in (1, 2, 3)]
    wait_for_scores(page, gn.score(rewards, texts, row_on(page)))
    assert page.text(".gn-prompt").endswith("<|im_start|>assistant"), (
        "the prompt as the model sees it"
    )
    assert [line["total"] for line in page.scores()] == ["3.5", "1.5", "0"]

    # Another row, and completions of one's own.
    before = row_on(page)
    (label,) = [
        text for text in page.texts(".gn-panel .widget-label") if text.startswith("Row, 0 to ")
    ]
    page.write(label, "7")
    page.wait(
        lambda: row_on(page)["question"] not in ("", before["question"]), "the question of row 7"
    )
    row = row_on(page)
    right = f"<reasoning>\nI count.\n</reasoning>\n<answer>\n{row['answer']}\n</answer>"
    texts = [right, "<answer>999</answer>", "It is 1."]
    for number, text in enumerate(texts, 1):
        page.write(f"Completion {number}", text)
    scores = gn.score(rewards, texts, row)
    assert len(set(scores.totals)) == 3
    wait_for_scores(page, scores)
    # The marks are drawn after the scores.
    marks = ["<reasoning>", "</reasoning>", "<answer>", row["answer"], "</answer>"]
    page.wait(
        lambda: page.texts(".gn-card[data-completion='1'] mark.gn-earned") == marks, "the marks"
    )

    # A group from the model.
    page.click("Sample a group")
    page.wait(
        lambda: "Sampling 8 completions" in page.text(".gn-status"), "the word that it is sampling"
    )
    page.wait(
        lambda: "Sampled 8 completions for row 7" in page.text(".gn-status"), "the completions", 300
    )
    assert page.with_text(".gn-panel button", "Sample a group").is_enabled()
    texts = [page.value(f"Completion {number}") for number in range(1, 9)]
    assert all(text.strip() for text in texts)
    assert len(set(texts)) > 1
    scores = gn.score(rewards, texts, row)
    wait_for_scores(page, scores)

    # What stands in the lab is there for the next cell.
    page.run_cell("scores = gn.score(")
    advantages = str([round(advantage, 2) for advantage in scores.advantages()])
    page.wait(lambda: page.output("scores = gn.score(").startswith(advantages), advantages)


JUDGED = """\
import grpo_nb as gn
from tests.support.judges import by_length
judge = gn.rewards.judge(by_length, "Long is good.", cache=None)
lab = gn.RewardLab([judge], [{"question": "Why?", "answer": "x"}], hand_scores="by_hand.csv")
lab.completions = [" ".join(["word"] * n) for n in range(1, 6)]
lab"""


def test_scores_by_click_are_saved(server: Jupyter, page: LabPage) -> None:
    run_lab(server, page, "by_hand.ipynb", JUDGED)
    for number in "12345":
        waits = f"Completion {number} of 5: your score?"
        page.wait(lambda waits=waits: waits in page.text(".gn-panel"), waits)
        page.click(number)
    page.wait(
        lambda: "Every completion here has your score." in page.text(".gn-panel"), "the last score"
    )
    assert page.text(".gn-given") == "1: 1, 2: 2, 3: 3, 4: 4, 5: 5; 5 in all, in by_hand.csv"
    kept = pandas.read_csv(server.folder / "by_hand.csv")
    assert kept["score"].to_list() == [1, 2, 3, 4, 5]
    assert kept["completion"].iloc[0] == "word"


EVIL = "\"'><img src=x onerror=\"window.taken='img'\"><script>window.taken='script'</script>"

HOSTILE = f"""\
import grpo_nb as gn
EVIL = {EVIL!r}
prompt = [{{"role": "user", "content": EVIL}}]
rows = [{{"question": EVIL, "answer": "23" + EVIL, "prompt": prompt}}] * 3
def brevity(completions, **columns):
    if not completions[-1][0]["content"].split():
        raise ValueError("nothing to count " + EVIL)
    return [1 / len(c[0]["content"].split()) for c in completions]
def odd(completions, **columns):
    return [0.5 for _ in completions]
odd.__name__ = EVIL
lab = gn.RewardLab([gn.rewards.correctness(), brevity, odd], rows)
lab"""

INJECTED = (
    "return window.taken || "
    "document.querySelector('.gn-panel img, .gn-panel script, .gn-panel [onerror]')"
)


def test_hostile_texts_and_failing_rewards(server: Jupyter, page: LabPage) -> None:
    write_notebook(server.folder / "hostile.ipynb", HOSTILE)
    page.open(server, "hostile.ipynb")
    page.run_cell("import grpo_nb")
    page.wait(page.scores, "the table of scores")
    assert page.text(".gn-question") == EVIL
    assert page.text(".gn-gold") == "23" + EVIL
    assert EVIL in page.text(".gn-prompt")
    assert EVIL in page.scores()[0]

    # The reward fails on the second text: it is named, with row and excerpt.
    page.write("Completion 1", EVIL)
    page.write("Completion 2", " ")
    page.wait(
        lambda: (
            f"the reward 'brevity' raised ValueError: nothing to count {EVIL}"
            in page.text(".gn-errors")
        ),
        "the error",
    )
    assert "(on row 1: ' ')" in page.text(".gn-errors")
    assert 'raise ValueError("nothing to count "' in page.text(".gn-errors"), "the line that raised"
    assert page.scores() == []

    assert page.run(INJECTED) is None
    # That an img would have been noticed:
    page.run(
        "document.querySelector('.gn-title').insertAdjacentHTML('beforeend', arguments[0])", EVIL
    )
    page.wait(lambda: page.run("return window.taken") == "img", "the control")


def test_saved_notebook_shows_the_lab_without_a_kernel(server: Jupyter, page: LabPage) -> None:
    run_lab(server, page, "saved.ipynb", HOSTILE)
    expected = page.scores()
    row = row_on(page)
    page.choose_menu("File", "Save Notebook")
    page.wait(
        lambda: '"text/html"' in (server.folder / "saved.ipynb").read_text(), "the saved notebook"
    )
    (server.folder / "saved.html").write_text(
        HTMLExporter().from_filename(str(server.folder / "saved.ipynb"))[0]
    )
    page.driver.get((server.folder / "saved.html").as_uri())
    assert page.scores() == expected
    assert row_on(page) == row
    assert page.run(INJECTED) is None
    assert page.find(".gn-scores").is_displayed()
    height = "return getComputedStyle(document.querySelector('.gn-prompt')).maxHeight"
    assert page.run(height) == "none", "the end of the prompt, the question itself, is visible"
    assert "Run the notebook to use it" in page.text(".gn-panel")
