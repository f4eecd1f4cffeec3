"""The training figure: what it draws, what it says of what is missing, and that its work is bounded (counted, not timed)."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from grpo_nb.runs import live as plots
from grpo_nb.runs import rise
from grpo_nb.runs.alert import Alert
from grpo_nb.runs.curves import BINS, Curve, Curves
from grpo_nb.runs.figure import EACH, HOLDOUT, KL, LENGTHS, TOTAL, TrainingFigure

CARDS = ("Groups without spread", "Cut at the limit", "Gradient norm", "Entropy", "Learning rate", "Seconds per step")


def alert(step: int, severity: str = "critical", rule: str = "kl_spike", message: str = "KL went up.") -> Alert:
    return Alert(rule=rule, severity=severity, step=step, message=message, advice="")


ALERT = alert(12, message="KL went from $0.1$ to <b>2.0</b>.")


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


def without(rows: Sequence[dict], *keys: str) -> list[dict]:
    return [{key: value for key, value in row.items() if key not in keys} for row in rows]


def panels(rows: list[dict], beta: float | None = 0.04, **options: Any) -> dict[str, Any]:
    figure = plots.training_figure(rows, {"right": 2.0}, beta, **options)
    titled = {axis.get_title(loc="left"): axis for axis in figure.axes if axis.get_title(loc="left")}
    return titled | {axis.texts[0].get_text(): axis for axis in figure.axes if not axis.get_title(loc="left")}


def said(axis: Any) -> list[str]:
    return [text.get_text() for text in axis.texts]


def foot(rows: list[dict], **options: Any) -> list[str]:
    """The lines under the panels; the sentence takes the first two."""
    return [text.get_text() for text in plots.training_figure(rows, {}, 0.04, **options).texts]


def test_the_figure_shows_values_means_and_labels() -> None:
    rows = made_rows(20)
    shown = panels(rows)
    assert set(shown) == {TOTAL, EACH, KL, HOLDOUT, LENGTHS, *CARDS}
    raw, mean = shown[TOTAL].get_lines()
    assert list(raw.get_ydata()) == [row["reward"] for row in rows] and raw.get_linewidth() < mean.get_linewidth()
    assert mean.get_ydata()[-1] == pytest.approx(sum(r["reward"] for r in rows[-5:]) / 5)
    assert set(said(shown[EACH])) == {"right x2", "form"}
    styles = {line.get_linestyle() for line in shown[EACH].get_lines() if line.get_linewidth() > 1}
    assert len(styles) == 2, "lines must differ in more than colour"


def test_the_band_is_one_standard_deviation() -> None:
    (band,) = panels(made_rows(8, reward=2.0, reward_std=0.75))[TOTAL].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1.25, 2.75)


def test_a_card_says_the_mean_of_the_last_steps() -> None:
    shown = panels(made_rows(12), alerts=())
    assert {name: said(shown[name])[1] for name in CARDS} == {
        "Groups without spread": "50 %", "Cut at the limit": "25 %", "Gradient norm": "0.4", "Entropy": "0.6",
        "Learning rate": "0.0001", "Seconds per step": "8",
    }  # fmt: skip


def test_what_was_not_measured_is_said_not_drawn() -> None:
    bare = [{"step": row["step"], "reward": row["reward"]} for row in made_rows()]
    shown = panels(bare)
    for name in (EACH, KL, LENGTHS, *CARDS):
        assert not shown[name].get_lines() and "not measured" in said(shown[name]), name
    assert said(shown[HOLDOUT]) == ["not measured during training"] and "spread not measured" in said(shown[TOTAL])
    assert not shown[TOTAL].collections


@pytest.mark.parametrize("rows", [made_rows(kl=0.0), without(made_rows(), "kl")])
def test_a_kl_of_zeros_with_beta_zero_was_not_measured(rows: list[dict]) -> None:
    panel = panels(rows, beta=0.0)[KL]
    assert not panel.get_lines() and said(panel) == ["not measured (beta = 0)"]
    figure = plots.training_figure(rows, {}, 0.0)
    assert "KL not measured" in figure.texts[0].get_text()


def test_a_chosen_step_is_marked_in_every_panel_and_only_until_the_next_draw() -> None:
    figure, curves = TrainingFigure(), Curves(made_rows(20))
    figure.draw(curves, chosen=7)
    figure.draw(curves, chosen=9)
    marks = [line for axis in figure.figure.axes for line in axis.get_lines() if line.get_gid() == "chosen"]
    assert [list(line.get_xdata()) for line in marks] == [[9, 9]] * 11
    assert not any(line.get_gid() for axis in figure.draw(curves).axes for line in axis.get_lines())


def test_values_that_are_no_numbers_are_marked_in_words() -> None:
    rows = made_rows(20)
    rows[6]["grad_norm"], rows[9]["grad_norm"], rows[3]["kl"] = math.nan, math.inf, math.nan
    shown = panels(rows)
    assert "NaN at 2 steps" in said(shown["Gradient norm"]) and "NaN at 1 step" in said(shown[KL])
    crosses = [line for line in shown["Gradient norm"].get_lines() if line.get_marker() == "x"]
    assert list(crosses[0].get_xdata()) == [7, 10]
    everywhere = panels(made_rows(20, kl=math.nan))[KL]
    assert "NaN at 20 steps" in said(everywhere) and "not measured" not in said(everywhere)


def test_a_held_out_score_at_intervals_is_drawn_where_it_was_taken() -> None:
    rows = made_rows(20)
    for step, score in ((1, 0.25), (10, 0.5), (20, 0.75)):
        rows[step - 1]["holdout/accuracy"] = score
    line, _, best = panels(rows)[HOLDOUT].get_lines()
    assert (*best.get_xdata(), *best.get_ydata()) == (20, 75)
    assert list(line.get_xdata()) == [1, 10, 20] and list(line.get_ydata()) == [25, 50, 75]
    assert "75 %" in said(panels(rows)[HOLDOUT])


def test_alerts_are_marked_where_they_came_and_written_below() -> None:
    others = [alert(i, "warning", "no_spread", f"n{i}") for i in range(1, 6)]
    shown = panels(made_rows(20), alerts=[*others, ALERT])

    def marked(panel: str, shape: str) -> list[float]:
        return [x for line in shown[panel].get_lines() if line.get_marker() == shape for x in line.get_xdata()]

    assert marked(TOTAL, "v") == marked(KL, "v") == [12], "on the reward, and on the curve it speaks about"
    assert marked(TOTAL, "D") == marked("Groups without spread", "D") == [5, 4, 3, 2, 1]
    assert marked(LENGTHS, "v") == marked(LENGTHS, "D") == marked(KL, "D") == []
    lines = foot(made_rows(20), alerts=[*others, ALERT])[1:]
    assert lines[1] == "1  critical, step 12: KL went from $0.1$ to <b>2.0</b>.", "the most severe one first"
    assert [line[:20] for line in lines[2:4]] == ["2  warning, step 5: ", "3  warning, step 4: "]
    assert "and 3 more in run.alerts" in lines


@pytest.mark.parametrize("steps", [(13, 14), (14, 14), (2, 2, 3), (5, 6)])
def test_numbers_of_alerts_close_together_stand_in_rows_of_their_own(steps: tuple[int, ...]) -> None:
    """Side by side, 1 and 2 read as 12."""
    alerts = [alert(step, "info") for step in steps]
    figure = plots.training_figure(made_rows(14), {}, 0.1, alerts=alerts)
    renderer = FigureCanvasAgg(figure).get_renderer()
    (axis,) = (axis for axis in figure.axes if axis.get_title(loc="left") == TOTAL)
    boxes = [text.get_window_extent(renderer) for text in axis.texts if text.get_text().isdigit()]
    assert len(boxes) == len(steps)
    for at, box in enumerate(boxes):
        assert all(box.y0 >= other.y1 or box.y1 <= other.y0 for other in boxes[:at])


def test_no_text_of_the_user_s_is_a_formula() -> None:
    rows = [{"step": i, "reward": 1.0, "rewards/$^$_a_very_long_name_of_one/mean": 1.0} for i in (1, 2)]
    figure = plots.training_figure(rows, {}, 0.04, alerts=[alert(1, message=r"$\\nothing^^$")])
    assert plots.png(figure).startswith(b"\x89PNG")
    assert said(figure.axes[1]) == ["$^$_a_very_long_..."]


@pytest.mark.parametrize("rows", [[], made_rows(1), made_rows(3)])
def test_short_runs_have_a_figure(rows: list[dict]) -> None:
    assert plots.png(plots.training_figure(rows)).startswith(b"\x89PNG")


def test_old_metric_names_are_drawn() -> None:
    rows = [{"step": i, "reward": 1.0, "rewards/a": 0.1 * i, "completion_length": 7.0} for i in range(1, 4)]
    shown = panels(rows)
    assert list(shown[EACH].get_lines()[0].get_ydata()) == pytest.approx([0.1, 0.2, 0.3])
    assert list(shown[LENGTHS].get_lines()[0].get_ydata()) == [7.0] * 3


# Bounded work.


@pytest.mark.parametrize("count", [1, BINS, BINS + 1, 10 * BINS + 7, 40_000])
def test_a_curve_keeps_extremes_mean_and_end(count: int) -> None:
    chance, curve, values = random.Random(count), Curve(), []
    for step in range(1, count + 1):
        values.append(chance.gauss(0, 1))
        curve.add(step, values[-1])
    low, high = values.index(min(values)) + 1, values.index(max(values)) + 1
    points = list(zip(*curve.points(), strict=True))
    assert {(low, min(values)), (high, max(values))} <= set(points), "no spike is lost, nor moved to another step"
    assert [x for x, _ in points] == sorted(x for x, _ in points) and len(points) <= 2 * BINS
    assert all(values[int(x) - 1] == y for x, y in points)
    assert curve.means(10**9)[1][-1] == pytest.approx(sum(values) / count, abs=1e-12)
    assert curve.means(1)[0][-1] == count and curve.limits == (min(values), max(values))
    if count <= BINS:
        assert [y for _, y in points] == values, "a short run is drawn as it is"


def test_the_mean_of_a_long_run_is_of_its_last_steps() -> None:
    curve = Curve()
    for step in range(1, 5001):
        curve.add(step, float(step))
    xs, ys = curve.means(100)
    reach = math.ceil(100 / curve.width) * curve.width
    assert xs[-1] == 5000 and 5000 - reach <= ys[-1] <= 5000
    assert all(a < b for a, b in itertools.pairwise(ys))


class Watched(Sequence):
    """Rows that count how many of them are read."""

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.read = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Any:
        self.read += len(range(*at.indices(len(self.rows)))) if isinstance(at, slice) else 1
        return self.rows[at]

    def __iter__(self) -> Iterator[dict]:
        raise AssertionError("all rows were read")


def test_a_redraw_reads_only_new_rows_and_draws_bounded_curves(displayed: list) -> None:
    live, rows, points = plots.LivePlot({}, 0.04), Watched(), {}
    for row in made_rows(10_000):
        rows.rows.append(row)
        rows.read = 0
        live.update(rows, is_last=row["step"] in (100, 1000, 9999, 10_000))
        assert rows.read <= 4, f"{rows.read} rows were read at step {row['step']}"
        if row["step"] in (100, 1000, 9999, 10_000):
            points[row["step"]] = sum(len(line.get_xdata()) for axis in live._figure.figure.axes for line in axis.lines)
    assert points[10_000] <= 12 * 3 * 2 * BINS and points[10_000] <= 4 * points[1000]
    artists = sum(len(axis.get_children()) for axis in live._figure.figure.axes)
    live.update(rows, is_last=True)
    again = sum(len(axis.get_children()) for axis in live._figure.figure.axes)
    assert again == artists, "what was drawn before is taken away"


def test_drawn_anew_or_again_the_figure_is_the_same(displayed: list) -> None:
    rows, again = made_rows(400), TrainingFigure({"right": 2.0}, 0.04)
    curves = Curves(rows[:50], beta=0.04)
    again.draw(curves, [ALERT, ALERT])
    for row in rows[50:]:
        curves.add(row)
    assert plots.png(again.draw(curves)) == plots.png(plots.training_figure(rows, {"right": 2.0}, 0.04))


def test_nothing_is_left_of_the_run_whose_figure_was_drawn_on_the_same_axes() -> None:
    rich = [{**row, "holdout/accuracy": 0.01 * row["step"]} for row in made_rows(30)]
    rich[20]["kl"] = math.nan
    bare = [{"step": step, "reward": 0.1 * step} for step in (1, 2, 3)]
    for rows, weights, beta, alerts in (
        (rich, {"correctness": 2.0}, 0.04, [alert(12), alert(25)]),
        (bare, {}, 0.0, []),
    ):
        anew = plots.training_figure(rows, weights, beta, alerts=alerts)
        assert plots.png(plots.figure_for_a_file(rows, weights, beta, alerts)) == plots.png(anew)


def test_the_live_figure_is_one_display_and_throttled(displayed: list) -> None:
    live = plots.LivePlot({}, 0.04)
    rows = made_rows(60)
    drawn = [live.update(rows[: i + 1]) for i in range(50)]
    assert drawn[0] and sum(drawn) <= 3, "a loop without pauses must not be slowed down by figures"
    assert live.update(rows, is_last=True)
    assert [kind for kind, *_ in displayed].count("display") == 1
    _, data, metadata = displayed[-1]
    assert set(data) == {"image/png", "text/plain"} and data["text/plain"] == rise.describe(rows)
    assert "The reward rose" in metadata["image/png"]["alt"]


def test_redraws_take_at_most_their_share_of_the_time(displayed: list, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(plots.time, "perf_counter", lambda: now)

    def slow(*_: Any) -> tuple[dict, dict]:
        nonlocal now
        now += 0.25
        return {}, {}

    monkeypatch.setattr(plots, "figure_bundle", slow)
    live, rows = plots.LivePlot({}, 0.04, share=0.005), []
    for row in made_rows(2000):
        rows.append(row)
        now += 1.0
        live.update(rows)
    assert 30 <= live.draws <= 2 + 0.005 * now / 0.25, "two at the start, then within the share, which is used"


def test_a_new_alert_is_news_and_a_run_that_went_back_is_read_anew(displayed: list) -> None:
    live, rows = plots.LivePlot({}, 0.04), made_rows(30)
    assert live.update(rows) and not live.update(rows)
    assert live.update(rows, alerts=[ALERT])
    back = made_rows(20, reward=9.0)
    live.update(back, is_last=True)
    assert len(live._curves.rows) == 20 and live._curves["reward"].limits == (9.0, 9.0)
    assert displayed[-1][1]["text/plain"] == rise.describe(back)


def test_a_withdrawn_alert_comes_last_is_grey_and_says_so() -> None:
    over = dataclasses.replace(alert(5, message="cut", rule="truncation"), ended=9)
    shown = panels(made_rows(20), alerts=[over, alert(12, "info", message="KL 3.")])
    lines = foot(made_rows(20), alerts=[over, alert(12, "info", message="KL 3.")])[1:]
    assert lines[1].startswith("1  info, step 12: KL 3.")
    assert lines[2].startswith("2  withdrawn at step 9 (was critical), step 5: cut")
    marks = {mark.get_marker() for mark in shown[TOTAL].get_lines()}
    assert {"o", "1"} <= marks and "v" not in marks, "no red triangle is left of it"


@pytest.mark.parametrize("count", [3, 14, 200])
def test_nothing_is_cut_off_at_an_edge(count: int) -> None:
    rows = made_rows(
        count, **{"holdout/accuracy": 0.5, "rewards/W" + 30 * "W" + "/mean": 0.5, "learning_rate": 1.234e-05}
    )
    told = [alert(count, rule=rule, message=f"{20 * 'WWW '}{60 * 'W'}") for rule in ("kl_spike", "no_spread")]
    told.append(dataclasses.replace(told[0], severity="warning", ended=count))
    for alerts in ((), told):
        figure = plots.training_figure(rows, {"right": 2.0, "W" + 30 * "W": 0.25}, 0.04, alerts=alerts)
        renderer = FigureCanvasAgg(figure).get_renderer()
        drawn, (width, height) = figure.get_tightbbox(renderer), figure.get_size_inches()
        assert min(drawn.x0, drawn.y0) >= 0 and drawn.x1 <= width and drawn.y1 <= height, drawn
        assert " ".join(foot(rows, alerts=alerts)).startswith(rise.describe(rows)), "all of it is there"
