"""The training figure: what it draws, what it says of what is missing, and that nothing of it is cut off or overlaps."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy
import pandas
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from grpo_nb.runs import figure as figures
from grpo_nb.runs.alert import Alert
from grpo_nb.runs.figure import (
    EACH,
    HOLDOUT,
    KL,
    LENGTHS,
    TOTAL,
    LivePlot,
    png,
    thinned,
    training_figure,
)
from grpo_nb.runs.rise import describe

CARDS = (
    "Groups without spread",
    "Cut at the limit",
    "Gradient norm",
    "Entropy",
    "Learning rate",
    "Seconds per step",
)


def alert(
    step: int, severity: str = "critical", rule: str = "kl_drift", message: str = "KL went up."
) -> Alert:
    return Alert(rule=rule, severity=severity, step=step, message=message, advice="")


def made_rows(count: int = 20, **changes: Any) -> list[dict]:
    return [
        {
            "step": i + 1, "max_steps": count, "reward": 1 + 2.0 * i / count, "reward_std": 0.5, "kl": 0.01 + 0.1 * i / count,
            "rewards/right/mean": i / count, "rewards/form/mean": 1.0, "completions/mean_length": 30.0,
            "completions/clipped_ratio": 0.25, "frac_reward_zero_std": 0.5, "grad_norm": 0.4, "entropy": 0.6,
            "learning_rate": 1e-4, "step_time": 8.0, **changes,
        }
        for i in range(count)
    ]  # fmt: skip


def panels(rows: list[dict], beta: float | None = 0.04, **options: Any) -> dict[str, Any]:
    figure = training_figure(rows, {"right": 2.0}, beta, **options)
    return {axis.get_title(loc="left") or "cards": axis for axis in figure.axes}


def said(axis: Any) -> list[str]:
    texts = [
        axis.get_title(loc="right"),
        axis.get_xlabel(),
        *(text.get_text() for text in axis.texts),
    ]
    return [text for text in texts if text]


def card(axis: Any, title: str) -> list[str]:
    """What is written on a card: the texts that begin where its title does."""
    (left,) = (text.get_position()[0] for text in axis.texts if text.get_text() == title)
    return [
        text.get_text()
        for text in axis.texts
        if text.get_position()[0] == left and text.get_text() != title
    ]


def marked(axis: Any, shape: str) -> list[float]:
    return sorted(
        x for line in axis.get_lines() if line.get_marker() == shape for x in line.get_xdata()
    )


def test_the_figure_shows_values_means_and_labels() -> None:
    rows = made_rows(20)
    shown = panels(rows, reference="the base model")
    assert set(shown) == {TOTAL, EACH, KL, HOLDOUT, LENGTHS, "cards"}
    raw, mean = shown[TOTAL].get_lines()
    assert (
        list(raw.get_ydata()) == [row["reward"] for row in rows]
        and raw.get_linewidth() < mean.get_linewidth()
    )
    assert mean.get_ydata()[-1] == pytest.approx(sum(r["reward"] for r in rows[-5:]) / 5)
    assert {"right x2", "form"} <= set(said(shown[EACH])) and "to the base model, nats" in said(
        shown[KL]
    )
    styles = {line.get_linestyle() for line in shown[EACH].get_lines() if line.get_linewidth() > 1}
    assert len(styles) == 2, "lines must differ in more than colour"
    assert [card(shown["cards"], name)[0] for name in CARDS] == [
        "50%",
        "25%",
        "0.4",
        "0.6",
        "0.0001",
        "8",
    ]
    (band,) = panels(made_rows(8, reward=2.0, reward_std=0.75))[TOTAL].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1.25, 2.75)


def test_what_was_not_measured_is_said_not_drawn() -> None:
    shown = panels([{"step": row["step"], "reward": row["reward"]} for row in made_rows()])
    for name in (EACH, KL, LENGTHS, HOLDOUT):
        assert not shown[name].get_lines() and "not measured" in said(shown[name]), name
    assert not shown["cards"].get_lines() and all(
        card(shown["cards"], name) == ["not measured"] for name in CARDS
    )
    assert not shown[TOTAL].collections and "weighted sum" in said(shown[TOTAL]), (
        "no band, and no word of one"
    )
    without = [{key: value for key, value in row.items() if key != "kl"} for row in made_rows()]
    assert "not measured (beta = 0)" in said(panels(without, beta=0.0)[KL])
    assert png(training_figure([])).startswith(b"\x89PNG")


def test_values_that_are_no_numbers_are_marked_in_words() -> None:
    rows = made_rows(20)
    rows[6]["grad_norm"], rows[9]["grad_norm"], rows[3]["kl"] = math.nan, math.inf, math.nan
    shown = panels(rows)
    assert "NaN at 2 steps" in card(shown["cards"], "Gradient norm") and "NaN at 1 step" in said(
        shown[KL]
    )
    assert marked(shown["cards"], "x") == [7, 10] and marked(shown[KL], "x") == [4]
    everywhere = said(panels(made_rows(20, kl=math.nan))[KL])
    assert "NaN at 20 steps" in everywhere and "not measured" not in everywhere


def test_alerts_are_marked_where_they_came_and_written_below() -> None:
    others = [alert(i, "warning", "no_spread", f"n{i}") for i in range(1, 5)]
    over = dataclasses.replace(alert(5, message="cut", rule="truncation"), ended=9)
    alerts = [*others, over, alert(12, message="KL went from $0.1$ to <b>2.0</b>.")]
    shown = panels(made_rows(20), alerts=alerts)
    # On the reward, and on the curve or card that it speaks about; of a withdrawn one no red triangle is left.
    assert marked(shown[TOTAL], "v") == marked(shown[KL], "v") == [12]
    assert marked(shown[TOTAL], "D") == marked(shown["cards"], "D") == [1, 2, 3, 4]
    assert marked(shown["cards"], "1") == [5]
    assert (
        marked(shown[LENGTHS], "v") == marked(shown[LENGTHS], "D") == marked(shown[KL], "D") == []
    )

    def foot(*told: Alert) -> str:
        return "\n".join(
            text.get_text() for text in training_figure(made_rows(20), {}, 0.04, alerts=told).texts
        )

    assert (
        "critical, step 12: KL went from $0.1$ to <b>2.0</b>.\nwarning, step 4: n4\nwarning, step 3: n3"
        in foot(*alerts)
    )
    assert "withdrawn at step 9 (was critical), step 5: cut" in foot(over)


@pytest.mark.parametrize("count", [3, 14, 200, 20_000])
def test_nothing_is_cut_off_at_an_edge_and_no_words_overlap(count: int) -> None:
    more = {
        "holdout/accuracy": 0.5,
        "rewards/W" + 30 * "W" + "/mean": 0.5,
        "learning_rate": 1.234e-05,
    }
    rows = made_rows(count, **more)
    rows[0]["learning_rate"], rows[-1]["grad_norm"] = 1e-4, math.nan
    words = f"{20 * 'WWW '}{60 * 'W'}"
    told = [
        alert(count - i, rule=rule, message=words) for i, rule in enumerate(("kl_a", "kl_b", "x"))
    ]
    for alerts in ((), told):
        how = {"reference": "the adapter it started from", "alerts": alerts}
        figure = training_figure(rows, {"right": 2.0, "W" + 30 * "W": 0.25}, 0.04, **how)
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
        drawn, (width, height) = figure.get_tightbbox(renderer), figure.get_size_inches()
        assert min(drawn.x0, drawn.y0) >= 0 and drawn.x1 <= width and drawn.y1 <= height, drawn
        axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
        ticks = [
            (axis.get_view_interval(), tick) for axis in axes for tick in axis.get_major_ticks()
        ]
        unseen = {tick.label1 for (low, high), tick in ticks if not low <= tick.get_loc() <= high}
        texts = [
            text
            for text in figure.findobj(Text)
            if text.get_text() and text.get_visible() and text not in unseen
        ]
        boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts]
        assert len(boxes) > 40
        for (one, a), (other, b) in itertools.combinations(boxes, 2):
            assert min(a.x1, b.x1) <= max(a.x0, b.x0) or min(a.y1, b.y1) <= max(a.y0, b.y0), (
                one,
                other,
            )
        sentence = describe(rows, "the adapter it started from")
        assert " ".join(text.get_text() for text in figure.texts).startswith(sentence), (
            "all of it is there"
        )


def test_no_text_of_the_user_s_is_a_formula() -> None:
    rows = [
        {"step": i, "reward": 1.0, "rewards/$^$_a_very_long_name_of_one/mean": 1.0} for i in (1, 2)
    ]
    figure = training_figure(rows, {}, 0.04, alerts=[alert(1, message=r"$\\nothing^^$")])
    assert png(figure).startswith(b"\x89PNG") and "$^$_a_very_long_n..." in said(figure.axes[1])


@pytest.mark.parametrize("count", [1, 512, 513, 40_000])
def test_what_is_drawn_is_bounded_and_no_spike_is_lost(count: int) -> None:
    values = pandas.Series(numpy.random.default_rng(count).normal(size=count))
    kept = thinned(values)
    assert {values.min(), values.max(), values.iloc[-1]} <= set(kept) and len(kept) <= 2 * 256 + 1
    assert abs(kept.index[kept.argmax()] - values.idxmax()) <= count / 256 and list(
        kept.index
    ) == sorted(kept.index)


def test_the_live_figure_is_one_display_within_its_share_of_the_time(
    displayed: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, drawn = 0.0, 0
    monkeypatch.setattr(figures.time, "perf_counter", lambda: now)

    def slow(*_: Any) -> bytes:
        nonlocal now, drawn
        now, drawn = now + 0.25, drawn + 1
        return b""

    monkeypatch.setattr(
        figures, "training_figure", lambda rows, *told, **_: Figure(label=describe(rows, told[-1]))
    )
    monkeypatch.setattr(figures, "png", slow)
    plot, rows = LivePlot({}, 0.04, "the base model"), made_rows(2000)
    for count in range(1, 2001):
        now += 1.0
        plot.update(rows[:count])
    assert 30 <= drawn <= 2 + 0.005 * now / 0.25, (
        "two at the start, then within the share, which is used"
    )
    assert (
        plot.update(rows, is_last=True) and [kind for kind, *_ in displayed].count("display") == 1
    )
    _, data, metadata = displayed[-1]
    assert (
        data["text/plain"] == describe(rows, "the base model")
        and data["text/plain"] in metadata["image/png"]["alt"]
    )


def test_heldout_panel_shows_three_measures_with_intervals() -> None:
    rows = []
    for step, share in ((1, 0.2), (5, 0.5)):
        row = {"step": step, "max_steps": 5, "holdout/accuracy": share, "holdout/low": share - 0.1}
        row |= {"holdout/high": share + 0.1, "holdout/in_format": 0.9, "holdout/anywhere": 0.6}
        for name in ("in_format", "anywhere"):
            row |= {f"holdout/{name}_low": 0.5, f"holdout/{name}_high": 0.95}
        rows.append(row)
    figure = training_figure(rows)
    panel = next(axis for axis in figure.axes if axis.get_title(loc="left") == "Held-out accuracy")
    assert panel.get_title(loc="right") == "50% correct"
    assert [text.get_text() for text in panel.texts] == [
        "in the format 90%",
        "correct anywhere 60%",
    ]
    assert len(panel.collections) == 3
