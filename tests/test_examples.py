"""The examples in docstrings, run as written; models and runs in them are tiny ones."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import grpo_nb as gn
from tests.conftest import ROOT
from tests.run_fixtures import brevity

MODULES = sorted(
    str(file.relative_to(ROOT).with_suffix("")).replace("/", ".")
    for file in (ROOT / "grpo_nb").rglob("*.py")
    if ">>> " in file.read_text()
)
NAMES = [name for name in dir(gn) if not name.startswith("_") and callable(getattr(gn, name))]


@pytest.fixture(scope="module")
def tiny_names(tiny_run: gn.runs.Run) -> dict[str, object]:
    """Variables of a user who calls `gn.train`, by the names in the examples."""
    settings = tiny_run.settings.replace(max_steps=2)
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, train_size=20, holdout=10, tokenizer=tokenizer)
    return {
        "model": model,
        "tokenizer": tokenizer,
        "task": task,
        "settings": settings,
        "run": tiny_run,
        "rewards": [brevity, gn.rewards.partial_format()],
    }


@pytest.mark.parametrize("module", MODULES)
def test_examples_hold(
    module: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for example in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module)):
        if not example.examples:
            continue
        example.globs["gn"] = gn
        if any(re.search(r"\b(tokenizer|run)\b(?!\()", line.source) for line in example.examples):
            example.globs |= request.getfixturevalue("tiny_names")
        result: list[str] = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=result.append)
        assert not result, "".join(result)


@pytest.mark.parametrize("name", NAMES)
def test_each_of_the_thirty_has_an_example(name: str) -> None:
    documented = getattr(gn, name)
    assert ">>> " in (documented.__doc__ or "") + (
        getattr(documented.__init__, "__doc__", None) or ""
    )
