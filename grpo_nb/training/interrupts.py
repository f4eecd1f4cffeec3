"""Ctrl-C at a moment when nothing is half done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Interrupts:
    """Holds back an interrupt while the weights and the records of a step change together, and raises it afterwards.

    Between the optimizer's update and the row of that step, weights, optimizer and curves are of two different steps; a
    checkpoint made then would not continue the run. The hold lasts a fraction of a second. Outside of the main thread no
    interrupt arrives, and nothing is held.
    """

    def __init__(self) -> None:
        self.is_holding = False
        """Whether a step is half done."""
        self._is_pending = False
        self._before: Any = None

    def hold(self) -> None:
        """From now on, note interrupts instead of raising them."""
        self.is_holding = True
        if threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGINT, self._note)
            self._before = before if self._before is None else self._before

    def _note(self, number: int, frame: Any) -> None:
        self._is_pending = True

    @contextlib.contextmanager
    def let_through(self) -> Iterator[None]:
        """Within the block an interrupt is raised at once, one that came before it too; after it they are held back again.

        For what takes long while a step is half done, and can be left out: the one who raises it goes on with the step.
        """
        if self._before is None:
            yield
            return
        try:
            signal.signal(signal.SIGINT, self._before)
            if self._is_pending:
                self._is_pending = False
                raise KeyboardInterrupt
            yield
        finally:
            signal.signal(signal.SIGINT, self._note)

    def release(self) -> None:
        """Let interrupts through again, and raise the one that came meanwhile."""
        self.close()
        self.is_holding = False
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt

    def close(self) -> None:
        """Put back the handler that was there before. `is_holding` stays: the step that it was for did not end."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None
