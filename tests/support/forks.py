"""Work in a forked child, which may be killed while the parent keeps its imports."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

import grpo_nb as gn


def loaded_alone(settings: gn.Settings, train_size: int) -> tuple[Any, Any, gn.tasks.Task]:
    """Model, tokenizer and task of a process that will be forked: a fork has no other threads."""
    import torch

    torch.set_num_threads(1)
    model, tokenizer = gn.load_model(settings)
    return (
        model,
        tokenizer,
        gn.load_task("arithmetic", settings, train_size=train_size, holdout=4, tokenizer=tokenizer),
    )


def in_child(work: Callable[[], object], meanwhile: Callable[[int], object] | None = None) -> bool:
    """Do something in a forked child and wait for its end; return whether a signal ended it.

    A child that fails by itself is an error here. `meanwhile` gets its process number while it
    works, and may kill it, but must not wait for it.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if meanwhile is not None:
        meanwhile(child)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, (
        f"the child failed with status {status}"
    )
    return os.WIFSIGNALED(status)


def has_ended(child: int) -> bool:
    """Return True if a child has ended; it can still be waited for."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
