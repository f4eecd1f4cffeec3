"""Models behind judges in tests: functions from chat messages to text that count their calls."""

import threading
import time
from collections.abc import Callable
from typing import Any


def answer_in(messages: list[dict[str, str]]) -> str:
    """The answer that is to be judged."""
    return (
        messages[0]["content"]
        .partition("<answer ")[2]
        .partition(">\n")[2]
        .rpartition("\n</answer ")[0]
    )


def by_length(messages: list[dict[str, str]]) -> str:
    """A point for each word, up to five; one for none."""
    return f"It has words.\nScore: {min(max(len(answer_in(messages).split()), 1), 5)}"


class Asked:
    """A function to be asked, which counts its calls and may fail or wait.

    Args:
        fails: How many calls fail first.
        said: What the error says.
        seconds: How long a call takes.
    """

    def __init__(self, fails: int = 0, said: str = "down", seconds: float = 0.0) -> None:
        self.fails = fails
        self.said = said
        self.seconds = seconds
        self.calls = self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    @property
    def function(self) -> Callable[[Any], Any]:
        """The function to give to a judge."""
        return self.now

    def now(self, messages: Any) -> str:
        with self._lock:
            self.calls += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            number = self.calls
        time.sleep(self.seconds)
        with self._lock:
            self.at_once -= 1
        if number <= self.fails:
            raise ConnectionError(self.said)
        return by_length(messages)
