"""The notebook about algorithms: gradients, the stored trainings, and one pair trained again."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import numpy
import pytest

from tests.support.notebooks import (
    ROOT,
    assert_nothing_went_wrong,
    cell_with,
    only_published,
    outputs,
    printed,
)

pytestmark = pytest.mark.begins(80)


@pytest.fixture
def course(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("algorithms"), importlib.import_module("gradients")
    for name in ("algorithms", "gradients", "seeds", "_measure"):
        sys.modules.pop(name, None)


@only_published
def test_no_cell_warns_or_shows_an_error(algorithms: Path) -> None:
    assert_nothing_went_wrong(algorithms)


@only_published
def test_lessons_show_figures_and_the_repeated_pair_agrees(algorithms: Path) -> None:
    notebook = nbformat.read(algorithms, as_version=4)
    shown = {
        "draw_angles(": 'alt="Angle to the exact gradient, '
        "8 completions of each prompt: no baseline",
        "draw_identities(": 'alt="Relative differences: grpo, clip-higher = grpo: ',
        "length = ": "lower than grpo: dapo",
        "difficulty = ": "higher than grpo: grpo filtered",
        "reused = ": "lower than grpo: cispo, sapo",
    }
    for source, said in shown.items():
        pages = outputs(cell_with(notebook, source), "text/html")
        html = "".join(page.data["text/html"] for page in pages)
        assert '<img alt="' in html, source
        assert said in html, source
    told = printed(cell_with(notebook, "live = {"))
    assert told.count(" stored; ") == 2
    assert "grpo: held-out" in told
    assert "dapo: held-out" in told
    last = printed(cell_with(notebook, "for result in (length"))
    assert last.startswith("Letters of wrong answers; lower than grpo: dapo.")


def test_estimators_are_right_on_average(
    course: tuple[ModuleType, ModuleType],
) -> None:
    """With known gradients, only losses that weigh prompts differently stay off."""
    _, gradients = course
    draw = numpy.random.default_rng(0)
    chances = draw.dirichlet(numpy.ones(10), size=6)
    # The gradient of a log-probability with respect to a softmax's own inputs: one at the digit,
    # minus the chances.
    rows = numpy.zeros((60, 60))
    for prompt in range(6):
        part = slice(10 * prompt, 10 * prompt + 10)
        rows[part, part] = numpy.eye(10) - chances[prompt]
    policies = gradients.Policies(chances, rows @ rows.T, 60, 0.0)
    rewards = gradients.paid_digits(policies, 0.9)
    rewards[::2] = gradients.paid_digits(policies, 0.3)[::2]
    few = gradients.angles(policies, rewards, 4, draws=200, prompts=6)
    many = gradients.angles(policies, rewards, 20_000, draws=8, prompts=6)
    for name in ("no baseline", "batch mean", "leave-one-out", "group mean"):
        assert few[name].mean() > 5, name
        assert many[name].mean() < 5, name
    assert many["group mean and std"].mean() > 2 * many["group mean"].mean(), (
        "its limit is another direction"
    )
    assert numpy.allclose(few["leave-one-out"], few["group mean"], atol=1e-4)


def test_stored_trainings_have_all_seeds_and_one_start(
    course: tuple[ModuleType, ModuleType],
) -> None:
    algorithms, _ = course
    lines = algorithms.kept()
    for name in algorithms.ALGORITHMS:
        of_it = [line for line in lines if line["name"] == name]
        assert sorted(line["seed"] for line in of_it) == list(range(10)), name
        assert {tuple(line["before"].items()) for line in of_it} == {
            tuple(lines[0]["before"].items())
        }, "one start"


def test_advantage_without_baseline_is_the_reward(
    course: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss gets the expected arguments, and the next training has its baseline again."""
    from grpo_nb.training import prepare

    algorithms, _ = course
    stock = prepare.RunTrainer
    seen = []
    loss = stock._compute_loss

    def noting(self: object, model: object, inputs: dict) -> object:
        seen.append(inputs["advantages"].clone())
        return loss(self, model, inputs)

    monkeypatch.setattr(stock, "_compute_loss", noting)
    monkeypatch.setitem(algorithms.BASE, "max_steps", 1)
    monkeypatch.setattr(algorithms, "held_out", lambda *_: {"all": 0.0})
    for name in ("reinforce", "dr_grpo"):
        algorithms.train(name, 0)
    assert set(seen[0].tolist()) == {0.0, 1.0}, "paid or not, and nothing taken off"
    assert seen[1].min() < 0, "above the mean of a group, and below it"
    assert abs(float(seen[1].sum())) < 1e-4, "above the mean of a group, and below it"
