"""A time limit for calling a function that was defined in a notebook and may never return.

On the main thread of a POSIX system the call itself is interrupted: regular expressions and long powers, which hold Python's
global lock, look for signals, and what sets an alarm of its own, as math-verify does, works as it will in a training.
Elsewhere there is no limit.
"""

import signal
import threading
from collections.abc import Callable
from typing import Any


class _TimeIsUp(BaseException):
    """Not an Exception: a reward that catches all of those must not catch this one."""


def run_with_deadline(call: Callable[[], Any], seconds: float) -> Any:
    """Return `call()`, or raise when it takes longer.

    A call that sets an alarm of its own takes this one away.

    Raises:
        TimeoutError: The call was stopped.

    >>> run_with_deadline(lambda: 7, 1.0)
    7
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        return call()
    is_over = False

    def interrupt(*_: Any) -> None:
        if not is_over:
            raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        try:
            signal.setitimer(
                signal.ITIMER_REAL, seconds, 0.1
            )  # repeating: code may swallow the first interruption
            return call()
        finally:
            # Python runs signal handlers at calls and jumps only. So none can run between the end of the call and this
            # assignment, and one that runs later raises nothing.
            is_over = True
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TimeIsUp:
        raise TimeoutError(f"stopped after {seconds:g} s") from None
    finally:
        signal.signal(
            signal.SIGALRM, before or signal.SIG_DFL
        )  # None where it was not set by Python
