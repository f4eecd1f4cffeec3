"""Keep the random generators that a training draws from: Python's, numpy's and torch's."""

import contextlib
import random
from collections.abc import Iterator


@contextlib.contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore all generators at the end of the block, which may draw numbers.

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
