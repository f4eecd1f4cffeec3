"""A time limit for calling a function that was defined in a notebook and may never return.

On the main thread of a POSIX system the call itself is interrupted. That matters for regular expressions: they hold Python's
global lock, so that no other thread could even notice that time is up, but they do look for signals. Elsewhere the call runs
in a daemon thread, which is left behind when time is up, and a call that holds the lock cannot be limited at all.
"""

from __future__ import annotations

import signal
import threading
import time
import types
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")
_TICK = 0.1


class _TimeIsUp(BaseException):
    """Not an Exception: a reward that catches all of those must not catch this one."""


def run_with_deadline(call: Callable[[], Result], seconds: float) -> Result:
    """Return `call()`, or raise when it takes longer.

    CPU time is watched with ITIMER_PROF and not with the alarm, which math-verify uses and would take away; waiting is watched
    by a thread. A call that swallows the interruption and returns after all is late too.

    Raises:
        TimeoutError: The call was stopped, or has been left behind in its thread.

    >>> run_with_deadline(lambda: 7, 1.0)
    7
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and hasattr(signal, "setitimer") and signal.getitimer(signal.ITIMER_PROF)[0] == 0:
        return _run_interruptible(call, seconds)
    return run_in_thread(call, seconds)


def _ignore(*_: Any) -> None:
    """Python's own no-op, unlike SIG_IGN, is not handed on to programs that this process starts."""


def _run_interruptible(call: Callable[[], Result], seconds: float) -> Result:
    start = time.perf_counter()
    done = threading.Event()
    is_late = False

    def inner() -> Result:
        return call()

    def interrupt(_: int, frame: types.FrameType | None) -> None:
        nonlocal is_late
        # CPU time of all threads together runs faster than the clock, which is what the limit means.
        if time.perf_counter() - start < seconds:
            return
        # Only inside the call: raised in the lines below, it would leave the handler and the timer behind.
        while frame is not None:
            if frame.f_code is inner.__code__:
                is_late = True
                raise _TimeIsUp
            frame = frame.f_back

    def watch() -> None:
        while not done.wait(max(_TICK, seconds - (time.perf_counter() - start))):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGPROF)

    watcher = threading.Thread(target=watch, name="deadline", daemon=True)
    before = signal.signal(signal.SIGPROF, interrupt)
    try:
        # Repeating, because code may swallow the first interruption.
        signal.setitimer(signal.ITIMER_PROF, seconds, _TICK)
        watcher.start()
        result = inner()
    except _TimeIsUp:
        is_late = True
    finally:
        done.set()
        signal.setitimer(signal.ITIMER_PROF, 0)
        if watcher.ident is not None:
            watcher.join()
        # The default action of SIGPROF ends the process, and one may still be under way: never go back to that.
        signal.signal(signal.SIGPROF, before if callable(before) else _ignore)
    if is_late:
        raise TimeoutError(f"stopped after {seconds:g} s")
    return result


def run_in_thread(call: Callable[[], Result], seconds: float | None) -> Result:
    """Return `call()` as computed in a daemon thread, waited for without a limit if `seconds` is None; it raises here.

    Raises:
        TimeoutError: The thread was still running after `seconds` and has been left behind.
    """
    found: dict[str, Any] = {}

    def run() -> None:
        try:
            found["result"] = call()
        except BaseException as error:  # handed to the caller's thread, which raises it
            found["error"] = error

    thread = threading.Thread(target=run, name="reward with a deadline", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"still running after {seconds:g} s, left behind in its thread")
    if "error" in found:
        raise found["error"]
    return found["result"]
