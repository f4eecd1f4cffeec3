"""Save and restore all random generators that a training draws from: Python's, numpy's and torch's.

If the state is restored after other code has drawn numbers, the training continues as if that code
had not run.
"""

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any


def random_state() -> dict[str, Any]:
    """Return the state of all generators, in types that `torch.load(weights_only=True)` reads."""
    import numpy
    import torch

    name, keys, *rest = numpy.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype("int64")), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Set all generators to a state from `random_state`.

    The machine may have another number of GPUs now. A GPU without a saved state keeps its own.
    """
    import numpy
    import torch

    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = state["numpy"]
    numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))
    torch.set_rng_state(state["torch"])
    for device, cuda_state in zip(range(torch.cuda.device_count()), state["cuda"], strict=False):
        torch.cuda.set_rng_state(cuda_state, device)


@contextlib.contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore all generators at the end of the block, which may draw numbers."""
    state = random_state()
    try:
        yield
    finally:
        restore_random_state(state)
