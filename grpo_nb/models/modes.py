"""Keep which modules of a model are in training mode."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def kept_modes(model: Any) -> Iterator[None]:
    """Restore the mode of each module after the block, which may switch training and evaluation.

    `train(True)` on the whole model would also switch on modules that were off, such as those
    that the user put in evaluation mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
