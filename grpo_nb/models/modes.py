"""Keep which modules of a model are in training mode."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def kept_modes(model: Any) -> Iterator[None]:
    """Within the block a model may be switched between training and evaluation; after it, each of its modules is as it was.

    One by one: `train(True)` on the whole would also switch on what was switched off inside, as frozen parts are.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
