"""A time limit for calling a function that was defined in a notebook and may never return.

On the main thread of a POSIX system the call itself is interrupted: regular expressions and long powers, which hold Python's
global lock, look for signals, and what sets an alarm of its own, as math-verify does, works as it will in a training.
Elsewhere the call runs in a daemon thread, which is left behind when time is up.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")
_TICK = 0.1


class _TimeIsUp(BaseException):
    """Not an Exception: a reward that catches all of those must not catch this one."""


def run_with_deadline(call: Callable[[], Result], seconds: float) -> Result:
    """Return `call()`, or raise when it takes longer.

    A call that sets an alarm of its own takes this one away.

    Raises:
        TimeoutError: The call was stopped, or came back after all but late, or has been left behind in its thread.

    >>> run_with_deadline(lambda: 7, 1.0)
    7
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        return run_in_thread(call, seconds)
    end, before = time.perf_counter() + seconds, signal.signal(signal.SIGALRM, _interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, _TICK)  # repeating: code may swallow the first interruption
        result = call()
        if time.perf_counter() < end:
            return result
    except _TimeIsUp:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)  # None where it was not set by Python
    raise TimeoutError(f"stopped after {seconds:g} s")


def _interrupt(*_: Any) -> None:
    raise _TimeIsUp


def run_in_thread(call: Callable[[], Result], seconds: float | None) -> Result:
    """Return `call()` as computed in a daemon thread, waited for without a limit if `seconds` is None; it raises here.

    Raises:
        TimeoutError: The thread was still running after `seconds` and has been left behind.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # handed to the caller's thread, which raises it
            future.set_exception(error)

    threading.Thread(target=run, name="reward with a deadline", daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():  # the call's own
            raise
        raise TimeoutError(f"still running after {seconds:g} s, left behind in its thread") from None
