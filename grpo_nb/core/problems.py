"""The error for a faulty machine, a warning that shows the user's line, summaries of errors."""

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1]) + os.sep


class EnvironmentProblem(RuntimeError):
    """Problem of this machine or its installation. The message shows what to type next."""


def warn_user(message: str) -> None:
    """Warn of something that the user should change. Callers log mere information instead.

    The warning points to the line that called the kit. Its stack level is computed: a fixed number
    would be wrong after the next change of the code, and `skip_file_prefixes` needs Python 3.12.
    """
    # The caller is just outside the outermost frame of the kit. The nearest frame outside the kit
    # would be wrong: it can be in TRL, which calls the kit's callbacks, or in a user's reward.
    frames = traceback.walk_stack(sys._getframe())
    for level, (frame, _) in enumerate(frames, start=1):
        if frame.f_code.co_filename.startswith(_PACKAGE):
            outermost_of_kit = level
    warnings.warn(message, stacklevel=outermost_of_kit + 1)


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then its cause, then the cause of its cause, and so on."""
    seen = []
    cause: BaseException | None = error
    # An error can be its own cause: math-verify writes `raise e from e`.
    while cause is not None and cause not in seen:
        yield cause
        seen.append(cause)
        # The context is the error that was being handled when this one was raised. `raise ... from`
        # replaces the context, and `from None` hides it.
        cause = cause.__cause__ if cause.__suppress_context__ else cause.__context__


def error_summary(error: BaseException) -> str:
    """Return the type and the first line of an error, to show within another message."""
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"
