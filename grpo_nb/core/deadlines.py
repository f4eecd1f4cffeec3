"""Stop a user's function that runs too long.

On the main thread an alarm interrupts the call, also inside a slow regular expression or
`10 ** 10**8`, whose C code checks for signals. The limit ends when the called function sets an
alarm of its own, as math-verify does. On other threads there is no limit.
"""

import signal
import threading
from collections.abc import Callable
from typing import Any

# The alarm repeats, because the called code may swallow an interruption with `except:`.
_REPEAT_SECONDS = 0.1


class _Interrupted(BaseException):
    """Interruption of the call. Not an Exception, so `except Exception` does not catch it."""


def run_with_deadline(call: Callable[[], Any], seconds: float) -> Any:
    """Return `call()`, or raise if the call takes more than `seconds`.

    An alarm that was set before is paused during the call.

    Raises:
        TimeoutError: The call was stopped.

    >>> run_with_deadline(lambda: 7, 1.0)
    7
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    is_over = False
    was_interrupted = False

    def interrupt(*_: Any) -> None:
        nonlocal was_interrupted
        if not is_over:
            was_interrupted = True
            raise _Interrupted

    previous_timer = signal.getitimer(signal.ITIMER_REAL)
    previous_handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_SECONDS)
            result = call()
        finally:
            # Python runs handlers only at calls and jumps, so none runs between the end of the
            # call and this line. A handler that runs later sees `is_over`.
            is_over = True
            signal.setitimer(signal.ITIMER_REAL, 0)
        # The call may have swallowed the interruption and returned.
        if was_interrupted:
            raise _Interrupted
        return result
    except (Exception, _Interrupted):
        # The call may have turned the interruption into an error of its own.
        if was_interrupted:
            raise TimeoutError(f"stopped after {seconds:g} s") from None
        raise
    finally:
        # The previous handler is None if it was not set by Python.
        signal.signal(signal.SIGALRM, previous_handler or signal.SIG_DFL)
        if any(previous_timer):
            signal.setitimer(signal.ITIMER_REAL, *previous_timer)
