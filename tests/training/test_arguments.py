"""Whatever stands in the place of an argument: a line of ours that says so, before anything slow starts or is written."""

import dataclasses
import datetime
import decimal
import fractions
import functools
import inspect
import math
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch

import grpo_nb as gn
from grpo_nb.evaluation import ask
from grpo_nb.training import dry_runs, priming, session
from grpo_nb.training.observers import Observer
from tests.conftest import brevity
from tests.support.tiny import load_tiny

OURS = str(Path(gn.__file__).parent)


class Reached(Exception):
    """Everything was looked at, and what is slow would begin now."""


# Written down in two parts before any of it was tried: the kit was mended on the first, and judged by the second.
SEEN = [
    None, 5, -1, 0, 2.5, math.nan, math.inf, 2**70, True, "", "x", "a" * 300, "nowhere.csv", b"x", [], [None], [5], (), {},
    {1: 2}, object(), print, int, Observer, Path("nowhere"), numpy.zeros(2), pandas.DataFrame({"question": ["a"]}),
]  # fmt: skip
UNSEEN = [
    1j, 10**400, -0.5, decimal.Decimal("NaN"), fractions.Fraction(1, 3), numpy.float64("nan"), torch.tensor(1.0), "\n", "../..",
    "a/b/c", "\0", "caf\u00e9 \ud800", Path("/dev/null"), frozenset({1}), range(3), iter([]), {"train": []}, [[]], ("a", "b"),
    ("a", "b", "c"), datetime.date(2026, 1, 1), types, gn, Ellipsis, NotImplemented, type, ValueError("x"), memoryview(b"x"),
    functools.partial(brevity), gn.preset, [brevity, brevity], lambda: None, gn.rewards.xml_tags, "reasoning-gym:", 1e-320,
]  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """A folder for runs, and for each function a call that is right."""
    root = tmp_path_factory.mktemp("root") / "runs"
    model, tokenizer, task, settings = load_tiny(
        tiny_folder, 12, 4, max_completion_length=40, max_steps=3, run_root=str(root)
    )  # fmt: skip
    parts = {"model": model, "tokenizer": tokenizer, "task": task, "settings": settings}
    rewards = {**parts, "rewards": [brevity]}
    asked = {"before": (model, tokenizer), "after": (model, tokenizer), "task": task, "allow_contaminated": True}
    return root, {
        gn.train: rewards, gn.dry_run: rewards, gn.training.prime: parts,
        gn.evaluate: {"subject": asked["before"], "task": task}, gn.compare: asked,
    }  # fmt: skip


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function ends where it would build a trainer, answer, or load a model."""

    def reached(*args: object, **more: object) -> None:
        raise Reached

    for module, name in (
        (session, "build_trainer"), (dry_runs, "build_trainer"), (priming, "answers_of_model"), (ask, "open_subject"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, reached)


def names_of(function: Callable) -> Iterator[str]:
    return (name for name, p in inspect.signature(function).parameters.items() if p.kind != p.VAR_KEYWORD)


def outcome(function: Callable, right: dict[str, Any], name: str, value: object) -> str | None:
    """What is wrong with how a value for an argument is taken; None if it is taken, or refused as it should be."""
    said = f"{function.__name__}({name}={value!r:.40}): "
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(**{**right, name: value})
    except Reached:
        return None
    except (ValueError, TypeError, FileNotFoundError, gn.machine.EnvironmentProblem) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        if not frame.filename.startswith(OURS):
            return f"{said}a raw {type(error).__name__}: {error!s:.80} ({frame.filename[-40:]}:{frame.lineno})"
        return f"{said}several lines: {error}" if "\n" in str(error) and "gn." not in str(error) else None
    except Exception as error:
        return f"{said}{type(error).__name__}: {error!s:.100}"
    return None


@pytest.mark.parametrize("values", [SEEN, UNSEEN], ids=["seen", "unseen"])
def test_anything_in_the_place_of_an_argument_is_told_at_the_door(tiny, stopped, values: list) -> None:
    root, calls = tiny
    wrong = [
        outcome(function, right, name, value)
        for function, right in calls.items() for name in names_of(function) for value in values
    ]  # fmt: skip
    assert not any(wrong), f"{sum(map(bool, wrong))} of {len(wrong)}\n" + "\n".join(filter(None, wrong))
    assert not list(root.glob("*")), "something was written"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"extra": {"logging_steps": 0}}, "logging"),
        ({"extra": {"save_strategy": "nope"}}, "save_strategy"),
        ({"extra": {"eval_strategy": "steps"}}, "eval"),
        ({"extra": {"sync_ref_model": True}}, "ref_model"),
        ({"extra": {"generation_kwargs": 5}}, "generation_kwargs"),
        ({"seed": -1}, "(?i)seed"), ({"seed": 2**40}, "(?i)seed"),
        ({"keep": "best"}, "holdout_every = 0 makes none"),
    ],
)  # fmt: skip
def test_what_trl_refuses_is_told_before_there_is_a_folder(tiny, changes: dict, told: str) -> None:
    root, calls = tiny
    right = calls[gn.train]
    with pytest.raises(ValueError, match=told) as caught:
        changed = {**right, "settings": right["settings"].replace(**changes)}
        gn.train(**changed)
    assert "\n" not in str(caught.value) and not list(root.glob("*"))
    assert set(right["model"].peft_config) == {"default"}, "the trainer that was half built left its adapter"


@pytest.mark.parametrize("name", ["step", "group", "prompt", "completion", "total", "advantage"])
def test_a_reward_with_the_name_of_a_column_is_refused(tiny, name: str) -> None:
    root, calls = tiny

    def reward(completions: list, **columns: object) -> list[float]:
        return brevity(completions)

    reward.__name__ = name
    with pytest.raises(ValueError, match=f"the reward '{name}' has the name of a column"):
        gn.train(**{**calls[gn.train], "rewards": [reward]})
    assert not list(root.glob("*"))


def test_held_out_scores_need_questions(tiny) -> None:
    _, calls = tiny
    right = calls[gn.train]
    empty = dataclasses.replace(right["task"], holdout=right["task"].holdout.select([]))
    with pytest.raises(ValueError, match="needs held-out questions"):
        gn.train(**{**right, "task": empty, "settings": right["settings"].replace(holdout_every=1)})
