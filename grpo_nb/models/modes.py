"""Keep what sampling changes: the modes of a model's modules, and the random generators."""

import contextlib
import random
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


@contextlib.contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore the generators of Python, numpy and torch after the block, which may draw numbers.

    A training continues afterwards as if the block had not run.
    """
    import numpy
    import torch

    python_state = random.getstate()
    numpy_state = numpy.random.get_state()
    every_gpu = range(torch.cuda.device_count())
    try:
        with torch.random.fork_rng(every_gpu):
            yield
    finally:
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)
