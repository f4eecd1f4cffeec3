"""A real vLLM on a model that the kit loaded, as Unsloth leaves one on a GPU: an engine in this process and `load_lora`."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import pytest

MISSING = "vLLM is not importable here: `make test-vllm` makes an environment, for a CPU, in which it is"

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason=MISSING)


def start_engine(model: Any, *, dtype: str = "float32", longest: int = 256, rank: int = 16) -> Any:
    """Start an engine on the folder that the model was loaded from, and give the model what Unsloth gives it with one.

    The loader itself refuses a CPU (`fast_inference=True`, unsloth/models/loader.py), so this is what remains of its way:
    Unsloth's changes to vLLM, its functions on the model, and the kit's copies of what is handed over.

    Args:
        model: From `load_model`.
        dtype: What the engine computes in.
        longest: Prompt and completion together, in tokens.
        rank: The largest of a LoRA.
    """
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # as Unsloth sets it: the engine lives in this process
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    from unsloth.models._utils import patch_peft_fast_inference

    from unsloth_zoo import vllm_utils

    vllm_utils.patch_vllm(debug=False)
    from vllm import LLM

    from grpo_nb.models.load import hand_copies

    engine = LLM(
        model.get_base_model().config._name_or_path, dtype=dtype, max_model_len=longest, max_num_seqs=16, enforce_eager=True,
        enable_lora=True, max_lora_rank=rank, logprobs_mode="processed_logprobs", max_logprobs=0,
    )  # fmt: skip
    inner = model.model
    inner.vllm_engine, inner.fast_generate = engine, engine.generate
    inner.fast_generate_batches = functools.partial(vllm_utils.generate_batches, engine)
    patch_peft_fast_inference(model)
    hand_copies()
    return engine


def trained_tensors(model: Any) -> dict[str, Any]:
    """Copies of the LoRA as it is now, by name."""
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if ".lora_" in name}
