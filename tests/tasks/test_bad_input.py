"""Whatever is written into settings: it is taken, or refused by an error of ours, and soon."""

from __future__ import annotations

import dataclasses
import decimal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pandas
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
