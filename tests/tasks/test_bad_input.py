"""Whatever is written into settings or `load_task`: it is taken, or refused by an error of ours, and soon."""

from __future__ import annotations

import dataclasses
import decimal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from datasets import Dataset
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import grpo_nb as gn
from grpo_nb.settings.arguments import installed_arguments

OURS = str(Path(gn.__file__).parent)
QUICK = hypothesis_settings(max_examples=250, deadline=4000, suppress_health_check=list(HealthCheck))


def taken(call: Callable[[], Any]) -> Any:
    """What a call returned; None where an error of ours refused it."""
    try:
        return call()
    except (ValueError, TypeError, FileNotFoundError) as error:
        raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
        assert raised_in.startswith(OURS), f"not ours: {type(error).__name__}: {error} ({raised_in})"
        assert str(error)
        return None


PLAIN = (
    st.none() | st.booleans() | st.integers(-3, 70) | st.sampled_from([2**32, 2**40, -(10**30), 10**30, 10**9 + 7])
    | st.floats() | st.floats(0, 1) | st.text(max_size=8) | st.binary(max_size=3)
)  # fmt: skip
NESTED = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.builds(object) | st.sampled_from([
    Path("x"), int, len, decimal.Decimal("1.5"), numpy.float64(0.5), numpy.int32(4), numpy.arange(3), 1j, {1, 2}, range(3),
    pandas.NaT, pandas.NA, pandas.Timestamp("2026-01-01"), "all-linear", ("q_proj",), "auto", "grpo", "critical", "steps",
])  # fmt: skip
ANYTHING = NESTED | OBJECTS
FIELDS = [f.name for f in dataclasses.fields(gn.Settings) if f.name != "extra"]


@given(
    preset=st.sampled_from(["cpu", "t4", "l4", "a100", "h100"]) | ANYTHING,
    changes=st.dictionaries(st.sampled_from([*FIELDS, "max_step", "epsilon"]), ANYTHING, max_size=3),
    extra=st.dictionaries(st.sampled_from([*sorted(installed_arguments()), "epsilonn"]), ANYTHING, max_size=3)
    | ANYTHING,
)
@QUICK
@example("cpu", {"per_device_train_batch_size": 10**4 + 7}, {})
@example("cpu", {}, {"generation_batch_size": 10**9 + 7})
@example("t4", {"max_steps": 10}, {"scale_rewards": None})
def test_settings_are_taken_or_refused(preset: Any, changes: dict[str, Any], extra: Any) -> None:
    made = taken(lambda: gn.preset(preset, **changes, extra=extra))
    if made is not None:
        assert gn.Settings.from_dict(made.to_dict()).replace() == made and repr(made)
        assert made.generation_batch_size % made.num_generations == 0 and made.warmup <= max(made.max_steps, 4)
        assert gn.Settings.from_dict(made.to_dict()) == made


TEXTS = st.text(max_size=12) | st.sampled_from(["1+1?", "1 + 1?", "yes", "no", "#### 4", "1,50", "\ud800", "NaN"])
TURN = st.dictionaries(st.sampled_from(["role", "content", "from", "value"]), TEXTS | ANYTHING, max_size=3)
MESSAGES = st.lists(TURN, max_size=3)
NAMES = st.sampled_from(["question", "answer", "prompt", "messages", "conversations", "solution", "note"])
ROWS = st.lists(st.dictionaries(NAMES | st.integers(), TEXTS | MESSAGES | ANYTHING, min_size=1, max_size=4), max_size=6)
CLEAN = st.lists(
    st.fixed_dictionaries({"question": TEXTS, "answer": TEXTS | st.integers(), "note": ANYTHING}), max_size=9
)
SOURCES = (
    CLEAN | ROWS | CLEAN.map(lambda rows: pandas.DataFrame(rows, dtype=object)) | st.just("arithmetic")
    # Not a text: that is a name on the Hub, which would be asked.
    | ANYTHING.filter(lambda v: not isinstance(v, (str, Path))) | TEXTS.map(lambda text: f"{text}.csv")
    | st.dictionaries(NAMES, st.lists(TEXTS, max_size=4) | ANYTHING, max_size=3)
)  # fmt: skip
OPTIONS = {
    "settings": ANYTHING, "columns": st.dictionaries(NAMES, NAMES | ANYTHING, max_size=3) | ANYTHING, "format": ANYTHING,
    "system": TEXTS | ANYTHING, "example": st.tuples(TEXTS, TEXTS, TEXTS) | ANYTHING, "holdout": st.floats(0, 3) | ANYTHING,
    "contradictory": st.sampled_from(["ask", "drop", "first", "majority"]) | ANYTHING, "seed": ANYTHING, "tokenizer": ANYTHING,
    "split": TEXTS | ANYTHING, "config": ANYTHING, "encoding": ANYTHING, "decimal": st.just(",") | ANYTHING,
    "keep": ANYTHING,
    "train_size": ANYTHING, "holdout_size": ANYTHING, "low": ANYTHING, "high": ANYTHING, "operators": ANYTHING, "sep": ANYTHING,
}  # fmt: skip


@given(
    source=SOURCES,
    options=st.lists(st.sampled_from(sorted(OPTIONS)), max_size=2, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: OPTIONS[name] for name in names})
    ),
)
@QUICK
@example([{"question": f"{n}?", "answer": "1", "nested": {"a": [1] if n else "x"}} for n in range(4)], {})
@example("arithmetic", {"holdout": 0.5})
@example("arithmetic", {"high": 10_000})
@example([{"question": f"{n}?", "answer": n} for n in range(4)], {"split": "train"})
def test_data_is_taken_or_refused(source: Any, options: dict[str, Any]) -> None:
    task = taken(lambda: gn.load_task(source, **options))
    if task is not None:
        assert isinstance(task.train, Dataset) and len(task.train) and len(task.holdout) and repr(task)
        assert all(row["question"].strip() and row["answer"] for part in (task.train, task.holdout) for row in part)


@given(data=st.binary(max_size=60) | CLEAN.map(lambda rows: repr(rows).encode("utf-8", "replace")), name=st.sampled_from(
    ["a.csv", "a.tsv", "a.json", "a.jsonl", "a.parquet"]
))  # fmt: skip
@QUICK
def test_damaged_files_are_told(data: bytes, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / name
    file.write_bytes(data)
    taken(lambda: gn.load_task(file))
    taken(lambda: gn.Settings.load(file))
