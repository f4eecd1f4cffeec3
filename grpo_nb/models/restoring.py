"""Restore what sampling changes: modes of modules, random generators, the generation config."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def restoring_modes(model: Any) -> Iterator[None]:
    """Restore the training or evaluation mode of each module after the block.

    `train(True)` on the whole model would also switch modules that the user had put in evaluation
    mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def restoring_random_state() -> Iterator[None]:
    """Restore the random state of Python, numpy and torch after the block.

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
def restoring_generation_config(model: Any) -> Iterator[None]:
    """Leave only special tokens in a model's generation_config within the block, then restore it.

    transformers takes each parameter that a call does not set from this config. A comparison of two
    models would then use different repetition penalties or top_p, which llama.cpp and vLLM ignore.
    """
    from transformers import GenerationConfig

    base_model = model.get_base_model() if hasattr(model, "get_base_model") else model
    original_config = base_model.generation_config
    base_model.generation_config = GenerationConfig(
        bos_token_id=original_config.bos_token_id,
        eos_token_id=original_config.eos_token_id,
        pad_token_id=original_config.pad_token_id,
    )
    try:
        yield
    finally:
        base_model.generation_config = original_config
