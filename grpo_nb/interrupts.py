"""Ctrl-C at a moment when nothing is half done."""

from __future__ import annotations

import signal
import threading
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
        if threading.current_thread() is threading.main_thread() and self._before is None:
            self._before = signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self._is_pending = True

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
