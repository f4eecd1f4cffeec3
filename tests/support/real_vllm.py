"""A real vLLM engine with `load_lora` on a loaded model, as Unsloth leaves one on a GPU.

The engine runs in this process.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import pytest

import grpo_nb as gn

MISSING = (
    "vLLM is not importable here: `make test-vllm` makes an environment, for a CPU, in which it is"
)

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason=MISSING)


def load_with_engine(settings: gn.config.Settings) -> tuple[Any, Any]:
    """Return the result of `gn.load_model` with vLLM, whose engine starts inside the loader.

    Replaced is what needs CUDA, and nothing else: the kit's `vllm_loading_obstacle`, which asks for
    a GPU; and in Unsloth's `FastLanguageModel`, which refuses `fast_inference` on a CPU
    (unsloth_zoo/cpu/loader.py), its `load_vllm`, which refuses float32, and what attaches the
    engine (unsloth/models/llama.py, from_pretrained and get_peft_model).
    """
    import unsloth
    from unsloth.models._utils import patch_peft_fast_inference

    from unsloth_zoo import vllm_utils

    from grpo_nb.models import load

    # As fast_inference_setup does (unsloth/models/_utils.py): its log is at INFO from here on.
    vllm_utils.patch_vllm()
    stock = unsloth.FastLanguageModel

    class OnTheCpu:
        @staticmethod
        def from_pretrained(
            *,
            fast_inference: bool = False,
            max_lora_rank: int = 0,
            gpu_memory_utilization: float = 0,
            **others: Any,
        ) -> tuple[Any, Any]:
            model, tokenizer = stock.from_pretrained(**others)
            if fast_inference:
                _attach(
                    _engine(others["model_name"], others["max_seq_length"], max_lora_rank), model
                )
            return model, tokenizer

        @staticmethod
        def get_peft_model(model: Any, **others: Any) -> Any:
            model = stock.get_peft_model(model, **others)
            patch_peft_fast_inference(model)
            return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unsloth, "FastLanguageModel", OnTheCpu)
        patch.setattr(load, "vllm_loading_obstacle", lambda *_: None)
        return gn.load_model(settings.replace(fast_inference=True))


def start_engine(model: Any) -> Any:
    """Start an engine on the model's folder and set the attributes that Unsloth sets with one."""
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"  # what asks for it reads its own output
    from unsloth.models._utils import patch_peft_fast_inference

    from unsloth_zoo import vllm_utils

    vllm_utils.patch_vllm(debug=False)
    engine = _engine(model.get_base_model().config._name_or_path, longest=256, rank=16)
    _attach(engine, model.model)
    patch_peft_fast_inference(model)
    return engine


def _engine(folder: str, longest: int, rank: int) -> Any:
    """vLLM as Unsloth starts it, for a CPU."""
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        # As Unsloth sets it: the engine lives in this process.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    from vllm import LLM

    return LLM(
        folder,
        dtype="float32",
        max_model_len=longest,
        max_num_seqs=16,
        enforce_eager=True,
        enable_lora=True,
        max_lora_rank=rank,
        logprobs_mode="processed_logprobs",
        max_logprobs=0,
    )


def _attach(engine: Any, model: Any) -> None:
    from unsloth_zoo import vllm_utils

    model.vllm_engine = engine
    model.fast_generate = engine.generate
    model.fast_generate_batches = functools.partial(vllm_utils.generate_batches, engine)


def trained_tensors(model: Any) -> dict[str, Any]:
    """Copies of the LoRA as it is now, by name."""
    return {
        name: weight.detach().clone()
        for name, weight in model.named_parameters()
        if ".lora_" in name
    }
