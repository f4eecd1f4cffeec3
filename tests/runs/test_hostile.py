"""Foreign names and texts are shown as text, and break no figure and no list."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas
import pytest

import grpo_nb as gn
from grpo_nb.health import check_health
from grpo_nb.runs.card import model_card
from grpo_nb.runs.writing import write_step
from tests.runs.test_figure import made_rows
from tests.support.run_folders import info_of
from tests.support.written_run import compare_by_hand, write_run

SCRIPT = "<script>alert(1)</script>"
TEXTS = {
    "a script": SCRIPT,
    "an image": "<img src=x onerror=alert(1)>",
    "control characters": "a\x1b[2J\x1b]0;title\x07b\x00c\x7f",
    "line breaks": "one\ntwo\r\nthree\u2028four",
    "very long": "long " * 20_000,
    "a path": "../../../etc/passwd",
    "a formula": r"$\frac{a$ and $x_{",
    "Markdown": "](javascript:alert(1)) | `x` ``` # *",
    "a template": "{{ 777 * 777 }} {% raw %} {0} %s",
    "a surrogate": "a\ud800b",
    "from right to left": "a\u202eb",
}
# A folder on Linux can be called anything without a slash or NUL, of up to 255 bytes.
NAMES = [
    "<b>x<b>",
    "a\x1b[2Jb",
    "two\nlines",
    "$x_{$",
    "_hidden",
    "n" * 200,
    "..x",
    "{{ 777*777 }}",
    "a|b`c`",
]


def sent(folder: Path, text: str) -> gn.runs.Run:
    """Write a run every text of which is the given one."""
    run = write_run(folder)
    info = run.info
    described = {"name": text, "call": text, "source": text, "kind": text}
    info |= {
        "rewards": [{**info["rewards"][0], **described}],
        "status": "failed",
        "error": text,
        "reference": text,
    }
    info |= {
        "versions": {text: text},
        "engine": text,
        "host": text,
        "resumed": [{"step": 3, "changed": [text]}],
    }
    info["task"] |= {
        "name": text,
        "fingerprint": text,
        "format": {"name": text, "instruction": text},
    }
    (run.path / "run.json").write_text(json.dumps(info))
    alert = {
        "rule": text,
        "severity": "critical",
        "step": 3,
        "message": text,
        "advice": text,
        "subject": text,
    }
    rows = made_rows(5, **{f"rewards/{text}/mean": 0.5, f"own/{text}": text})
    rows[2]["alerts"] = [alert]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    compare_by_hand(run, sentence=text, verdict=text)
    return run


def write_completions(run: gn.runs.Run) -> None:
    """Write the completions of a third step."""
    table = pandas.DataFrame(
        {
            "step": 3,
            "group": [0, 0],
            "prompt": '[{"role": "user", "content": "1 + 1?"}]',
            "completion": ["2", "3"],
            "total": [1.0, 0.0],
            "advantage": [0.7, -0.7],
        }
    )
    rewards = {name: [1.0, 0.0] for name in run.weights}
    write_step(run, {"step": 3}, table.assign(**rewards))


def assert_harmless(shown: str, *, is_html: bool) -> None:
    # Line breaks and tabs are all that a terminal or a page may get of the control characters.
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", shown)
    shown.encode("utf-8")
    without_pictures = re.sub(r"base64,[\w+/=]*", "", shown)
    assert "603729" not in without_pictures, "no template was rendered"
    if is_html:
        assert "<script" not in shown
        assert "<img src=x" not in shown
        assert "<b>x" not in shown


def assert_shown(value: object) -> None:
    assert_harmless(repr(value), is_html=False)
    assert_harmless(value._repr_html_(), is_html=True)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_hostile_texts_stay_texts_in_every_view(tmp_path: Path, text: str) -> None:
    run = sent(tmp_path / "runs" / "sent", text)
    write_run(tmp_path / "runs" / "mine")
    assert_shown(run)
    (alert,) = run.alerts
    assert_shown(alert)
    run.plot().canvas.draw()
    assert_shown(gn.runs.list(tmp_path / "runs"))
    assert_shown(gn.runs.side_by_side(run, tmp_path / "runs" / "mine"))
    assert_shown(check_health(run))
    assert_harmless(str(run.outcome()), is_html=False)
    card = model_card(run)
    card.encode("utf-8")
    assert "\x1b" not in card
    assert "\x00" not in card


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_hostile_folder_names_stay_texts_in_every_view(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "runs" / name)
    broken = tmp_path / "runs" / f"{name[:100]}-broken"
    broken.mkdir()
    (broken / "run.json").write_text(json.dumps(info_of({}) | {"status": name}))
    mine = write_run(tmp_path / "runs" / "mine")
    assert_shown(run)
    write_completions(run)
    assert_shown(run.step(3))
    assert_harmless(repr(gn.RunViewer(run)), is_html=False)
    listed = gn.runs.list(tmp_path / "runs")
    assert_shown(listed)
    assert len(listed) == 2
    assert len(listed.unreadable) == 1
    assert_shown(gn.runs.side_by_side(run, mine))
    gn.runs.side_by_side(run, mine).plot().canvas.draw()
    assert "\x1b" not in model_card(run)


def test_curve_of_a_run_that_begins_with_an_underscore_is_named(tmp_path: Path) -> None:
    """Matplotlib leaves such names out of a legend."""
    runs = [write_run(tmp_path / "runs" / name) for name in ("_first", "second")]
    figure = gn.runs.side_by_side(*runs).plot()
    assert [text.get_text() for text in figure.axes[0].texts][1:] == ["_first", "second"]
