"""The reward lab in JupyterLab, in a real browser: opened, run and clicked through; scores read off the page.

Screenshots of each stage are kept under the temporary folder of pytest, or in GRPO_NB_SCREENSHOTS.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.checks import read_cases
from tests.lab_page import CHROMIUM, DRIVER, Jupyter, LabPage, write_notebook

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="chromium is not installed (Debian, Ubuntu: apt-get install chromium chromium-driver)",
)

SETUP = """\
import grpo_nb as gn
task = gn.load_task("arithmetic", train_size=40, holdout_size=10)
def brevity(completions, **kwargs):
    return [1 / len(c[0]["content"].split()) for c in completions]
rewards = [gn.rewards.correctness(weight=2.0), gn.rewards.xml_format(weight=1.0), gn.rewards.xml_tags(weight=0.5), brevity]"""
SHOW = "lab = gn.RewardLab({}, cases='cases.jsonl')\nlab"


def brevity(completions: list, **columns: object) -> list[float]:
    return [1 / len(c[0]["content"].split()) for c in completions]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jupyter]:
    server = Jupyter(folder, tmp_path_factory.mktemp("jupyter"))
    yield server
    server.stop()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[LabPage]:
    page = LabPage(tmp_path / "profile")
    yield page
    page.close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chosen = os.environ.get("GRPO_NB_SCREENSHOTS")
    place = Path(chosen) if chosen else tmp_path_factory.mktemp("screenshots")
    place.mkdir(parents=True, exist_ok=True)
    return place


def on_page(scores: gn.scoring.Scores) -> list[dict[str, str]]:  # type: ignore[name-defined]
    """What the page must say of these scores."""
    words = {1: "more likely", 0: "not moved", -1: "less likely"}
    return [
        {name: f"{value:.4g}" for name, value in values.items()}
        | {"total": f"{total:.4g}", "advantage": f"{a:+.3f}", "push": words[(a > 1e-9) - (a < -1e-9)]}
        for values, total, a in zip(scores, scores.totals, scores.advantages(), strict=True)
    ]


def test_clicking_through_the_lab(server: Jupyter, page: LabPage, folder: Path, pictures: Path) -> None:
    write_notebook(folder / "lab.ipynb", SETUP, SHOW.format("rewards, task"))
    page.open(server, "lab.ipynb")
    page.run_all()
    page.wait(page.scores, "the table of scores", 60)
    task = gn.load_task("arithmetic", train_size=40, holdout_size=10)
    rewards = [gn.rewards.correctness(), gn.rewards.xml_format(), gn.rewards.xml_tags(weight=0.5), brevity]

    # Pick a row: its examples come with it.
    row = task.train[7]
    page.write("Row, 0 to 39", "7")
    page.wait(lambda: page.text(".gn-question") == row["question"], "the question of row 7")
    assert page.text(".gn-gold") == row["answer"] and row["question"] in page.text(".gn-prompt")

    # Type completions, one of them with what would run in a page that does not escape.
    right = f"<reasoning>\nI count.\n</reasoning>\n<answer>\n{row['answer']}\n</answer>"
    texts = [right, "<answer>99</answer>", "<script>document.title = 'taken'</script><b>bold</b> or so"]
    page.click("Add a completion")
    for number, text in enumerate(texts, 1):
        page.write(f"Completion {number}", text)
    scores = gn.score(rewards, texts, row)
    page.wait(lambda: page.scores() == on_page(scores), f"the scores {on_page(scores)}")
    assert page.driver.title != "taken" and not page.find_all(".gn-card script, .gn-card b b, .gn-scores b")
    assert texts[2] in page.text(".gn-card[data-completion='3'] pre")
    marks = page.texts(".gn-card[data-completion='1'] mark.gn-earned")
    assert marks == ["<reasoning>", "</reasoning>", "<answer>", row["answer"], "</answer>"]
    page.screenshot(pictures / "scores.png")

    # Move a weight.
    page.write("correctness", "0.25")
    moved = gn.reweight(scores, {"correctness": 0.25})
    page.wait(lambda: page.scores() == on_page(moved), f"the scores {on_page(moved)}")
    page.click("Reset weights")
    page.wait(lambda: page.scores() == on_page(scores), "the weights as they were")

    # A reward that fails is named, and the lab goes on.
    page.write("Completion 2", " ")
    page.wait(lambda: "The reward brevity failed on completion 2: ' '" in page.text(".gn-errors"), "the error")
    assert "ZeroDivisionError: division by zero" in page.text(".gn-errors") and page.scores()[1]["brevity"] == "failed"
    page.screenshot(pictures / "error.png")
    page.write("Completion 2", texts[1])
    page.wait(lambda: page.scores() == on_page(scores) and not page.find(".gn-errors"), "scores after the error")

    # Probes.
    page.click("Run the probes on this row")
    page.wait(lambda: page.find(".gn-report"), "the report", 60)
    report = gn.check_rewards(rewards, [row], format=task.format)
    said = page.text(".gn-report")
    assert report.findings and all(finding.kind in said for finding in report.findings)
    assert "check_rewards on this row: " + ("PASS" if report.ok else "FAIL") in page.text(".gn-lab")
    verdicts = page.texts(".gn-probes tbody td:first-child")
    assert (
        len(verdicts) > 30 and verdicts[0].startswith("fail: brevity raised ZeroDivisionError") and "pass" in verdicts
    )

    # Keep a case.
    page.tab("Cases to keep")
    page.choose("Completion", "Completion 3")
    page.write("It must score", "0.5")
    page.write("What the case shows", "no tags")
    page.click("Keep the case")
    page.wait(lambda: "FAIL: 1 of 1 cases are not met" in page.text(".gn-lab"), "the verdict on the case")
    assert "no tags" in page.text(".gn-cases")
    (case,) = read_cases(folder / "cases.jsonl")
    assert (case["reward"], case["completion"], case["expected"]) == ("correctness", texts[2], 0.5)
    assert case["columns"] == row
    assert any(f.kind == "case" for f in gn.check_rewards(rewards[0], task, cases=folder / "cases.jsonl").findings)
    page.screenshot(pictures / "cases.png")


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_it_fits_a_narrow_page_in_both_themes(
    theme: str, server: Jupyter, page: LabPage, folder: Path, pictures: Path
) -> None:
    name = theme.split()[-1].lower()
    long = "lab.completions = ['<answer>' + 'word ' * 3000 + '</answer>', 'x' * 5000, '']\nlab._probe_button.click()"
    write_notebook(folder / f"{name}.ipynb", SETUP, SHOW.format("rewards, task"), long)
    page.driver.set_window_size(900, 1000)
    page.open(server, f"{name}.ipynb")
    page.run_all()
    page.wait(lambda: len(page.scores()) == 3 and page.find(".gn-report"), "the scores", 60)
    page.set_theme(theme)
    assert page.overflowing() == []
    tall = page.driver.execute_script(
        "return [...document.querySelectorAll('.gn-lab textarea, .gn-lab pre')].map(e => e.clientHeight).filter(h => h > 260)"
    )
    assert tall == [], "long completions scroll inside their boxes"
    faint = page.faint_texts()
    assert faint == [], "text must stand out from its ground"
    page.screenshot(pictures / f"narrow_{name}.png")


def test_sampling_from_the_real_model(server: Jupyter, page: LabPage, folder: Path, pictures: Path) -> None:
    load = "model, tokenizer = gn.load_model(gn.preset('cpu'))"
    show = SHOW.format("rewards[:3], task, model, tokenizer, gn.preset('cpu')")
    write_notebook(folder / "model.ipynb", SETUP, load, show)
    page.open(server, "model.ipynb")
    page.run_all()
    page.wait(page.scores, "the lab", 120)
    assert page.text(".gn-prompt").rstrip().endswith("<|im_start|>assistant")
    page.write("Group size", "4")
    page.click("Sample a group")
    page.wait(lambda: "Sampling 4 completions" in page.text(".gn-status"), "the word that it is sampling")
    button = page.wait(lambda: page.button("Sampling..."), "the button while it samples")
    assert not button.is_enabled()
    page.wait(lambda: "Sampled 4 completions for row 0" in page.text(".gn-status"), "the completions", 90)
    assert page.button("Sample a group").is_enabled()
    texts = [page.control(f"Completion {number}").get_attribute("value") for number in range(1, 5)]
    assert all(text.strip() for text in texts) and len(set(texts)) > 1
    # With the example turn in its prompt this model mostly uses the tags.
    assert any("<answer>" in text for text in texts), json.dumps(texts)
    task = gn.load_task("arithmetic", train_size=40, holdout_size=10)
    rewards = [gn.rewards.correctness(), gn.rewards.xml_format(), gn.rewards.xml_tags(weight=0.5)]
    assert page.scores() == on_page(gn.score(rewards, texts, task.train[0]))
    page.screenshot(pictures / "sampled.png")
