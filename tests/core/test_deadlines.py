"""A call that waits, computes or holds on is stopped in time; one that ends is left alone."""

import itertools
import re
import time

import pytest

from grpo_nb.core.deadlines import run_with_deadline


@pytest.mark.parametrize(
    "holds_on",
    [lambda: time.sleep(9), lambda: re.match(r"(a+)+$", "a" * 50 + "!"), lambda: [None for _ in itertools.count()]],
)
def test_deadlines_stop_what_waits_and_what_computes(holds_on) -> None:
    start = time.perf_counter()
    with pytest.raises(TimeoutError):
        run_with_deadline(holds_on, 0.2)
    assert time.perf_counter() - start < 5


def test_what_ends_in_time_or_raises_is_left_alone() -> None:
    assert run_with_deadline(lambda: 7, 5) == 7
    with pytest.raises(ZeroDivisionError):
        run_with_deadline(lambda: 1 / 0, 5)
