"""The state of every random generator that a training draws from: python's, numpy's, torch's, and those of the GPUs.

With it as it was, whatever ran in between changes nothing after it.
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
    of_numpy = (name, torch.from_numpy(keys.astype("int64")), *rest)
    of_torch = {"torch": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all()}
    return {"python": random.getstate(), "numpy": of_numpy, **of_torch}


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Go on drawing where `random_state` was taken. A GPU more or less than then keeps its own state."""
    import numpy
    import torch

    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = state["numpy"]
    numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))
    torch.set_rng_state(state["torch"])
    for device, cuda in zip(range(torch.cuda.device_count()), state["cuda"], strict=False):
        torch.cuda.set_rng_state(cuda, device)


@contextlib.contextmanager
def kept_random_state() -> Iterator[None]:
    """Within the block anything may be drawn; after it, all generators are where they were."""
    state = random_state()
    try:
        yield
    finally:
        restore_random_state(state)
