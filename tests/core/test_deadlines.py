"""A call that waits, computes or holds on is stopped in time; one that ends is left alone."""

import itertools
import re
import signal
import time

import pytest

from grpo_nb.core import deadlines
from grpo_nb.core.deadlines import run_with_deadline


@pytest.mark.parametrize(
    "holds_on",
    [
        lambda: time.sleep(9),
        lambda: re.match(r"(a+)+$", "a" * 50 + "!"),
        lambda: [None for _ in itertools.count()],
    ],
)
def test_deadlines_stop_what_waits_and_what_computes(holds_on) -> None:
    start = time.perf_counter()
    with pytest.raises(TimeoutError):
        run_with_deadline(holds_on, 0.2)
    assert time.perf_counter() - start < 5


def test_call_that_swallows_the_interruption_is_a_timeout() -> None:
    def swallow() -> float:
        try:
            time.sleep(9)
        except BaseException:
            return 0.0

    with pytest.raises(TimeoutError, match=r"stopped after 0\.2 s"):
        run_with_deadline(swallow, 0.2)


def test_call_that_makes_the_interruption_an_error_is_a_timeout() -> None:
    def convert() -> None:
        try:
            time.sleep(9)
        except BaseException:
            raise ValueError("bad") from None

    with pytest.raises(TimeoutError, match=r"stopped after 0\.2 s"):
        run_with_deadline(convert, 0.2)


def test_what_ends_in_time_or_raises_is_left_alone() -> None:
    assert run_with_deadline(lambda: 7, 5) == 7
    with pytest.raises(ZeroDivisionError):
        run_with_deadline(lambda: 1 / 0, 5)


@pytest.fixture
def alarm_at_disarming(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alarm comes after the call has ended, and before its timer is off."""
    set_timer = signal.setitimer

    def set_timer_too_late(which: int, seconds: float, interval: float = 0.0) -> None:
        if seconds == 0:
            signal.raise_signal(signal.SIGALRM)
        set_timer(which, seconds, interval)

    monkeypatch.setattr(deadlines.signal, "setitimer", set_timer_too_late)


@pytest.mark.usefixtures("alarm_at_disarming")
def test_an_alarm_after_the_end_of_a_call_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGALRM)
    assert run_with_deadline(lambda: 7, 5) == 7
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.usefixtures("alarm_at_disarming")
def test_an_alarm_after_a_failed_call_leaves_its_error() -> None:
    with pytest.raises(ZeroDivisionError):
        run_with_deadline(lambda: 1 / 0, 5)


def test_an_alarm_as_the_call_returns_is_a_timeout() -> None:
    with pytest.raises(TimeoutError):
        run_with_deadline(lambda: signal.raise_signal(signal.SIGALRM), 5)


def test_calls_that_end_at_their_limit_return_or_time_out() -> None:
    limit = 0.0005
    escaped = []
    for number in range(1500):
        end = time.perf_counter() + limit - number % 25 * 1e-6

        def wait(end: float = end) -> None:
            while time.perf_counter() < end:
                pass

        try:
            run_with_deadline(wait, limit)
        except TimeoutError:
            pass
        except BaseException as error:
            escaped.append(error)
    assert escaped == []
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_nested_deadline_keeps_the_outer_one() -> None:
    def call() -> None:
        run_with_deadline(lambda: 7, 5)
        time.sleep(9)

    start = time.perf_counter()
    with pytest.raises(TimeoutError, match=r"stopped after 0\.3 s"):
        run_with_deadline(call, 0.3)
    assert time.perf_counter() - start < 5
