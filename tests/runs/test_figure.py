"""The training figure: what it draws, what it leaves out, and that it can be read."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from grpo_nb.core import palette
from grpo_nb.runs import figure as figure_module
from grpo_nb.runs.figure import (
    EACH_REWARD_PANEL,
    HOLDOUT_PANEL,
    KL_PANEL,
    TOTAL_PANEL,
    LivePlot,
    base64_png,
    figure_of_run,
    figure_of_runs,
)
from grpo_nb.runs.outcome import describe_run

# The signature of a PNG in base64.
PNG_START = "iVBORw0KGgo"
TITLES_OF_ALL = [
    "Total reward",
    "Each reward",
    "KL",
    "Completion length",
    "Truncated",
    "No learning signal",
    "Entropy",
    "Gradient norm",
    "Time per step",
]


def made_rows(count: int = 20, **changes: Any) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        row = {
            "step": index + 1,
            "max_steps": count,
            "reward": 1 + 2.0 * index / count,
            "reward_std": 0.5,
            "kl": 0.01 + 0.1 * index / count,
            "rewards/right/mean": index / count,
            "rewards/form/mean": 1.0,
            "completions/mean_length": 30.0,
            "completions/clipped_ratio": 0.25,
            "frac_reward_zero_std": 0.5,
            "grad_norm": 0.4,
            "entropy": 0.6,
            "learning_rate": 1e-4,
            "step_time": 8.0,
        }
        rows.append(row | changes)
    return rows


def holdout(share: float) -> dict[str, float]:
    row = {
        "holdout/accuracy": share,
        "holdout/accuracy_low": share - 0.1,
        "holdout/accuracy_high": share + 0.1,
    }
    for name in ("in_format", "anywhere"):
        row[f"holdout/{name}"] = share + 0.2
        row[f"holdout/{name}_low"] = share
        row[f"holdout/{name}_high"] = share + 0.3
    return row


def run_of(rows: list[dict[str, Any]], **fields: Any) -> SimpleNamespace:
    """Return what the figure reads of a run."""
    others = {"weights": {"right": 2.0, "form": 1.0}, "reference": "the base model"}
    return SimpleNamespace(rows=rows, **others | fields)


def overlay_of(**rows_by_name: list[dict[str, Any]]) -> Figure:
    return figure_of_runs([run_of(rows, name=name) for name, rows in rows_by_name.items()])


def panels(rows: list[dict[str, Any]], choice: str = "main", **fields: Any) -> dict[str, Axes]:
    figure = figure_of_run(run_of(rows, **fields), choice)
    return {title(axis): axis for axis in figure.axes}


def title(axis: Axes) -> str:
    return axis.get_title(loc="left")


def texts_of(axis: Axes) -> list[str]:
    return [text.get_text() for text in axis.texts]


def caption_of(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.texts)


def test_figure_default_has_three_panels() -> None:
    rows = [row | holdout(0.5) for row in made_rows()]
    assert list(panels(rows)) == ["Total reward", "Each reward", "Held-out questions"]


def test_figure_all_has_every_measured_panel() -> None:
    assert list(panels(made_rows(), choice="all")) == TITLES_OF_ALL


def test_figure_refuses_other_choice_of_panels() -> None:
    with pytest.raises(ValueError, match="panels = 'kl' is unknown; choose from: all, main"):
        figure_of_run(run_of(made_rows()), "kl")


def test_figure_leaves_out_what_was_not_measured() -> None:
    rows = [{"step": row["step"], "reward": row["reward"]} for row in made_rows()]
    assert list(panels(rows, choice="all")) == ["Total reward"]


def test_figure_without_rows_has_no_panel_and_says_so() -> None:
    figure = figure_of_run(run_of([]))
    assert figure.axes == []
    assert "No logged step has a finite reward." in caption_of(figure)
    assert base64_png(figure).startswith(PNG_START)


def test_figure_with_one_reward_shows_it_once() -> None:
    rows = [{"step": 1, "reward": 0.5, "rewards/right/mean": 0.5}]
    assert list(panels(rows, weights={"right": 2.0})) == ["Total reward"]


def test_total_reward_shows_values_pale_and_mean_strong() -> None:
    rows = made_rows(20)
    raw, mean = panels(rows)["Total reward"].get_lines()
    assert list(raw.get_ydata()) == [row["reward"] for row in rows]
    assert raw.get_linewidth() < mean.get_linewidth()
    assert "".join(texts_of(panels(rows)["Total reward"])) == "weighted; strong: trailing mean"
    last_five = [row["reward"] for row in rows[-5:]]
    assert mean.get_ydata()[-1] == pytest.approx(sum(last_five) / 5)


def test_each_reward_is_named_with_weight_and_own_style() -> None:
    axis = panels(made_rows())["Each reward"]
    assert {"right x2", "form x1"} <= set(texts_of(axis))
    strong = [line for line in axis.get_lines() if line.get_linewidth() > 1]
    assert len({line.get_linestyle() for line in strong}) == 2


def test_holdout_panel_shows_three_measures_with_intervals() -> None:
    rows = [{"step": 1} | holdout(0.2), {"step": 5} | holdout(0.5)]
    axis = panels(rows)["Held-out questions"]
    assert len(axis.collections) == 3
    assert {"correct 50%", "in the format 70%", "correct anywhere 70%"} <= set(texts_of(axis))


def test_holdout_bands_stay_in_the_possible_range() -> None:
    rows = [{"step": step} | holdout(0.95) for step in (1, 5)]
    axis = panels(rows)["Held-out questions"]
    for band in axis.collections:
        heights = band.get_paths()[0].vertices[:, 1]
        assert heights.min() >= 0
        assert heights.max() == 1


def test_holdout_panel_without_some_intervals_is_drawn() -> None:
    """Another program may log a share without one or both ends of its interval."""
    rows = [{"step": step} | holdout(0.5) for step in (1, 5, 9)]
    del rows[1]["holdout/accuracy_low"]
    axis = panels(rows)["Held-out questions"]
    assert "correct 50%" in texts_of(axis)


def test_reward_that_is_never_a_number_has_no_line() -> None:
    weights = {"right": 2.0, "judge": 0.5, "form": 1.0}
    axis = panels(made_rows(**{"rewards/judge/mean": None}), weights=weights)["Each reward"]
    assert texts_of(axis)[1:] == ["right x2", "form x1"]


def test_every_panel_has_units_on_both_axes() -> None:
    shown = panels([row | holdout(0.5) for row in made_rows()], choice="all")
    for name, axis in shown.items():
        assert axis.get_xlabel() == "optimizer step", name
    without_unit = [name for name, axis in shown.items() if not axis.texts[0].get_text()]
    assert without_unit == []


def test_metric_that_is_never_a_number_has_no_panel() -> None:
    assert "KL" not in panels(made_rows(20, kl=math.nan), choice="all")


@pytest.mark.parametrize("choice", ["main", "all"])
@pytest.mark.parametrize("count", [3, 14, 200, 20_000])
def test_figure_text_neither_overlaps_nor_leaves_the_page(count: int, choice: str) -> None:
    rows = made_rows(count, **holdout(0.5), **{"rewards/W" + 30 * "W" + "/mean": 0.5})
    rows[-1]["grad_norm"] = math.nan
    weights = {"right": 2.0, "form": 1.0, "W" + 30 * "W": 0.25}
    reference = "the adapter it started from"
    run = run_of(rows, weights=weights, reference=reference)
    figure = figure_of_run(run, choice)
    boxes = boxes_of_texts(figure)
    width, height = figure.get_size_inches() * figure.dpi
    for text, box in boxes:
        assert min(box.x0, box.y0) >= 0, text
        assert box.x1 <= width, text
        assert box.y1 <= height, text
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        overlap_x = min(a.x1, b.x1) - max(a.x0, b.x0)
        overlap_y = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert min(overlap_x, overlap_y) <= 0, (one, other)
    assert " ".join(caption_of(figure).split()).startswith(describe_run(rows, reference))


def boxes_of_texts(figure: Figure) -> list[tuple[str, Any]]:
    """Return each visible text of a figure with its box in pixels."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    hidden = set()
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            low, high = axis.get_view_interval()
            ticks = axis.get_major_ticks()
            hidden |= {tick.label1 for tick in ticks if not low <= tick.get_loc() <= high}
    boxes = []
    for text in figure.findobj(Text):
        if text.get_text().strip() and text.get_visible() and text not in hidden:
            boxes.append((text.get_text(), text.get_window_extent(renderer)))
    assert len(boxes) > 20
    return boxes


def test_figure_shows_names_and_messages_as_text_not_as_formulas() -> None:
    name = "$^$_a_very_long_name_of_one"
    scores = {f"rewards/{name}/mean": 1.0, "rewards/b/mean": 1.0}
    rows = [{"step": i, "reward": 1.0, **scores} for i in (1, 2)]
    run = run_of(rows, reference=r"$\\nothing^^$", weights={name: 1.0, "b": 1.0})
    figure = figure_of_run(run)
    assert base64_png(figure).startswith(PNG_START)
    assert "$^$_a_ve\u2026e_of_one x1" in texts_of(figure.axes[1])


def luminance(colour: str) -> float:
    channels = []
    for value in to_rgb(colour):
        linear = value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        channels.append(linear)
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours (WCAG 2.1)."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("page", ["#FFFFFF", "#111111"])
@pytest.mark.parametrize("colour", [*palette.COLOURS, palette.INK])
def test_palette_contrast_suffices_on_light_and_dark_pages(colour: str, page: str) -> None:
    assert contrast(colour, page) >= 4.3


def test_figure_background_is_transparent() -> None:
    figure = figure_of_run(run_of(made_rows()))
    assert figure.get_facecolor()[3] == 0
    assert {axis.get_facecolor()[3] for axis in figure.axes} == {0}


def test_live_plot_is_one_display_with_pauses(
    displayed: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = {"now": 0.0, "drawn": 0}
    monkeypatch.setattr(figure_module.time, "monotonic", lambda: clock["now"])

    def slow_png(*_: Any) -> str:
        clock["now"] += 0.25
        clock["drawn"] += 1
        return ""

    monkeypatch.setattr(figure_module, "base64_png", slow_png)
    sentence = describe_run(made_rows(20), "the base model")
    plot = LivePlot(SimpleNamespace(plot=Figure, sentence=sentence))
    for _ in range(2000):
        clock["now"] += 1.0
        plot.update()
    drawn = clock["drawn"]
    assert 60 <= drawn <= 67
    plot.update(is_last=True)
    assert clock["drawn"] == drawn + 1
    assert [kind for kind, *_ in displayed].count("display") == 1
    _, data, metadata = displayed[-1]
    assert data["text/plain"] == sentence
    assert data["text/plain"] in metadata["image/png"]["alt"]


def test_axis_of_long_completions_has_whole_and_different_numbers() -> None:
    rows = made_rows(10)
    for step, row in enumerate(rows):
        row["completions/mean_length"] = 2001.0 + step
    axes = panels(rows, choice="all")["Completion length"]
    axes.figure.canvas.draw()
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert len(set(labels)) == len(labels)
    assert not any("e" in label for label in labels)


def test_overlay_draws_no_axes_without_data() -> None:
    rows = [{"step": 1, "reward": 1.0}, {"step": 2, "reward": 2.0}]
    assert [title(axis) for axis in overlay_of(one=rows, two=rows).axes] == ["Total reward"]
    assert overlay_of(none=[]).axes == []


def test_overlay_draws_each_measured_panel_of_each_run() -> None:
    rows = [row | holdout(0.5) for row in made_rows()]
    figure = overlay_of(one=rows, _two=rows)
    expected = [panel.title for panel in (TOTAL_PANEL, HOLDOUT_PANEL, KL_PANEL)]
    assert [title(axis) for axis in figure.axes] == expected
    assert EACH_REWARD_PANEL.title not in expected
    assert "interval" not in " ".join(texts_of(figure.axes[1]))
    for axis in figure.axes:
        assert texts_of(axis)[1:] == ["one", "_two"]


def test_overlay_labels_differ_for_automatic_names_of_one_minute() -> None:
    names = ["2026-11-29_20-54-28-123456", "2026-11-29_20-54-29-654321"]
    rows = [row | holdout(0.5) for row in made_rows()]
    figure = overlay_of(**dict.fromkeys(names, rows))
    assert texts_of(figure.axes[0])[1:] == names
    width = figure.get_size_inches()[0] * figure.dpi
    assert all(box.x1 <= width for _, box in boxes_of_texts(figure))


def test_labels_of_long_names_differ_by_their_ends() -> None:
    names = [f"qwen3-0.6b-gsm8k-lr-sweep-{rate}" for rate in ("1e-6", "5e-6")]
    labels = texts_of(overlay_of(**dict.fromkeys(names, made_rows())).axes[0])[1:]
    assert labels == ["qwen3-0.6b-g\u2026r-sweep-1e-6", "qwen3-0.6b-g\u2026r-sweep-5e-6"]


def test_overlay_smooths_a_short_run_by_its_own_length() -> None:
    short = [{"step": step, "reward": float(step)} for step in (1, 2, 3)]
    figure = overlay_of(long=made_rows(100), short=short)
    assert figure.axes[0].lines[-1].get_ydata().tolist() == [1.0, 2.0, 3.0]


def test_label_stands_at_the_end_of_its_line_where_there_is_room() -> None:
    rows = [
        {"step": step, "reward": 1.0, "rewards/low/mean": 0.0, "rewards/high/mean": 1.0}
        for step in range(1, 6)
    ]
    axis = panels(rows, weights={"low": 1.0, "high": 1.0})["Each reward"]
    bottom, top = axis.get_ylim()
    ends = {"low x1": 0.0, "high x1": 1.0}
    for label in axis.texts[1:]:
        height = bottom + (top - bottom) * label.get_position()[1]
        assert height == pytest.approx(ends[label.get_text()])


def test_figure_keeps_labels_of_twelve_rewards_beside_the_panel() -> None:
    weights = {f"r{number}": 1.0 for number in range(12)}
    names = [f"rewards/{name}/mean" for name in weights]
    rows = [{"step": step} | dict.fromkeys(names, 0.5) for step in (1, 2)]
    labels = panels(rows, weights=weights)["Each reward"].texts[1:]
    heights = [label.get_position()[1] for label in labels]
    assert len(set(heights)) == 12
    assert min(heights) >= 0
