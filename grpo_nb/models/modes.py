"""Restore what sampling changes: modes of modules, random generators, the generation config."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def restoring_modes(model: Any) -> Iterator[None]:
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
def restoring_random_state() -> Iterator[None]:
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


@contextlib.contextmanager
def plain_generation_config(model: Any) -> Iterator[None]:
    """Remove everything but the special tokens from a model's generation_config.

    transformers takes from it whatever a call leaves open. So a comparison of two folders would
    also compare their repetition penalties or top_p, which vLLM and llama.cpp do not read.
    """
    from transformers import GenerationConfig

    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    own = inner.generation_config
    inner.generation_config = GenerationConfig(
        bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
    )
    try:
        yield
    finally:
        inner.generation_config = own
