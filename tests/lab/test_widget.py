"""The reward lab without a browser, driven as a front end drives it: values set, buttons clicked.

Runs without torch too, and is: `lab/test_old_widgets.py` runs this file with the ipywidgets and IPython that Colab has.
"""

from __future__ import annotations

import html
import pydoc
import re
import threading
import time
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter

import grpo_nb as gn
from grpo_nb.rewards.answers import correctness
from grpo_nb.rewards.format_and_length import length, xml_format
from grpo_nb.scoring.scores import group_advantages, score
from grpo_nb.tasks.formats import xml
from grpo_nb.tasks.task import Task

RIGHT, WRONG = "<reasoning>\nr\n</reasoning>\n<answer>\n23\n</answer>", "<answer>99</answer>"


def make_rows(count: int = 5, **more: Any) -> list[dict[str, Any]]:
    rows = [
        {"question": f"What is {n} + 3?", "answer": str(n + 3), **more}
        for n in range(20, 20 + count)
    ]
    return [{"prompt": [{"role": "user", "content": row["question"]}], **row} for row in rows]


class Brevity:
    """A reward of the user's that counts its calls and fails on empty text."""

    __name__ = "brevity"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, completions: list, **columns: Any) -> list[float]:
        self.calls += 1
        return [1 / len(c[0]["content"]) for c in completions]


def paying(value: float) -> Any:
    """Another reward of that name."""

    def brevity(completions: list, **columns: Any) -> list[float]:
        return [value for _ in completions]

    return brevity


@pytest.fixture
def task() -> Task:
    return Task("sums", xml(), make_rows(), make_rows(1))


@pytest.fixture
def lab(task: Task) -> gn.RewardLab:
    return gn.RewardLab([correctness(), xml_format(), Brevity()], task)


def shown_scores(lab: gn.RewardLab) -> list[list[str]]:
    """The numbers in the table of scores, line by line."""
    lines = re.findall(r"<tr data-completion=.*?</tr>", lab._table.value, re.DOTALL)
    return [
        [html.unescape(c) for c in re.findall(r'<td class="gn-number[^>]*>(.*?)</td>', line)]
        for line in lines
    ]


def html_views(widget: Any) -> list[str]:
    """What stands in every view of the lab, however deep."""
    own = [widget.value] if type(widget).__name__ == "HTML" else []
    return own + [value for child in getattr(widget, "children", ()) for value in html_views(child)]


def test_the_table_holds_the_numbers_of_scoring(lab: gn.RewardLab, task: Task) -> None:
    assert "23" in lab.completions[0] and "23" not in lab.completions[1] and lab._errors.value == ""
    assert lab.scores.values["correctness"] == (1.0, 0.0), (
        "it begins with a right and a wrong completion"
    )
    assert lab._sample_button.disabled and lab._size.disabled
    assert any(
        "Sampling needs <code>gn.RewardLab(rewards, task, model, tokenizer)" in view
        for view in html_views(lab)
    )
    texts = [RIGHT, WRONG, "no tags at all"]
    lab.completions = texts
    scores = score([correctness(), xml_format(), Brevity()], texts, task.train[0])
    advantages = group_advantages(scores.totals, 3)
    assert shown_scores(lab) == [
        [*(f"{v:.4g}" for v in (*values, total)), f"{advantage:+.3f}"]
        for *values, total, advantage in zip(
            *scores.values.values(), scores.totals, advantages, strict=True
        )
    ]
    assert lab.advantages == advantages and lab.scores.totals == scores.totals
    lab.completions = [RIGHT, RIGHT]
    assert "GRPO learns nothing from this group" in lab._table.value and lab.advantages == [
        0.0,
        0.0,
    ]


def test_writing_adding_and_removing(lab: gn.RewardLab) -> None:
    lab._entries.children[0].box.value = WRONG
    assert lab.scores.values["correctness"] == (0.0, 0.0)
    before = lab._entries.children
    lab._add_button.click()
    assert lab._entries.children[:2] == before, "boxes that are there stay as they are on the page"
    lab._entries.children[2].box.value = RIGHT
    assert lab.completions[0] == WRONG and lab.scores.values["correctness"] == (0.0, 0.0, 1.0)
    lab._entries.children[0].remove.click()
    assert len(shown_scores(lab)) == 2 and lab.completions[1] == RIGHT
    lab._entries.children[0].remove.click()
    assert lab.completions == [RIGHT] and "nothing to be compared with" in lab._table.value
    assert lab._entries.children[0].remove.disabled, "the last completion must stay"


def test_another_row(lab: gn.RewardLab, task: Task) -> None:
    lab._row.value = 3
    assert lab.row == task.train[3] and "26" in lab.completions[0], (
        "untouched examples follow the row"
    )
    assert "What is 23 + 3?" in lab._row_view.value
    lab._entries.children[0].box.value = "<answer>24</answer>"
    lab._row.value = 1
    assert (
        lab.completions[0] == "<answer>24</answer>" and lab.scores.values["correctness"][0] == 1.0
    )
    assert "your completions stayed" in lab._status.value
    lab._example_button.click()
    assert "24" in lab.completions[0] and len(lab.completions) == 2


def test_weights_move_totals_without_calling_a_reward(task: Task) -> None:
    brevity = Brevity()
    lab = gn.RewardLab([correctness(), brevity], task)
    lab.completions = ["a" * 10, RIGHT]
    calls, before = brevity.calls, lab.advantages
    lab._boxes["correctness"].value = 0.0
    lab._boxes["brevity"].value = 4.0
    assert lab.scores.totals == (4.0 * 0.1, 4.0 / len(RIGHT))
    assert (
        lab.advantages == group_advantages(lab.scores.totals, 2)
        and lab.advantages[0] > 0 > before[0]
    )
    assert shown_scores(lab)[0][-2:] == ["0.4", f"{lab.advantages[0]:+.3f}"]
    lab._reset_button.click()
    assert lab.weights == {"correctness": 2.0, "brevity": 1.0} and lab.advantages == before
    assert brevity.calls == calls
    lab._score_button.click()
    assert brevity.calls > calls


def test_everything_written_by_others_is_escaped() -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"

    def raises(completions: list, **columns: Any) -> list[float]:
        raise RuntimeError(evil)

    raises.__name__ = evil
    rows = make_rows(note=evil)
    rows[0]["question"] = rows[0]["prompt"][0]["content"] = rows[0]["answer"] = evil
    lab = gn.RewardLab([correctness(), raises], rows)
    lab.completions = [f"<answer>{evil}</answer>", evil]
    lab._check_button.click()
    views = [*html_views(lab), lab._repr_mimebundle_()["text/html"]]
    assert sum("alert(1)" in view for view in views) >= 6
    for view in views:
        assert "<script" not in view and "<img" not in view
        assert "alert(1)" not in view or "&lt;script&gt;" in view


def test_a_reward_that_raises_or_never_returns_is_shown_and_the_lab_goes_on(
    lab: gn.RewardLab, task: Task
) -> None:
    lab.completions = [RIGHT, "", WRONG]
    panel = html.unescape(lab._errors.value)
    assert "The reward brevity failed" in panel and "on completion 2: <code>''</code>" in panel
    assert (
        "ZeroDivisionError: division by zero" in panel
        and 'return [1 / len(c[0]["content"])' in panel
    )
    table = shown_scores(lab)
    assert table[1][2:] == ["failed", "none", "none"] and table[0][0] == "1" and table[2][0] == "0"
    assert "a trainer would stop there" in lab._table.value
    lab._entries.children[1].box.value = "something"
    assert lab._errors.value == "" and "failed" not in lab._table.value

    lab.update(lambda completions, colour, **columns: [1.0 for _ in completions])
    assert "missing 1 required" in html.unescape(lab._errors.value)

    start = time.monotonic()
    lab = gn.RewardLab(
        [correctness(), lambda **columns: threading.Event().wait(60)], task, seconds_per_call=0.3
    )
    assert time.monotonic() - start < 20
    assert (
        "TimeoutError" in lab._errors.value
        and "Not scored" in lab._table.value
        and lab.scores is None
    )
    lab._row.value = 1
    assert "scored" not in lab._status.value and "TimeoutError" in lab._errors.value
    lab.update(correctness())
    assert lab._errors.value == "" and lab.scores.totals == (2.0, 0.0)


def test_an_edited_reward_scores_the_same_completions(lab: gn.RewardLab) -> None:
    lab.completions = [RIGHT, WRONG]
    lab._boxes["correctness"].value = 5.0
    brevity = paying(-1.0)
    lab.update([correctness(), brevity])
    assert lab.completions == [RIGHT, WRONG]
    assert lab.scores.values == {"correctness": (1.0, 0.0), "brevity": (-1.0, -1.0)}
    assert lab.weights == {"correctness": 5.0, "brevity": 1.0}, "a weight that was moved stays"
    lab.update([correctness(weight=3.0), brevity])
    assert lab.weights["correctness"] == 3.0, "unless the code now says another"
    with pytest.raises(ValueError, match="brevity"):
        lab.update([brevity, brevity])
    assert len(lab.rewards) == 2 and lab.scores.totals == (2.0, -1.0), (
        "refused rewards change nothing"
    )


@pytest.mark.parametrize(
    ("said", "given"),
    [
        ("no rows", {"task": []}), ("empty", {"rewards": []}), ("tokenizer", {"model": object()}),
        ("row 0 is", {"task": [1, 2]}), ("contains the class correctness", {"rewards": correctness}),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(task: Task, said: str, given: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        gn.RewardLab(**{"rewards": correctness(), "task": task, **given})


def test_rows_with_a_question_alone_are_enough() -> None:
    lab = gn.RewardLab(length(10), [{"question": "Tell me a story."}])
    assert lab._errors.value == "" and lab.completions == [""]
    lab.completions = ["Once upon a time"]
    assert lab._errors.value == "" and lab.scores.values == {"length": (0.4,)}
    lab._check_button.click()
    assert "no column" in lab._errors.value and lab.report is None, (
        "scored, but not checked without a gold answer"
    )


def test_the_check_on_the_row(lab: gn.RewardLab) -> None:
    lab.update([correctness(), xml_format()])
    lab._check_button.click()
    assert lab.report.ok, repr(lab.report)
    assert "Nothing found." in lab._report_view.value
    lab._row.value = 1
    assert lab.report is None and lab._report_view.value == "", (
        "what was said of another row must go"
    )

    def contains(completions: list, answer: list, **columns: Any) -> list[float]:
        return [float(a in c[0]["content"]) for c, a in zip(completions, answer, strict=True)]

    lab.update(contains)
    lab._check_button.click()
    assert {f.kind for f in lab.report.of("contains")} >= {
        "several answers",
        "answer outside the slot",
    }
    assert "several answers" in lab._report_view.value


def test_pages_that_show_no_widgets_get_a_picture_of_it(lab: gn.RewardLab) -> None:
    lab.completions = [RIGHT, "", WRONG]
    shown = DisplayFormatter().format(lab)[0]
    assert shown["application/vnd.jupyter.widget-view+json"]["model_id"] == lab.model_id
    assert shown["text/plain"] == repr(lab)
    assert all(
        part in shown["text/html"]
        for part in ("What is 20 + 3?", "ZeroDivisionError", lab._table.value)
    )
    lab._row.value = 1
    lab._check_button.click()
    page = DisplayFormatter().format(lab)[0]["text/html"]
    assert "What is 21 + 3?" in page and lab._report_view.value in page, "as it stands now"
    lab.close()
    assert "text/plain" in DisplayFormatter().format(lab)[0]


def test_update_takes_weight_changed_on_the_same_function(task: Task) -> None:
    def shorter(completions: list, **columns: object) -> list[float]:
        return [-float(len(str(completion))) for completion in completions]

    shorter.weight = 1.0
    lab = gn.RewardLab([shorter], task)
    lab.weights = {"shorter": 4.0}
    shorter.weight = 3.0
    lab.update([shorter])
    assert lab.weights == {"shorter": 3.0}
    lab.weights = {"shorter": 5.0}
    lab.update([shorter])
    assert lab.weights == {"shorter": 5.0}


def test_help_shows_own_methods_of_lab_first() -> None:
    text = pydoc.plain(pydoc.render_doc(gn.RewardLab))
    own, _, inherited = text.partition("inherited from")
    for name in (
        "update(self",
        "label(self",
        "row_number",
        "completions",
        "weights",
        "advantages",
        "scores",
    ):
        assert name in own, name
    assert "add_class" not in own and "add_class" in inherited
    intro = text.partition("Args:")[0]
    assert "lab.update(rewards)" in intro and "lab.label(score)" in intro
