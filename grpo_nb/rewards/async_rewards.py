"""Run async reward functions in one event loop, which has a thread of its own."""

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from grpo_nb.rewards.base import unwrapped

_THREAD_NAME = "async rewards"
# A judge that is not a coroutine function takes one thread per call. The default pool of asyncio
# has only four more threads than the machine has cores.
_POOL_THREADS = 64


def is_async(reward: Callable[..., Any]) -> bool:
    """Return True if TRL awaits this reward: it or its `__call__` is a coroutine function."""
    function = unwrapped(reward)
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in the event loop of all async rewards and return its result.

    If the caller stops waiting, for example after a time limit, the coroutine is cancelled.

    Raises:
        RuntimeError: It was called by an async reward itself, which would wait for itself.
    """
    if threading.current_thread().name == _THREAD_NAME:
        coroutine.close()
        raise RuntimeError(
            "an async reward that calls a judge would wait for itself: write def, not async def."
        )
    future = asyncio.run_coroutine_threadsafe(coroutine, event_loop(os.getpid()))
    try:
        return future.result()
    finally:
        future.cancel()


@functools.cache
def event_loop(process: int) -> asyncio.AbstractEventLoop:
    """Return the event loop of a process for all async rewards.

    There is only one, because a connection belongs to the loop in which it was opened.

    Args:
        process: Its id. A forked process has the loop of its parent, but not the thread that runs
            it.
    """
    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(_POOL_THREADS))
    threading.Thread(target=loop.run_forever, name=_THREAD_NAME, daemon=True).start()
    return loop
